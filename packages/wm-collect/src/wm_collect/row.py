"""A row: what one environment contributes at one tick.

Rows are aligned on the observation: a row holds the observation acted on, the action chosen for
it, and the reward received on entering it. An episode of T agent steps is T + 1 rows: row 0 is the
reset row and row T the last row, which has an observation and a reward but no action. Replays of
both agents store rows in this one form and each cuts out of them what it needs.
"""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of each of N environments; stacks of rows carry further axes in front.

    Three rules tie the flags together. `is_first` and `is_last` exclude one another, because an
    episode has at least one agent step. Every `is_last` row is followed by an `is_first` row of
    the same environment, and by nothing else. `is_terminal` implies `is_last`: a last row that is
    not terminal was cut by the time limit, and its return is to be bootstrapped.

    Attributes:
        obs: observation acted on at this tick, `[N, O]` float32; on a last row the final
            observation.
        action: the agent's raw action, `[N, A]` float32 in agent units or `[N]` int32; 0 when
            `is_last`.
        reward: reward received on entering `obs`, `[N]` float32; 0 when `is_first`.
        is_first: whether `obs` comes from a reset, `[N]` bool.
        is_last: whether `obs` is the final observation of its episode, `[N]` bool.
        is_terminal: whether the environment itself ended the episode here, `[N]` bool; never at a
            time limit (deviation D33).
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """Which of N environments finished an episode at this tick, how it went, and what is finite.

    Attributes:
        finished: whether this tick's row is the last of an episode, `[N]` bool.
        episode_return: sum of the episode's rewards, undiscounted, `[N]` float32; 0 where not
            finished.
        episode_length: agent steps of the episode, `[N]` int32; 0 where not finished.
        obs_finite: whether all of this tick's observation is finite, `[N]` bool.
        reward_finite: whether its reward is, `[N]` bool.
        action_finite: whether all of its action is, `[N]` bool.
    """

    finished: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    obs_finite: jax.Array
    reward_finite: jax.Array
    action_finite: jax.Array
