import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect import Environment, Transition, make_env

pytestmark = pytest.mark.rank_promotion


def scan_one_episode(env: Environment, n_steps: int, action: jax.Array) -> Transition:
    """Step without resets, and return the stacked transitions, `[n_steps, ...]`."""

    def step(state, key):
        moved = env.step(key, state, action)
        return moved.state, moved

    @jax.jit
    def run(key):
        state, _ = env.reset(key)
        return jax.lax.scan(step, state, jax.random.split(key, n_steps))[1]

    return run(jax.random.key(3))


@pytest.mark.parametrize(
    ("env_id", "obs_dim", "action_dim", "discrete", "length", "terminates"),
    [
        ("CartPole-v1", 4, 2, True, 500, True),
        ("Pendulum-v1", 3, 1, False, 200, False),
        ("Acrobot-v1", 6, 3, True, 500, True),
        ("MountainCar-v0", 2, 3, True, 200, True),
        ("MountainCarContinuous-v0", 2, 1, False, 999, True),
        ("MemoryChain-bsuite", 3, 2, True, 1000, True),
        ("UmbrellaChain-bsuite", 3, 2, True, 100, True),
        ("MetaMaze-misc", 15, 4, True, 200, True),
        ("PointRobot-misc", 6, 2, False, 100, False),
        ("BernoulliBandit-misc", 4, 2, True, 100, False),
        ("Reacher-misc", 8, 2, False, 100, False),
        ("Swimmer-misc", 16, 2, False, 500, False),
    ],
)
def test_known_facts(
    env_id: str, obs_dim: int, action_dim: int, discrete: bool, length: int, terminates: bool
) -> None:
    spec = make_env(env_id).spec
    assert (spec.obs_dim, spec.action_dim, spec.discrete) == (obs_dim, action_dim, discrete)
    assert (spec.episode_length, spec.terminates) == (length, terminates)
    assert spec.backend == "gymnax" and type(spec.episode_length) is int


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "PointRobot-misc", "Reacher-misc"])
def test_fixed_length_episodes_are_cut_at_exactly_t(env_id: str) -> None:
    env = make_env(env_id)
    length = env.spec.episode_length
    moved = scan_one_episode(env, length, jnp.ones(env.spec.action_dim))
    assert not moved.terminated.any()
    np.testing.assert_array_equal(moved.truncated, np.arange(1, length + 1) == length)


def test_pendulum_takes_the_mapped_action() -> None:
    env = make_env("Pendulum-v1")
    assert (env.spec.action_low, env.spec.action_high) == ((-2.0,), (2.0,))
    for agent, torque in [(1.0, 2.0), (0.25, 0.5), (-5.0, -2.0)]:
        moved = scan_one_episode(env, 1, jnp.array([agent]))
        assert moved.state.inner.last_u[0] == torque


def test_cartpole_terminates_without_being_truncated_and_without_a_reset() -> None:
    moved = scan_one_episode(make_env("CartPole-v1"), 40, jnp.array(1))
    first = int(np.argmax(moved.terminated))
    assert 5 < first < 15 and not moved.truncated.any()
    # The state goes on from the fallen pole: nothing was reset.
    assert abs(moved.obs[first, 2]) > 0.2 and moved.state.inner.time[-1] == 40


def test_cartpole_repeat_stops_inside_the_window() -> None:
    single = scan_one_episode(make_env("CartPole-v1"), 15, jnp.array(1))
    n_alive = int(np.argmax(single.terminated)) + 1
    repeated = scan_one_episode(make_env("CartPole-v1", action_repeat=10), 2, jnp.array(1))
    end = int(np.argmax(repeated.terminated))
    assert repeated.reward[: end + 1].sum() == n_alive
    np.testing.assert_allclose(repeated.obs[end], single.obs[n_alive - 1], rtol=1e-6)


def test_episode_length_and_parameters_replace_the_defaults() -> None:
    env = make_env("Pendulum-v1", episode_length=60, action_repeat=2, env_params={"g": 0.0})
    moved = scan_one_episode(env, 30, jnp.zeros(1))
    assert env.spec.episode_length == 30
    np.testing.assert_array_equal(moved.truncated, np.arange(1, 31) == 30)
    # Without gravity and torque the speed stays as it was.
    np.testing.assert_array_equal(moved.obs[:, 2], moved.obs[0, 2])


def test_integer_observations_and_rewards_become_float32() -> None:
    with pytest.warns(UserWarning, match="FourRooms-misc.* starts from the same state"):
        rooms = make_env("FourRooms-misc")
    for env in (rooms, make_env("UmbrellaChain-bsuite")):
        moved = scan_one_episode(env, 1, jnp.array(0))
        assert moved.obs.dtype == moved.reward.dtype == jnp.float32


@pytest.mark.parametrize(
    ("env_id", "shape"), [("Catch-bsuite", r"\(10, 5\)"), ("FrozenLake-misc", r"\(\)")]
)
def test_observations_that_are_no_vectors_are_refused(env_id: str, shape: str) -> None:
    with pytest.raises(ValueError, match=f"array of shape {shape}; only flat vectors"):
        make_env(env_id)


def test_nan_action_shows_and_ends_nothing() -> None:
    moved = scan_one_episode(make_env("Pendulum-v1"), 2, jnp.array([jnp.nan]))
    assert np.isnan(moved.reward).all() and np.isnan(moved.obs).any()
    assert not (moved.terminated | moved.truncated).any()


def test_an_id_registered_with_gymnax_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnax
    from gymnax import registration

    monkeypatch.setitem(
        registration._registry, "Mine-v0", gymnax.registration._builtins["Pendulum-v1"]
    )
    monkeypatch.setattr(gymnax, "registered_envs", [*gymnax.registered_envs, "Mine-v0"])
    with pytest.raises(ValueError, match=r"'Mine-v0'.* pass terminates="):
        make_env("Mine-v0")
    assert make_env("Mine-v0", terminates=False).spec.env_id == "Mine-v0"
