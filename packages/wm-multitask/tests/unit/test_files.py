"""Files: what is saved comes back, mapped or read; anything else is refused with a sentence."""

import json
import pickle
import re
import zipfile

import numpy as np
import pytest

from wm_multitask import dataset as dataset_module
from wm_multitask import files, violations
from wm_multitask.dataset import MultiTaskDataset, pool_tasks
from wm_multitask.files import load_dataset, load_episodes, save_dataset, save_episodes

from .toy_tasks import HOP, REACH, SWIM, assert_same_content, make_episodes, make_task


@pytest.fixture(scope="module")
def dataset():
    return pool_tasks([make_episodes(REACH, 4, 1), make_episodes(SWIM, 2, 2)])


@pytest.fixture
def path(dataset, tmp_path):
    return save_dataset(dataset, tmp_path / "data.npz")


class Explosive:
    """An object whose unpickling fails the test."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was read",)


def rewritten(path, compression=zipfile.ZIP_STORED, **members):
    """Write the file again with NumPy's arrays exchanged, added or, if None, left out."""
    with np.load(path) as stored:
        arrays = dict(stored) | members
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            if array is not None:
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=True)
    return path


def meta_of(path):
    with np.load(path) as stored:
        return json.loads(stored["meta_json"].tobytes())


def as_bytes(meta):
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


def with_meta(path, **changes):
    return rewritten(path, meta_json=as_bytes(meta_of(path) | changes))


# Round trips.


