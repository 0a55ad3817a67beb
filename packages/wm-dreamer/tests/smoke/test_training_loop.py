"""The compiled loop against the same run written as a plain Python loop.

Plain are the schedule (the reference's driver: one transition at a time, a gate and a ratio), the
environments and their resets, the policy's memory, the stored rows, the windows, and the order in
which latents are written back. Shared are the networks, one update, the draw of the windows'
places, and the derivation of keys. Both ways of collecting are covered, and rings that overwrite.
"""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect import randomness
from wm_collect.replay import StreamBatch
from wm_collect.testing import CounterEnv
from wm_dreamer import (
    DreamerV3,
    act,
    draw_act_noise,
    draw_update_noise,
    init_learner,
    initial_carry,
    update,
)
from wm_dreamer.train import stream_replay

from .tiny import TINY

SEED = 3
ROWS = 64
CAPACITY = 40
N_ENVS, L = TINY["n_envs"], TINY["batch_length"] + 1
SETTINGS = TINY | {"replay_capacity": CAPACITY}
# What the plain loop stores as latents of last rows: nothing may read them.
GARBAGE = 7

ENVIRONMENTS = {
    "terminating": functools.partial(CounterEnv, [3, 5, 4], terminates=[True, False, True]),
    "fixed length": functools.partial(CounterEnv, [4]),
}


@functools.cache
def _programs(config):
    """One decision, one update and the fresh learner, compiled; not the training loop's."""
    decide = jax.jit(functools.partial(act, config=config))
    learn = jax.jit(functools.partial(update, config=config))
    return decide, learn, jax.jit(functools.partial(init_learner, config=config))


def _fold(key, *numbers):
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


class _Ratio:
    """Updates due after a transition: one at the first call, then `ratio` per transition."""

    def __init__(self, ratio):
        self.ratio, self.previous = ratio, None

    def __call__(self, transition):
        if self.previous is None:
            self.previous = transition
            return 1
        due = int((transition - self.previous) * self.ratio)
        self.previous += due / self.ratio
        return due


