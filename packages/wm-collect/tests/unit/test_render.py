import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from wm_collect import Environment, Trajectory, make_env
from wm_collect.render import render_episode, save_animation
from wm_collect.render.physics import NoRendererError, open_renderer
from wm_collect.testing import CounterEnv

pytestmark = pytest.mark.rank_promotion
CAPTION = 56


def record(env: Environment, n_steps: int, action: Any) -> Trajectory:
    """Step `n_steps` times by hand and pad to T as `evaluate_policy` does."""
    state, obs = env.reset(jax.random.key(0))
    states, seen, rewards = [state], [obs], []
    for i in range(n_steps):
        moved = env.step(jax.random.key(i), states[-1], action)
        states.append(moved.state)
        seen.append(moved.obs)
        rewards.append(moved.reward)
    missing = env.spec.episode_length - n_steps

    def stacked(leaves: Sequence[jax.Array]) -> jax.Array:
        rows = jnp.stack(leaves)
        return jnp.concatenate([rows, jnp.zeros((missing, *rows.shape[1:]), rows.dtype)])

    return Trajectory(
        env_state=jax.tree.map(lambda *leaves: stacked(leaves), *states),
        obs=stacked(seen),
        action=jnp.broadcast_to(action, (env.spec.episode_length, *jnp.shape(action))),
        reward=stacked(rewards),
        length=jnp.array(n_steps, jnp.int32),
        terminated=moved.terminated,
    )


CLASSIC = {
    "Pendulum-v1": [0.7],
    "CartPole-v1": 1,
    "MountainCar-v0": 2,
    "MountainCarContinuous-v0": [1.0],
    "Acrobot-v1": 2,
}


@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_tasks_move(env_id: str) -> None:
    env = make_env(env_id, episode_length=30)
    frames = render_episode(env, record(env, 8, jnp.asarray(CLASSIC[env_id])), every=4)
    assert [frame.shape for frame in frames] == [(360 + CAPTION, 480, 3)] * 3
    assert all(frame.dtype == np.uint8 for frame in frames)
    pictures = [frame[:360] for frame in frames]
    assert (pictures[0] != pictures[1]).any() and (pictures[1] != pictures[2]).any()


def test_pendulum_is_drawn_the_way_its_angle_points() -> None:
    """Gymnax's angle is zero upright and grows counterclockwise."""
    trajectory = Trajectory(
        env_state=(),
        obs=jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]),
        action=jnp.zeros((2, 1)),
        reward=jnp.zeros(2),
        length=jnp.array(2),
    )
    frames = render_episode("Pendulum-v1", trajectory, width=300, height=300)
    centres = []
    for frame in frames:
        rod = (np.abs(frame[:300].astype(int) - np.array([200, 85, 61])) < 30).all(axis=-1)
        centres.append(np.argwhere(rod).mean(axis=0) - 150)
    (up, left, down) = centres
    assert up[0] < -30 and abs(up[1]) < 5
    assert left[1] < -30 and abs(left[0]) < 5
    assert down[0] > 30 and abs(down[1]) < 5


@pytest.mark.parametrize(("obs_dim", "length"), [(3, 6), (9, 1)], ids=["curves", "heat map"])
def test_any_other_environment_is_drawn_as_curves(obs_dim: int, length: int) -> None:
    env = CounterEnv([length], obs_dim=obs_dim)
    frames = render_episode(env, record(env, length, jnp.zeros(2)), width=320, height=240)
    assert len(frames) == length + 1
    assert all(frame.shape == (240 + CAPTION, 320, 3) for frame in frames)
    assert (frames[0][:240] != frames[-1][:240]).any()


def test_an_observation_that_broke_is_still_drawn() -> None:
    env = CounterEnv([3], obs_dim=9)
    good = record(env, 3, jnp.zeros(2))
    broken = Trajectory(
        env_state=good.env_state,
        obs=good.obs.at[2].set(jnp.nan),
        action=good.action,
        reward=good.reward.at[1].set(jnp.nan),
        length=good.length,
    )
    assert len(render_episode(env, broken)) == 4


def test_only_the_steps_taken_are_drawn_and_the_last_one_always() -> None:
    env = CounterEnv([50])
    trajectory = record(env, 7, jnp.zeros(2))
    assert len(render_episode(env, trajectory)) == 8
    assert len(render_episode(env, trajectory, every=3)) == 4  # 0, 3, 6, 7


