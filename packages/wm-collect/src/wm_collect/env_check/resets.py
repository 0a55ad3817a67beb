"""Does an environment reset itself, so that the last observation of an episode is lost?

An automatic reset shows in the observation of the step that ends an episode, or of the step after
it. It is recognised by any of three signs, each of which has to hold for all episodes that ended:

* the observation is the one the episode began with (a cached first state);
* it depends on the step's key and not on the state stepped from (a start drawn from that key);
* it lies among the observations of resets, a jump away from the one before (any other start).
"""

from collections.abc import Iterator

import jax
import numpy as np

from wm_collect.env_check.report import Finding
from wm_collect.env_check.running import Episodes, step_with_shared_keys
from wm_collect.environment import Environment

# Changes per step that an episode must have shown before a jump can be told from them.
_FEWEST_CHANGES = 5
_JUMP = 3.0


def resets_itself(env: Environment, episodes: Episodes, key: jax.Array) -> Iterator[Finding]:
    """Look for an automatic reset at the ends of episodes.

    Args:
        env: the environment as an agent would use it.
        episodes: some of its episodes.
        key: draws the steps that are made again.

    Yields:
        At most one finding.
    """
    ended = np.flatnonzero(episodes.ends < len(episodes.obs) - 1)
    if len(ended) < 2:
        return
    for later, where in ((0, "the step that ends an episode"), (1, "the step after an end")):
        if (
            _is_own_first(episodes, ended, later)
            or _jumps_among_resets(episodes, ended, later)
            or _depends_on_key_only(env, episodes, ended, later, key)
        ):
            yield Finding(
                "error",
                "auto-reset",
                f"The environment resets itself: {where} returns an observation of a new episode. "
                f"Return what the step led to, and leave the reset to the collector (in Gymnax's "
                f"interface override reset_env and step_env; in Brax leave out the wrapper).",
            )
            return


def _around(episodes: Episodes, ended: np.ndarray, later: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the observations before and after the suspected step, each `[ended, O]`."""
    ends = episodes.ends[ended] + later
    first = episodes.reset_obs[ended]
    before = np.where((ends > 0)[:, None], episodes.obs[ends - 1, ended], first)
    return before, episodes.obs[ends, ended]


def _is_own_first(episodes: Episodes, ended: np.ndarray, later: int) -> bool:
    before, after = _around(episodes, ended, later)
    first = episodes.reset_obs[ended]
    changed = (before != first).any(-1)
    return bool(changed.any() and (after == first).all(-1)[changed].all())


def _jumps_among_resets(episodes: Episodes, ended: np.ndarray, later: int) -> bool:
    low, high = episodes.reset_obs.min(0), episodes.reset_obs.max(0)
    before, after = _around(episodes, ended, later)
    # The resets seen do not reach their extremes, so a new start may lie a little outside.
    margin = 0.1 * (high - low)
    if not ((low - margin <= after) & (after <= high + margin)).all():
        return False
    paths = [
        np.concatenate([episodes.reset_obs[None, i], episodes.obs[: episodes.ends[i], i]])
        for i in ended
    ]
    ordinary = np.concatenate([np.abs(np.diff(path, axis=0)) for path in paths])
    if len(ordinary) < _FEWEST_CHANGES:
        return False
    jumps = (np.abs(after - before) > _JUMP * ordinary.max(0)).any(-1)
    return bool(jumps.all())


def _depends_on_key_only(
    env: Environment, episodes: Episodes, ended: np.ndarray, later: int, key: jax.Array
) -> bool:
    states = episodes.at_end if later else episodes.before_end
    chosen = jax.tree.map(lambda leaf: leaf[ended], states)
    before, _ = _around(episodes, ended, later)
    repeated = step_with_shared_keys(env, chosen, episodes.last_action[ended], key)
    # A step that is made again with another key may not end the episode this time.
    usable = np.full(len(ended), True) if later else repeated.done.all(0)
    if usable.sum() < 2 or (before[usable] == before[usable][:1]).all():
        return False
    with_first, with_second = repeated.obs[:, usable]
    independent_of_state = (with_first == with_first[:1]).all()
    return bool(independent_of_state and (with_first != with_second).any(-1).all())
