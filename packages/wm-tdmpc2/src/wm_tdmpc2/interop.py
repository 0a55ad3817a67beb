"""Parameters of the original PyTorch code: its flat names to our trees and back.

The original saves a `state_dict`, a flat dictionary from names such as `_dynamics.0.ln.weight`
to arrays. Linear weights are `[out, in]` there and `[in, out]` here; ensemble tensors lead with
the member axis in both. Two spellings of the Q ensemble exist and both are read:
`_Qs.params.0 … 9` (the paper-era code) and `_Qs.params.{layer}.weight` (later code).

To load an official checkpoint, read it with PyTorch, turn the tensors of its `"model"` entry
into NumPy arrays, and pass the dictionary to `from_reference` or `load_reference`.

Source of the names: nicklashansen/tdmpc2@b67b21c, common/world_model.py, common/layers.py.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params, init_params
from wm_tdmpc2.update import LearnerState

_LINEAR = {"kernel": "weight", "bias": "bias"}
_NORM = {"scale": "ln.weight", "bias": "ln.bias"}
# Later code repeats the Q parameters under a third name and stores two constants.
_IGNORED_PREFIXES = ("_detach_Qs_params.", "log_std_", "_action_masks")
_LATER_SPELLING = {"_Qs.params.": "_Qs.params.", "_target_Qs_params.": "_target_Qs.params."}


class ReferenceParams(NamedTuple):
    """Parameters of one agent, in this package's layout."""

    wm_params: Params
    target_q_params: Params
    pi_params: Params


class _Entry(NamedTuple):
    """One tensor: its name there, its place here, and whether its last two axes are swapped."""

    name: str
    group: str
    path: tuple[str, ...]
    transposed: bool


def from_reference(
    state_dict: Mapping[str, np.ndarray], *, config: TDMPC2Config
) -> ReferenceParams:
    """Turn a reference `state_dict` into parameter trees.

    Args:
        state_dict: flat names to arrays, as saved by the original code (`model.state_dict()`).
        config: configuration whose widths the arrays must have.

    Returns:
        float32 parameter trees.

    Raises:
        ValueError: entries are missing, unknown or of another shape; the sentence names them.
    """
    arrays = paper_names({k: np.asarray(v) for k, v in state_dict.items()})
    templates = _templates(config)
    entries = list(_entries(config))
    expected = {e.name: _reference_shape(_get(templates[e.group], e.path), e) for e in entries}
    problems = []
    missing = [n for n in expected if n not in arrays]
    extra = [n for n in arrays if n not in expected]
    misshapen = [
        f"{n} (expected {expected[n]}, got {arrays[n].shape})"
        for n in expected
        if n in arrays and arrays[n].shape != expected[n]
    ]
    for title, names in (("missing", missing), ("unknown", extra), ("misshapen", misshapen)):
        if names:
            problems.append(f"{title}: {', '.join(names)}")
    if problems:
        raise ValueError(
            "The reference parameters do not fit this configuration; " + "; ".join(problems) + "."
        )
    trees: dict[str, Params] = {"wm": {}, "target_q": {}, "pi": {}}
    for entry in entries:
        array = arrays[entry.name].astype(np.float32)
        value = jnp.asarray(np.swapaxes(array, -1, -2) if entry.transposed else array)
        _set(trees[entry.group], entry.path, value)
    return ReferenceParams(trees["wm"], trees["target_q"], trees["pi"])


def to_reference(
    wm_params: Params | None = None,
    target_q_params: Params | None = None,
    pi_params: Params | None = None,
    *,
    config: TDMPC2Config,
) -> dict[str, np.ndarray]:
    """Return parameters (or gradients) under the paper-era code's names and layouts.

    A group given as `None` is left out. Inverse of `from_reference`.
    """
    groups = {"wm": wm_params, "target_q": target_q_params, "pi": pi_params}
    result = {}
    for entry in _entries(config):
        tree = groups[entry.group]
        if tree is None:
            continue
        array = np.asarray(_get(tree, entry.path))
        result[entry.name] = np.swapaxes(array, -1, -2) if entry.transposed else array
    return result


