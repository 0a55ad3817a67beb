"""Pooling, windows, extension, and the check that names every violation."""

import dataclasses
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from wm_multitask import arrays
from wm_multitask.dataset import MultiTaskDataset, TaskEpisodes, check, pool_tasks, window_starts
from wm_multitask.tasks import TaskSet

from .toy_tasks import HOP, REACH, SWIM, assert_same_content, make_episodes, make_task

examples = hypothesis.settings(max_examples=50, deadline=None, derandomize=True)


def three_tasks():
    """Episodes 0 to 3 are of reach, 4 and 5 of swim, 6 to 8 of hop."""
    return pool_tasks(
        [make_episodes(REACH, 4, 1), make_episodes(SWIM, 2, 2), make_episodes(HOP, 3, 3)]
    )


def own_part(dataset, task_id):
    """Return one task's obs, action and reward without padding."""
    task, of_task = dataset.tasks.tasks[task_id], dataset.task == task_id
    return (
        dataset.obs[of_task][..., : task.obs_dim],
        dataset.action[of_task][..., : task.action_dim],
        dataset.reward[of_task],
    )


# Pooling.


def test_pooling_pads_at_the_end_with_zeros():
    pooled = three_tasks()
    assert pooled.obs.shape == (9, 6, 5) and pooled.action.shape == (9, 6, 4)
    np.testing.assert_array_equal(pooled.task, [0, 0, 0, 0, 1, 1, 2, 2, 2])
    assert pooled.task.dtype == np.int32
    assert (pooled.n_episodes, pooled.n_rows) == (9, 6)
    np.testing.assert_array_equal(pooled.episodes_per_task, [4, 2, 3])
    # The toy numbers are never zero, so what is zero is padding or a last row.
    assert not pooled.obs[:4, :, 3:].any() and pooled.obs[:4, :, :3].all()
    assert not pooled.action[4:6, :, 1:].any() and pooled.action[4:6, :-1, 0].all()
    check(pooled)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))


@examples
@hypothesis.given(
    tasks=st.lists(sizes, min_size=1, max_size=4), length=st.integers(1, 5), data=st.data()
)
def test_pooled_episodes_without_padding_are_the_originals(tasks, length, data):
    originals = []
    for i, (obs_dim, action_dim, more_seeds) in enumerate(tasks):
        task = make_task(f"t{i}", obs_dim=obs_dim, action_dim=action_dim, episode_length=length)
        originals += [
            make_episodes(task, 1 + seed, 10 * i + seed) for seed in range(1 + more_seeds)
        ]
    given = data.draw(st.permutations(originals))
    pooled = pool_tasks(given)
    pooled.check()
    assert pooled.tasks.names == tuple(dict.fromkeys(part.task.name for part in given))
    assert pooled.n_episodes == sum(part.n_episodes for part in originals)
    for task_id, name in enumerate(pooled.tasks.names):
        of_task = [part for part in given if part.task.name == name]
        for own, field in zip(own_part(pooled, task_id), ("obs", "action", "reward"), strict=True):
            expected = np.concatenate([getattr(part, field) for part in of_task])
            np.testing.assert_array_equal(own, expected)


@examples
@hypothesis.given(n_rows=st.integers(2, 40), data=st.data())
def test_windows_cover_every_transition(n_rows, data):
    rows = data.draw(st.integers(2, n_rows))
    starts = window_starts(n_rows, rows)
    assert (np.diff(starts) > 0).all() and starts[0] == 0 and starts[-1] == n_rows - rows
    # Transition k leads from row k to row k + 1.
    covered = {k for start in starts for k in range(start, start + rows - 1)}
    assert covered == set(range(n_rows - 1))
    assert len(starts) == -(-(n_rows - 1) // (rows - 1))


def test_windows_of_a_500_step_episode_as_101_rows():
    np.testing.assert_array_equal(window_starts(501, 101), [0, 100, 200, 300, 400])
    np.testing.assert_array_equal(window_starts(12, 5), [0, 4, 7])


@pytest.mark.parametrize("chunk_bytes", [1, 2**25], ids=["one at a time", "all at once"])
def test_longer_episodes_are_cut_and_every_slice_is_as_in_the_original(monkeypatch, chunk_bytes):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk_bytes)
    long = make_episodes(make_task("long", episode_length=11), 3)
    short = make_episodes(make_task("short", episode_length=4, obs_dim=4), 2)
    pooled = pool_tasks([long, short])
    pooled.check()
    assert pooled.n_rows == 5
    np.testing.assert_array_equal(pooled.task, [0] * 9 + [1] * 2)
    for index in range(9):
        episode, start = index // 3, (0, 4, 7)[index % 3]
        end = start + 5
        np.testing.assert_array_equal(pooled.obs[index, :, :3], long.obs[episode, start:end])
        # A slice reads neither the last row's action nor the first row's reward.
        np.testing.assert_array_equal(
            pooled.action[index, :-1], long.action[episode, start : end - 1]
        )
        np.testing.assert_array_equal(
            pooled.reward[index, 1:], long.reward[episode, start + 1 : end]
        )
    assert not pooled.action[:, -1].any() and not pooled.reward[:, 0].any()
    np.testing.assert_array_equal(pooled.obs[9:], short.obs)
    # Discounts know nothing of the windows.
    np.testing.assert_array_equal(
        pooled.tasks.discounts(denom=1, minimum=0.0), np.float32([10 / 11, 3 / 4])
    )


