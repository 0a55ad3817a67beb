"""Settings, their refusals, and what follows from a set of tasks."""

import dataclasses
import inspect

import pytest

from wm_multitask import MultiTaskSettings, TaskSet, TDMPC2MultiTask, pool_tasks, resolve_config
from wm_tdmpc2.networks import parameter_counts

from .toy_tasks import HOP, REACH, SWIM, make_episodes, make_task


def many(n, obs_dim, action_dim, length):
    """A set of `n` tasks whose widest has these sizes."""
    names = [f"task-{i}" for i in range(n)]
    sizes = dict(obs_dim=obs_dim, action_dim=action_dim, episode_length=length)
    return TaskSet(tuple(make_task(name, **sizes) for name in names))


# The tables of the reference at size 5, task embedding 96.
@pytest.mark.parametrize(
    ("tasks", "total"),
    [(many(80, 39, 6, 100), 5_389_930), (many(30, 24, 6, 500), 5_381_290)],
    ids=["80 tasks", "30 tasks"],
)
def test_parameter_counts_are_those_of_the_reference(tasks, total):
    config = resolve_config(MultiTaskSettings(), tasks, n_rows=101)
    assert parameter_counts(config)["total"] == total


def test_the_configuration_takes_the_widest_task():
    tasks = TaskSet((REACH, SWIM, HOP))
    config = resolve_config(MultiTaskSettings(model_size=1, task_dim=7), tasks, n_rows=6)
    assert (config.obs_dim, config.action_dim) == (5, 4)
    assert (config.n_tasks, config.task_dim) == (3, 7)
    assert config.iterations == 6 and config.batch_size == 1024


def test_twenty_padded_action_dimensions_give_two_more_iterations():
    tasks = TaskSet((REACH, make_task("hand", action_dim=20)))
    assert resolve_config(MultiTaskSettings(), tasks, n_rows=6).iterations == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(task_dim=0), r"task_dim must be .* at least 1, got 0"),
        (dict(model_size=7), r"model_size must be one of 1, 5, 19, 48, 317, got 7"),
        (dict(batch_size=-1), r"batch_size must be .* at least 1, got -1"),
        (dict(num_elites=600), r"num_elites must be between 1 and num_samples=512, got 600"),
        (dict(dropout=1.0), r"dropout must lie in \[0, 1\), got 1\.0"),
        (dict(horizon=6), r"horizon must be at most 5, the agent steps of an episode"),
        (dict(learning_rate=0.0), r"learning_rate must be"),
        (dict(latent_dim=20), r"latent_dim must be a multiple of simnorm_dim=8, got 20"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(arguments, message):
    dataset = pool_tasks([make_episodes(REACH), make_episodes(SWIM)])
    with pytest.raises(ValueError, match=message):
        TDMPC2MultiTask(dataset, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(n_timesteps=0), r"n_timesteps must be a whole number of at least 1, got 0"),
        (dict(num_episode_test=-1), r"num_episode_test must be at least 0, got -1"),
        (dict(seed=[1, 1]), r"every seed of a list must differ"),
    ],
)
def test_training_refuses_bad_arguments(arguments, message):
    agent = TDMPC2MultiTask(pool_tasks([make_episodes(REACH)]), model_size=1)
    with pytest.raises(ValueError, match=message):
        agent.train(**({"n_timesteps": 3, "progress": False} | arguments))


def test_the_constructor_takes_every_setting_with_its_default():
    parameters = list(inspect.signature(TDMPC2MultiTask.__init__).parameters.values())[1:]
    assert parameters[0].name == "dataset" and parameters[-1].name == "extensions"
    assert {p.name: (p.default, p.annotation) for p in parameters[1:-1]} == {
        f.name: (f.default, f.type) for f in dataclasses.fields(MultiTaskSettings)
    }