def _plain_run(agent, config):
    """Run `ROWS` rows; `config` is the networks', the same for every environment."""
    env, replay = agent.env, stream_replay(agent.config, ROWS)
    decide, learn, fresh = _programs(config)
    root = jax.random.key(SEED)
    init = _fold(root, randomness.INIT_STREAM)
    learner = fresh(_fold(init, 0))
    reset, step = jax.jit(env.reset), jax.jit(env.step)

    rows = {e: [] for e in range(N_ENVS)}
    keys = jax.random.split(_fold(init, 1, 2), N_ENVS)
    pending = []
    for e in range(N_ENVS):
        env_state, obs = reset(keys[e])
        pending.append(SimpleNamespace(env_state=env_state, obs=obs, reward=0.0, first=True))
        pending[e].last = pending[e].terminal = False
    carry = initial_carry(config, N_ENVS)
    draw_state = replay.init()
    ratio = _Ratio(config.train_ratio / (config.batch_size * config.batch_length))
    n_updates, transitions, draws = [], 0, []
    for tick in range(ROWS // N_ENVS):
        key = randomness.tick_key(root, tick)
        collect_key = _fold(key, randomness.COLLECT)
        # A memory that is emptied by hand at a reset, and a policy that is told of none.
        carry = _emptied(carry, np.array([row.first for row in pending]))
        noise = draw_act_noise(_fold(collect_key, 0), N_ENVS, config=config)
        decision = decide(
            learner.params,
            carry,
            jnp.stack([row.obs for row in pending]),
            jnp.zeros(N_ENVS, bool),
            noise,
        )
        carry = decision.carry
        step_keys = jax.random.split(_fold(collect_key, 1), N_ENVS)
        reset_keys = jax.random.split(_fold(collect_key, 2), N_ENVS)
        due = 0
        for e, row in enumerate(pending):
            action = np.asarray(decision.action[e])
            if row.last:
                row.action = np.zeros_like(action)
                row.deter = np.full(config.deter, GARBAGE, np.float32)
                row.stoch = np.full(config.stoch, 1)
                env_state, obs = reset(reset_keys[e])
                pending[e] = SimpleNamespace(env_state=env_state, obs=obs, reward=0.0, first=True)
                pending[e].last = pending[e].terminal = False
            else:
                row.action = action
                row.deter = np.asarray(decision.observed.deter[e])
                row.stoch = np.asarray(decision.observed.classes[e])
                moved = step(step_keys[e], row.env_state, decision.action[e])
                pending[e] = SimpleNamespace(
                    env_state=moved.state,
                    obs=moved.obs,
                    reward=float(moved.reward),
                    first=False,
                    last=bool(moved.terminated | moved.truncated),
                    terminal=bool(moved.terminated),
                )
            rows[e].append(row)
            transitions += 1
            items = sum(max(0, len(stream) - L + 1) for stream in rows.values())
            if items >= config.batch_size:
                due += ratio(transitions)
        n_updates.append(due)
        for j in range(due):
            update_key = _fold(key, randomness.UPDATE, j)
            draw_state, draw = replay.draw(draw_state, _fold(update_key, 0), tick)
            places = list(zip(np.asarray(draw.env), np.asarray(draw.start), strict=True))
            batch = _batch([rows[e][start : start + L] for e, start in places])
            noise = draw_update_noise(_fold(update_key, 1), config=config)
            learner, latents, _ = learn(learner, batch, noise)
            for b, (e, start) in enumerate(places):
                for t, row in enumerate(rows[e][start + 1 : start + L]):
                    row.deter = np.asarray(latents.deter[b, t])
                    row.stoch = np.asarray(latents.stoch[b, t])
            draws += places
    return SimpleNamespace(
        rows=rows, learner=learner, n_updates=n_updates, carry=carry, draws=draws
    )


def _emptied(carry, first):
    def emptied(leaf):
        return jnp.where(first.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf)

    return jax.tree.map(emptied, carry)


def _batch(windows):
    def stacked(field, dtype=None):
        return np.array([[getattr(row, field) for row in window] for window in windows], dtype)

    is_first, is_last = stacked("first", bool), stacked("last", bool)
    is_first[:, 0] = True
    is_last[:, :-1] |= is_first[:, 1:]
    return StreamBatch(
        obs=stacked("obs", np.float32),
        action=stacked("action"),
        reward=stacked("reward", np.float32),
        is_first=is_first,
        is_last=is_last,
        is_terminal=stacked("terminal", bool),
        context_deter=np.array([window[0].deter for window in windows], np.float32),
        context_stoch=np.array([window[0].stoch for window in windows], np.int32),
    )


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def runs(request):
    """The compiled run and the plain one, of one environment."""
    agent = DreamerV3(ENVIRONMENTS[request.param](), **SETTINGS)
    assert agent.config.terminates == (request.param == "terminating")
    state, series = agent.train(
        seed=SEED, n_timesteps=ROWS, num_episode_test=0, log_frequency=N_ENVS, progress=False
    )
    # Neither of the two reaches the networks: the plain runs share their programs.
    config = dataclasses.replace(agent.config, terminates=False, agent_episode_length=1)
    return SimpleNamespace(state=state.agent, series=series, plain=_plain_run(agent, config))


def _stored(runs, name):
    """The rings' field and the plain rows of the same ticks, `[N, C, ...]`, and where both are."""
    n_ticks = ROWS // N_ENVS
    kept = np.arange(n_ticks - CAPACITY // N_ENVS, n_ticks)
    ring = np.asarray(getattr(runs.state.replay, name))[:, kept % ring_length(runs)]
    short = {"is_first": "first", "is_last": "last", "is_terminal": "terminal"}.get(name, name)
    plain = np.array([[getattr(runs.plain.rows[e][t], short) for t in kept] for e in range(N_ENVS)])
    return ring, plain


def ring_length(runs):
    return runs.state.replay.reward.shape[1]


def test_rings_overwrite_in_these_runs(runs):
    assert ring_length(runs) == CAPACITY // N_ENVS < ROWS // N_ENVS


def test_every_tick_makes_the_updates_of_the_reference_s_driver(runs):
    made = np.diff(runs.series["Train/n_updates"], prepend=0)
    np.testing.assert_array_equal(made, runs.plain.n_updates)
    assert sum(runs.plain.n_updates) == int(runs.state.learner.updates) == 1 + (ROWS - 20) // 2


def test_windows_cross_episodes_and_begin_in_last_rows(runs):
    """What the runs must have met for the comparison of what they learnt to mean something."""
    windows = [runs.plain.rows[e][start : start + L] for e, start in runs.plain.draws]
    assert any(window[0].last for window in windows)
    assert any(row.first for window in windows for row in window[2:])
    assert runs.plain.draws[0][1] == 1


@pytest.mark.parametrize("name", ["is_first", "is_last", "is_terminal", "reward", "obs", "action"])
def test_the_stored_rows_are_those_of_the_plain_loop(runs, name):
    ring, plain = _stored(runs, name)
    np.testing.assert_allclose(ring, plain, rtol=1e-3, atol=1e-3)


def test_latents_are_written_back_at_the_drawn_rows(runs):
    (deter, plain_deter), (stoch, plain_stoch) = (_stored(runs, n) for n in ("deter", "stoch"))
    # A last row that no update has written over holds garbage in the plain run.
    garbage = (plain_deter == GARBAGE).all(axis=-1)
    assert not garbage.all()
    np.testing.assert_allclose(deter[~garbage], plain_deter[~garbage], rtol=1e-3, atol=1e-3)
    assert np.mean(stoch[~garbage] != plain_stoch[~garbage]) < 0.01


def test_the_learner_ends_with_the_parameters_of_the_plain_loop(runs):
    for (path, expected), got in zip(
        jax.tree_util.tree_leaves_with_path(runs.plain.learner.params),
        jax.tree.leaves(runs.state.learner.params),
        strict=True,
    ):
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=1e-5, err_msg=jax.tree_util.keystr(path)
        )
    for got, expected in zip(runs.state.learner.retnorm, runs.plain.learner.retnorm, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_the_policy_s_memory_is_that_of_the_plain_loop(runs):
    """The plain loop empties it by hand at resets, and never tells the policy of one."""
    got, expected = runs.state.collector.policy_carry, runs.plain.carry
    np.testing.assert_allclose(got.state.deter, expected.state.deter, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got.action, expected.action, rtol=1e-3, atol=1e-3)