def test_fewer_rows_can_be_asked_for():
    pooled = pool_tasks([make_episodes(REACH, 2)], rows=3)
    pooled.check()
    assert pooled.obs.shape == (6, 3, 3)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(1, [9]), (2, [4, 9]), (3, [2, 5, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_a_limit_keeps_episodes_spread_over_all_seeds(limit, kept):
    seeds = [make_episodes(REACH, n, n) for n in (3, 7)]
    pooled = pool_tasks([seeds[0], make_episodes(SWIM, 1), seeds[1]], max_episodes_per_task=limit)
    everything = np.concatenate([part.obs for part in seeds])
    np.testing.assert_array_equal(own_part(pooled, 0)[0], everything[kept])
    assert pooled.episodes_per_task[1] == 1


POOLING_REFUSED = {
    "nothing": (lambda: pool_tasks([]), "no episodes to pool"),
    "more rows than an episode has": (
        lambda: pool_tasks([make_episodes()], rows=7),
        "rows must be at most 6, which is what episodes of the task 'reach' have, got 7",
    ),
    "one row": (lambda: pool_tasks([make_episodes()], rows=1), "rows must be .* at least 2, got 1"),
    "a limit of zero": (
        lambda: pool_tasks([make_episodes()], max_episodes_per_task=0),
        "max_episodes_per_task must be a whole number of at least 1, got 0",
    ),
    "a task that differs": (
        lambda: pool_tasks([make_episodes(), make_episodes(make_task(action_repeat=2))]),
        r"named 'reach' but are not the same: action_repeat is 1 and 2\. Give them different",
    ),
    "episodes that are not valid": (
        lambda: pool_tasks([dataclasses.replace(make_episodes(), reward=np.ones((4, 6)))]),
        "The episodes of task 'reach' cannot be used",
    ),
    "episodes with a row missing": (
        lambda: pool_tasks([make_episodes(), shortened(make_episodes(SWIM))]),
        "task 'swim': episodes of 5 agent steps have 6 rows, but the arrays have 5",
    ),
}


def shortened(episodes):
    cut = {name: array[:, 1:].copy() for name, array in episodes.arrays().items()}
    cut["reward"][:, 0] = 0
    return TaskEpisodes(task=episodes.task, **cut)


@pytest.mark.parametrize(("pool", "message"), POOLING_REFUSED.values(), ids=POOLING_REFUSED)
def test_pooling_refuses(pool, message):
    with pytest.raises(ValueError, match=message):
        pool()


# Extension.


def test_an_extended_dataset_equals_one_pooled_at_once():
    parts = [make_episodes(REACH, 4, 1), make_episodes(HOP, 100, 2)]
    small = pool_tasks(parts[:1])
    before = small.content_hash
    grown = small.extended(parts[1])
    assert_same_content(grown, pool_tasks(parts))
    assert grown.content_hash != before
    assert_same_content(small, pool_tasks(parts[:1]))


def test_an_extension_keeps_the_ids_and_the_padding_of_known_tasks():
    pooled = three_tasks()
    wide = make_task("wide", obs_dim=7, action_dim=6)
    grown = pooled.extended(make_episodes(SWIM, 3, 8), make_episodes(wide, 2, 9))
    grown.check()
    assert grown.tasks == TaskSet((*pooled.tasks.tasks, wide))
    np.testing.assert_array_equal(grown.task, [*pooled.task, 1, 1, 1, 3, 3])
    assert grown.obs.shape[2] == 7 and grown.action.shape[2] == 6
    np.testing.assert_array_equal(grown.obs[:9, :, :5], pooled.obs)
    np.testing.assert_array_equal(grown.obs[9:12, :, :5], make_episodes(SWIM, 3, 8).obs)
    np.testing.assert_array_equal(grown.obs[12:], make_episodes(wide, 2, 9).obs)


def test_an_extension_cuts_longer_episodes_and_refuses_shorter_ones():
    pooled = three_tasks()
    assert pooled.extended(make_episodes(make_task("long", episode_length=10), 2)).n_episodes == 13
    with pytest.raises(ValueError, match=r"has 6 rows .* 'short' have only 5; pool all episodes"):
        pooled.extended(make_episodes(make_task("short", episode_length=4)))
    with pytest.raises(ValueError, match="named 'hop' but are not the same: obs_dim is 2 and 9"):
        pooled.extended(make_episodes(dataclasses.replace(HOP, obs_dim=9)))


# The check.


def broken(field, place, value):
    """Return the three tasks' data with one number changed."""
    pooled = three_tasks()
    getattr(pooled, field)[place] = value
    return pooled


NUMBERS = {
    "obs not finite": (
        "obs",
        (5, 2, 4),
        np.nan,
        "task 'swim' (id 1), episode 5, obs: row 2, dimension 4 is "
        "nan, every number must be finite",
    ),
    "obs padding": (
        "obs",
        (1, 3, 4),
        2.5,
        "task 'reach' (id 0), episode 1, obs: row 3, dimension 4 is 2.5, padding must be exactly 0",
    ),
    "tiny obs padding": (
        "obs",
        (8, 0, 2),
        1e-30,
        "task 'hop' (id 2), episode 8, obs: row 0, dimension 2 is 1.0000000031710769e-30, padding",
    ),
    "action not finite": (
        "action",
        (0, 1, 1),
        np.inf,
        "task 'reach' (id 0), episode 0, action: row 1, dimension 1 "
        "is inf, every number must be finite",
    ),
    "action padding": (
        "action",
        (4, 1, 1),
        -0.5,
        "task 'swim' (id 1), episode 4, action: row 1, dimension 1 "
        "is -0.5, padding must be exactly 0",
    ),
    "action out of bounds": (
        "action",
        (7, 2, 3),
        -1.5,
        "task 'hop' (id 2), episode 7, action: row 2, dimension 3 is "
        "-1.5, actions must lie in [-1, 1]",
    ),
    "action in the last row": (
        "action",
        (6, -1, 0),
        0.25,
        "task 'hop' (id 2), episode 6, action: row 5, dimension 0 is "
        "0.25, the last row has no action",
    ),
    "reward not finite": (
        "reward",
        (3, 4),
        -np.inf,
        "task 'reach' (id 0), episode 3, reward: row 4 is -inf, every number must be finite",
    ),
    "reward in row 0": (
        "reward",
        (5, 0),
        3.0,
        "task 'swim' (id 1), episode 5, reward: row 0 is 3.0, row 0 has no reward",
    ),
    "task id too large": (
        "task",
        2,
        3,
        "episode 2, task: id 3 is no task, the 3 task(s) have ids 0 to 2",
    ),
    "task id negative": ("task", 8, -1, "episode 8, task: id -1 is no task"),
}


@pytest.mark.parametrize("chunk_bytes", [1, 2**25], ids=["one at a time", "all at once"])
@pytest.mark.parametrize(("field", "place", "value", "line"), NUMBERS.values(), ids=NUMBERS)
def test_a_wrong_number_is_named(monkeypatch, chunk_bytes, field, place, value, line):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk_bytes)
    with pytest.raises(ValueError) as caught:
        broken(field, place, value).check()
    first, *lines = str(caught.value).splitlines()
    assert first == "The dataset cannot be used:"
    assert len(lines) == 1
    assert lines[0].startswith(f"- {line}")


def with_arrays(**changes):
    return dataclasses.replace(three_tasks(), **changes)


SHAPES = {
    "obs of float64": (
        lambda d: dict(obs=d.obs.astype(np.float64)),
        "obs: must have dtype float32, has float64",
    ),
    "rewards of integers": (
        lambda d: dict(reward=d.reward.astype(np.int64) * 0),
        "reward: must have dtype float32, has int64",
    ),
    "ids of int64": (
        lambda d: dict(task=d.task.astype(np.int64)),
        "task: must have dtype int32, has int64",
    ),
    "ids of floats": (
        lambda d: dict(task=d.task.astype(np.float32)),
        "task: must have dtype int32, has float32",
    ),
    "no array": (lambda d: dict(obs=d.obs.tolist()), "obs: must be a NumPy array, is a list"),
    "flat actions": (
        lambda d: dict(action=d.action[..., 0]),
        "action: must be [N, R, A], has shape [9, 6]",
    ),
    "rewards with an axis more": (
        lambda d: dict(reward=d.reward[..., None]),
        "reward: must be [N, R], has shape [9, 6, 1]",
    ),
    "an action row less": (
        lambda d: dict(action=d.action[:, 1:]),
        "action: begins with the sizes [9, 5], but obs with [9, 6]",
    ),
    "a reward less": (
        lambda d: dict(reward=d.reward[1:]),
        "reward: begins with the sizes [8, 6], but obs with [9, 6]",
    ),
    "an id less": (
        lambda d: dict(task=d.task[1:]),
        "task: begins with the sizes [8], but obs with [9, 6]",
    ),
    "narrow obs": (
        lambda d: dict(obs=d.obs[..., 1:]),
        "obs: must be 5 wide, as the widest task, is 4",
    ),
    "wide actions": (
        lambda d: dict(action=np.pad(d.action, ((0, 0), (0, 0), (0, 1)))),
        "action: must be 4 wide, as the widest task, is 5",
    ),
}


@pytest.mark.parametrize(("change", "line"), SHAPES.values(), ids=SHAPES)
def test_a_wrong_dtype_or_shape_is_named(change, line):
    changed = with_arrays(**change(three_tasks()))
    for run in (changed.check, changed.check_shapes):
        with pytest.raises(ValueError) as caught:
            run()
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) == 1 and lines[0].startswith(f"- {line}")