def test_caption_shows_the_return_so_far() -> None:
    env = CounterEnv([4])
    one, other = (record(env, 4, jnp.zeros(2)) for _ in range(2))
    other = Trajectory(
        env_state=other.env_state,
        obs=other.obs,
        action=other.action,
        reward=other.reward.at[0].add(500.0),
        length=other.length,
    )
    first, second = (render_episode(env, trajectory) for trajectory in (one, other))
    same = [(a[-CAPTION:] == b[-CAPTION:]).all() for a, b in zip(first, second, strict=True)]
    assert same == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"height": 0}, "height must be at least 1"),
    ],
)
def test_arguments_that_draw_nothing_are_refused(change: dict[str, int], message: str) -> None:
    env = CounterEnv([4])
    with pytest.raises(ValueError, match=message):
        render_episode(env, record(env, 4, jnp.zeros(2)), **change)


def test_a_batch_of_episodes_is_refused() -> None:
    env = CounterEnv([4])
    batch = jax.tree.map(lambda leaf: leaf[None], record(env, 4, jnp.zeros(2)))
    with pytest.raises(ValueError, match="one episode is drawn at a time"):
        render_episode(env, batch)


@pytest.fixture(scope="module")
def mujoco_episode() -> tuple[Environment, Trajectory]:
    env = make_env("PendulumSwingup", episode_length=4)
    return env, record(env, 3, jnp.ones(1))


def opengl_problem() -> str:
    """Return why MuJoCo cannot draw here, or nothing."""
    import mujoco

    try:
        open_renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 16, 16).close()
    except NoRendererError as error:
        return str(error)
    return ""


def test_mujoco_draws_where_it_can(mujoco_episode: tuple[Environment, Trajectory]) -> None:
    problem = opengl_problem()
    if problem:
        pytest.skip(problem)
    frames = render_episode(*mujoco_episode, every=3, width=160, height=120)
    assert [frame.shape for frame in frames] == [(120 + CAPTION, 160, 3)] * 2
    # A scene of many colours, which moves: not an empty buffer.
    assert len(np.unique(frames[0][:120].reshape(-1, 3), axis=0)) > 100
    assert (frames[0][:120] != frames[1][:120]).any()


def test_without_a_display_every_renderer_is_refused_with_a_sentence() -> None:
    """In a process of its own, which a second renderer without a context would end."""
    code = """
import gc, mujoco
from wm_collect.render.physics import NoRendererError, open_renderer
for _ in range(2):
    try:
        open_renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 16, 16)
    except NoRendererError as error:
        print(error)
gc.collect()
"""
    hidden = {"DISPLAY", "WAYLAND_DISPLAY"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["MUJOCO_GL"] = "glfw"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all("DISPLAY" in line and "libosmesa6" in line for line in lines)


def test_without_opengl_a_sentence_and_curves(
    mujoco_episode: tuple[Environment, Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mujoco

    def fails(*args: Any) -> None:
        raise RuntimeError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr(mujoco, "Renderer", fails)
    with pytest.warns(UserWarning, match=r"libegl1.*libosmesa6.* The episode is drawn as curves"):
        frames = render_episode(*mujoco_episode, width=160, height=120)
    assert len(frames) == 4
    assert issubclass(NoRendererError, RuntimeError)


def frames_of(n: int, height: int = 20, width: int = 31) -> list[np.ndarray]:
    return [np.full((height, width, 3), 40 * i, np.uint8) for i in range(n)]


def test_gif_holds_every_frame_at_its_speed(tmp_path: Path) -> None:
    path = save_animation(frames_of(5), tmp_path / "new" / "a.gif", fps=20)
    with Image.open(path) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (5, (31, 20), 50)
        assert image.info["loop"] == 0
        image.seek(3)
        assert abs(np.asarray(image.convert("RGB")).astype(int) - 120).max() <= 4


def test_mp4_is_written(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs wm-collect[video]")
    path = save_animation(frames_of(5), tmp_path / "a.mp4", fps=10)
    n_frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert n_frames == 5 and abs(seconds - 0.5) < 0.2


def test_mp4_without_the_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"wm-collect\[video\]\".*\.gif"):
        save_animation(frames_of(2), tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("frames", "name", "fps", "message"),
    [
        ([], "a.gif", 30, "no frames"),
        (frames_of(1) + frames_of(1, width=9), "a.gif", 30, "must have one size"),
        (frames_of(1), "a.png", 30, "must end in .gif or .mp4"),
        (frames_of(1), "a.gif", 0, "fps must be positive"),
    ],
)
def test_files_that_cannot_be_written_are_refused(
    frames: list[np.ndarray], name: str, fps: float, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        save_animation(frames, tmp_path / name, fps=fps)
