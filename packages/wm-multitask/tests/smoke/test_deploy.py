"""The policy of one task, in the task's own sizes."""

import jax
import numpy as np
import pytest

from wm_collect.deploy import export_policy, load_policy
from wm_collect.loop import init_run
from wm_multitask import TDMPC2MultiTask
from wm_multitask.train import make_evaluator

from .fixed_tasks import LENGTHS, SIZES, TINY, make_dataset


@pytest.fixture(scope="module")
def agent():
    return TDMPC2MultiTask(make_dataset(), **TINY | {"horizon": 2})


@pytest.fixture(scope="module")
def state(agent):
    return jax.jit(lambda key: init_run(agent.algorithm(1), (), key))(jax.random.key(0))


def test_the_policy_of_a_task_takes_its_sizes(agent, state, tmp_path):
    folder = export_policy(agent, state, tmp_path / "narrow", task="narrow", policy_only=True)
    policy = load_policy(folder)
    obs_dim, action_dim = SIZES["narrow"]
    assert policy.contract["observation"]["shape"] == [obs_dim]
    assert policy.contract["planner"] == {"task": "narrow", "policy_only": True}
    action = policy(np.zeros((1, obs_dim)))
    assert action.shape == (1, action_dim) and np.abs(action).max() <= 1
    (table,) = [
        leaf["shape"] for leaf in policy.contract["weights"] if leaf["name"].endswith("task_emb")
    ]
    assert table == [1, TINY["task_dim"]]


def test_it_acts_as_the_agents_own_evaluation(agent, state, tmp_path):
    """The second task, whose embedding is not the first row of the table."""
    index = agent.tasks.index("wide")
    evaluate = make_evaluator(agent.envs[index], agent.tasks, index, agent.config, 2, record=True)
    episode = jax.jit(evaluate)(state.agent, jax.random.key(3)).trajectory
    policy = load_policy(export_policy(agent, state, tmp_path / "wide", task="wide"))
    policy.reset(n=2, seed=3)
    for t in range(LENGTHS["wide"]):
        action = policy(np.stack([episode.obs[t], episode.obs[t]]))[0]
        np.testing.assert_allclose(action, episode.action[t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "name one of narrow, wide"),
        ({"task": "wyde"}, "No task is named 'wyde'"),
        ({"task": "wide", "num_samples": 0}, "num_samples must be"),
    ],
    ids=str,
)
def test_what_cannot_be_deployed_is_refused(agent, state, options, words):
    with pytest.raises(ValueError, match=words):
        agent.deployable(state, **options)