def test_a_task_without_episodes_is_named():
    pooled = three_tasks()
    pooled.task[4:6] = 0
    with pytest.raises(ValueError, match=re.escape("task 'swim' (id 1), task: it has no episode")):
        pooled.check()


def test_more_rows_than_a_tasks_episode_has_are_named():
    short = dataclasses.replace(SWIM, episode_length=4)
    with pytest.raises(ValueError) as caught:
        with_arrays(tasks=TaskSet((REACH, short, HOP))).check()
    assert "task 'swim' (id 1), obs: its episodes have 5 rows, but R is 6" in str(caught.value)


def test_all_violations_are_named_together():
    pooled = three_tasks()
    pooled.obs[0, 0, 4] = 1
    pooled.action[4, 0, 0] = 2
    pooled.reward[8, 0] = 1
    pooled.reward[2, 1] = np.nan
    pooled = dataclasses.replace(pooled, obs=pooled.obs.astype(np.float64))
    with pytest.raises(ValueError) as caught:
        pooled.check()
    message = str(caught.value)
    assert message.count("\n") == 5
    for part in ("float64", "episode 0, obs", "episode 4, action", "episode 8, reward", "is nan"):
        assert part in message


def test_many_violations_are_listed_up_to_twenty_and_counted():
    episodes = make_episodes(REACH, 50)
    episodes.reward[:, 0] = 1
    episodes.action[:7, -1] = 1
    with pytest.raises(ValueError) as caught:
        episodes.check()
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "- and 37 more"


