"""Checkpoints: what comes back, which are kept, and what a misfit says."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flax.struct
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from wm_collect import checkpoint as checkpoint_module
from wm_collect.checkpoint import CheckpointError, Checkpoints
from wm_collect.testing import check_same_state

DTYPES = ["float32", "float16", "bfloat16", "int32", "uint32", "uint8", "int8", "bool"]


@flax.struct.dataclass
class Run:
    params: dict[str, Any]
    key: jax.Array
    parts: tuple[Any, ...]


def make_run(scale: float = 1.0, width: int = 4) -> Run:
    return Run(
        params={
            "enc/linear_0": {"kernel": scale * jnp.arange(3.0 * width).reshape(3, width)},
            "half": jnp.full(5, scale, jnp.bfloat16),
        },
        key=jax.random.key(7),
        parts=(None, jnp.int32(12), jax.random.split(jax.random.key(1, impl="rbg"), 2)),
    )


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def test_a_state_comes_back_bit_for_bit_from_its_abstract_form(checkpoints: Checkpoints) -> None:
    run = make_run()
    checkpoints.save(40, run, {"seeds": [0, 1], "score": np.float32(0.1)})
    restored, metadata = checkpoints.restore(jax.eval_shape(lambda: run))
    check_same_state(run, restored)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored))
    assert metadata == {"seeds": [0, 1], "score": float(np.float32(0.1)), "tick": 40}
    assert checkpoints.metadata(40) == metadata


def test_restored_keys_draw_what_the_saved_ones_draw(checkpoints: Checkpoints) -> None:
    run = make_run()
    checkpoints.save(1, run, {})
    restored, _ = checkpoints.restore(run)
    assert str(jax.random.key_impl(restored.parts[2])) == "rbg"
    np.testing.assert_array_equal(jax.random.normal(run.key, 3), jax.random.normal(restored.key, 3))


def test_a_restored_state_can_be_donated(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, {"x": jnp.arange(1000.0)}, {})
    restored, _ = checkpoints.restore({"x": jnp.zeros(1000)})
    step = jax.jit(lambda s: {"x": s["x"] + 1}, donate_argnums=0)
    np.testing.assert_array_equal(step(step(restored))["x"], np.arange(1000.0) + 2)


leaves = st.tuples(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 2**32 - 1),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.text("a./[]' é", min_size=1, max_size=3), inner, max_size=3),
        st.lists(inner, max_size=2),
    ),
    max_leaves=5,
)


def build(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: build(child) for name, child in node.items()}
    if isinstance(node, list):
        return [build(child) for child in node]
    dtype, shape, seed = node
    dtype = jnp.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "b":
        return jnp.asarray(np.random.default_rng(seed).integers(0, 2, shape), bool)
    data = np.random.default_rng(seed).bytes(count)  # any bits: NaN payloads, -0.0, denormals
    return jnp.asarray(np.frombuffer(data, dtype).reshape(shape))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(tree=trees)
def test_any_tree_of_any_bits_comes_back(tree: Any, tmp_path_factory: Any) -> None:
    state = build(tree)
    checkpoints = Checkpoints(tmp_path_factory.mktemp("any"))
    checkpoints.save(0, state, {})
    restored, _ = checkpoints.restore(jax.eval_shape(lambda: state))
    check_same_state(state, restored)


def test_the_last_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for tick, metric in [
        (10, 1.0),
        (20, 9.0),
        (30, float("nan")),
        (40, None),
        (50, 2.0),
        (60, 3.0),
    ]:
        checkpoints.save(tick, {"x": jnp.int32(tick)}, {}, metric)
    assert checkpoints.ticks() == [20, 40, 50, 60]
    assert checkpoints.best_tick() == 20
    assert checkpoints.latest_tick() == 60
    assert checkpoints.restore({"x": jnp.int32(0)}, 20)[0]["x"] == 20
    checkpoints.save(70, {"x": jnp.int32(70)}, {}, 10.0)
    assert checkpoints.ticks() == [50, 60, 70]  # the last three hold the best as well
    assert sorted(p.name for p in checkpoints.directory.iterdir()) == [
        f"tick_{tick:012d}" for tick in (50, 60, 70)
    ]


def test_no_best_is_kept_when_not_asked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    for tick, metric in [(1, 5.0), (2, 1.0)]:
        checkpoints.save(tick, {"x": jnp.int32(tick)}, {}, metric)
    assert checkpoints.ticks() == [2]


def test_saving_a_tick_again_replaces_it(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, {"x": jnp.float32(1)}, {"n": 1})
    checkpoints.save(5, {"x": jnp.float32(2)}, {"n": 2})
    restored, metadata = checkpoints.restore({"x": jnp.float32(0)})
    assert restored["x"] == 2 and metadata["n"] == 2
    assert len(list(checkpoints.directory.iterdir())) == 1


def test_discard_after_drops_later_ticks_only(checkpoints: Checkpoints) -> None:
    for tick in (10, 20, 30):
        checkpoints.save(tick, {"x": jnp.int32(tick)}, {})
    checkpoints.discard_after(20)
    assert checkpoints.ticks() == [10, 20]


MISFITS = {
    "another width": (lambda: make_run(width=5), r"kernel'\] is float32\[3,4\].*is float32\[3,5\]"),
    "another dtype": (
        lambda: make_run().replace(parts=(None, jnp.float32(1), make_run().parts[2])),
        r"parts\[1\] is int32\[\].*is float32\[\]",
    ),
    "another kind of key": (
        lambda: make_run().replace(key=jax.random.key(0, impl="rbg")),
        r"key is key<fry>\[\].*is key<rbg>\[\]",
    ),
    "a leaf more": (
        lambda: make_run().replace(parts=(jnp.zeros(2), *make_run().parts[1:])),
        r"it has no .parts\[0\], which this run has as float32\[2\]",
    ),
    "a leaf less": (
        lambda: make_run().replace(parts=make_run().parts[:2]),
        r"it has .parts\[2\] as key<rbg>\[2\], which this run does not have",
    ),
    "another agent": (lambda: {"world_model": jnp.zeros(3)}, r"it has no \['world_model'\]"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit_names_the_first_leaf_that_differs(name: str, checkpoints: Checkpoints) -> None:
    template, pattern = MISFITS[name]
    checkpoints.save(1, make_run(), {})
    checkpoints.save(2, make_run(), {})
    with pytest.raises(CheckpointError, match=pattern) as caught:
        checkpoints.restore(template(), fallback=True)  # an older one would not fit either
    assert str(checkpoints.path(2)) in str(caught.value)
    assert caught.value.fallback_tick is None


def test_missing_checkpoints_are_named(checkpoints: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint to restore"):
        checkpoints.restore({})
    checkpoints.save(3, {"x": jnp.zeros(1)}, {})
    with pytest.raises(CheckpointError, match=r"no checkpoint of tick 4; .* ticks 3 are there"):
        checkpoints.restore({"x": jnp.zeros(1)}, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"keep_best": -1}, "keep_best must be 0"),
    ],
)
def test_impossible_counts_are_rejected(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoints("anywhere", **arguments)


def test_metadata_that_are_not_plain_are_rejected_before_writing(checkpoints: Checkpoints) -> None:
    with pytest.raises(TypeError, match="plain values"):
        checkpoints.save(1, {"x": jnp.zeros(1)}, {"f": print})
    with pytest.raises(ValueError, match="tick must be 0 or more"):
        checkpoints.save(-1, {"x": jnp.zeros(1)}, {})
    assert not checkpoints.directory.exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


@pytest.mark.parametrize("tick", [1, 2], ids=["same tick again", "next tick"])
@pytest.mark.parametrize("step", ["write_arrays", "write_manifest", "rename", "after rename"])
def test_a_save_cut_short_leaves_the_old_or_the_new_one(
    step: str, tick: int, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = {"x": jnp.float32(1)}, {"x": jnp.float32(2)}
    checkpoints.save(1, old, {})

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if step == "rename":
            patched.setattr(checkpoint_module.os, "rename", killed)
        elif step == "after rename":
            patched.setattr(Checkpoints, "_prune", killed)
        else:
            real = getattr(checkpoint_module, step)

            def killed_after(*arguments: Any) -> None:
                real(*arguments)
                raise Killed

            patched.setattr(checkpoint_module, step, killed_after)
        with pytest.raises(Killed):
            checkpoints.save(tick, new, {})
    survivor = Checkpoints(checkpoints.directory)
    expected = (new, tick) if step == "after rename" else (old, 1)
    assert survivor.latest_tick() == expected[1]
    assert survivor.restore(new)[0]["x"] == expected[0]["x"]
    survivor.save(3, new, {})
    assert not list(survivor.directory.glob(".*"))  # the leftovers are gone


def test_a_deletion_cut_short_leaves_no_broken_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.keep_last, checkpoints.keep_best = 1, 0
    checkpoints.save(1, {"x": jnp.zeros(1)}, {})

    def half(path: Path, **_: Any) -> None:
        next(p for p in path.rglob("*") if p.is_file()).unlink()
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module.shutil, "rmtree", half)
        with pytest.raises(Killed):
            checkpoints.save(2, {"x": jnp.zeros(1)}, {})
    assert checkpoints.ticks() == [2]
    checkpoints.save(3, {"x": jnp.zeros(1)}, {})
    assert sorted(p.name for p in checkpoints.directory.iterdir()) == ["tick_000000000003"]


SAVER = """
import itertools, sys
import jax.numpy as jnp
from wm_collect.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep_last=2)
for tick in itertools.count(1):
    checkpoints.save(tick, {"x": jnp.full(300_000, tick, jnp.int32)}, {"n": tick})
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_a_save_leaves_whole_checkpoints(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    process = subprocess.Popen([sys.executable, "-c", SAVER, str(directory)])
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            unfinished = directory.glob(".unfinished-*[0-9]/arrays*")
            if (directory / "tick_000000000003").exists() and any(unfinished):
                break
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    checkpoints = Checkpoints(directory)
    template = {"x": jnp.zeros(300_000, jnp.int32)}
    assert len(checkpoints.ticks()) >= 2
    for tick in checkpoints.ticks():  # written by another process, read by this one
        state, metadata = checkpoints.restore(template, tick)
        assert np.all(np.asarray(state["x"]) == tick) and metadata["n"] == tick
    checkpoints.save(10**6, template, {})
    assert not list(directory.glob(".*"))
