"""Recordings of the original code, read back: metadata, arrays, and the configuration they imply.

Every size and hyperparameter comes from a recording's own metadata, so that any folder made by
the same generators serves these tests (see `fixtures/tdmpc2/README.md`).
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from wm_collect.environment import EnvSpec
from wm_tdmpc2 import TaskContext, TDMPC2Config

# Names that mean the same in the original configuration and in ours.
SAME_NAMES = (
    "enc_dim",
    "mlp_dim",
    "latent_dim",
    "num_enc_layers",
    "num_q",
    "simnorm_dim",
    "num_bins",
    "dropout",
    "horizon",
    "rho",
    "consistency_coef",
    "reward_coef",
    "value_coef",
    "enc_lr_scale",
    "grad_clip_norm",
    "tau",
    "entropy_coef",
    "log_std_min",
    "log_std_max",
    "batch_size",
    "discount_denom",
    "discount_min",
    "discount_max",
    "iterations",
    "num_samples",
    "num_elites",
    "num_pi_trajs",
    "min_std",
    "max_std",
    "temperature",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """One file: `arrays` of an `.npz`, or only the `meta` of a `.json`."""

    name: str
    meta: dict
    arrays: dict[str, np.ndarray]

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays whose name starts with `prefix`, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    @property
    def is_later(self) -> bool:
        """Whether it is of the later code, of which only the episodic mechanism is ours."""
        return self.meta.get("api", "paper") != "paper"

    @property
    def is_multitask(self) -> bool:
        """Whether it is of several tasks."""
        return self.meta.get("config", {}).get("multitask", False)

    @property
    def is_episodic(self) -> bool:
        """Whether it is of the episodic mode."""
        return self.meta.get("config", {}).get("episodic", False)

    def task_context(self, task: np.ndarray) -> TaskContext | None:
        """Return the context of recorded task ids, or None for a recording of one task."""
        if not self.is_multitask:
            return None
        return TaskContext(
            task=jnp.asarray(task, jnp.int32),
            action_mask=jnp.asarray(self["action_masks"][task]),
            discount=jnp.asarray(self["discounts"][task]),
        )

    @property
    def config(self) -> TDMPC2Config:
        """The configuration the recording was made with (not for `control_flow_*`)."""
        c = self.meta["config"]
        assert c["vmin"] == -c["vmax"], "ranges of bins that are not symmetric cannot be set (T24)"
        return TDMPC2Config(
            obs_dim=c["obs_shape"]["state"][0],
            action_dim=c["action_dim"],
            agent_episode_length=c["episode_length"],
            # A recording of functions alone has no agent, hence no discount.
            gamma=self.meta.get("discount", 0.99),
            learning_rate=c["lr"],
            vmax=float(c["vmax"]),
            seed_steps=1000,
            episodic=self.is_episodic,
            termination_coef=c.get("termination_coef", 1.0),
            n_tasks=len(c["tasks"]) if self.is_multitask else 0,
            task_dim=c["task_dim"] if self.is_multitask else 0,
            **{name: c[name] for name in SAME_NAMES},
        )


@functools.cache
def read(path: Path) -> Recording:
    """Read a recording."""
    if path.suffix == ".json":
        return Recording(path.stem, json.loads(path.read_text()), {})
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    meta = json.loads(bytes(arrays.pop("meta_json")).decode())
    return Recording(path.stem, meta, arrays)


def spec_of(*, obs_dim: int, action_dim: int, episode_length: int) -> EnvSpec:
    """Return the description of a task of fixed length with these sizes."""
    return EnvSpec(
        env_id="recorded",
        backend="custom",
        obs_dim=obs_dim,
        action_dim=action_dim,
        discrete=False,
        episode_length=episode_length,
        action_repeat=1,
        terminates=False,
        reset_ignores_key=False,
        action_low=(-1.0,) * action_dim,
        action_high=(1.0,) * action_dim,
    )