def test_negative_zeros_and_the_bounds_themselves_are_valid():
    pooled = three_tasks()
    pooled.obs[0, :, 3:] = -0.0
    pooled.action[8, 0] = [-1, 1, -1, 1]
    pooled.check()


def test_shapes_alone_can_be_checked():
    broken("obs", (0, 0, 4), 1.0).check_shapes()


def test_the_hash_knows_every_part_of_a_dataset():
    parts = [make_episodes(REACH, 4, 1), make_episodes(SWIM, 2, 2)]
    original = pool_tasks(parts)
    assert original.content_hash == pool_tasks(parts).content_hash
    hashes = {original.content_hash}
    for field in ("obs", "action", "reward", "task"):
        changed = pool_tasks(parts)
        getattr(changed, field).reshape(-1)[-1] += 1
        hashes.add(changed.content_hash)
    renamed = TaskSet((REACH, dataclasses.replace(SWIM, name="dive")))
    hashes.add(dataclasses.replace(original, tasks=renamed).content_hash)
    assert len(hashes) == 6


def test_the_hash_does_not_depend_on_the_layout_in_memory(monkeypatch):
    pooled = three_tasks()
    fortran = dataclasses.replace(pooled, obs=np.asfortranarray(pooled.obs))
    assert fortran.content_hash == pooled.content_hash
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 1)
    assert isinstance(pooled, MultiTaskDataset)
    assert three_tasks().content_hash == pooled.content_hash
