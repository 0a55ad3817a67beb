"""`TDMPC2`, the class a user trains."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from wm_collect.agent import Agent, check_one_seed
from wm_collect.clocks import Clock
from wm_collect.deploy import Deployable
from wm_collect.diagnostics import Diagnostics
from wm_collect.environment import make_env
from wm_collect.evaluate import Evaluation, Trajectory
from wm_collect.loop import Algorithm, RunState
from wm_tdmpc2.config import LearningRate, TDMPC2Settings, resolve_config
from wm_tdmpc2.deploy import PlannerBudget, acting_params, deployed_policy, initial_carry
from wm_tdmpc2.diagnostics import LOG_PANELS, diagnose
from wm_tdmpc2.networks import parameter_counts
from wm_tdmpc2.protocols import PROTOCOLS
from wm_tdmpc2.schedule import schedule_of
from wm_tdmpc2.train import NAME, make_algorithm, make_evaluator, replay_of


class TDMPC2(Agent):
    """TD-MPC2 on one continuous-control task.

    Learns a latent model of the task and plans with it at every step. Follows the code behind the
    paper's numbers (nicklashansen/tdmpc2@b67b21c); `docs/deviations.md` lists every departure.

    Paper protocol on DeepMind Control tasks: `model_size=5, action_repeat=2`.

    Episodes have a fixed length; a task that terminates is refused, unless `episodic=True`. The
    agent then also learns where episodes terminate, in the way of the original's later code
    (nicklashansen/tdmpc2@e9f5932), and `n_timesteps` counts rows: one per agent step and one per
    reset, over all environments. For terminating tasks the later code also uses `rho=0.7,
    discount_max=0.99`.

    Args:
        env_id: id of a Gymnax, Brax or MuJoCo Playground environment, a registered name, or an
            environment object (see `wm_collect.make_env`).
        env_params: parameters of the environment, see `wm_collect.make_env`.
        terminates: whether episodes may end early, for an environment nothing is known about.
        extensions: objects that add to the run, see `wm_collect.extensions`.

    The other arguments are the fields of `TDMPC2Settings`, which documents each of them.

    Raises:
        ValueError: a value is out of range or does not fit the task; one sentence says which.
        ModuleNotFoundError: the environment's library is not installed.

    Attributes:
        settings: the arguments as given.
        config: the settings resolved for the task, as the pure functions take them.
        env_id: as given, or the name of the environment object.
        env_params: as given.
    """

    name = NAME
    replay_setting = "buffer_size"
    protocols = PROTOCOLS
    log_panels = LOG_PANELS

    def __init__(
        self,
        env_id: str | Any,
        n_envs: int = 1,
        model_size: int = 5,
        enc_dim: int | None = None,
        mlp_dim: int | None = None,
        latent_dim: int | None = None,
        num_enc_layers: int | None = None,
        num_q: int | None = None,
        simnorm_dim: int = 8,
        num_bins: int = 101,
        vmax: float = 10.0,
        dropout: float = 0.01,
        horizon: int = 3,
        rho: float = 0.5,
        consistency_coef: float = 20.0,
        reward_coef: float = 0.1,
        value_coef: float = 0.1,
        learning_rate: LearningRate = 3e-4,
        enc_lr_scale: float = 0.3,
        grad_clip_norm: float = 20.0,
        pi_eps: float = 1e-5,
        tau: float = 0.01,
        entropy_coef: float = 1e-4,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        batch_size: int = 256,
        buffer_size: int = 1_000_000,
        seed_steps: int | None = None,
        updates_per_step: float = 1.0,
        gamma: float | None = None,
        discount_denom: int = 5,
        discount_min: float = 0.95,
        discount_max: float = 0.995,
        iterations: int = 6,
        num_samples: int = 512,
        num_elites: int = 64,
        num_pi_trajs: int = 24,
        min_std: float = 0.05,
        max_std: float = 2.0,
        temperature: float = 0.5,
        episode_length: int | None = None,
        action_repeat: int = 1,
        episodic: bool = False,
        termination_coef: float = 1.0,
        env_params: Any = None,
        terminates: bool | None = None,
        extensions: Sequence[Any] = (),
    ) -> None:
        given = locals()
        names = [field.name for field in dataclasses.fields(TDMPC2Settings)]
        self.settings = TDMPC2Settings(**{name: given[name] for name in names})
        env = make_env(
            env_id,
            episode_length=episode_length,
            action_repeat=action_repeat,
            env_params=env_params,
            terminates=terminates,
        )
        super().__init__(env, extensions)
        self.env_id = env_id if isinstance(env_id, str) else env.spec.env_id
        self.env_params = env_params
        self.config = resolve_config(self.settings, env.spec)
        self.schedule = schedule_of(self.config)

    @property
    def clock(self) -> Clock:
        """Environment steps, and frames: steps times the action repeat.

        Rows instead of steps if the agent is episodic, reset rows included.
        """
        repeat = self.env.spec.action_repeat
        return Clock(
            timestep=self.schedule.timesteps_before,
            env_frames=lambda tick: self.schedule.timesteps_before(tick) * repeat,
            unit="rows" if self.config.episodic else "env steps",
        )

    def algorithm(self, n_timesteps: int) -> Algorithm:
        """Return the functions of a run that ends at `n_timesteps`, its replay sized for it."""
        return make_algorithm(self.env, self.config, replay_of(self.config, n_timesteps))

    def evaluator(self, n_episodes: int, *, record: bool = False) -> Callable[..., Evaluation]:
        """Return `evaluate(agent_state, key)`: the planner without noise on the executed action."""
        return make_evaluator(self.env, self.config, n_episodes, record=record)

    def diagnose(
        self, state: RunState, episodes: Sequence[Trajectory], key: jax.Array
    ) -> Diagnostics:
        """Compare rolled-out latents, rewards, ends and values with recorded episodes."""
        return diagnose(
            state.agent.learner,
            episodes,
            key,
            terminates=self.env.spec.terminates,
            config=self.config,
        )

    def deployable(
        self,
        state: RunState,
        *,
        iterations: int | None = None,
        num_samples: int | None = None,
        policy_only: bool = False,
    ) -> Deployable:
        """Return the planner as evaluations use it, for `wm_collect.deploy.export_policy`.

        Args:
            state: a state without a seed axis.
            iterations: planner iterations of one decision; None keeps the agent's.
            num_samples: planner candidates per iteration; None keeps the agent's. Elites and policy
                trajectories keep their share of them.
            policy_only: act by the mean of the policy prior, without planning.

        Raises:
            ValueError: the state holds several seeds, or a number is out of range.
        """
        check_one_seed(state.agent.collector.rows)
        budget = PlannerBudget(
            iterations=iterations, num_samples=num_samples, policy_only=policy_only
        )
        config = self.config
        return Deployable(
            agent=self.name,
            env=self.env,
            weights=acting_params(state.agent.learner, budget),
            init_carry=lambda n: initial_carry(config, budget, n),
            act=lambda params, *decision: deployed_policy(params, config=config, budget=budget)(
                *decision
            ),
            planner=budget.describe(config),
        )

    def resized(self, state: RunState, n_timesteps: int) -> RunState:
        """Return the state with its replay ring sized for a run that ends at `n_timesteps`."""
        new: Any = replay_of(self.config, n_timesteps)
        held = state.agent.buffer
        # The size that depends on the run: rows per environment, or rounds of episodes.
        size, axis, ndim = ("capacity", -1, 2) if self.config.episodic else ("n_rounds", -3, 3)
        held_size = held.reward.shape[axis]
        if held_size == getattr(new, size):
            return state
        old = dataclasses.replace(new, **{size: held_size})
        next_tick = self.ticks_done(state)

        def adopt(buffer_state: Any) -> Any:
            return new.adopt(old, buffer_state, next_tick)

        batched = held.reward.ndim > ndim
        resized = (jax.vmap(adopt) if batched else adopt)(held)
        return dataclasses.replace(state, agent=dataclasses.replace(state.agent, buffer=resized))

    def replay_bytes_per_seed(self, n_timesteps: int) -> int:
        """Return the bytes of one seed's replay in a run of `n_timesteps`."""
        return replay_of(self.config, n_timesteps).bytes

    def parameter_counts(self) -> dict[str, int]:
        """Return the learnable parameters of each network and in `total` (target Q excluded)."""
        return parameter_counts(self.config)

    def describe(self) -> dict[str, str]:
        """Return what there is to know before a run, as label and text."""
        c, spec, counts = self.config, self.env.spec, self.parameter_counts()
        parts = ", ".join(f"{name} {n:,}" for name, n in counts.items() if name != "total")
        unit = "row" if c.episodic else "step"
        capacity_mb = self.replay_bytes_per_seed(c.buffer_size) / 1e6
        return {
            "environment": f"{spec.env_id} ({spec.backend}), observation {spec.obs_dim}, "
            f"action {spec.action_dim}",
            "episode": f"{'up to ' if c.episodic else ''}{spec.episode_length} agent steps of "
            f"{spec.action_repeat} simulator step(s), "
            + ("terminations are learned" if c.episodic else "fixed length"),
            "parameters": f"{counts['total']:,} ({parts})",
            "widths": f"encoder {c.enc_dim}, hidden {c.mlp_dim}, latent {c.latent_dim}, "
            f"{c.num_q} Q networks",
            "discount": f"{c.gamma:g}",
            "schedule": f"{c.n_envs} environment(s); {c.seed_steps:,} random {unit}s, then "
            f"{c.seed_steps:,} updates at once, then {self.schedule.updates_per_tick} update(s) "
            f"per {c.n_envs} {unit}(s)",
            "planner": f"{c.iterations} iterations of {c.num_samples} candidates "
            f"({c.num_pi_trajs} from the policy), {c.num_elites} elites, horizon {c.horizon}",
            "replay": f"{capacity_mb:,.1f} MB per seed when {c.buffer_size:,} {unit}s are held; "
            "a shorter run holds less",
        }
