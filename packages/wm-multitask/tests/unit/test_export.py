"""Export against the rows that tiny runs really collected, and what it refuses.

Most runs are driven tick by tick and do not learn. What a row holds is noted as it passes, before
and apart from any arithmetic on the ring: observation and reward from the collector, which holds
the row to come, and the action as `CounterEnv` reports it with its next observation.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from wm_collect import init_run
from wm_collect.randomness import seed_keys, tick_key
from wm_collect.testing import CounterEnv
from wm_multitask.dataset import pool_tasks
from wm_multitask.export import export_episodes
from wm_multitask.files import load_episodes, save_episodes
from wm_tdmpc2 import TDMPC2

# Environments and agents promote ranks.
pytestmark = pytest.mark.rank_promotion

TINY = {
    "model_size": 1,
    "enc_dim": 8,
    "mlp_dim": 8,
    "latent_dim": 8,
    "batch_size": 4,
    "num_samples": 8,
    "num_elites": 4,
    "num_pi_trajs": 2,
    "iterations": 1,
    "horizon": 2,
    "seed_steps": 8,
}
LENGTH = 6
ROWS = LENGTH + 1


def make_agent(**changes):
    # One action, because the environment reports the first.
    env = CounterEnv([LENGTH], obs_dim=4, action_dim=1)
    return TDMPC2(env, **(TINY | changes))


def driven(agent, n_ticks, seed, n_timesteps=1000):
    """Collect tick by tick without learning; return the states and what passed.

    Observations and rewards passed as `[n_ticks, ..., N, O]` and `[n_ticks, ..., N]`, the axis in
    the middle for a list of seeds.
    """
    keys = seed_keys(seed)
    algorithm = agent.algorithm(n_timesteps)

    def start(key):
        return init_run(algorithm, (), key)

    def collect(state, key, tick):
        agent_state, _ = algorithm.collect(state.agent, tick, tick_key(key, tick))
        return dataclasses.replace(state, agent=agent_state)

    if keys.ndim:
        start, collect = jax.vmap(start), jax.vmap(collect, in_axes=(0, 0, None))
    collect = jax.jit(collect)
    states = [jax.jit(start)(keys)]
    for tick in range(n_ticks):
        states.append(collect(states[-1], keys, np.int32(tick)))
    collectors = [state.agent.collector for state in states[:-1]]
    return SimpleNamespace(
        agent=agent,
        state=states[-1],
        states=states,
        obs=np.stack([np.asarray(collector.obs) for collector in collectors]),
        reward=np.stack([np.asarray(collector.reward) for collector in collectors]),
    )


def passed(run, rounds, seed=None):
    """Return the episodes of some rounds as they passed: `[n, T + 1, ...]`, environments inside."""
    obs, reward = run.obs, run.reward
    if seed is not None:
        obs, reward = obs[:, seed], reward[:, seed]
    episodes = [(r, e) for r in rounds for e in range(obs.shape[1])]
    of_round = [slice(r * ROWS, (r + 1) * ROWS) for r, _ in episodes]
    picked = [
        (obs[rows, e], reward[rows, e]) for rows, (_, e) in zip(of_round, episodes, strict=True)
    ]
    return tuple(np.stack(field) for field in zip(*picked, strict=True))


def assert_rows(episodes, obs, reward):
    np.testing.assert_array_equal(episodes.obs, obs)
    np.testing.assert_array_equal(episodes.reward, reward)
    # The observation's third entry is the action that led to it.
    np.testing.assert_array_equal(episodes.action[:, :-1, 0], obs[:, 1:, 2])
    assert not episodes.action[:, -1].any()
    # The environment's own account: which row of one and the same episode this is.
    np.testing.assert_array_equal(obs[..., 1], np.tile(np.arange(ROWS), (len(obs), 1)))
    assert (obs[..., 0] == obs[:, :1, 0]).all()


@pytest.fixture(scope="module")
def two_seeds_of_two():
    """Two seeds of two environments; five rounds and a half, all kept."""
    return driven(make_agent(n_envs=2), 5 * ROWS + 3, [3, 5])


@pytest.fixture(scope="module")
def wrapped():
    """One environment and a ring of two rounds beside the running one."""
    return driven(make_agent(buffer_size=2 * LENGTH), 6 * ROWS, 7)


def test_every_complete_episode_is_exported_seed_by_seed_in_order(two_seeds_of_two):
    run = two_seeds_of_two
    episodes = export_episodes(run.agent, run.state)
    assert episodes.obs.shape == (20, ROWS, 4)
    expected = [passed(run, range(5), seed) for seed in (0, 1)]
    assert_rows(episodes, *(np.concatenate(field) for field in zip(*expected, strict=True)))
    assert all(array.dtype == np.float32 for array in episodes.arrays().values())
    # Episodes of different rounds, environments and seeds can be told apart here.
    assert len(set(episodes.obs[:, 0, 0])) == 20


def test_a_state_without_a_seed_axis_gives_its_own_episodes(two_seeds_of_two):
    run = two_seeds_of_two
    second = jax.tree.map(lambda leaf: leaf[1], run.state)
    assert_rows(export_episodes(run.agent, second), *passed(run, range(5), 1))


def test_the_running_episode_is_left_out(two_seeds_of_two):
    run = two_seeds_of_two
    for n_ticks in (ROWS, 2 * ROWS - 1, 2 * ROWS, 2 * ROWS + 1):
        episodes = export_episodes(run.agent, run.states[n_ticks])
        assert episodes.n_episodes == 4 * (n_ticks // ROWS)


def test_a_state_without_a_complete_episode_is_refused(two_seeds_of_two):
    run = two_seeds_of_two
    for n_ticks in (0, ROWS - 1):
        with pytest.raises(ValueError, match="'counter' has not completed an episode of 6 agent"):
            export_episodes(run.agent, run.states[n_ticks])


def test_a_ring_that_has_evicted_is_refused(wrapped):
    for n_complete in (3, 6):
        with pytest.raises(ValueError) as caught:
            export_episodes(wrapped.agent, wrapped.states[n_complete * ROWS])
        message = str(caught.value)
        assert f"holds the last 2 of {n_complete} rounds of episodes" in message
        assert f"the first {n_complete - 2} were evicted" in message
        assert "full_history=False" in message


def test_what_a_ring_still_holds_can_be_exported(wrapped):
    for n_ticks in range(ROWS, 6 * ROWS + 1):
        n_complete = n_ticks // ROWS
        episodes = export_episodes(wrapped.agent, wrapped.states[n_ticks], full_history=False)
        assert_rows(episodes, *passed(wrapped, range(max(0, n_complete - 2), n_complete)))


def test_a_ring_that_has_not_evicted_yet_is_the_full_history(wrapped):
    episodes = export_episodes(wrapped.agent, wrapped.states[2 * ROWS + 4])
    assert_rows(episodes, *passed(wrapped, range(2)))


def test_the_state_of_another_agent_is_refused(two_seeds_of_two, wrapped):
    with pytest.raises(ValueError, match=r"must hold rounds of 1 environment\(s\) with 7 rows"):
        export_episodes(wrapped.agent, two_seeds_of_two.state)
    other = TDMPC2(CounterEnv([LENGTH], obs_dim=5, action_dim=1), n_envs=2, **TINY)
    with pytest.raises(ValueError, match=r"of 5 observations and 1 actions\. Make the agent with"):
        export_episodes(other, two_seeds_of_two.state)


def test_an_episodic_run_is_refused(wrapped):
    agent = make_agent()
    agent.config = dataclasses.replace(agent.config, episodic=True)
    with pytest.raises(ValueError, match="trained with episodic=True"):
        export_episodes(agent, wrapped.state)


def test_rows_that_are_not_valid_are_refused(two_seeds_of_two):
    run = two_seeds_of_two
    buffer = run.state.agent.buffer
    damaged = buffer._replace(action=buffer.action.at[1, 0, 1, 2, 0].set(1.5))
    state = dataclasses.replace(
        run.state, agent=dataclasses.replace(run.state.agent, buffer=damaged)
    )
    # Seed 1, round 0, environment 1.
    with pytest.raises(ValueError, match=r"episode 11, action: row 2, dimension 0 is 1\.5"):
        export_episodes(run.agent, state)


@pytest.fixture(scope="module")
def pendulum():
    """A run through `train`, whose environment can be built again."""
    agent = TDMPC2(
        "Pendulum-v1",
        episode_length=20,
        action_repeat=2,
        env_params={"max_speed": 4.0},
        **TINY,
    )
    state, _ = agent.train(seed=1, n_timesteps=36, num_episode_test=0, progress=False)
    return agent, state


def test_an_exported_run_becomes_a_dataset(pendulum, tmp_path):
    agent, state = pendulum
    episodes = export_episodes(agent, state, name="slow pendulum")
    # 36 steps are three episodes of ten and a part of one.
    assert episodes.obs.shape == (3, 11, 3) and episodes.action.shape == (3, 11, 1)
    assert dataclasses.asdict(episodes.task) == dict(
        name="slow pendulum",
        obs_dim=3,
        action_dim=1,
        episode_length=10,
        env_id="Pendulum-v1",
        action_repeat=2,
        env_episode_length=20,
        env_params=(("max_speed", 4.0),),
    )
    assert (np.abs(episodes.obs[..., 2]) <= 4.0).all() and (episodes.reward[:, 1:] < 0).all()
    loaded = load_episodes(save_episodes(episodes, tmp_path / "pendulum.npz"))
    assert loaded.content_hash == episodes.content_hash
    pooled = pool_tasks([loaded])
    pooled.check()
    np.testing.assert_array_equal(pooled.obs, episodes.obs)


def test_exported_rows_are_transitions_of_the_environment_that_the_task_builds(pendulum):
    agent, state = pendulum
    episodes = export_episodes(agent, state)
    assert episodes.task.name == "Pendulum-v1"
    env = episodes.task.make_env()
    start, _ = env.reset(jax.random.key(0))
    for episode in range(episodes.n_episodes):
        cos, sin, speed = episodes.obs[episode, 0]
        inner = dataclasses.replace(
            env._layout.unpack(start.inner), theta=np.arctan2(sin, cos), theta_dot=speed
        )
        current = dataclasses.replace(start, inner=env._layout.pack(inner))
        for row in range(10):
            moved = env.step(jax.random.key(0), current, episodes.action[episode, row])
            np.testing.assert_allclose(moved.obs, episodes.obs[episode, row + 1], atol=1e-4)
            np.testing.assert_allclose(
                moved.reward, episodes.reward[episode, row + 1], rtol=1e-4, atol=1e-4
            )
            current = moved.state
