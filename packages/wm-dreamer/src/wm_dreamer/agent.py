"""`DreamerV3`, the class a user trains."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from wm_collect.agent import Agent, check_one_seed
from wm_collect.clocks import Clock
from wm_collect.deploy import Deployable
from wm_collect.diagnostics import Diagnostics
from wm_collect.environment import make_env
from wm_collect.evaluate import Evaluation, Trajectory
from wm_collect.loop import Algorithm, RunState
from wm_dreamer.config import DreamerV3Settings, LearningRate, resolve_config
from wm_dreamer.diagnostics import LOG_PANELS, diagnose
from wm_dreamer.networks import init_params
from wm_dreamer.open_loop import draw_open_loop
from wm_dreamer.policy import acting_params, initial_carry
from wm_dreamer.protocols import PROTOCOLS
from wm_dreamer.schedule import Schedule
from wm_dreamer.train import (
    NAME,
    filtering_policy,
    make_algorithm,
    make_evaluator,
    stream_replay,
)


class DreamerV3(Agent):
    """DreamerV3 on one task with vector observations, discrete or continuous actions.

    Learns a recurrent latent model of the task, and an actor and a critic in the model's
    imagination. Follows the code behind the paper's numbers (danijar/dreamerv3@2411f7d, with the
    fix 29eb964); `docs/deviations.md` lists every departure. `n_timesteps` counts rows, over all
    environments: one per agent step and one per reset.

    Paper protocol on DeepMind Control from proprioception: `model_size="12m", n_envs=16,
    train_ratio=512, action_repeat=2, episode_length=1000`, 250,000 rows (D40).

    Args:
        env_id: id of a Gymnax, Brax or MuJoCo Playground environment, a registered name, or an
            environment object (see `wm_collect.make_env`).
        env_params: parameters of the environment, see `wm_collect.make_env`.
        terminates: whether episodes may end early, for an environment nothing is known about.
        extensions: objects that add to the run, see `wm_collect.extensions`.

    The other arguments are the fields of `DreamerV3Settings`, which documents each of them.

    Raises:
        ValueError: a value is out of range or does not fit the task; one sentence says which.
        ModuleNotFoundError: the environment's library is not installed.

    Attributes:
        settings: the arguments as given.
        config: the settings resolved for the task, as the pure functions take them.
    """

    name = NAME
    replay_setting = "replay_capacity"
    protocols = PROTOCOLS
    log_panels = LOG_PANELS
    predicts_observations = True

    def __init__(
        self,
        env_id: str | Any,
        n_envs: int = 16,
        model_size: str = "12m",
        units: int | None = None,
        deter: int | None = None,
        hidden: int | None = None,
        classes: int | None = None,
        stoch: int = 32,
        blocks: int = 8,
        enc_layers: int = 3,
        dec_layers: int = 3,
        rew_layers: int = 1,
        con_layers: int = 1,
        actor_layers: int = 3,
        critic_layers: int = 3,
        bins: int = 255,
        free_nats: float = 1.0,
        unimix: float = 0.01,
        actor_unimix: float = 0.01,
        dyn_scale: float = 1.0,
        rep_scale: float = 0.1,
        rec_scale: float = 1.0,
        rew_scale: float = 1.0,
        con_scale: float = 1.0,
        actor_scale: float = 1.0,
        critic_scale: float = 1.0,
        repval_scale: float = 0.3,
        train_ratio: float = 512.0,
        batch_size: int = 16,
        batch_length: int = 64,
        imag_horizon: int = 15,
        return_horizon: float = 333.0,
        lam: float = 0.95,
        repval_lam: float = 0.95,
        actent: float = 3e-4,
        slowreg: float = 1.0,
        slow_rate: float = 0.02,
        retnorm_rate: float = 0.01,
        retnorm_limit: float = 1.0,
        minstd: float = 0.1,
        maxstd: float = 1.0,
        learning_rate: LearningRate = 4e-5,
        agc: float = 0.3,
        agc_pmin: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-20,
        warmup: int = 1000,
        replay_capacity: int = 5_000_000,
        episode_length: int | None = None,
        action_repeat: int = 1,
        env_params: Any = None,
        terminates: bool | None = None,
        extensions: Sequence[Any] = (),
    ) -> None:
        given = locals()
        names = [field.name for field in dataclasses.fields(DreamerV3Settings)]
        self.settings = DreamerV3Settings(**{name: given[name] for name in names})
        env = make_env(
            env_id,
            episode_length=episode_length,
            action_repeat=action_repeat,
            env_params=env_params,
            terminates=terminates,
        )
        super().__init__(env, extensions)
        self.config = resolve_config(self.settings, env.spec)
        self.schedule = Schedule.of(self.config)

    @property
    def clock(self) -> Clock:
        """Rows, and frames: rows times the action repeat, reset rows included."""
        repeat = self.env.spec.action_repeat
        return Clock(
            timestep=self.schedule.rows_before,
            env_frames=lambda tick: self.schedule.rows_before(tick) * repeat,
            unit="rows",
        )

    def algorithm(self, n_timesteps: int) -> Algorithm:
        """Return the functions of a run that ends at `n_timesteps`, its replay sized for it."""
        return make_algorithm(self.env, self.config, stream_replay(self.config, n_timesteps))

    def evaluator(self, n_episodes: int, *, record: bool = False) -> Callable[..., Evaluation]:
        """Return `evaluate(agent_state, key)`: the sampling policy, which has no other mode."""
        return make_evaluator(self.env, self.config, n_episodes, record=record)

    def deployable(self, state: RunState) -> Deployable:
        """Return the sampling policy, which has no other mode, for `wm_collect.deploy`.

        Args:
            state: a state without a seed axis.

        Raises:
            ValueError: the state holds several seeds.
        """
        check_one_seed(state.agent.collector.rows)
        config = self.config

        def act(
            params: Any, carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
        ) -> tuple[jax.Array, Any]:
            return filtering_policy(params, config=config)(carry, obs, is_first, key)[:2]

        return Deployable(
            agent=self.name,
            env=self.env,
            weights=acting_params(state.agent.learner.params),
            init_carry=lambda n: initial_carry(config, n),
            act=act,
        )

    def draw_predictions(self, state: RunState, episode: Evaluation, path: Path) -> None:
        """Draw open-loop predictions of a recorded episode, see `wm_dreamer.open_loop`."""
        if episode.trajectory is None:
            raise ValueError("the evaluation has no trajectory; evaluate with record=True.")
        params = state.agent.learner.params
        draw_open_loop(params, episode.trajectory, path, config=self.config)

    def diagnose(
        self, state: RunState, episodes: Sequence[Trajectory], key: jax.Array
    ) -> Diagnostics:
        """Compare open-loop predictions, rewards, ends and values with recorded episodes."""
        return diagnose(state.agent.learner, episodes, key, config=self.config)

    def resized(self, state: RunState, n_timesteps: int) -> RunState:
        """Return the state with its replay rings sized for a run that ends at `n_timesteps`."""
        new = stream_replay(self.config, n_timesteps)
        held = state.agent.replay
        capacity = held.reward.shape[-1]
        if capacity == new.capacity:
            return state
        old = dataclasses.replace(new, capacity=capacity)
        n_ticks = self.ticks_done(state)

        def adopt(replay_state: Any) -> Any:
            return new.adopt(old, replay_state, n_ticks)

        batched = held.reward.ndim > 2
        resized = (jax.vmap(adopt) if batched else adopt)(held)
        return dataclasses.replace(state, agent=dataclasses.replace(state.agent, replay=resized))

    def replay_bytes_per_seed(self, n_timesteps: int) -> int:
        """Return the bytes of one seed's replay in a run of `n_timesteps` rows."""
        return stream_replay(self.config, n_timesteps).bytes

    def parameter_counts(self) -> dict[str, int]:
        """Return the learnable parameters of each network and in `total`.

        The slow critic is not counted, and two-hot heads have as many outputs as bins: the
        reference's count has (rew + critic) 2·(units + 1) parameters more, which are never read.
        """
        params = jax.eval_shape(lambda k: init_params(k, config=self.config), jax.random.key(0))
        counts = {
            name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in params.items()
        }
        return counts | {"total": sum(counts.values())}

    def describe(self) -> dict[str, str]:
        """Return what there is to know before a run, as label and text."""
        c, spec, counts = self.config, self.env.spec, self.parameter_counts()
        parts = ", ".join(f"{name} {n:,}" for name, n in counts.items() if name != "total")
        replay = stream_replay(c, c.replay_capacity)
        length = "up to" if c.terminates else "always"
        resets = "reset whenever one ends" if c.terminates else "reset together"
        first = self.schedule.first_update_tick
        return {
            "environment": f"{spec.env_id} ({spec.backend}), observation {spec.obs_dim}, "
            + (
                f"{spec.action_dim} discrete actions" if c.discrete else f"action {spec.action_dim}"
            ),
            "episode": f"{length} {spec.episode_length} agent steps of {spec.action_repeat} "
            f"simulator step(s), and one row for the reset; {resets}",
            "parameters": f"{counts['total']:,} ({parts})",
            "widths": f"deterministic state {c.deter} in {c.blocks} blocks, {c.stoch} latents of "
            f"{c.classes} classes, hidden {c.hidden}, heads {c.units}",
            "discount": f"{c.gamma:g} (return horizon {c.return_horizon:g} steps), imagination "
            f"{c.imag_horizon} steps",
            "schedule": f"{c.n_envs} environment(s); first update after "
            f"{self.schedule.rows_before(first + 1):,} rows, then {self.schedule.updates_per_row} "
            f"update(s) per row; batches of {c.batch_size} x {c.batch_length} rows",
            "replay": f"{replay.bytes_per_row:,} bytes a row, {replay.bytes / 1e6:,.1f} MB per "
            f"seed when {c.replay_capacity:,} rows are held; a shorter run holds less",
        }
