"""Parameters of the original code: its flat names to our trees and back.

The original keeps its parameters in a flat dictionary from names such as
`agent/dyn/dynin0/norm/scale` to arrays. Layouts agree, but for the two-hot heads, which have a
256th output there that is always zero and never read (deviation D29): it is dropped and restored.
An observation of several parts has one decoder output layer per part there, and one for all here
(D32).

Source of the names: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, dreamerv3/nets.py.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_dreamer.config import DreamerV3Config
from wm_dreamer.networks import init_params
from wm_dreamer.rssm import Params
from wm_dreamer.update import LearnerState

PREFIX = "agent/"
DEFAULT_OBS_KEY = "vector"

# Our layers of the recurrent model, and theirs.
_RSSM = {
    "deter_in": "dynin0",
    "stoch_in": "dynin1",
    "action_in": "dynin2",
    "hidden": "dyn0",
    "gates": "dyncore",
    "posterior_hidden": "obs0",
    "posterior_logits": "obslogit",
    "prior_hidden_0": "img0",
    "prior_hidden_1": "img1",
    "prior_logits": "imglogit",
}


class ReferenceParams(NamedTuple):
    """Parameters of one agent, in this package's layout; the slow critic None if absent."""

    params: Params
    slow_critic: Params | None


class _Entry(NamedTuple):
    """One tensor: its name there, its place here, and which columns of ours it holds."""

    name: str
    path: tuple[str, ...]
    columns: slice | None = None
    padded: bool = False


def from_reference(
    arrays: Mapping[str, np.ndarray],
    *,
    config: DreamerV3Config,
    obs_parts: Mapping[str, int] | None = None,
    action_key: str = "action",
) -> ReferenceParams:
    """Turn the original's parameters into our trees.

    Args:
        arrays: names to arrays, with or without the leading `agent/`. Entries that are not
            parameters of the eight modules (optimiser, normaliser, counters) are ignored.
        config: configuration whose widths the arrays must have.
        obs_parts: width of each part of the observation, in the environment's order; None for
            one part, whose name is taken from the arrays.
        action_key: the action's name.

    Returns:
        float32 parameter trees.

    Raises:
        ValueError: entries are missing, unknown or of another shape; the sentence names them.
    """
    given = {name.removeprefix(PREFIX): np.asarray(value) for name, value in arrays.items()}
    given = {name: value for name, value in given.items() if name.split("/")[0] in _MODULES}
    if obs_parts is None:
        obs_parts = {_only_obs_key(given): config.obs_dim}
    has_slow = any(name.startswith("slowcritic/") for name in given)
    entries = list(_entries(config, obs_parts, action_key, has_slow))
    template = _template(config)
    expected = {entry.name: _reference_shape(template, entry) for entry in entries}
    problems = {
        "missing": [name for name in expected if name not in given],
        "unknown": [name for name in given if name not in expected],
        "misshapen": [
            f"{name} (expected {expected[name]}, got {given[name].shape})"
            for name in expected
            if name in given and given[name].shape != expected[name]
        ],
    }
    found = [f"{title}: {', '.join(names)}" for title, names in problems.items() if names]
    if found:
        raise ValueError(
            "The reference parameters do not fit this configuration; " + "; ".join(found) + "."
        )
    tree: Params = {}
    for entry in entries:
        array = given[entry.name].astype(np.float32)
        _place(tree, entry, array[..., :-1] if entry.padded else array)
    tree = jax.tree.map(jnp.asarray, tree)
    slow = tree.pop("slow_critic", None)
    return ReferenceParams(tree, slow)


def to_reference(
    params: Params,
    slow_critic: Params | None = None,
    *,
    config: DreamerV3Config,
    obs_parts: Mapping[str, int] | None = None,
    action_key: str = "action",
) -> dict[str, np.ndarray]:
    """Return parameters, or gradients, under the original's names. Inverse of `from_reference`.

    Args:
        params: a tree like the learner's `params`.
        slow_critic: likewise; None leaves it out.
        config: the configuration.
        obs_parts: width of each part of the observation, in order; None for one part, "vector".
        action_key: the action's name.

    Returns:
        Names, with the leading `agent/`, to float32 arrays.
    """
    if obs_parts is None:
        obs_parts = {DEFAULT_OBS_KEY: config.obs_dim}
    tree = params if slow_critic is None else params | {"slow_critic": slow_critic}
    result = {}
    for entry in _entries(config, obs_parts, action_key, slow_critic is not None):
        array = np.asarray(_get(tree, entry.path))
        if entry.columns is not None:
            array = array[..., entry.columns]
        if entry.padded:
            array = np.concatenate([array, np.zeros_like(array[..., :1])], axis=-1)
        result[PREFIX + entry.name] = array
    return result


