"""DreamerV3's policy to deploy: it acts as evaluations do, of one seed of a run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.checkpoint import Checkpoints
from wm_collect.deploy import export_policy, load_policy
from wm_collect.loop import init_run
from wm_collect.run_folder import RunFolder
from wm_dreamer import DreamerV3
from wm_dreamer.cli import run

from .tiny import TINY

DECISIONS = 10
SEEDS = [4, 7]
ROWS = 120


def make_agent(env_id):
    return DreamerV3(env_id, **TINY, action_repeat=2, episode_length=2 * DECISIONS)


def fresh_states(agent):
    """The untrained states of both seeds, side by side."""
    start = jax.vmap(lambda key: init_run(agent.algorithm(ROWS), (), key))
    return jax.jit(start)(jnp.stack([jax.random.key(seed) for seed in SEEDS]))


def one_seed(states, i):
    return jax.tree.map(lambda leaf: leaf[i], states)


@pytest.fixture(scope="module", params=["Pendulum-v1", "CartPole-v1"])
def deployed(request, tmp_path_factory):
    agent = make_agent(request.param)
    state = one_seed(fresh_states(agent), 0)
    folder = export_policy(agent, state, tmp_path_factory.mktemp("policy") / "policy")
    return agent, state, load_policy(folder)


def test_it_acts_as_the_agents_own_evaluation(deployed):
    agent, state, policy = deployed
    episode = agent.evaluate(state, n_episodes=2, seed=3, record=True).trajectory
    policy.reset(n=2, seed=3)
    assert episode.length > 3
    for t in range(int(episode.length)):
        # Of two environments the first was recorded; rows do not see one another.
        action = policy(np.stack([episode.obs[t], episode.obs[t]]))[0]
        wanted = agent.env.simulator.actions.from_agent(episode.action[t])
        np.testing.assert_allclose(action, wanted, rtol=1e-5, atol=1e-6)


def test_the_contract_describes_the_actions_and_the_pace(deployed):
    agent, _, policy = deployed
    action = policy.contract["action"]
    if agent.config.discrete:
        assert (action["kind"], action["n"], action["shape"]) == ("discrete", 2, [])
    else:
        assert (action["kind"], action["low"], action["high"]) == ("continuous", [-2.0], [2.0])
    assert policy.contract["timing"]["action_repeat"] == 2
    assert policy.contract["planner"] is None
    carried = {leaf["name"] for leaf in policy.contract["carry"]}
    assert carried == {"state/deter", "state/stoch", "action"}


def test_every_exported_weight_is_read(deployed):
    agent, state, _ = deployed
    given = agent.deployable(state)
    act = jax.jit(given.act)
    # Some layers start at zero, and what is below them would not show.
    draw = np.random.default_rng(1).normal
    trained = jax.tree.map(lambda x: np.float32(x + 0.3 * draw(size=x.shape)), given.weights)
    leaves, tree = jax.tree.flatten(trained)
    obs = np.random.default_rng(0).normal(size=(4, agent.config.obs_dim)).astype(np.float32)

    def outcome(weights):
        carry, outcomes = given.init_carry(4), []
        for i in range(3):
            key = jax.random.key(i)
            action, carry = act(weights, carry, obs, np.full(4, i == 0), key)
            outcomes += [np.ravel(leaf) for leaf in (action, *jax.tree.leaves(carry))]
        return np.concatenate(outcomes)

    usual = outcome(trained)
    unread = []
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        moved = [*leaves[:i], np.float32(leaf + 3 * draw(size=leaf.shape)), *leaves[i + 1 :]]
        if np.array_equal(outcome(jax.tree.unflatten(tree, moved)), usual):
            unread.append(jax.tree_util.keystr(path))
    assert unread == []


def test_export_writes_the_policy_of_the_seed_that_was_asked_for(tmp_path, capsys):
    agent = make_agent("CartPole-v1")
    states = fresh_states(agent)
    settings = {
        "agent": "dreamerv3",
        "env_id": "CartPole-v1",
        "env": {},
        "protocol": "paper",
        "settings": dataclasses.asdict(agent.settings),
        "run": {"seed": SEEDS},
    }
    folder = RunFolder.create(tmp_path, "pair", settings=settings)
    metadata = {"n_timesteps": ROWS, "tick": 0, "timestep": 0}
    Checkpoints(folder.checkpoints).save(0, states, metadata)

    assert run(["export", str(folder.path)]) == 1
    assert "trained the seeds 4, 7 side by side" in capsys.readouterr().err
    assert run(["export", str(folder.path), "--training-seed", "7"]) == 0
    assert "training seed 7: " in capsys.readouterr().out

    policy = load_policy(folder.path / "policy")
    assert policy.contract["provenance"]["training_seed"] == 7
    second = one_seed(states, 1).agent.learner.params["actor"]
    stored = np.load(folder.path / "policy" / "weights.npz")
    for path, leaf in jax.tree_util.tree_leaves_with_path({"actor": second}):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_array_equal(stored[name], leaf)
    stored.close()
    contract = json.loads((folder.path / "policy" / "contract.json").read_text(encoding="utf-8"))
    assert contract["provenance"]["timestep_unit"] == "rows"


def test_the_state_of_several_seeds_is_refused():
    agent = make_agent("CartPole-v1")
    with pytest.raises(ValueError, match="2 seeds side by side"):
        agent.deployable(fresh_states(agent))
