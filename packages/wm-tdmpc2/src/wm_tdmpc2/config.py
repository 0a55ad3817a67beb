"""The settings a user gives, and the resolved configuration that the pure functions take.

`TDMPC2Settings` is the flat surface: hyperparameters with the paper's defaults, `None` where a
value follows from the model size or the task; `ModelSettings` is the part of it that does not
depend on how the data are collected. `resolve_config` checks them against a task and
fills every blank; the result, `TDMPC2Config`, is frozen and hashable and is passed as a static
argument to every function of the package.

Source: nicklashansen/tdmpc2@b67b21c, `config.yaml`, `common/__init__.py` (model sizes),
`tdmpc2.py` (discount heuristic, iterations), `envs/__init__.py` (seed steps).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from wm_collect.checks import check_count, check_positive, check_range, is_number
from wm_collect.environment import EnvSpec
from wm_numerics import TwoHot

LearningRate = float | Callable[[Any], Any]

# Widths of the reference's presets (millions of parameters → widths).
MODEL_SIZES: dict[int, dict[str, int]] = {
    1: {"enc_dim": 256, "mlp_dim": 384, "latent_dim": 128, "num_enc_layers": 2, "num_q": 2},
    5: {"enc_dim": 256, "mlp_dim": 512, "latent_dim": 512, "num_enc_layers": 2, "num_q": 5},
    19: {"enc_dim": 1024, "mlp_dim": 1024, "latent_dim": 768, "num_enc_layers": 3, "num_q": 5},
    48: {"enc_dim": 1792, "mlp_dim": 1792, "latent_dim": 768, "num_enc_layers": 4, "num_q": 5},
    317: {"enc_dim": 4096, "mlp_dim": 4096, "latent_dim": 1376, "num_enc_layers": 5, "num_q": 8},
}

# Action spaces of this many dimensions get two more planner iterations.
WIDE_ACTION_DIM = 20
WIDE_ACTION_EXTRA_ITERATIONS = 2

MIN_SEED_STEPS = 1_000
SEED_EPISODES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Hyperparameters of the networks, their training and the planner, with the paper's defaults.

    They are the same for the agents that collect their own data and for those that learn from a
    dataset. Sizes, bins, horizon and population counts are static: changing one compiles a new
    program.
    """

    model_size: int = 5
    """Preset of widths, in millions of parameters: 1, 5, 19, 48 or 317."""
    enc_dim: int | None = None
    """Encoder width; overrides the preset."""
    mlp_dim: int | None = None
    """Width of dynamics, reward, policy and Q networks; overrides the preset."""
    latent_dim: int | None = None
    """Width of the latent state; overrides the preset."""
    num_enc_layers: int | None = None
    """Encoder layers, the output layer included; 1 is as 2. Overrides the preset."""
    num_q: int | None = None
    """Members of the Q ensemble; overrides the preset."""
    simnorm_dim: int = 8
    """Features per simplex of the latent normalisation."""
    num_bins: int = 101
    """Bins of the two-hot reward and value heads."""
    vmax: float = 10.0
    """The bins span [-vmax, vmax] in symlog space."""
    dropout: float = 0.01
    """Dropout rate of the first layer of each Q network, active in every Q pass."""
    horizon: int = 3
    """Steps of a training slice and of a plan."""
    rho: float = 0.5
    """Loss weight of step t is rho**t."""
    consistency_coef: float = 20.0
    """Weight of the latent consistency loss."""
    reward_coef: float = 0.1
    """Weight of the reward loss."""
    value_coef: float = 0.1
    """Weight of the value loss."""
    learning_rate: LearningRate = 3e-4
    """Adam's step size; from Python also an optax schedule of the update count."""
    enc_lr_scale: float = 0.3
    """The encoder learns at learning_rate times this."""
    grad_clip_norm: float = 20.0
    """Global gradient norm of either optimiser is clipped to this."""
    pi_eps: float = 1e-5
    """Adam's epsilon of the policy optimiser (the world model's is 1e-8)."""
    tau: float = 0.01
    """EMA rate of the target Q networks and of the running scale."""
    entropy_coef: float = 1e-4
    """Weight of the policy's log-probability in its loss."""
    log_std_min: float = -10.0
    """Lower end of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper end of the policy's log standard deviation."""
    batch_size: int = 256
    """Slices per update."""
    discount_denom: int = 5
    """f = episode length / discount_denom; gamma = (f - 1) / f, clamped."""
    discount_min: float = 0.95
    """Lower clamp of the discount heuristic."""
    discount_max: float = 0.995
    """Upper clamp of the discount heuristic."""
    iterations: int = 6
    """Planner iterations; 2 more when the action has 20 or more dimensions."""
    num_samples: int = 512
    """Planner candidates per iteration, policy trajectories included."""
    num_elites: int = 64
    """Best candidates kept per iteration."""
    num_pi_trajs: int = 24
    """Candidates proposed by the policy prior."""
    min_std: float = 0.05
    """Lower clamp of the planner's sampling deviation."""
    max_std: float = 2.0
    """Upper clamp, and the deviation each decision starts from."""
    temperature: float = 0.5
    """Elite score is exp(temperature * (value - best)): an inverse temperature."""

    def __post_init__(self) -> None:
        """Check every value that can be judged without knowing the task."""
        _check_model(self)

    def widths(self) -> dict[str, int]:
        """Return the network widths: the preset's, where no explicit width overrides it."""
        preset = MODEL_SIZES[self.model_size]
        explicit = {name: getattr(self, name) for name in preset}
        return {name: preset[name] if v is None else v for name, v in explicit.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TDMPC2Settings(ModelSettings):
    """Hyperparameters of TD-MPC2, with the paper's defaults.

    The paper's DeepMind Control protocol is `model_size=5, action_repeat=2,
    episode_length=1000`.
    """

    n_envs: int = 1
    """Environments collected in lockstep; the reference has one."""
    buffer_size: int = 1_000_000
    """Replay capacity in environment steps; clamped to the run's length."""
    seed_steps: int | None = None
    """Random environment steps before learning; None is max(1000, 5 episodes)."""
    updates_per_step: float = 1.0
    """Updates per environment step after the seed phase."""
    gamma: float | None = None
    """Discount; None follows from the episode length (see discount_denom)."""
    episode_length: int | None = None
    """Episode length in simulator steps; None is the environment's own."""
    action_repeat: int = 1
    """Simulator steps per agent step; rewards are summed."""
    episodic: bool = False
    """Learn a task whose episodes may terminate: predict and mask terminations; timesteps are rows,
    one per agent step and one per reset."""
    termination_coef: float = 1.0
    """Weight of the termination loss of an episodic agent."""

    def __post_init__(self) -> None:
        """Check every value that can be judged without knowing the task."""
        super().__post_init__()
        _check_collection(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TDMPC2Config(TDMPC2Settings):
    """Settings with every blank filled for one task; static and hashable.

    What the pure functions of this package take. Values that `TDMPC2Settings` may leave open are
    required here, and the task's sizes are added.
    """

    obs_dim: int
    """Observation width."""
    action_dim: int
    """Action width."""
    agent_episode_length: int
    """T, the episode length in agent steps; the longest, if episodes may terminate."""
    n_tasks: int = 0
    """Tasks with an embedding each; 0 for the agent of a single task, which has none."""
    task_dim: int = 0
    """D, the width of a task's embedding."""
    enc_dim: int
    mlp_dim: int
    latent_dim: int
    num_enc_layers: int
    num_q: int
    gamma: float
    seed_steps: int

    @property
    def hidden_enc_layers(self) -> int:
        """Hidden layers of the encoder: all but the output layer, and at least one."""
        return max(self.num_enc_layers - 1, 1)

    @property
    def two_hot(self) -> TwoHot:
        """The two-hot coding shared by the reward and Q heads."""
        return TwoHot.tdmpc2(num_bins=self.num_bins, limit=self.vmax)


def discount(
    episode_length: int, *, denom: int = 5, minimum: float = 0.95, maximum: float = 0.995
) -> float:
    """Return the discount for episodes of `episode_length` agent steps.

    f = T / denom; γ = clip((f − 1) / f, minimum, maximum).

    Source: nicklashansen/tdmpc2@b67b21c, tdmpc2.py, `TDMPC2._get_discount`.
    """
    f = episode_length / denom
    return min(max((f - 1) / f, minimum), maximum)


def default_seed_steps(episode_length: int) -> int:
    """Return the random steps before learning: at least 1000 and at least five episodes.

    Source: nicklashansen/tdmpc2@b67b21c, envs/__init__.py, `make_env`.
    """
    return max(MIN_SEED_STEPS, SEED_EPISODES * episode_length)


def resolve_config(settings: TDMPC2Settings, spec: EnvSpec) -> TDMPC2Config:
    """Check the settings against a task and fill every value that follows from it.

    Raises:
        ValueError: the task has discrete actions or may terminate, or a setting does not fit
            its episode length or sizes; the sentence says which and what would work.
    """
    if spec.discrete:
        raise ValueError(
            f"TD-MPC2 plans over continuous actions, but {spec.env_id} has {spec.action_dim} "
            "discrete actions; use DreamerV3 for it, or a task with a Box action space."
        )
    if spec.terminates and not settings.episodic:
        raise ValueError(
            f"TD-MPC2 needs episodes of fixed length, but {spec.env_id} may terminate early; "
            "set episodic=True to learn terminations too, choose a task that never terminates, or "
            "pass terminates=False if this one does not."
        )
    length = spec.episode_length
    if settings.horizon > length:
        raise ValueError(
            f"horizon must be at most the episode length of {length} agent steps, "
            f"got {settings.horizon}."
        )
    # Where timesteps are rows, so is the replay's capacity; the reset row is one more.
    in_episode, unit = (length + 1, "rows") if settings.episodic else (length, "steps")
    in_round = in_episode * settings.n_envs
    if settings.buffer_size < in_round:
        raise ValueError(
            f"buffer_size must hold at least one episode of every environment, "
            f"{in_episode} {unit} x {settings.n_envs} environment(s) = {in_round}, "
            f"got {settings.buffer_size}."
        )
    seed_steps = settings.seed_steps
    if seed_steps is None:
        seed_steps = default_seed_steps(length)
    gamma = settings.gamma
    if gamma is None:
        gamma = discount(
            length,
            denom=settings.discount_denom,
            minimum=settings.discount_min,
            maximum=settings.discount_max,
        )
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    values |= settings.widths()
    values |= {
        "obs_dim": spec.obs_dim,
        "action_dim": spec.action_dim,
        "agent_episode_length": length,
        "gamma": float(gamma),
        "seed_steps": seed_steps,
        "iterations": planner_iterations(settings, spec.action_dim),
    }
    return TDMPC2Config(**values)


def planner_iterations(settings: ModelSettings, action_dim: int) -> int:
    """Return the planner's iterations for actions of `action_dim`: 2 more from 20 on."""
    extra = WIDE_ACTION_EXTRA_ITERATIONS if action_dim >= WIDE_ACTION_DIM else 0
    return settings.iterations + extra


def _check_model(s: ModelSettings) -> None:
    """Raise a `ValueError` for the first setting that no task could make valid."""
    if not is_number(s.model_size) or s.model_size not in MODEL_SIZES:
        known = ", ".join(map(str, MODEL_SIZES))
        raise ValueError(f"model_size must be one of {known}, got {s.model_size!r}.")
    widths = s.widths()
    counts = dict(
        simnorm_dim=s.simnorm_dim,
        horizon=s.horizon,
        batch_size=s.batch_size,
        iterations=s.iterations,
        num_samples=s.num_samples,
        num_elites=s.num_elites,
        discount_denom=s.discount_denom,
        **widths,
    )
    for name, value in counts.items():
        check_count(name, value, 1)
    check_count("num_pi_trajs", s.num_pi_trajs, 0)
    if widths["num_q"] < 2:
        raise ValueError(
            f"num_q must be at least 2, because values are combined over a pair of members, "
            f"got {widths['num_q']}."
        )
    if widths["latent_dim"] % s.simnorm_dim:
        raise ValueError(
            f"latent_dim must be a multiple of simnorm_dim={s.simnorm_dim}, "
            f"got {widths['latent_dim']}."
        )
    check_count("num_bins", s.num_bins, 3)
    if s.num_elites > s.num_samples:
        raise ValueError(
            f"num_elites must be between 1 and num_samples={s.num_samples}, got {s.num_elites}."
        )
    if s.num_pi_trajs >= s.num_samples:
        raise ValueError(
            f"num_pi_trajs must be below num_samples={s.num_samples}, so that some candidates "
            f"are sampled, got {s.num_pi_trajs}."
        )
    check_range("dropout", s.dropout, 0.0, 1.0, high_open=True)
    check_range("rho", s.rho, 0.0, 1.0, low_open=True)
    check_range("tau", s.tau, 0.0, 1.0, low_open=True)
    check_range("discount_min", s.discount_min, 0.0, 1.0)
    check_range("discount_max", s.discount_max, 0.0, 1.0)
    if s.discount_min > s.discount_max:
        raise ValueError(
            f"discount_min must be at most discount_max={s.discount_max}, got {s.discount_min}."
        )
    if not callable(s.learning_rate):
        check_positive("learning_rate", s.learning_rate)
    for name in (
        "vmax",
        "grad_clip_norm",
        "pi_eps",
        "min_std",
        "max_std",
        "temperature",
    ):
        check_positive(name, getattr(s, name))
    for name in (
        "enc_lr_scale",
        "consistency_coef",
        "reward_coef",
        "value_coef",
        "entropy_coef",
    ):
        check_range(name, getattr(s, name), 0.0, float("inf"), high_open=True)
    for name in ("log_std_min", "log_std_max"):
        check_range(
            name, getattr(s, name), -float("inf"), float("inf"), low_open=True, high_open=True
        )
    if s.max_std < s.min_std:
        raise ValueError(f"max_std must be at least min_std={s.min_std}, got {s.max_std}.")
    if s.log_std_max <= s.log_std_min:
        raise ValueError(
            f"log_std_max must be above log_std_min={s.log_std_min}, got {s.log_std_max}."
        )


def _check_collection(s: TDMPC2Settings) -> None:
    """Raise a `ValueError` for the first setting of collection that no task could make valid."""
    for name in ("n_envs", "buffer_size", "action_repeat"):
        check_count(name, getattr(s, name), 1)
    for name in ("seed_steps", "episode_length"):
        if getattr(s, name) is not None:
            check_count(name, getattr(s, name), 1)
    if s.gamma is not None:
        check_range("gamma", s.gamma, 0.0, 1.0, low_open=True)
    check_positive("updates_per_step", s.updates_per_step)
    check_range("termination_coef", s.termination_coef, 0.0, float("inf"), high_open=True)