def load_reference(
    learner: LearnerState, state_dict: Mapping[str, np.ndarray], *, config: TDMPC2Config
) -> LearnerState:
    """Return `learner` with its networks replaced by the reference's.

    Optimiser states and the running scale are kept: the original does not save them.

    Raises:
        ValueError: as `from_reference`.
    """
    params = from_reference(state_dict, config=config)
    return dataclasses.replace(
        learner,
        wm_params=params.wm_params,
        target_q_params=params.target_q_params,
        pi_params=params.pi_params,
    )


def _entries(config: TDMPC2Config) -> Iterator[_Entry]:
    """Yield every tensor, in the order of the reference's `state_dict`."""
    if config.n_tasks:
        yield _Entry("_task_emb.weight", "wm", ("task_emb",), False)
    yield from _latent_entries("_encoder.state", "encoder", config.hidden_enc_layers)
    yield from _latent_entries("_dynamics", "dynamics", 2)
    yield from _head_entries("_reward", "wm", ("reward",))
    if config.episodic:
        yield from _head_entries("_termination", "wm", ("termination",))
    yield from _head_entries("_pi", "pi", ())
    for prefix, group, path in (("_Qs", "wm", ("q",)), ("_target_Qs", "target_q", ())):
        for i, entry in enumerate(_head_entries(prefix, group, path)):
            yield entry._replace(name=f"{prefix}.params.{i}")


def _layer_entries(
    prefix: str, group: str, linear: tuple[str, ...], norm: tuple[str, ...] | None
) -> Iterator[_Entry]:
    for ours, theirs in _LINEAR.items():
        yield _Entry(f"{prefix}.{theirs}", group, (*linear, ours), ours == "kernel")
    if norm is not None:
        for ours, theirs in _NORM.items():
            yield _Entry(f"{prefix}.{theirs}", group, (*norm, ours), False)


def _latent_entries(prefix: str, network: str, hidden: int) -> Iterator[_Entry]:
    trunk = (network, "trunk")
    for i in range(hidden):
        yield from _layer_entries(
            f"{prefix}.{i}", "wm", (*trunk, f"linear_{i}"), (*trunk, f"norm_{i}")
        )
    yield from _layer_entries(f"{prefix}.{hidden}", "wm", (*trunk, "out"), (network, "norm"))


def _head_entries(prefix: str, group: str, path: tuple[str, ...]) -> Iterator[_Entry]:
    for i in range(2):
        yield from _layer_entries(
            f"{prefix}.{i}", group, (*path, f"linear_{i}"), (*path, f"norm_{i}")
        )
    yield from _layer_entries(f"{prefix}.2", group, (*path, "out"), None)


def paper_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drop bookkeeping entries and spell the Q ensemble the paper-era way."""
    suffixes = ("weight", "bias", "ln.weight", "ln.bias")
    renamed = {}
    for name, array in arrays.items():
        if name.startswith(_IGNORED_PREFIXES):
            continue
        for later, paper in _LATER_SPELLING.items():
            layer, _, suffix = name.removeprefix(later).partition(".")
            if name.startswith(later) and suffix in suffixes:
                name = f"{paper}{4 * int(layer) + suffixes.index(suffix)}"
                break
        renamed[name] = array
    return renamed


def _templates(config: TDMPC2Config) -> dict[str, Any]:
    wm, pi = jax.eval_shape(lambda k: init_params(k, config=config), jax.random.key(0))
    return {"wm": wm, "target_q": wm["q"], "pi": pi}


def _reference_shape(template: Any, entry: _Entry) -> tuple[int, ...]:
    shape = tuple(template.shape)
    return (*shape[:-2], shape[-1], shape[-2]) if entry.transposed else shape


def _get(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _set(tree: Params, path: tuple[str, ...], value: jax.Array) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