def load_reference(
    learner: LearnerState,
    arrays: Mapping[str, np.ndarray],
    *,
    config: DreamerV3Config,
    obs_parts: Mapping[str, int] | None = None,
    action_key: str = "action",
) -> LearnerState:
    """Return `learner` with its networks replaced by the original's.

    The optimiser's state, the return normaliser and the counter are kept. Without a slow critic
    among the arrays the critic is copied.

    Raises:
        ValueError: as `from_reference`.
    """
    loaded = from_reference(arrays, config=config, obs_parts=obs_parts, action_key=action_key)
    slow = loaded.slow_critic
    if slow is None:
        slow = jax.tree.map(jnp.copy, loaded.params["critic"])
    return dataclasses.replace(learner, params=loaded.params, slow_critic=slow)


_MODULES = ("enc", "dyn", "dec", "rew", "con", "actor", "critic", "slowcritic")


def _entries(
    config: DreamerV3Config, obs_parts: Mapping[str, int], action_key: str, slow: bool
) -> Iterator[_Entry]:
    yield from _mlp("enc/mlp", ("encoder",), config.enc_layers)
    for ours, theirs in _RSSM.items():
        normed = ours not in ("gates", "posterior_logits", "prior_logits")
        yield from _linear(f"dyn/{theirs}", ("rssm", ours))
        if normed:
            yield _Entry(f"dyn/{theirs}/norm/scale", ("rssm", ours, "scale"))
    yield from _mlp("dec/mlp", ("decoder",), config.dec_layers)
    start = 0
    for key, width in obs_parts.items():
        name = key.replace("/", "_")
        columns = slice(start, start + width)
        yield from _linear(f"dec/out_{name}/out", ("decoder", "out"), columns=columns)
        start += width
    for theirs, ours, layers, padded in (
        ("rew", "reward", config.rew_layers, True),
        ("con", "continue", config.con_layers, False),
        ("critic", "critic", config.critic_layers, True),
        ("slowcritic", "slow_critic", config.critic_layers, True),
    ):
        if ours != "slow_critic" or slow:
            yield from _mlp(f"{theirs}/h", (ours,), layers)
            yield from _linear(f"{theirs}/dist/out", (ours, "out"), padded=padded)
    yield from _mlp("actor/h", ("actor", "trunk"), config.actor_layers)
    action = action_key.replace("/", "_").replace(".", "_")
    outputs = {"logits": "out"} if config.discrete else {"mean": "out", "std": "std"}
    for ours, theirs in outputs.items():
        yield from _linear(f"actor/{action}/{theirs}", ("actor", ours))


def _mlp(prefix: str, path: tuple[str, ...], layers: int) -> Iterator[_Entry]:
    for i in range(layers):
        yield from _linear(f"{prefix}{i}", (*path, f"linear_{i}"))
        yield _Entry(f"{prefix}{i}/norm/scale", (*path, f"norm_{i}", "scale"))


def _linear(
    prefix: str, path: tuple[str, ...], columns: slice | None = None, padded: bool = False
) -> Iterator[_Entry]:
    for leaf in ("kernel", "bias"):
        yield _Entry(f"{prefix}/{leaf}", (*path, leaf), columns, padded)


def _only_obs_key(arrays: Mapping[str, np.ndarray]) -> str:
    keys = {
        name.split("/")[1].removeprefix("out_") for name in arrays if name.startswith("dec/out_")
    }
    if len(keys) != 1:
        raise ValueError(
            f"The reference decodes the observation parts {sorted(keys)}: give their widths in the "
            "environment's order as obs_parts, for example obs_parts={'position': 3, 'speed': 2}."
        )
    return keys.pop()


def _template(config: DreamerV3Config) -> Params:
    params = jax.eval_shape(lambda key: init_params(key, config=config), jax.random.key(0))
    return params | {"slow_critic": params["critic"]}


def _reference_shape(template: Params, entry: _Entry) -> tuple[int, ...]:
    shape = tuple(_get(template, entry.path).shape)
    width = shape[-1] + entry.padded
    if entry.columns is not None:
        width = entry.columns.stop - entry.columns.start
    return (*shape[:-1], width)


def _get(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _place(tree: Params, entry: _Entry, array: np.ndarray) -> None:
    """Put an array into the tree, beside the columns already there."""
    for key in entry.path[:-1]:
        tree = tree.setdefault(key, {})
    leaf = entry.path[-1]
    tree[leaf] = array if leaf not in tree else np.concatenate([tree[leaf], array], axis=-1)
