"""Brax and Playground; their programs compile slowly, so each is compiled once for the module."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect import Environment, make_env
from wm_collect.backends import mujoco_import, playground

pytestmark = [
    pytest.mark.rank_promotion,
    # Brax reads fields of MJX by their old names.
    pytest.mark.filterwarnings("ignore:Accessing `:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def cartpole() -> Environment:
    return make_env("CartpoleBalance", action_repeat=2)


@pytest.fixture(scope="module")
def pendulum() -> Environment:
    return make_env("PendulumSwingup")


@pytest.fixture(scope="module")
def brax_pendulum() -> Callable[[int], Environment]:
    made: dict[int, Environment] = {}

    def make(repeat: int) -> Environment:
        if repeat not in made:
            made[repeat] = make_env(
                "inverted_pendulum", action_repeat=repeat, env_params={"backend": "spring"}
            )
        return made[repeat]

    return make


def types(tree: Any) -> list[Any]:
    return [leaf.aval for leaf in jax.tree.leaves(tree)]


def test_control_suite_has_500_agent_steps_at_repeat_2(
    cartpole: Environment, pendulum: Environment
) -> None:
    assert cartpole.spec.episode_length == 500 and pendulum.spec.episode_length == 1000
    for env, sizes in [(cartpole, (5, 1)), (pendulum, (3, 1))]:
        assert (env.spec.obs_dim, env.spec.action_dim) == sizes
        assert env.spec.fixed_length and not env.spec.reset_ignores_key
        assert (env.spec.action_low, env.spec.action_high) == ((-1.0,), (1.0,))


@pytest.mark.parametrize("overrides", [None, {"ctrl_dt": 0.02}, {"impl": "jax"}])
def test_playground_always_runs_the_jax_physics(overrides: dict[str, Any] | None) -> None:
    simulator = playground.load("CartpoleBalance", episode_length=None, env_params=overrides)
    assert simulator.source._config.impl == "jax"
    assert simulator.source._config.ctrl_dt == (overrides or {}).get("ctrl_dt", 0.01)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"impl": "warp"}, "only 'jax' is supported"),
        ({"episode_length": 10}, "pass episode_length= to make_env"),
        ({"action_repeat": 2}, "pass action_repeat= to make_env"),
        ({"gravity": 1.0}, "was refused by the Playground environment"),
        (["impl"], "must be a mapping"),
    ],
)
def test_playground_overrides_that_cannot_hold_are_refused(overrides: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("CartpoleBalance", env_params=overrides)


def test_playground_starts_differ_and_raw_keys_draw_the_same(pendulum: Environment) -> None:
    first, again, other = (
        pendulum.reset(key)[1]
        for key in (jax.random.key(0), jax.random.PRNGKey(0), jax.random.key(1))
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.asarray(first - other)).max() > 0.01


def test_playground_state_is_plain_and_keeps_its_types(
    cartpole: Environment, pendulum: Environment
) -> None:
    for env in (cartpole, pendulum):
        state, _ = env.reset(jax.random.key(0))
        moved = env.step(jax.random.key(1), state, jnp.zeros(1))
        assert types(state) == types(moved.state)
        assert not any(leaf.weak_type for leaf in types(state))
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.device_get(jax.tree.leaves(state)))


def test_playground_repeat_sums_rewards(cartpole: Environment) -> None:
    state, _ = cartpole.reset(jax.random.key(0))
    moved = cartpole.step(jax.random.key(1), state, jnp.zeros(1))
    assert 1.5 < moved.reward <= 2.0
    np.testing.assert_allclose(moved.state.inner.data.time, 0.02, rtol=1e-5)
    assert moved.state.steps == 1 and not (moved.terminated | moved.truncated)


def test_playground_time_limit_is_a_truncation_only(cartpole: Environment) -> None:
    state, _ = cartpole.reset(jax.random.key(0))
    late = jax.tree.map(jnp.asarray, state)
    late = type(state)(inner=late.inner, steps=jnp.array(499, jnp.int32))
    moved = cartpole.step(jax.random.key(1), late, jnp.zeros(1))
    assert bool(moved.truncated) and not moved.terminated


def test_playground_nan_is_visible_and_no_termination(pendulum: Environment) -> None:
    state, _ = pendulum.reset(jax.random.key(0))
    moved = pendulum.step(jax.random.key(1), state, jnp.array([jnp.nan]))
    assert moved.state.inner.done == 1.0  # Playground's detector did fire
    assert not (moved.terminated | moved.truncated)
    assert np.isnan(moved.reward) and np.isnan(moved.obs).any()


def test_playground_detector_shows_even_where_the_observation_hides_the_nan() -> None:
    reward, terminated, truncated = playground.done_is_nan(
        SimpleNamespace(reward=jnp.array(0.5), done=jnp.array(1.0))
    )
    assert np.isnan(reward) and not terminated and not truncated


@pytest.mark.parametrize("env_id", ["BallInCup", "PendulumSwingup"])
def test_deterministic_reset_is_announced(env_id: str) -> None:
    simulator = playground.load(env_id, episode_length=None, env_params=None)

    def start(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        data = simulator.reset(key)[0].data
        return data.qpos, data.qvel

    starts = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(0), 3))
    alike = all(bool((rows == rows[:1]).all()) for rows in starts)
    assert simulator.reset_ignores_key == alike == (env_id in playground.RESET_IGNORES_KEY)


def test_deterministic_reset_warns_with_its_deviation() -> None:
    with pytest.warns(UserWarning, match=r"'BallInCup'.*\(deviation E21 in docs/deviations.md\)"):
        assert make_env("BallInCup").spec.reset_ignores_key


def test_reacher_can_be_built_with_the_pinned_mujoco() -> None:
    assert make_env("ReacherEasy").spec.obs_dim == 6


def test_failed_download_of_robot_models_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import mujoco_playground
    from mujoco_playground._src import mjx_env

    assert mujoco_playground is not None
    dependencies = tmp_path / "external_deps"
    monkeypatch.setattr(mjx_env, "EXTERNAL_DEPS_PATH", dependencies)
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", dependencies / "mujoco_menagerie")

    def no_network(*args: Any) -> None:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(mjx_env, "_clone_with_progress", no_network)
    with pytest.raises(RuntimeError, match=r"'Go1Getup' needs robot models .* download failed"):
        make_env("Go1Getup")
    assert not dependencies.exists()


def test_brax_termination_inside_the_window_is_kept(
    brax_pendulum: Callable[[int], Environment],
) -> None:
    single, repeated = brax_pendulum(1), brax_pendulum(4)
    state, _ = single.reset(jax.random.key(0))
    n_steps = 0
    while True:
        moved = single.step(jax.random.key(0), state, jnp.ones(1))
        state, n_steps = moved.state, n_steps + 1
        if moved.terminated:
            break
    state, _ = repeated.reset(jax.random.key(0))
    total = 0.0
    while True:
        window = repeated.step(jax.random.key(0), state, jnp.ones(1))
        state, total = window.state, total + float(window.reward)
        if window.terminated:
            break
    assert n_steps % 4 != 0, "the termination must fall inside a window"
    assert total == n_steps  # a reward of 1 per simulator step, none after the end
    assert not window.truncated  # brax's own info["time_out"] is not a time limit
    np.testing.assert_allclose(window.obs, moved.obs, rtol=1e-4, atol=1e-5)


def test_brax_nan_is_visible_and_no_termination(
    brax_pendulum: Callable[[int], Environment],
) -> None:
    env = brax_pendulum(1)
    state, _ = env.reset(jax.random.key(0))
    moved = env.step(jax.random.key(0), state, jnp.array([jnp.nan]))
    assert np.isnan(moved.reward) and not moved.terminated  # brax itself says reward 1


def test_brax_starts_differ_and_states_keep_their_types(
    brax_pendulum: Callable[[int], Environment],
) -> None:
    env = brax_pendulum(1)
    state, obs = env.reset(jax.random.key(0))
    assert np.abs(np.asarray(obs - env.reset(jax.random.key(1))[1])).max() > 1e-4
    moved = env.step(jax.random.key(0), state, jnp.zeros(1))
    assert types(state) == types(moved.state)
    assert env.spec.episode_length == 1000 and env.spec.terminates


@pytest.mark.parametrize(
    ("params", "message"),
    [({"gravity": 1.0}, "was refused by the Brax"), ("spring", "must be a mapping")],
)
def test_brax_parameters_that_cannot_be_used_are_refused(params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("inverted_pendulum", env_params=params)


def test_robots_told_to_live_on_do_not_terminate() -> None:
    params = {"backend": "spring", "terminate_when_unhealthy": False}
    assert make_env("hopper", env_params=params).spec.fixed_length


def test_mujoco_warns_through_the_logger_instead_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import mujoco

    handler = mujoco.get_mju_user_warning()
    monkeypatch.chdir(tmp_path)
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    data.qpos[:] = np.nan
    with caplog.at_level(logging.INFO, "wm_collect.mujoco"), mujoco_import.mujoco_imports():
        mujoco.mj_step(model, data)
    assert "The simulation is unstable" in caplog.text
    assert not list(tmp_path.iterdir())
    assert mujoco.get_mju_user_warning() is handler


@pytest.mark.parametrize(
    ("environ", "libraries", "chosen"),
    [
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), None),
        ({"DISPLAY": ":0"}, {"EGL"}, None),
        ({"WAYLAND_DISPLAY": "wayland-0"}, {"EGL"}, None),
        ({"MUJOCO_GL": "osmesa"}, {"EGL"}, "osmesa"),
    ],
)
def test_renderer_is_chosen_only_where_nobody_chose(
    environ: dict[str, str],
    libraries: set[str],
    chosen: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mujoco_import.sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        mujoco_import.ctypes.util,
        "find_library",
        lambda name: f"lib{name}.so" if name in libraries else None,
    )
    mujoco_import.choose_renderer()
    assert os.environ.get("MUJOCO_GL") == chosen
    monkeypatch.delenv("MUJOCO_GL", raising=False)
