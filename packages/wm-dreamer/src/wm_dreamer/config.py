"""The settings a user gives, and the resolved configuration that the pure functions take.

`DreamerV3Settings` is the flat surface: hyperparameters with the paper's defaults, `None` where a
value follows from the model size or the task. `resolve_config` fills every blank for a task; the
result, `DreamerV3Config`, is frozen and hashable and is passed as a static argument to every
function of the package.

Source: danijar/dreamerv3@2411f7d, `dreamerv3/configs.yaml`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from wm_collect.checks import check_count, check_positive, check_range
from wm_collect.environment import EnvSpec
from wm_numerics import TwoHot

LearningRate = float | Callable[[Any], Any]

# Widths of the reference's presets; 1m is of a later version (D38) and fits their rule:
# hidden = units, deter = 8 units, classes = units / 16.
MODEL_SIZES: dict[str, dict[str, int]] = {
    "1m": {"units": 64, "deter": 512, "hidden": 64, "classes": 4},
    "12m": {"units": 256, "deter": 2048, "hidden": 256, "classes": 16},
    "25m": {"units": 384, "deter": 3072, "hidden": 384, "classes": 24},
    "50m": {"units": 512, "deter": 4096, "hidden": 512, "classes": 32},
    "100m": {"units": 768, "deter": 6144, "hidden": 768, "classes": 48},
    "200m": {"units": 1024, "deter": 8192, "hidden": 1024, "classes": 64},
    "400m": {"units": 1536, "deter": 12288, "hidden": 1536, "classes": 96},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DreamerV3Settings:
    """Hyperparameters of DreamerV3, with the paper's defaults for continuous control.

    The paper's DeepMind Control protocol is `action_repeat=2, episode_length=1000` and the
    defaults (D41). Sizes, bins and horizons are static: changing one compiles a new program.
    """

    n_envs: int = 16
    """Environments collected in lockstep."""
    model_size: str = "12m"
    """Preset of widths: 1m, 12m, 25m, 50m, 100m, 200m or 400m (names count image networks)."""
    units: int | None = None
    """Width of encoder, decoder, heads, actor and critic; overrides the preset."""
    deter: int | None = None
    """Width of the deterministic state; overrides the preset."""
    hidden: int | None = None
    """Width of the other layers of the RSSM; overrides the preset."""
    classes: int | None = None
    """Classes per discrete latent; overrides the preset."""
    stoch: int = 32
    """Discrete latents."""
    blocks: int = 8
    """Blocks of the recurrent core's block-diagonal layers."""
    enc_layers: int = 3
    """Hidden layers of the encoder."""
    dec_layers: int = 3
    """Hidden layers of the decoder."""
    rew_layers: int = 1
    """Hidden layers of the reward head."""
    con_layers: int = 1
    """Hidden layers of the continue head."""
    actor_layers: int = 3
    """Hidden layers of the actor."""
    critic_layers: int = 3
    """Hidden layers of the critic."""
    bins: int = 255
    """Bins of the two-hot reward and value heads."""
    free_nats: float = 1.0
    """Floor of the dynamics and representation losses, in nats per row."""
    unimix: float = 0.01
    """Share of the uniform distribution mixed into the latents' probabilities."""
    actor_unimix: float = 0.01
    """The same for discrete actions."""
    dyn_scale: float = 1.0
    """Weight of the dynamics loss, which trains the prior."""
    rep_scale: float = 0.1
    """Weight of the representation loss, which trains the posterior."""
    rec_scale: float = 1.0
    """Weight of the reconstruction loss."""
    rew_scale: float = 1.0
    """Weight of the reward loss."""
    con_scale: float = 1.0
    """Weight of the continue loss."""
    actor_scale: float = 1.0
    """Weight of the actor loss."""
    critic_scale: float = 1.0
    """Weight of the critic loss on imagined rows."""
    repval_scale: float = 0.3
    """Weight of the critic loss on replayed rows."""
    train_ratio: float = 512.0
    """Rows trained on per row collected; updates per row are this / (batch_size batch_length)."""
    batch_size: int = 16
    """Sequences per update."""
    batch_length: int = 64
    """Rows trained on per sequence; one more row in front gives the context."""
    imag_horizon: int = 15
    """Steps imagined from every trained row."""
    return_horizon: float = 333.0
    """The discount is 1 - 1 / return_horizon."""
    lam: float = 0.95
    """Mixing of the returns of imagined rows: 0 is one step, 1 the whole horizon."""
    repval_lam: float = 0.95
    """The same for returns of replayed rows."""
    actent: float = 3e-4
    """Weight of the policy's entropy."""
    slowreg: float = 1.0
    """Weight of the critic's regularisation towards the slow critic."""
    slow_rate: float = 0.02
    """EMA rate of the slow critic."""
    retnorm_rate: float = 0.01
    """EMA rate of the return normaliser."""
    retnorm_limit: float = 1.0
    """Smallest range that returns are divided by."""
    minstd: float = 0.1
    """Lower end of the continuous policy's standard deviation."""
    maxstd: float = 1.0
    """Upper end of the continuous policy's standard deviation."""
    learning_rate: LearningRate = 4e-5
    """Step size of all networks; from Python also an optax schedule of the update count."""
    agc: float = 0.3
    """A tensor's gradient norm is clipped to this times the tensor's own norm."""
    agc_pmin: float = 1e-3
    """The tensor's norm counts as at least this in clipping."""
    beta1: float = 0.9
    """Decay of the optimiser's momentum."""
    beta2: float = 0.999
    """Decay of the optimiser's second moment."""
    eps: float = 1e-20
    """Added to the root of the optimiser's second moment."""
    warmup: int = 1000
    """Updates over which the step size rises linearly from 0; 0 for none."""
    replay_capacity: int = 5_000_000
    """Replay capacity in rows, all environments together; clamped to the run's length."""
    episode_length: int | None = None
    """Episode length in simulator steps; None is the environment's own."""
    action_repeat: int = 1
    """Simulator steps per agent step; rewards are summed."""

    def __post_init__(self) -> None:
        """Check every value; none of them depends on the task."""
        _check_settings(self)

    def widths(self) -> dict[str, int]:
        """Return the network widths: the preset's, where no explicit width overrides it."""
        preset = MODEL_SIZES[self.model_size]
        explicit = {name: getattr(self, name) for name in preset}
        return {name: preset[name] if v is None else v for name, v in explicit.items()}

    @property
    def gamma(self) -> float:
        """The discount of one agent step, 1 − 1 / return_horizon."""
        return 1.0 - 1.0 / self.return_horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class DreamerV3Config(DreamerV3Settings):
    """Settings with every blank filled for one task; static and hashable.

    What the pure functions of this package take. Widths that `DreamerV3Settings` may leave open
    are required here, and the task's sizes are added.
    """

    obs_dim: int
    """Observation width."""
    action_dim: int
    """Action width, or number of actions if discrete."""
    discrete: bool
    """Whether an action is an index; the networks see it one-hot."""
    terminates: bool
    """Whether an episode may end before its time limit."""
    agent_episode_length: int
    """The time limit of an episode in agent steps."""
    units: int
    deter: int
    hidden: int
    classes: int

    @property
    def two_hot(self) -> TwoHot:
        """The two-hot coding shared by the reward and critic heads."""
        return TwoHot.dreamerv3(self.bins)

    @property
    def feature_dim(self) -> int:
        """Width of what heads, actor and critic read: deter, then the flattened latents."""
        return self.deter + self.stoch * self.classes


