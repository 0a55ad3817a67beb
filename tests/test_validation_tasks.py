"""The task maps agree with the published curves, with dm_control's names and with what exists."""

import pytest

from wm_collect import known_ids, make_env

from .validation_tools import curves, protocols, tasks


def test_there_are_as_many_tasks_as_the_benchmarks_have():
    assert (len(tasks.DREAMERV3), len(tasks.TDMPC2), len(tasks.MT30)) == (18, 22, 19)


@pytest.mark.parametrize("benchmark", [tasks.DREAMERV3, tasks.TDMPC2])
def test_no_environment_is_two_tasks_and_every_one_is_known(benchmark: dict[str, str]):
    ids = list(benchmark.values())
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(known_ids()["playground"])
    assert set(ids) <= set(tasks.DM_CONTROL)


def test_names_follow_from_dm_control():
    for name, env_id in tasks.DREAMERV3.items():
        assert name == "dmc_" + "_".join(tasks.DM_CONTROL[env_id])
    for name, env_id in tasks.TDMPC2.items():
        domain, task = tasks.DM_CONTROL[env_id]
        domain = {"ball_in_cup": "cup"}.get(domain, domain)
        assert name == f"{domain}-{task}".replace("_", "-")


def test_playground_ids_follow_from_dm_control():
    for env_id, words in tasks.DM_CONTROL.items():
        joined = "".join(word.title() for word in "_".join(words).split("_"))
        assert env_id == {"BallInCupCatch": "BallInCup"}.get(joined, joined)


@pytest.mark.parametrize(
    ("benchmark", "validation"),
    [(tasks.DREAMERV3, protocols.DREAMERV3), (tasks.TDMPC2, protocols.TDMPC2)],
)
def test_the_published_files_name_the_same_environments(benchmark, validation):
    assert curves.reference_names(validation.reference) == benchmark
    assert list(validation.budgets) == list(benchmark.values())


def test_mt30_is_a_part_of_the_single_tasks_without_repetition():
    assert len(set(tasks.MT30)) == len(tasks.MT30)
    assert set(tasks.MT30) == {name for name in tasks.TDMPC2 if not name.startswith("humanoid")}


@pytest.mark.parametrize(
    ("env_id", "obs_dim", "action_dim"), [("CartpoleSwingup", 5, 1), ("PendulumSwingup", 3, 1)]
)
def test_sizes_are_those_of_dm_control(env_id: str, obs_dim: int, action_dim: int):
    spec = make_env(env_id, action_repeat=2).spec
    assert (spec.obs_dim, spec.action_dim, spec.episode_length) == (obs_dim, action_dim, 500)
    assert spec.fixed_length
