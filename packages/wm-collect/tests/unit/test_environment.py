import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect import (
    Environment,
    EnvSpec,
    agent_episode_length,
    as_typed_key,
    make_env,
    register_env,
    registered_envs,
)
from wm_collect.testing import CounterEnv

from .toy_environments import BraxToy, GymnaxToy, Params

KEY = jax.random.key(0)


def play(env: Environment, n_steps: int, action: Any = None) -> tuple[list[Any], Any]:
    """Step without resets; return the transitions and the reset observation."""
    state, obs = env.reset(jax.random.key(1))
    action = jnp.zeros(env.spec.action_dim) if action is None else action
    transitions = []
    for i in range(n_steps):
        transitions.append(env.step(jax.random.key(i), state, action))
        state = transitions[-1].state
    return transitions, obs


def types(tree: Any) -> list[Any]:
    return [leaf.aval for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize(("steps", "repeat", "expected"), [(1000, 2, 500), (200, 1, 200)])
def test_episode_length_is_counted_in_agent_steps(steps: int, repeat: int, expected: int) -> None:
    assert agent_episode_length(steps, repeat) == expected


def test_repeat_that_does_not_divide_the_length_is_refused() -> None:
    with pytest.raises(ValueError, match="5 simulator steps is not a multiple of action_repeat=2"):
        agent_episode_length(5, 2)
    with pytest.raises(ValueError, match="set episode_length to 8 or 12"):
        make_env(BraxToy(), action_repeat=4)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_lengths_and_repeats_are_positive_whole_numbers(bad: Any) -> None:
    with pytest.raises(ValueError, match="must be a positive whole number"):
        agent_episode_length(bad, 1)
    with pytest.raises(ValueError, match="action_repeat must be a positive whole number"):
        agent_episode_length(10, bad)


def test_time_limit_cuts_at_exactly_t_and_the_observation_is_the_terminal_one() -> None:
    transitions, _ = play(make_env(GymnaxToy()), 12)
    assert [bool(t.truncated) for t in transitions] == [False] * 11 + [True]
    assert not any(t.terminated for t in transitions)
    assert transitions[-1].obs[1] == 12
    assert transitions[-1].state.steps == 12


def test_episode_length_replaces_the_environments_own() -> None:
    env = make_env(GymnaxToy(), episode_length=5)
    assert env.spec.episode_length == 5
    transitions, _ = play(env, 5)
    assert [bool(t.truncated) for t in transitions] == [False] * 4 + [True]


def test_termination_wins_when_both_come_at_once() -> None:
    env = make_env(GymnaxToy(), env_params={"terminates_at": 12})
    last = play(env, 12)[0][-1]
    assert bool(last.terminated) and not bool(last.truncated)


def test_a_limit_of_the_environments_own_is_a_truncation() -> None:
    env = make_env(GymnaxToy(), env_params={"cuts_at": 3})
    transitions, _ = play(env, 3)
    assert [bool(t.truncated) for t in transitions] == [False, False, True]
    assert not transitions[-1].terminated


def test_step_never_resets() -> None:
    transitions, reset_obs = play(make_env(GymnaxToy(), env_params={"terminates_at": 2}), 4)
    assert [bool(t.terminated) for t in transitions] == [False, True, True, True]
    assert all(t.obs[0] == reset_obs[0] for t in transitions)
    assert transitions[-1].obs[1] == 4


def test_repeated_action_sums_rewards_and_counts_agent_steps() -> None:
    env = make_env(GymnaxToy(), action_repeat=3)
    assert env.spec.episode_length == 4 and env.spec.action_repeat == 3
    transitions, _ = play(env, 4)
    assert [float(t.reward) for t in transitions] == [3.0] * 4
    assert [float(t.obs[1]) for t in transitions] == [3, 6, 9, 12]
    assert [bool(t.truncated) for t in transitions] == [False, False, False, True]
    assert transitions[-1].state.steps == 4


@pytest.mark.parametrize("end", ["terminates_at", "cuts_at"])
def test_repeat_freezes_after_the_end_in_the_middle_of_the_window(end: str) -> None:
    env = make_env(GymnaxToy(), action_repeat=4, env_params={end: 6})
    first, second = play(env, 2)[0]
    assert float(first.reward) == 4.0 and not (first.terminated | first.truncated)
    assert float(second.reward) == 2.0
    assert second.obs[1] == 6 and second.state.inner["time"] == 6
    assert bool(second.terminated) == (end == "terminates_at")
    assert bool(second.truncated) == (end == "cuts_at")


def test_action_reaches_the_environment_in_its_own_units() -> None:
    env = make_env(GymnaxToy())
    assert (env.spec.action_low, env.spec.action_high) == ((-3.0,), (3.0,))
    for agent, own in [(0.5, 1.5), (-7.0, -3.0)]:
        assert play(env, 1, jnp.array([agent]))[0][0].obs[2] == own


def test_types_are_the_same_after_reset_and_step_and_plain() -> None:
    for toy in (GymnaxToy(), BraxToy()):
        env = make_env(toy)
        state, obs = env.reset(KEY)
        moved = env.step(KEY, state, jnp.zeros(env.spec.action_dim))
        assert types(state) == types(moved.state)
        assert not any(leaf.weak_type for leaf in types((state, moved)))
        assert not any(
            jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)
        )
        assert (obs.dtype, moved.obs.dtype, moved.reward.dtype) == (jnp.float32,) * 3
        assert (moved.terminated.dtype, moved.truncated.dtype) == (jnp.bool_, jnp.bool_)
        assert moved.reward.shape == moved.terminated.shape == moved.truncated.shape == ()


