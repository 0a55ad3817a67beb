"""The collector's structure: what runs on which tick, what it carries, and what it refuses."""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.collector import (
    collect_dynamic,
    collect_static,
    init_collector,
    random_policy,
)
from wm_collect.environment import EnvState
from wm_collect.testing import CounterEnv, collect_rows

T = 4
KEY = jax.random.key(0)


class ReportingEnv(CounterEnv):
    """Tells the host about every reset and step that is really executed."""

    def __init__(self, executed, **script):
        super().__init__(**script)
        self.executed = executed

    def reset(self, key):
        jax.debug.callback(lambda _: self.executed.update(["reset"]), jax.random.key_data(key))
        return super().reset(key)

    def step(self, key, state, action):
        jax.debug.callback(lambda _: self.executed.update(["step"]), state.inner)
        return super().step(key, state, action)


class LooseEnv(CounterEnv):
    """Carries a key and a weakly typed number in its state, and breaks when stepped too far."""

    def reset(self, key):
        state, obs = super().reset(key)
        return EnvState(inner=(state.inner, key, 0.0), steps=state.steps), obs

    def step(self, key, state, action):
        episode, old_key, number = state.inner
        moved = super().step(key, EnvState(inner=episode, steps=state.steps), action)
        length = jnp.array(self.lengths)[episode % len(self.lengths)]
        obs = jnp.where(moved.state.steps > length, jnp.nan, moved.obs)
        inner = (moved.state.inner, jax.random.fold_in(old_key, 1), number * 2 + 1.0)
        return moved._replace(state=EnvState(inner=inner, steps=moved.state.steps), obs=obs)


def aval_of(leaf):
    return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)


def one_tick(collect, env, policy):
    return lambda state, tick, key: collect(env, state, tick, key, policy)


