"""MuJoCo Playground environments, with the JAX physics always.

Playground's default physics, Warp, is hundreds of times slower on a CPU and its states are too
large to hold or to save. In the control suite `done` is a detector of NaNs and nothing else, so it
is not read as a termination: it turns the reward into NaN, which stops a run.
"""

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from wm_collect.backends import state_api
from wm_collect.backends.mujoco_import import mujoco_imports
from wm_collect.backends.simulator import Simulator, as_flag, missing_package

# The ids of playground 0.2.0. The control suite never ends an episode; the robots may fall.
_CONTROL_SUITE = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidStand",
    "HumanoidWalk",
    "HumanoidRun",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)
_ROBOTS = (
    "ApolloJoystickFlatTerrain",
    "BarkourJoystick",
    "BerkeleyHumanoidJoystickFlatTerrain",
    "BerkeleyHumanoidJoystickRoughTerrain",
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
    "Go1JoystickFlatTerrain",
    "Go1JoystickRoughTerrain",
    "Go1Getup",
    "Go1Handstand",
    "Go1Footstand",
    "H1InplaceGaitTracking",
    "H1JoystickGaitTracking",
    "Op3Joystick",
    "SpotFlatTerrainJoystick",
    "SpotGetup",
    "SpotJoystickGaitTracking",
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
    "AlohaHandOver",
    "AlohaSinglePegInsertion",
    "PandaPickCube",
    "PandaPickCubeOrientation",
    "PandaPickCubeCartesian",
    "PandaOpenCabinet",
    "PandaRobotiqPushCube",
    "LeapCubeReorient",
    "LeapCubeRotateZAxis",
    "AeroCubeRotateZAxis",
)
TERMINATES: Mapping[str, bool] = {
    **dict.fromkeys(_CONTROL_SUITE, False),
    **dict.fromkeys(_ROBOTS, True),
}

# Their reset makes no random draw (deviation E21).
RESET_IGNORES_KEY = frozenset({"BallInCup", "HumanoidStand", "HumanoidWalk", "HumanoidRun"})

_OURS = {"episode_length": "episode_length=", "action_repeat": "action_repeat="}


def has_id(env_id: str) -> bool:
    """Return whether Playground knows the id, ids registered with it at run time included."""
    loaded = sys.modules.get("mujoco_playground")
    return env_id in TERMINATES or (loaded is not None and env_id in _registered(loaded))


def load(env_id: str, *, episode_length: int | None, env_params: Any) -> Simulator:
    """Build a bare Playground environment by its id.

    Args:
        env_id: a registered name, such as "CartpoleBalance".
        episode_length: time limit in simulator steps; None for the task's own, mostly 1000.
        env_params: overrides of the task's configuration as a mapping from dotted names to
            values, or None.

    Returns:
        The environment as a simulator.

    Raises:
        ModuleNotFoundError: playground is not installed.
        RuntimeError: the robot's model could not be downloaded.
        ValueError: the overrides cannot be used.
    """
    overrides = _overrides(env_id, env_params)
    with mujoco_imports():
        try:
            import mujoco_playground
        except ModuleNotFoundError as error:
            raise missing_package(env_id, error.name or "playground", "playground") from error
        registry = mujoco_playground.registry
        config = registry.get_default_config(env_id)
        if episode_length is None:
            episode_length = int(config.episode_length)
        # Some tasks count their own steps, observe them, and start counting anew at this length.
        overrides["episode_length"] = episode_length
        try:
            env = registry.load(env_id, config=config, config_overrides=overrides)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"env_params {dict(env_params or {})!r} was refused by the Playground environment "
                f"{env_id!r}: {error}. Its configuration has the entries {sorted(config)}."
            ) from error
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise _no_models(env_id, error) from error

    outcome = done_is_nan if env_id in _CONTROL_SUITE else state_api.done_is_termination
    return state_api.from_object(
        env,
        env_id=env_id,
        backend="playground",
        terminates=TERMINATES.get(env_id),
        episode_length=episode_length,
        reset_ignores_key=env_id in RESET_IGNORES_KEY,
        outcome=outcome,
    )


def done_is_nan(state: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Read `done` as "the physics broke": never an end of the episode, but a NaN reward.

    Args:
        state: the library's state after a step.

    Returns:
        Reward, terminated and truncated, each a scalar.
    """
    reward = jnp.where(as_flag(state.done), jnp.nan, state.reward)
    return reward, jnp.array(False), jnp.array(False)


def _overrides(env_id: str, env_params: Any) -> dict[str, Any]:
    """Return the configuration overrides, with the JAX physics."""
    if env_params is None:
        return {"impl": "jax"}
    if not isinstance(env_params, Mapping):
        raise ValueError(
            f"env_params of the Playground environment {env_id!r} must be a mapping of "
            f"configuration overrides, but {env_params!r} was given."
        )
    for name, argument in _OURS.items():
        if name in env_params:
            raise ValueError(
                f"env_params of {env_id!r} sets {name!r}; pass {argument} to make_env instead."
            )
    if env_params.get("impl", "jax") != "jax":
        raise ValueError(
            f"env_params of {env_id!r} asks for impl={env_params['impl']!r}; only 'jax' is "
            f"supported, because Warp's states are too large to hold and to save."
        )
    return {**env_params, "impl": "jax"}


def _registered(library: Any) -> tuple[str, ...]:
    suites = (library.dm_control_suite, library.locomotion, library.manipulation)
    return tuple(name for suite in suites for name in suite.ALL_ENVS)


def _no_models(env_id: str, error: Exception) -> RuntimeError:
    from mujoco_playground._src import mjx_env

    # A failed download leaves an empty folder in the installed package.
    with contextlib.suppress(OSError):
        Path(str(mjx_env.EXTERNAL_DEPS_PATH)).rmdir()
    return RuntimeError(
        f"The environment {env_id!r} needs robot models that Playground downloads with git at "
        f"first use, and the download failed ({error}); connect to the network and try again, or "
        f"clone github.com/google-deepmind/mujoco_menagerie at commit "
        f"{mjx_env.MENAGERIE_COMMIT_SHA} to {mjx_env.MENAGERIE_PATH}. The control-suite "
        f"environments, such as 'CartpoleBalance', need no download."
    )