def resolve_config(settings: DreamerV3Settings, spec: EnvSpec) -> DreamerV3Config:
    """Fill every value that follows from the model size or the task.

    Every task whose observation is a vector fits: with continuous or discrete actions, of fixed
    or varying episode length.
    """
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    values |= settings.widths()
    values |= {
        "obs_dim": spec.obs_dim,
        "action_dim": spec.action_dim,
        "discrete": spec.discrete,
        "terminates": spec.terminates,
        "agent_episode_length": spec.episode_length,
    }
    return DreamerV3Config(**values)


def _check_settings(s: DreamerV3Settings) -> None:
    """Raise a `ValueError` for the first setting that could not work."""
    if s.model_size not in list(MODEL_SIZES):
        known = ", ".join(MODEL_SIZES)
        raise ValueError(f"model_size must be one of {known}, got {s.model_size!r}.")
    widths = s.widths()
    for name in ("units", "deter", "hidden"):
        check_count(name, widths[name], 1)
    check_count("classes", widths["classes"], 2)
    for name in (
        "n_envs",
        "stoch",
        "blocks",
        "enc_layers",
        "dec_layers",
        "rew_layers",
        "con_layers",
        "actor_layers",
        "critic_layers",
        "batch_size",
        "imag_horizon",
        "replay_capacity",
        "action_repeat",
    ):
        check_count(name, getattr(s, name), 1)
    if widths["deter"] % s.blocks:
        raise ValueError(f"deter must be a multiple of blocks={s.blocks}, got {widths['deter']}.")
    # The critic's loss on replayed rows has one row less than the batch.
    check_count("batch_length", s.batch_length, 2)
    check_count("bins", s.bins, 3)
    check_count("warmup", s.warmup, 0)
    if s.episode_length is not None:
        check_count("episode_length", s.episode_length, 1)
    for name in ("unimix", "actor_unimix", "beta1", "beta2"):
        check_range(name, getattr(s, name), 0.0, 1.0, high_open=True)
    for name in ("lam", "repval_lam"):
        check_range(name, getattr(s, name), 0.0, 1.0)
    for name in ("slow_rate", "retnorm_rate"):
        check_range(name, getattr(s, name), 0.0, 1.0, low_open=True)
    for name in (
        "free_nats",
        "dyn_scale",
        "rep_scale",
        "rec_scale",
        "rew_scale",
        "con_scale",
        "actor_scale",
        "critic_scale",
        "repval_scale",
        "actent",
        "slowreg",
    ):
        check_range(name, getattr(s, name), 0.0, float("inf"), high_open=True)
    check_range(
        "return_horizon", s.return_horizon, 1.0, float("inf"), low_open=True, high_open=True
    )
    for name in ("train_ratio", "retnorm_limit", "minstd", "maxstd", "agc", "agc_pmin"):
        check_positive(name, getattr(s, name))
    if s.maxstd < s.minstd:
        raise ValueError(f"maxstd must be at least minstd={s.minstd}, got {s.maxstd}.")
    if not callable(s.learning_rate):
        check_positive("learning_rate", s.learning_rate)
    # A smaller eps is 0 on the device, and a zero gradient would become 0 / 0.
    smallest = float(np.finfo(np.float32).tiny)
    check_range("eps", s.eps, smallest, float("inf"), high_open=True)
    rows_per_env = s.batch_length + -(-s.batch_size // s.n_envs)
    if s.replay_capacity < rows_per_env * s.n_envs:
        raise ValueError(
            f"replay_capacity must hold the rows of a first batch, {rows_per_env} (batch_length "
            f"and {rows_per_env - s.batch_length} more) x {s.n_envs} environment(s) = "
            f"{rows_per_env * s.n_envs}, got {s.replay_capacity}."
        )
