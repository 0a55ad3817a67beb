"""Damaged, foreign and unwritable checkpoints: always noticed, always explained."""

import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.checkpoint import CheckpointError, Checkpoints

STATE = {"params": jnp.arange(200.0), "replay": jnp.zeros((50, 40)), "tick": jnp.int32(4)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("saved"))
    checkpoints.save(1, STATE, {"n": 1})
    checkpoints.save(2, STATE, {"n": 2})
    return checkpoints


@pytest.fixture
def checkpoints(saved: Checkpoints, tmp_path: Path) -> Checkpoints:
    shutil.copytree(saved.directory, tmp_path / "copy")
    return Checkpoints(tmp_path / "copy")


def files(checkpoints: Checkpoints, tick: int = 2) -> list[Path]:
    found = sorted(p for p in checkpoints.path(tick).rglob("*") if p.is_file())
    assert len(found) >= 5
    return found


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # Of a hash in the manifest, a bit that keeps it text.
    place = len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)


def flip_the_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [truncate, empty, flip_a_bit, flip_the_last_bit, Path.unlink],
    ids=lambda f: f.__name__,
)
def test_damage_to_any_file_is_noticed_and_the_older_one_is_offered(
    damage: Callable[[Path], None], checkpoints: Checkpoints
) -> None:
    for path in files(checkpoints):
        if path.stat().st_size == 0 and damage is not Path.unlink:
            continue
        whole = path.read_bytes()
        damage(path)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.restore(STATE)
        message = str(caught.value)
        assert str(checkpoints.path(2)) in message and path.name in message
        assert "tick 1 exists: ask for it with fallback=True" in message
        assert caught.value.fallback_tick == 1
        path.write_bytes(whole)
    checkpoints.restore(STATE)


def test_the_older_one_is_used_when_asked_for(checkpoints: Checkpoints) -> None:
    truncate(files(checkpoints)[0])
    state, metadata = checkpoints.restore(STATE, fallback=True)
    assert metadata == {"n": 1, "tick": 1}
    np.testing.assert_array_equal(state["params"], STATE["params"])


def test_a_damaged_older_one_is_not_offered(checkpoints: Checkpoints) -> None:
    for tick in (1, 2):
        truncate(files(checkpoints, tick)[-1])
    with pytest.raises(CheckpointError, match="no older undamaged checkpoint exists") as caught:
        checkpoints.restore(STATE, fallback=True)
    assert caught.value.fallback_tick is None


def test_a_foreign_folder_is_named_as_such(checkpoints: Checkpoints) -> None:
    foreign = checkpoints.directory / "tick_000000000009"
    foreign.mkdir()
    (foreign / "weights.npz").write_bytes(b"something")
    with pytest.raises(
        CheckpointError, match=r"has no manifest\.json.*not written by this library"
    ):
        checkpoints.restore(STATE)
    with pytest.raises(CheckpointError, match=r"has no manifest\.json"):
        checkpoints.metadata(9)
    (foreign / "manifest.json").write_text('{"files": {}, "sha256": "no"}')
    with pytest.raises(CheckpointError, match=r"manifest\.json was changed"):
        checkpoints.restore(STATE)
    (foreign / "manifest.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"manifest\.json is cut short or not a manifest"):
        checkpoints.restore(STATE)


def test_a_damaged_checkpoint_does_not_stop_the_run_from_saving(checkpoints: Checkpoints) -> None:
    truncate(checkpoints.path(2) / "checkpoint.json")
    checkpoints.save(3, STATE, {"n": 3}, metric=1.0)
    assert checkpoints.best_tick() == 3
    assert checkpoints.restore(STATE)[1]["n"] == 3


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"could not be written to .*Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, STATE, {})


@pytest.fixture
def no_room() -> Iterator[None]:
    """Let no file grow beyond 4 kB, which fails like a full disk in any writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    checkpoints: Checkpoints, no_room: None
) -> None:
    noise = {"x": jnp.asarray(np.random.default_rng(0).integers(0, 2**31, 10_000, np.int32))}
    with pytest.raises(CheckpointError, match="tick 3 could not be written") as caught:
        checkpoints.save(3, noise, {})
    assert "Checkpoints of ticks 1, 2 are there and unharmed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert checkpoints.ticks() == [1, 2]
    assert not list(checkpoints.directory.glob(".*"))
    checkpoints.restore(STATE)
