"""Recordings of the original code, read back: metadata, arrays, and the configuration they imply.

Every size and hyperparameter comes from a recording's own metadata, so that any folder made by
the same generators serves these tests (see `fixtures/dreamerv3/README.md`).
"""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np

from wm_dreamer.config import DreamerV3Config

# Our settings and the entries of the original configuration that mean the same. Where there are
# several, they must agree: we have one setting for all of them.
SETTINGS = {
    "units": (
        "enc.simple.units",
        "dec.simple.units",
        "rewhead.units",
        "conhead.units",
        "actor.units",
        "critic.units",
    ),
    "deter": ("dyn.rssm.deter",),
    "hidden": ("dyn.rssm.hidden",),
    "stoch": ("dyn.rssm.stoch",),
    "classes": ("dyn.rssm.classes",),
    "blocks": ("dyn.rssm.blocks",),
    "enc_layers": ("enc.simple.layers",),
    "dec_layers": ("dec.simple.layers",),
    "rew_layers": ("rewhead.layers",),
    "con_layers": ("conhead.layers",),
    "actor_layers": ("actor.layers",),
    "critic_layers": ("critic.layers",),
    "bins": ("rewhead.bins", "critic.bins"),
    "free_nats": ("rssm_loss.free",),
    "unimix": ("dyn.rssm.unimix",),
    "actor_unimix": ("actor.unimix",),
    "dyn_scale": ("loss_scales.dyn",),
    "rep_scale": ("loss_scales.rep",),
    "rec_scale": ("loss_scales.dec_mlp",),
    "rew_scale": ("loss_scales.reward",),
    "con_scale": ("loss_scales.cont",),
    "actor_scale": ("loss_scales.actor",),
    "critic_scale": ("loss_scales.critic",),
    "repval_scale": ("loss_scales.replay_critic",),
    "batch_size": ("batch_size",),
    "imag_horizon": ("imag_length",),
    "return_horizon": ("horizon",),
    "lam": ("return_lambda",),
    "repval_lam": ("return_lambda_replay",),
    "actent": ("actent",),
    "slowreg": ("slowreg",),
    "slow_rate": ("slow_critic_fraction",),
    "retnorm_rate": ("retnorm.rate",),
    "retnorm_limit": ("retnorm.limit",),
    "minstd": ("actor.minstd",),
    "maxstd": ("actor.maxstd",),
    "learning_rate": ("opt.lr",),
    "agc": ("opt.agc",),
    "agc_pmin": ("opt.pmin",),
    "beta1": ("opt.beta1",),
    "beta2": ("opt.beta2",),
    "eps": ("opt.eps",),
    "warmup": ("opt.warmup",),
}
# What a recording without the full configuration states under our own names.
SIZES = ("units", "deter", "hidden", "stoch", "classes", "blocks")


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """One file: its metadata and its arrays by name."""

    name: str
    meta: dict
    arrays: dict[str, np.ndarray]

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays below `prefix/`, under the rest of their names."""
        prefix = prefix.rstrip("/") + "/"
        found = {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}
        if not found:
            raise KeyError(f"{self.name} holds no array below {prefix!r}")
        return found

    def params_after(self, call: int) -> dict[str, np.ndarray]:
        """Return the state after a number of calls; each call stored only what it changed."""
        params = self.group("params/0")
        for n in range(1, call + 1):
            params |= self.group(f"params/{n}")
        return params


@functools.cache
def load(path: Path) -> Recording:
    """Read a recording: an `index` gives each array its place in one flat array per dtype."""
    with np.load(path) as file:
        index, meta = (json.loads(str(file[name])) for name in ("index", "meta"))
        packed = {name: file[name] for name in file.files if name.startswith("packed_")}
    arrays = {}
    for name, (dtype, start, shape) in index.items():
        stop = start + int(np.prod(shape, dtype=np.int64))
        arrays[name] = packed[f"packed_{dtype}"][start:stop].reshape(shape)
        arrays[name].setflags(write=False)
    return Recording(path.stem, meta, arrays)


def config(recording: Recording) -> DreamerV3Config:
    """Return the configuration a recording was made with.

    Files of the policy and of returns state the sizes and a few settings; they were made with the
    original's defaults otherwise, which are ours.
    """
    meta, size = recording.meta, recording.meta["size"]
    settings = {}
    theirs = meta.get("config")
    if theirs is None:
        settings |= {name: size[name] for name in SIZES}
        settings |= {"batch_size": size["B"], "batch_length": size["T"]}
        theirs = {k: v for k, v in meta.items() if not isinstance(v, dict)}
        theirs |= {f"retnorm.{k}": v for k, v in meta.get("retnorm", {}).items()}
    else:
        settings["batch_length"] = theirs["batch_length"] - theirs["replay_context"]
    for name, entries in SETTINGS.items():
        values = {theirs[entry] for entry in entries if entry in theirs}
        assert len(values) <= 1, f"{recording.name}: {entries} must be equal for our {name}"
        for value in values:
            settings[name] = value
    return DreamerV3Config(
        **settings,
        n_envs=meta.get("envs", 1),
        obs_dim=size["obs"],
        action_dim=size["A"],
        discrete=size["action"] == "discrete",
        terminates=True,
        agent_episode_length=1000,
    )
