"""The planner as a policy to deploy: it acts as evaluations do, within a budget, or reacts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.deploy import export_policy, load_policy
from wm_collect.loop import init_run
from wm_tdmpc2 import TDMPC2, world_model
from wm_tdmpc2.deploy import PlannerBudget

from .tiny import TINY

DECISIONS = 10


@pytest.fixture(scope="module")
def agent():
    return TDMPC2("Pendulum-v1", **TINY, horizon=2, action_repeat=2, episode_length=2 * DECISIONS)


@pytest.fixture(scope="module")
def state(agent):
    return jax.jit(lambda key: init_run(agent.algorithm(100), (), key))(jax.random.key(0))


@pytest.fixture(scope="module")
def policy(agent, state, tmp_path_factory):
    return load_policy(export_policy(agent, state, tmp_path_factory.mktemp("policy") / "planner"))


def test_it_acts_as_the_agents_own_evaluation(agent, state, policy):
    episode = agent.evaluate(state, n_episodes=2, seed=3, record=True).trajectory
    policy.reset(n=2, seed=3)
    for obs, agent_action in zip(episode.obs[:DECISIONS], episode.action, strict=True):
        # Of two environments the first was recorded; rows do not see one another.
        action = policy(np.stack([obs, obs]))[0]
        np.testing.assert_allclose(action, 2 * agent_action, rtol=1e-5, atol=1e-6)


def test_the_contract_says_what_the_planner_does_and_how_often(policy):
    assert policy.contract["planner"] == {
        "policy_only": False,
        "iterations": 3,
        "num_samples": 24,
        "num_elites": 6,
        "num_pi_trajs": 4,
        "horizon": 2,
    }
    assert policy.contract["timing"]["action_repeat"] == 2
    assert policy.contract["action"]["low"] == [-2.0]
    assert policy.contract["environment"]["episode_length_in_decisions"] == DECISIONS
    assert [leaf["name"] for leaf in policy.contract["carry"]] == ["planner_mean"]


def test_without_planning_it_acts_by_the_mean_of_the_prior(agent, state, tmp_path):
    folder = export_policy(agent, state, tmp_path / "prior", policy_only=True)
    policy = load_policy(folder)
    obs = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    learner, config = state.agent.learner, agent.config
    z = world_model.encode(learner.wm_params, obs, config=config)
    prior = world_model.pi(learner.pi_params, z, jnp.zeros((1, 1)), config=config)
    np.testing.assert_allclose(policy(obs), 2 * prior.mean, rtol=1e-5)
    policy.reset(seed=8)
    np.testing.assert_allclose(policy(obs), 2 * prior.mean, rtol=1e-5)
    assert policy.carry == {} and policy.contract["planner"] == {"policy_only": True}
    networks = {leaf["name"].split("/")[1] for leaf in policy.contract["weights"]}
    assert "encoder" in networks and not networks & {"q", "dynamics", "reward"}


def test_every_exported_weight_is_read(agent, state):
    """A budget of one iteration reads the same arrays, and compiles faster."""
    given = agent.deployable(state, iterations=1, num_samples=12)
    act = jax.jit(given.act)
    # Heads start at zero, and what is below them would not show.
    draw = np.random.default_rng(1).normal
    trained = jax.tree.map(lambda x: np.float32(x + 0.3 * draw(size=x.shape)), given.weights)
    leaves, tree = jax.tree.flatten(trained)
    carry = jax.tree.map(lambda leaf: leaf + 0.3, given.init_carry(2))
    obs = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)

    def outcome(weights):
        results = [act(weights, carry, obs, np.zeros(2, bool), jax.random.key(i)) for i in (0, 1)]
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(results)])

    usual = outcome(trained)
    unread = []
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        moved = [*leaves[:i], np.float32(leaf + draw(size=leaf.shape)), *leaves[i + 1 :]]
        if np.array_equal(outcome(jax.tree.unflatten(tree, moved)), usual):
            unread.append(jax.tree_util.keystr(path))
    assert unread == []


def test_the_state_of_several_seeds_is_refused(agent, state):
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    with pytest.raises(ValueError, match="2 seeds side by side"):
        agent.deployable(several)


@pytest.mark.parametrize(
    ("budget", "population"),
    [
        ({}, (3, 24, 6, 4)),
        ({"iterations": 1}, (1, 24, 6, 4)),
        ({"num_samples": 12}, (3, 12, 3, 2)),
        ({"num_samples": 2}, (3, 2, 1, 0)),
        ({"num_samples": 48, "iterations": 8}, (8, 48, 12, 8)),
    ],
    ids=str,
)
def test_elites_and_policy_trajectories_follow_the_candidates(agent, budget, population):
    config = PlannerBudget(**budget).applied_to(agent.config)
    got = (config.iterations, config.num_samples, config.num_elites, config.num_pi_trajs)
    assert got == population


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"iterations": 0}, "iterations must be"),
        ({"num_samples": 1}, "num_samples must be a whole number of at least 2"),
        ({"num_samples": 12.5}, "num_samples must be"),
        ({"policy_only": True, "iterations": 3}, "plans nothing"),
    ],
    ids=str,
)
def test_a_budget_out_of_range_is_refused(budget, words):
    with pytest.raises(ValueError, match=words):
        PlannerBudget(**budget)