def equations(jaxpr, name):
    """All equations of a primitive, in `jaxpr` itself and not inside its branches."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            yield eqn
        elif "jaxpr" in eqn.params:
            inner = eqn.params["jaxpr"]
            yield from equations(getattr(inner, "jaxpr", inner), name)


@pytest.mark.parametrize("n_seeds", [None, 2], ids=["one-seed", "two-seeds"])
def test_a_static_run_executes_no_step_on_held_ticks_and_no_reset_on_others(n_seeds):
    executed = Counter()
    env = ReportingEnv(executed, lengths=(T,))
    n_envs, n_ticks = 3, 2 * (T + 1) + 2

    def policy(carry, obs, is_first, key):
        jax.debug.callback(lambda _: executed.update(["policy"]), obs)
        return random_policy(env.spec)(carry, obs, is_first, key)

    def run(key):
        def body(tick, state):
            return collect_static(env, state, tick, jax.random.fold_in(key, tick), policy)[0]

        return jax.lax.fori_loop(0, n_ticks, body, init_collector(env, n_envs, key, None))

    if n_seeds is None:
        state = jax.jit(run)(KEY)
    else:
        state = jax.jit(jax.vmap(run))(jax.random.split(KEY, n_seeds))
    jax.block_until_ready(state)
    jax.effects_barrier()
    in_all = n_seeds or 1
    assert executed["step"] == 2 * T * n_envs * in_all + 2 * n_envs * in_all
    assert executed["reset"] == (1 + 2) * n_envs * in_all
    assert executed["policy"] == (2 * T + 2) * in_all
    np.testing.assert_array_equal(state.env_steps, executed["step"] // in_all)


def test_the_held_tick_stays_a_branch_under_a_seed_vmap():
    env = CounterEnv((T,))
    tick_fn = one_tick(collect_static, env, random_policy(env.spec))
    keys = jax.random.split(KEY, 2)
    states = jax.vmap(lambda key: init_collector(env, 3, key, None))(keys)
    over_seeds = jax.vmap(tick_fn, in_axes=(0, None, 0))
    tick = jnp.int32(0)
    (branch,) = equations(jax.make_jaxpr(over_seeds)(states, tick, keys).jaxpr, "cond")
    assert branch.invars[0].aval.shape == ()
    assert jax.jit(over_seeds).lower(states, tick, keys).as_text().count("stablehlo.case") == 1

    batched_tick = jax.vmap(tick_fn)
    ticks = jnp.zeros(2, jnp.int32)
    jaxpr = jax.make_jaxpr(batched_tick)(states, ticks, keys).jaxpr
    assert not list(equations(jaxpr, "cond")), "a mapped tick must be what loses the branch"


@pytest.mark.parametrize("collect", [collect_static, collect_dynamic])
def test_a_tick_keeps_the_type_of_every_leaf_of_its_state(collect):
    env = LooseEnv((T,))
    policy = random_policy(env.spec)

    def counting(carry, obs, is_first, key):
        action, _, _ = policy(None, obs, is_first, key)
        return action, {"weak": carry["weak"] + 1, "strong": carry["strong"] * 0.5}, None

    carry = {"weak": 0.0, "strong": jnp.ones(2, jnp.float32)}
    state = init_collector(env, 2, KEY, carry)
    after = jax.eval_shape(one_tick(collect, env, counting), state, jnp.int32(0), KEY)[0]
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.map(aval_of, after) == jax.tree.map(aval_of, state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(after) if hasattr(leaf, "weak_type"))


def test_what_a_step_makes_of_a_held_environment_never_shows():
    env = LooseEnv((2, 6, 3), terminates=(True, False, True))
    rows = collect_rows(env, n_envs=4, n_ticks=60, key=KEY)
    assert rows.is_last.sum() > 30
    assert np.isfinite(rows.obs).all()


def test_the_initial_state_can_be_donated():
    env = CounterEnv((T,))
    tick_fn = one_tick(collect_static, env, random_policy(env.spec))
    step = jax.jit(lambda state: tick_fn(state, jnp.int32(0), KEY)[0], donate_argnums=0)
    assert step(init_collector(env, 2, KEY, None)).env_steps == 2


def test_python_runs_only_while_a_long_run_is_traced():
    env = CounterEnv((T,))
    collect_rows(env, n_envs=2, n_ticks=1000, key=KEY)
    # Reset at the start and in the held branch, step in the other one.
    assert (env.n_reset_calls, env.n_step_calls) == (2, 1)


def test_random_actions_are_uniform_over_the_whole_range():
    obs, is_first = jnp.zeros((5000, 3)), jnp.zeros(5000, bool)
    continuous = CounterEnv((T,), action_dim=2).spec
    action, carry, extras = random_policy(continuous)("kept", obs, is_first, KEY)
    assert action.shape == (5000, 2) and action.dtype == jnp.float32
    assert -1 <= action.min() < -0.99 and 0.99 < action.max() <= 1
    assert abs(action.mean()) < 0.03 and abs(action.var() - 1 / 3) < 0.02
    assert (carry, extras) == ("kept", None)

    discrete = CounterEnv((T,), discrete=True, action_dim=3).spec
    action, _, _ = random_policy(discrete)(None, obs, is_first, KEY)
    assert action.shape == (5000,) and action.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(action) / 5000, 1 / 3, atol=0.03)


def test_no_environment_is_refused():
    with pytest.raises(ValueError, match=r"n_envs must be at least 1, got 0\."):
        init_collector(CounterEnv((T,)), 0, KEY, None)


def test_observations_that_contradict_the_spec_are_refused():
    class WideEnv(CounterEnv):
        def reset(self, key):
            state, obs = super().reset(key)
            return state, jnp.concatenate([obs, obs])

    with pytest.raises(ValueError, match=r"shape \(2, 6\), but its spec says obs_dim=3"):
        init_collector(WideEnv((T,)), 2, KEY, None)


@pytest.mark.parametrize("collect", [collect_static, collect_dynamic])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda c: (jnp.zeros(3), c), r"actions of shape \(3,\) and dtype float32, but 3 env"),
        (lambda c: (jnp.zeros((3, 2), jnp.int32), c), r"take \(3, 2\) float32"),
        (lambda c: (jnp.zeros((3, 2)), c[:1]), r"shapes and dtypes of the policy's carry"),
        (lambda c: (jnp.zeros((3, 2)), c.astype(jnp.int32)), r"was float32\[3\], now it is int32"),
        (lambda c: (jnp.zeros((3, 2)), (c, c)), "keep the structure of the policy's carry"),
    ],
    ids=["action-shape", "action-dtype", "carry-shape", "carry-dtype", "carry-structure"],
)
def test_a_policy_that_breaks_its_contract_is_refused(collect, returned, message):
    env = CounterEnv((T,), action_dim=2)
    state = init_collector(env, 3, KEY, jnp.zeros(3))

    def policy(carry, obs, is_first, key):
        return (*returned(carry), None)

    with pytest.raises(TypeError, match=message):
        collect(env, state, jnp.int32(0), KEY, policy)


def test_static_parts_of_a_state_are_compared_by_equality():
    """MuJoCo's states hold wrapped arrays that are equal, but print as different objects."""

    class Equal:
        def __eq__(self, other):
            return type(other) is Equal

        def __hash__(self):
            return 0

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Carry:
        array: jax.Array
        static: Equal = dataclasses.field(metadata=dict(static=True))

    def policy(carry, obs, is_first, key):
        return jnp.zeros((2, 2)), Carry(carry.array, Equal()), None

    env = CounterEnv((T,), action_dim=2)
    state = init_collector(env, 2, KEY, Carry(jnp.zeros(2), Equal()))
    assert collect_static(env, state, jnp.int32(0), KEY, policy)[0].env_steps == 2


@pytest.mark.parametrize("collect", [collect_static, collect_dynamic])
def test_an_environment_whose_state_changes_type_is_refused(collect):
    class ShiftingEnv(CounterEnv):
        def step(self, key, state, action):
            moved = super().step(key, state, action)
            inner = moved.state.inner.astype(jnp.float32)
            return moved._replace(state=EnvState(inner=inner, steps=moved.state.steps))

    env = ShiftingEnv((T,))
    state = init_collector(env, 2, KEY, None)
    with pytest.raises(TypeError, match=r"of the state of counter: the leaf \.inner was int32"):
        collect(env, state, jnp.int32(0), KEY, random_policy(env.spec))