def test_step_is_traced_once_also_after_a_round_trip_through_numpy() -> None:
    toy = GymnaxToy()
    env = make_env(toy)
    state, _ = env.reset(KEY)
    state = env.step(KEY, state, jnp.zeros(1)).state
    n_traced = toy.n_traced_steps
    restored = jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, state))
    for start in (state, restored):
        env.step(KEY, env.step(KEY, start, jnp.zeros(1)).state, jnp.zeros(1))
    assert toy.n_traced_steps == n_traced


def test_stepping_leaves_the_callers_state_alone() -> None:
    env = make_env(BraxToy())
    state, _ = env.reset(KEY)
    before = jax.tree.map(np.asarray, state)
    env.step(KEY, state, jnp.ones(2))
    jax.tree.map(np.testing.assert_array_equal, before, state)


def test_raw_and_typed_keys_draw_the_same() -> None:
    env = make_env(BraxToy())
    typed = env.reset(jax.random.key(7))[1]
    raw = env.reset(jax.random.PRNGKey(7))[1]
    np.testing.assert_array_equal(typed, raw)


def test_vmap_over_keys_gives_different_starts() -> None:
    for toy in (GymnaxToy(), BraxToy()):
        env = make_env(toy)
        keys = jax.random.split(KEY, 5)
        state, obs = jax.vmap(env.reset)(keys)
        assert len(np.unique(obs[:, 0])) == 5
        actions = jnp.zeros((5, env.spec.action_dim))
        moved = jax.vmap(env.step)(keys, state, actions)
        assert moved.obs.shape == obs.shape and moved.terminated.shape == (5,)


@pytest.mark.parametrize("bad", [0, jnp.zeros(2), None], ids=["int", "float", "none"])
def test_what_is_no_key_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"jax.random.key\(0\)"):
        as_typed_key(bad)


def test_nan_observation_is_no_termination_but_a_nan_reward() -> None:
    env = make_env(BraxToy(done_at=2, obs_at_done=float("nan")))
    first, second, *_ = play(env, 2)[0]
    assert np.isfinite(first.reward)
    assert not second.terminated and np.isnan(second.reward) and np.isnan(second.obs[1])


def test_nan_done_is_no_termination() -> None:
    last = play(make_env(BraxToy(done_at=2, done=float("nan"))), 2)[0][-1]
    assert not last.terminated and np.isfinite(last.obs).all()


def test_finite_done_is_a_termination() -> None:
    last = play(make_env(BraxToy(done_at=2)), 2)[0][-1]
    assert bool(last.terminated) and not bool(last.truncated)


def test_nan_action_shows_in_the_reward() -> None:
    moved = play(make_env(BraxToy()), 1, jnp.array([jnp.nan, 0.0]))[0][0]
    assert np.isnan(moved.reward) and not moved.terminated


def test_termination_must_be_known() -> None:
    toy = GymnaxToy()
    toy.terminates = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="pass terminates=True or terminates=False"):
        make_env(toy)
    assert make_env(toy, terminates=False).spec.fixed_length
    assert make_env(GymnaxToy(), terminates=False).spec.terminates is False


def test_object_may_say_that_its_reset_ignores_the_key() -> None:
    toy = BraxToy()
    toy.reset_ignores_key = True  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="BraxToy.* starts from the same state"):
        assert make_env(toy).spec.reset_ignores_key


