"""`TDMPC2MultiTask`, the class a user trains."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.agent import Trainer, check_one_seed, play_episodes, same_count
from wm_collect.clocks import Clock
from wm_collect.compile_cache import enable_compile_cache, quiet_xla
from wm_collect.deploy import Deployable
from wm_collect.diagnostics import Diagnostics
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluation, TaskEvaluations, Trajectory
from wm_collect.loop import Algorithm, RunState
from wm_multitask.config import MultiTaskSettings, resolve_config
from wm_multitask.dataset import MultiTaskDataset
from wm_multitask.deploy import deployable_task
from wm_multitask.sampling import OfflineData
from wm_multitask.train import NAME, make_algorithm, make_evaluator, task_context
from wm_tdmpc2.config import LearningRate
from wm_tdmpc2.deploy import PlannerBudget
from wm_tdmpc2.diagnostics import LOG_PANELS, diagnose
from wm_tdmpc2.networks import parameter_counts

NORMALISED_SCORE = "Eval/normalised score"


class TDMPC2MultiTask(Trainer):
    """TD-MPC2 on several continuous-control tasks at once, learned offline from a dataset.

    One world model and one planner serve all tasks, told apart by a learned embedding. Training
    reads the dataset alone: a timestep is an update. The planner acts in evaluations, which build
    each task's environment. Follows nicklashansen/tdmpc2@b67b21c; `docs/deviations.md` lists every
    departure.

    Args:
        dataset: episodes of all tasks, from `pool_tasks` or `load_dataset`. It is put on the device
            once, whatever the number of seeds.
        extensions: objects that add to the run, see `wm_collect.extensions`.

    The other arguments are the fields of `MultiTaskSettings`, which documents each of them.

    Raises:
        ValueError: the dataset is malformed, or a value is out of range or does not fit it; one
            sentence says which.

    Attributes:
        dataset: the dataset.
        tasks: its tasks.
        settings: the arguments as given.
        config: the settings resolved for the tasks, as the pure functions take them.
    """

    name = NAME
    log_panels = LOG_PANELS

    def __init__(
        self,
        dataset: MultiTaskDataset,
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
        batch_size: int = 1024,
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
        task_dim: int = 96,
        extensions: Sequence[Any] = (),
    ) -> None:
        given = locals()
        names = [field.name for field in dataclasses.fields(MultiTaskSettings)]
        self.settings = MultiTaskSettings(**{name: given[name] for name in names})
        super().__init__(extensions)
        # The numbers are checked by whoever made the dataset; reading them all takes minutes.
        dataset.check_shapes()
        self.dataset = dataset
        self.tasks = dataset.tasks
        self.config = resolve_config(self.settings, self.tasks, dataset.n_rows)

    @property
    def subject(self) -> str:
        """The number of tasks."""
        return f"{self.tasks.n_tasks} tasks"

    @property
    def clock(self) -> Clock:
        """Updates; no environment is stepped."""
        return Clock(timestep=lambda tick: tick, env_frames=lambda tick: 0, unit="updates")

    @cached_property
    def shared(self) -> OfflineData:
        """The dataset on the device."""
        return OfflineData.of(self.dataset)

    @cached_property
    def envs(self) -> tuple[Environment, ...]:
        """Each task's environment, built when first asked for.

        Raises:
            ValueError: an environment is not what the dataset's task says.
        """
        return tuple(task.make_env() for task in self.tasks.tasks)

    def algorithm(self, n_timesteps: int) -> Algorithm:
        """Return the functions of a run, which do not depend on its length."""
        del n_timesteps
        return make_algorithm(self.tasks, self.config)

    def evaluation(self, n_episodes: int) -> TaskEvaluations:
        """Return what measures each task, and the score: the mean over tasks of return / 10.

        The score is the paper's, for DeepMind Control tasks, whose returns go up to 1,000.
        """
        return TaskEvaluations(
            tasks={
                task.name: make_evaluator(env, self.tasks, i, self.config, n_episodes)
                for i, (task, env) in enumerate(zip(self.tasks.tasks, self.envs, strict=True))
            },
            summary=lambda returns: {
                NORMALISED_SCORE: np.mean(list(returns.values()), axis=0) / 10
            },
        )

    def deployable(
        self,
        state: RunState,
        *,
        task: str | None = None,
        iterations: int | None = None,
        num_samples: int | None = None,
        policy_only: bool = False,
    ) -> Deployable:
        """Return the policy of one task, for `wm_collect.deploy.export_policy`.

        It observes and acts in the task's own sizes.

        Args:
            state: a state without a seed axis.
            task: the task's name; may be left out if there is only one.
            iterations: planner iterations of one decision; None keeps the agent's.
            num_samples: planner candidates per iteration; None keeps the agent's. Elites and policy
                trajectories keep their share of them.
            policy_only: act by the mean of the policy prior, without planning.

        Raises:
            ValueError: the state holds several seeds, the task is unknown or has to be named, a
                number is out of range, or the environment is not what the dataset's task says.
        """
        check_one_seed(state.agent.n_updates)
        budget = PlannerBudget(
            iterations=iterations, num_samples=num_samples, policy_only=policy_only
        )
        index = self.tasks.chosen(task)
        return deployable_task(
            state.agent.learner,
            self.tasks,
            index,
            self.tasks.tasks[index].make_env(),
            config=self.config,
            budget=budget,
        )

    def ticks_done(self, state: RunState) -> int:
        """Return the updates behind a state.

        Raises:
            ValueError: the seeds of the state are not equally far.
        """
        return same_count(state.agent.n_updates, "updates")

    def record_episodes(
        self, state: RunState, task: str, *, n_episodes: int = 8, seed: int = 0
    ) -> list[Trajectory]:
        """Play episodes of a task, see `wm_collect.agent.play_episodes`.

        Episode i is the one that `evaluate` records of the task with the seed `seed + i`.

        Args:
            state: a state without a seed axis.
            task: the task's name.
            n_episodes: at least 1.
            seed: draws the episodes; unrelated to the training seed.

        Raises:
            ValueError: the task is unknown, or `n_episodes` is below 1.
        """
        index = self.tasks.index(task)
        evaluate = make_evaluator(self.envs[index], self.tasks, index, self.config, 1, record=True)
        keys = [jax.random.fold_in(jax.random.key(seed + i), index) for i in range(n_episodes)]
        return play_episodes(evaluate, state, keys)

    def diagnose(
        self, state: RunState, task: str, episodes: Sequence[Trajectory], key: jax.Array
    ) -> Diagnostics:
        """Return how well a state's predictions fit episodes of a task that it played.

        Args:
            state: a state without a seed axis.
            task: the task's name.
            episodes: see `record_episodes`.
            key: draws what predictions sample; consumed.

        Raises:
            ValueError: the task is unknown.
        """
        index = self.tasks.index(task)
        return diagnose(
            state.agent.learner,
            [self._padded(episode) for episode in episodes],
            key,
            terminates=False,
            config=self.config,
            task=task_context(self.tasks, self.config, jnp.int32(index)),
        )

    def _padded(self, episode: Trajectory) -> Trajectory:
        """Return an episode of a task in the widths of the networks."""

        def widened(rows: jax.Array, width: int) -> jax.Array:
            return jnp.pad(rows, ((0, 0), (0, width - rows.shape[-1])))

        return dataclasses.replace(
            episode,
            obs=widened(episode.obs, self.config.obs_dim),
            action=widened(episode.action, self.config.action_dim),
        )

    def evaluate(
        self,
        state: RunState,
        *,
        n_episodes: int = 10,
        seed: int = 0,
        tasks: Sequence[str] | None = None,
        record: bool = False,
    ) -> dict[str, Evaluation]:
        """Run episodes of each task with a trained state of one seed.

        Args:
            state: a state without a seed axis.
            n_episodes: episodes of each task, all stepped together.
            seed: draws the episodes; unrelated to the training seed.
            tasks: names of the tasks to measure; None for all.
            record: keep the first episode's trajectory, for rendering.

        Returns:
            What was measured, by task.

        Raises:
            ValueError: a task is unknown.
        """
        enable_compile_cache()
        indices = [self.tasks.index(name) for name in tasks or self.tasks.names]
        measured = {}
        for i in indices:
            evaluate = make_evaluator(
                self.envs[i], self.tasks, i, self.config, n_episodes, record=record
            )
            key = jax.random.fold_in(jax.random.key(seed), i)
            with quiet_xla():
                result = jax.block_until_ready(jax.jit(evaluate)(state.agent, key))
            measured[self.tasks.names[i]] = result
        return measured

    def parameter_counts(self) -> dict[str, int]:
        """Return the learnable parameters of each network and in `total` (target Q excluded)."""
        return parameter_counts(self.config)

    def describe(self) -> dict[str, str]:
        """Return what there is to know before a run, as label and text."""
        c, data, counts = self.config, self.dataset, self.parameter_counts()
        parts = ", ".join(f"{name} {n:,}" for name, n in counts.items() if name != "total")
        discounts = self.tasks.discounts(c.discount_denom, c.discount_min, c.discount_max)
        n_bytes = sum(array.nbytes for array in data.arrays().values())
        lines = {
            f"task {i}": f"{task.name}: observation {task.obs_dim}, action {task.action_dim}, "
            f"{task.episode_length} agent steps, discount {gamma:g}, {n:,} episodes"
            for i, (task, gamma, n) in enumerate(
                zip(self.tasks.tasks, discounts, data.episodes_per_task, strict=True)
            )
        }
        return lines | {
            "dataset": f"{data.n_episodes:,} episodes of {data.n_rows} rows, {n_bytes / 1e6:,.1f} "
            f"MB; padded to observation {c.obs_dim}, action {c.action_dim}",
            "parameters": f"{counts['total']:,} ({parts})",
            "widths": f"encoder {c.enc_dim}, hidden {c.mlp_dim}, latent {c.latent_dim}, "
            f"{c.num_q} Q networks, task embedding {c.task_dim}",
            "schedule": f"one update per timestep on {c.batch_size:,} slices of {c.horizon} steps",
            "planner": f"{c.iterations} iterations of {c.num_samples} candidates "
            f"({c.num_pi_trajs} from the policy), {c.num_elites} elites, in evaluations only",
        }
