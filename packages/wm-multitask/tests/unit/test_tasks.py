"""Tasks and task sets: padded sizes, masks, discounts, look-up, JSON, and what they refuse."""

import dataclasses
import json
import re

import numpy as np
import pytest

from wm_multitask.tasks import Task, TaskSet

from .toy_tasks import HOP, REACH, SWIM, make_task

TASKS = TaskSet((REACH, SWIM, HOP))


def test_the_set_is_as_wide_as_its_widest_task():
    assert (TASKS.n_tasks, TASKS.obs_dim, TASKS.action_dim) == (3, 5, 4)
    assert TASKS.names == ("reach", "swim", "hop")


def test_action_masks_are_ones_on_the_own_dimensions():
    masks = TASKS.action_masks
    assert masks.dtype == np.float32
    np.testing.assert_array_equal(masks, [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])


def test_discounts_come_from_each_tasks_own_length():
    lengths = (10, 100, 200, 500, 1000, 2000)
    tasks = TaskSet(tuple(make_task(f"t{n}", episode_length=n) for n in lengths))
    discounts = tasks.discounts()
    assert discounts.dtype == np.float32
    expected = np.float32([0.95, 0.95, 0.975, 0.99, 0.995, 0.995])
    np.testing.assert_array_equal(discounts, expected)
    np.testing.assert_array_equal(
        tasks.discounts(denom=10, minimum=0.5, maximum=0.9)[:2], np.float32([0.5, 0.9])
    )


def test_sets_are_hashable_static_values():
    assert hash(TASKS) == hash(TaskSet([REACH, SWIM, HOP]))
    assert TASKS == TaskSet([REACH, SWIM, HOP]) != TaskSet((SWIM, REACH, HOP))
    hash(make_task(env_params={"b": 1, "a": "text"}))


def test_parameters_are_kept_sorted_and_can_be_given_again():
    task = make_task(env_params={"b": 1.5, "a": True})
    assert task.env_params == (("a", True), ("b", 1.5))
    assert dataclasses.replace(task, name="other").env_params == task.env_params
    assert task == make_task(env_params={"a": True, "b": 1.5})


def test_sizes_are_plain_integers():
    task = make_task(obs_dim=np.int64(3))
    assert type(task.obs_dim) is int


@pytest.mark.parametrize(
    "tasks",
    [TASKS, TaskSet((make_task(env_params={}, env_episode_length=7),))],
    ids=["three tasks", "empty parameters"],
)
def test_a_passage_through_json_changes_nothing(tasks):
    assert TaskSet.from_json(json.loads(json.dumps(tasks.to_json()))) == tasks


def test_a_task_is_found_by_its_name():
    assert [TASKS.index(name) for name in TASKS.names] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Swimm", "No task is named 'Swimm'. Close matches: 'swim'."),
        ("walker", "No task is named 'walker'. The tasks are 'reach', 'swim', 'hop'."),
    ],
)
def test_an_unknown_name_is_answered_with_known_ones(name, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TASKS.index(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(name=""), "name must be a text that is not empty, got ''"),
        (dict(env_id=None), "env_id must be a text that is not empty, got None"),
        (dict(obs_dim=0), "obs_dim must be a whole number of at least 1, got 0"),
        (dict(action_dim=1.5), "action_dim must be a whole number of at least 1, got 1.5"),
        (dict(episode_length=-1), "episode_length must be a whole number of at least 1, got -1"),
        (dict(action_repeat=True), "action_repeat must be a whole number of at least 1, got True"),
        (dict(env_episode_length=0), "env_episode_length must be a whole number of at least 1"),
        (dict(env_params={"a": np.zeros(2)}), "plain values .* for 'a'"),
        (dict(env_params={"a": float("nan")}), "plain values .* got nan for 'a'"),
        (dict(env_params={1: 1.0}), "map names to plain values"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_task_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        make_task(**changes)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((), "at least one task, got none"),
        ((REACH, SWIM, REACH), "names of their own, but 'reach' is there more than once"),
        (("reach",), "made of Task objects, got 'reach'"),
    ],
)
def test_a_set_refuses(tasks, message):
    with pytest.raises(ValueError, match=message):
        TaskSet(tasks)


def test_foreign_json_is_refused():
    with pytest.raises(ValueError, match=r"stored as a list under 'tasks', got \{\}"):
        TaskSet.from_json({})
    values = REACH.to_json()
    del values["obs_dim"]
    with pytest.raises(ValueError, match=r"stored with the fields \['action_dim'.*'obs_dim'"):
        Task.from_json(values)
    with pytest.raises(ValueError, match="stored with the fields"):
        Task.from_json(REACH.to_json() | {"colour": "red"})


@pytest.mark.rank_promotion
def test_a_task_builds_its_environment_again():
    task = Task(
        name="pendulum",
        obs_dim=3,
        action_dim=1,
        episode_length=10,
        env_id="Pendulum-v1",
        action_repeat=2,
        env_episode_length=20,
        env_params={"max_speed": 4.0},
    )
    spec = task.make_env().spec
    assert (spec.env_id, spec.episode_length, spec.action_repeat) == ("Pendulum-v1", 10, 2)
    wrong = dataclasses.replace(task, action_repeat=1)
    with pytest.raises(ValueError, match=r"has episode_length=10, but its environment .* has 20"):
        wrong.make_env()