@pytest.mark.parametrize("mmap", [None, True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_a_dataset_comes_back_bit_for_bit(dataset, path, mmap, verify):
    loaded = load_dataset(path, mmap=mmap, verify=verify, expected_hash=dataset.content_hash)
    assert loaded.tasks == dataset.tasks
    assert_same_content(loaded, dataset)
    assert isinstance(loaded.obs, np.memmap) == bool(mmap)


def test_the_episodes_of_a_task_come_back_bit_for_bit(tmp_path):
    episodes = make_episodes(HOP, 3)
    path = save_episodes(episodes, tmp_path / "deep" / "folder" / "hop.npz")
    for mmap in (False, True):
        loaded = load_episodes(path, mmap=mmap, expected_hash=episodes.content_hash)
        assert loaded.task == HOP
        assert_same_content(loaded, episodes)


def test_mapped_arrays_are_lazy_aligned_and_read_only(path):
    mapped = load_dataset(path, mmap=True)
    for name, array in mapped.arrays().items():
        assert isinstance(array, np.memmap), name
        assert array.flags.aligned and array.offset % 64 == 0, name
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_large_files_are_mapped_unless_asked_otherwise(path, monkeypatch):
    monkeypatch.setattr(files, "MMAP_ABOVE_BYTES", path.stat().st_size - 1)
    assert isinstance(load_dataset(path).obs, np.memmap)
    assert not isinstance(load_dataset(path, mmap=False).obs, np.memmap)
    monkeypatch.setattr(files, "MMAP_ABOVE_BYTES", path.stat().st_size)
    assert not isinstance(load_dataset(path).obs, np.memmap)


def test_loading_without_verification_reads_no_number(path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the numbers were read")

    monkeypatch.setattr(dataset_module, "hash_of", refuse)
    monkeypatch.setattr(violations, "_check_numbers", refuse)
    load_dataset(path, mmap=True, verify=False)


def test_numpy_reads_the_file_without_pickles(dataset, path):
    with np.load(path, allow_pickle=False) as stored:
        assert set(stored) == {"obs", "action", "reward", "task", "meta_json"}
        np.testing.assert_array_equal(stored["obs"], dataset.obs)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_equal_datasets_make_equal_files(dataset, path, tmp_path):
    again = save_dataset(dataset, tmp_path / "again.npz")
    assert again.read_bytes() == path.read_bytes()


def test_arrays_in_another_memory_layout_are_saved_as_they_are(dataset, tmp_path):
    fortran = MultiTaskDataset(
        tasks=dataset.tasks,
        **{name: np.asfortranarray(array) for name, array in dataset.arrays().items()},
    )
    path = save_dataset(fortran, tmp_path / "fortran.npz")
    for mmap in (False, True):
        assert_same_content(load_dataset(path, mmap=mmap), dataset)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_100_episode_append_round_trips_over_the_same_file(dataset, path, mmap):
    wide = make_task("wide", obs_dim=8, action_dim=3)
    loaded = load_dataset(path, mmap=mmap)
    grown = loaded.extended(make_episodes(wide, 100))
    # The file whose arrays may still be mapped is replaced.
    save_dataset(grown, path)
    appended = load_dataset(path)
    assert appended.content_hash != dataset.content_hash
    assert_same_content(appended, grown)
    appended.check()
    assert appended.obs.shape == (106, 6, 8) and appended.action.shape == (106, 6, 3)
    np.testing.assert_array_equal(appended.task, [0] * 4 + [1] * 2 + [2] * 100)
    np.testing.assert_array_equal(appended.obs[:6, :, :5], dataset.obs)
    assert not appended.obs[:6, :, 5:].any() and not appended.action[:6, :, 2:].any()
    np.testing.assert_array_equal(appended.obs[6:], make_episodes(wide, 100).obs)
    assert_same_content(loaded, dataset)
    save_dataset(loaded, path)
    assert_same_content(load_dataset(path), dataset)


# What is refused.


def test_a_dataset_that_is_not_valid_is_not_saved(tmp_path):
    pooled = pool_tasks([make_episodes(REACH, 4, 1), make_episodes(SWIM, 2, 2)])
    pooled.obs[3, 0, 4] = 1
    with pytest.raises(ValueError, match=r"task 'reach' \(id 0\), episode 3, obs: .* padding"):
        save_dataset(pooled, tmp_path / "data.npz")
    episodes = make_episodes()
    episodes.reward[1, 0] = 1
    with pytest.raises(ValueError, match=r"task 'reach' \(id 0\), episode 1, reward: row 0"):
        save_episodes(episodes, tmp_path / "data.npz")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_earlier_file(dataset, path, monkeypatch):
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space left"):
        save_dataset(dataset, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nothing\.npz"):
        load_dataset(tmp_path / "nothing.npz")
    with pytest.raises(ValueError, match=r"is a folder; give the \.npz file in it"):
        load_dataset(tmp_path)


def test_a_wrong_hash_is_told_with_both(dataset, path):
    for verify in (True, False):
        with pytest.raises(ValueError) as caught:
            load_dataset(path, verify=verify, expected_hash="f" * 64)
        assert "is not the expected file" in str(caught.value)
        assert dataset.content_hash in str(caught.value) and "f" * 64 in str(caught.value)


def foreign_text(path):
    path.write_text("not an archive")


def empty(path):
    path.write_bytes(b"")


def of_numpy(path):
    np.savez(path, obs=np.zeros(3))


def compressed(path):
    with np.load(path) as stored:
        np.savez_compressed(path, **dict(stored))


def without_rewards(path):
    rewritten(path, reward=None, task=None)


def of_the_future(path):
    with_meta(path, version=2)


def of_another_format(path):
    with_meta(path, format="something else")


def of_episodes(path):
    save_episodes(make_episodes(), path)


def with_a_pickle(path):
    rewritten(path, obs=np.array([Explosive()], object))


def with_a_pickled_description(path):
    rewritten(path, meta_json=np.array([Explosive()], object))


def with_a_pickle_beside(path):
    path.write_bytes(pickle.dumps({"obs": 1}))


def without_tasks(path):
    with_meta(path, tasks=None)


def with_another_task(path):
    tasks = meta_of(path)["tasks"]
    with_meta(path, tasks=[tasks[0] | {"name": "fly"}, tasks[1]])


def with_wider_tasks(path):
    tasks = meta_of(path)["tasks"]
    with_meta(path, tasks=[tasks[0] | {"obs_dim": 9}, tasks[1]])


def with_doubles(path):
    with np.load(path) as stored:
        rewritten(path, obs=stored["obs"].astype(np.float64))


def with_another_reward(path):
    with np.load(path) as stored:
        rewritten(path, reward=stored["reward"] * 2)


def with_a_scalar(path):
    rewritten(path, task=np.array(1, np.int32))


def with_padding_and_its_hash(path):
    """A file as another program might make it: consistent, but not valid."""
    loaded = load_dataset(path)
    loaded.obs[2, 1, 4] = 7
    rewritten(path, obs=loaded.obs)
    with_meta(
        path, content_hash=MultiTaskDataset(tasks=loaded.tasks, **loaded.arrays()).content_hash
    )


REFUSED = {
    foreign_text: "is not an .npz file; give a file written by save_dataset",
    empty: "is not an .npz file",
    of_numpy: "was not written by save_dataset or save_episodes: it has no meta_json",
    compressed: "is compressed (its obs), and such a file cannot be mapped",
    without_rewards: "is incomplete: it lacks reward, task.",
    of_the_future: "has version 2 of its format, and this version of wm-multitask reads version 1",
    of_another_format: "holds 'something else', not 'wm-multitask dataset': load_dataset cannot",
    of_episodes: "holds 'wm-multitask episodes', not 'wm-multitask dataset': use load_episodes",
    with_a_pickle: "holds pickled objects (its obs), which could run code when read",
    with_a_pickled_description: "is damaged: its meta_json cannot be read",
    with_a_pickle_beside: "is not an .npz file",
    without_tasks: "does not describe its tasks: A task set is stored as a list under 'tasks'",
    with_another_task: "is damaged: its content hash is ",
    with_wider_tasks: "has content that is not valid. The dataset cannot be used:",
    with_doubles: "obs: must have dtype float32, has float64",
    with_another_reward: "is damaged: its content hash is ",
    with_a_scalar: "task: must be [N], has shape []",
    with_padding_and_its_hash: "task 'reach' (id 0), episode 2, obs: row 1, dimension 4 is 7.0",
}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(("change", "message"), REFUSED.items(), ids=[f.__name__ for f in REFUSED])
def test_a_file_is_refused(change, message, path, mmap):
    change(path)
    with pytest.raises(ValueError) as caught:
        load_dataset(path, mmap=mmap)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_of_a_dataset_is_no_file_of_episodes(path):
    with pytest.raises(ValueError, match="not 'wm-multitask episodes': use load_dataset"):
        load_episodes(path)


def test_a_file_cut_short_anywhere_is_refused(path):
    whole = path.read_bytes()
    for length in [*range(4, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is cut short or damaged"):
            load_dataset(path)


def test_no_flipped_bit_goes_unnoticed(dataset, path):
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            loaded = load_dataset(path, mmap=place % 2 == 0)
        except ValueError as error:
            refused += 1
            assert re.search(
                "damaged|not valid|incomplete|not written|compressed|pickled", str(error)
            )
        else:
            # Dates, padding and other bytes that no number depends on.
            assert_same_content(loaded, dataset)
    assert refused > 0.5 * len(whole) / 7