def test_a_ready_environment_is_used_as_it_is() -> None:
    counter = CounterEnv([4])
    assert make_env(counter) is counter
    assert make_env(counter, episode_length=4, terminates=False) is counter
    for asked in ({"episode_length": 5}, {"action_repeat": 2}, {"terminates": True}):
        with pytest.raises(ValueError, match=f"{next(iter(asked))}=.* ready made"):
            make_env(counter, **asked)


def test_a_registered_builder_gets_the_arguments_it_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wm_collect.backends.custom._builders", {})
    seen: list[Any] = []

    def build(episode_length: int = 77) -> BraxToy:
        seen.append(episode_length)
        toy = BraxToy()
        toy.episode_length = episode_length
        return toy

    register_env("mine", build)
    register_env("pair", lambda: (GymnaxToy(), Params(max_steps_in_episode=3)))
    register_env("anything", lambda **kwargs: seen.append(kwargs) or GymnaxToy())
    assert registered_envs() == ("mine", "pair", "anything")
    assert make_env("mine").spec.episode_length == 77
    env = make_env("mine", episode_length=20, action_repeat=2)
    assert (env.spec.env_id, env.spec.backend, env.spec.episode_length) == ("mine", "custom", 10)
    assert make_env("pair").spec.episode_length == 3
    make_env("anything", episode_length=6)
    assert seen == [77, 20, {"episode_length": 6}]


def test_registration_mistakes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wm_collect.backends.custom._builders", {})
    register_env("mine", BraxToy)
    with pytest.raises(ValueError, match="'mine' is registered already"):
        register_env("mine", BraxToy)
    with pytest.raises(ValueError, match="slash"):
        register_env("gymnax/mine", BraxToy)
    with pytest.raises(TypeError, match="must be callable"):
        register_env("other", BraxToy())  # type: ignore[arg-type]


def test_objects_without_a_known_interface_are_refused() -> None:
    with pytest.raises(TypeError, match="no known interface"):
        make_env(object())
    with pytest.raises(ValueError, match="built already"):
        make_env(BraxToy(), env_params={"a": 1})
    toy = BraxToy()
    toy.episode_length = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"time limit .* unknown; pass episode_length="):
        make_env(toy)


def test_wrappers_of_the_libraries_are_refused() -> None:
    class AutoResetWrapper(BraxToy):
        def __init__(self, env: BraxToy) -> None:
            super().__init__()
            self.env = env

    class Harmless(AutoResetWrapper):
        pass

    with pytest.raises(ValueError, match="wrapped in AutoResetWrapper; pass the bare"):
        make_env(Harmless(AutoResetWrapper(BraxToy())))


def test_observations_other_than_vectors_are_refused() -> None:
    class Image(GymnaxToy):
        def _obs(self, state: Any) -> jax.Array:
            return jnp.zeros((4, 4, 3))

    class Mapping(GymnaxToy):
        def _obs(self, state: Any) -> Any:
            return {"state": jnp.zeros(3), "extra": jnp.zeros(2)}

    with pytest.raises(ValueError, match=r"array of shape \(4, 4, 3\); only flat vectors"):
        make_env(Image())
    with pytest.raises(ValueError, match=r"'state': \(3,\)"):
        make_env(Mapping())


def test_state_that_changes_shape_or_structure_is_refused() -> None:
    class Growing(GymnaxToy):
        def step_env(self, *args: Any) -> Any:
            obs, state, *rest = super().step_env(*args)
            return obs, {**state, "start": jnp.zeros(2)}, *rest

    class Renaming(GymnaxToy):
        def step_env(self, *args: Any) -> Any:
            obs, state, *rest = super().step_env(*args)
            return obs, {**state, "more": 1}, *rest

    with pytest.raises(ValueError, match=r"changes shape at \['start'\]"):
        make_env(Growing())
    with pytest.raises(ValueError, match="changes its structure"):
        make_env(Renaming())


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"names \['gravity'\].* accepted are \['cuts_at'"):
        make_env(GymnaxToy(), env_params={"gravity": 1.0})
    assert make_env(GymnaxToy(), env_params=Params(7)).spec.episode_length == 7


def test_spec_is_hashable_and_complete() -> None:
    spec = make_env(BraxToy()).spec
    assert spec == EnvSpec(
        env_id="BraxToy",
        backend="custom",
        obs_dim=2,
        action_dim=2,
        discrete=False,
        episode_length=10,
        action_repeat=1,
        terminates=True,
        reset_ignores_key=False,
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
    )
    assert hash(spec) == hash(dataclasses.replace(spec)) and not spec.fixed_length
