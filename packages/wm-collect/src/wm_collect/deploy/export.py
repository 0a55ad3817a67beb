"""`export_policy`: write a trained policy into a folder that needs no training code."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wm_collect.actions import ActionSpace, ContinuousActions, DiscreteActions
from wm_collect.deploy import program
from wm_collect.deploy.contract import PROGRAM, README, WEIGHTS, write_contract
from wm_collect.deploy.deployable import Deployable, DeployableAgent
from wm_collect.deploy.readme import readme_text
from wm_collect.versions import installed_versions

_NON_FINITE = (
    "load_policy refuses an observation that is NaN or infinite, also after conversion to float32, "
    "with an error that names its rows, and keeps the carry as it was. The bare program checks "
    "nothing: its action and carry may then be NaN."
)
_RANDOMNESS = (
    "key_data is the data of a threefry2x32 key, a fresh one for every decision. load_policy uses "
    "fold_in(fold_in(key(seed), 1), t) for decision t = 0, 1, … after reset"
)
_MAPPING = (
    "environment action = center + half_range · clip(agent action, −1, 1), then clipped to "
    "[low, high]; a dimension without two bounds passes clip(agent action, −1, 1) on"
)


def export_policy(
    agent: DeployableAgent,
    state: Any,
    path: str | os.PathLike[str],
    *,
    obs_names: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a trained policy into a new folder, for `load_policy` or for JAX and NumPy alone.

    The folder holds `contract.json` (what goes in and out, bounds, provenance, digests),
    `weights.npz`, `policy.stablehlo` (the program, for any number of environments on CPU, CUDA and
    TPU) and a `README.md` with a snippet that runs it.

    Args:
        agent: the agent.
        state: a trained state of one seed, without a seed axis.
        path: folder to make.
        obs_names: a name for each of the O observed numbers; None is `obs_0`, …
        action_names: a name for each action dimension or choice; None is `action_0`, …
        provenance: where the policy comes from, plain values for JSON.
        options: the agent's own, see its `deployable`; for example `iterations=3` with TD-MPC2.

    Returns:
        The folder, absolute.

    Raises:
        FileExistsError: there is something at `path` already.
        ValueError: the state holds several seeds or numbers that are not finite, the names do not
            fit, or an option is out of range.
        ModuleNotFoundError: `flatbuffers` is missing, with which JAX writes programs.
    """
    folder = Path(path).absolute()
    check_can_export(folder)
    deployable = agent.deployable(state, **options)
    weights = _host_weights(deployable)
    carry = _first_carry(deployable)
    actions = _action_space(deployable)
    observation = _describe_observation(deployable, obs_names)
    action = _describe_action(actions, action_names)
    exported = program.export_program(deployable, actions, deployable.weights, carry)
    contract = {
        "agent": deployable.agent,
        "environment": _describe_environment(deployable),
        "observation": observation,
        "action": action,
        "timing": _describe_timing(deployable),
        "planner": None if deployable.planner is None else dict(deployable.planner),
        "carry": _describe_leaves(
            {name: leaf[0] for name, leaf in program.named_leaves(carry).items()}
        ),
        "weights": _describe_leaves(weights),
        "program": {
            "call": "(action, carry) = call(weights, carry, obs, is_first, key_data)",
            "platforms": list(exported.platforms),
            "jax": jax.__version__,
            "calling_convention_version": exported.calling_convention_version,
            "randomness": _RANDOMNESS,
        },
        "provenance": dict(provenance or {}),
        "versions": installed_versions(),
    }
    unfinished = folder.with_name(f".unfinished-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    np.savez(unfinished / WEIGHTS, **weights)  # type: ignore[arg-type]
    (unfinished / PROGRAM).write_bytes(program.serialized(exported))
    (unfinished / README).write_text(readme_text(contract), encoding="utf-8")
    write_contract(unfinished, contract)
    unfinished.rename(folder)
    return folder


def check_can_export(folder: Path) -> None:
    """Check what can be known before a policy is there.

    Raises:
        FileExistsError: there is something at `folder` already.
        ModuleNotFoundError: `flatbuffers` is missing.
    """
    program.check_flatbuffers()
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists: choose another folder for the policy, or delete it first."
        )


def _host_weights(deployable: Deployable) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights by name.

    Raises:
        ValueError: one is not finite.
    """
    weights = jax.device_get(program.named_leaves(deployable.weights))
    bad = [name for name, leaf in weights.items() if not np.isfinite(leaf).all()]
    if bad:
        raise ValueError(
            f"the trained weights {', '.join(bad[:3])}{' …' if len(bad) > 3 else ''} hold numbers "
            "that are not finite; export an earlier checkpoint or another seed."
        )
    return {name: np.asarray(leaf) for name, leaf in weights.items()}


def _first_carry(deployable: Deployable) -> Any:
    """Return the carry of one environment before its first decision.

    Raises:
        ValueError: it is not zero, which is all that a policy's folder can begin with.
    """
    carry = deployable.init_carry(1)
    if any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(carry)):
        raise ValueError(
            f"{deployable.agent} begins with a carry that is not zero; act(…) must take it where "
            "is_first is true."
        )
    return carry


def _action_space(deployable: Deployable) -> ActionSpace:
    """Return the actions that the environment accepts."""
    # Not needed to load a policy, which imports this module too.
    from wm_collect.environment import SimulatedEnvironment

    env, spec = deployable.env, deployable.env.spec
    if isinstance(env, SimulatedEnvironment):
        return env.simulator.actions
    if spec.discrete:
        return DiscreteActions(spec.action_dim)
    return ContinuousActions(spec.action_low, spec.action_high, (spec.action_dim,))


def _describe_environment(deployable: Deployable) -> dict[str, Any]:
    spec = deployable.env.spec
    return {
        "id": spec.env_id,
        "backend": spec.backend,
        "episode_length_in_decisions": spec.episode_length,
    }


def _describe_observation(deployable: Deployable, names: Sequence[str] | None) -> dict[str, Any]:
    size = deployable.env.spec.obs_dim
    return {
        "shape": [size],
        "dtype": "float32",
        "names": _names("obs", names, size),
        "units": "as the environment gives them; nothing has to be normalised",
        "non_finite": _NON_FINITE,
    }


def _describe_action(actions: ActionSpace, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(actions, DiscreteActions):
        return {
            "kind": "discrete",
            "shape": [],
            "dtype": "int32",
            "n": actions.n,
            "names": _names("action", names, actions.n),
            "mapping": "the index of the choice, 0 to n − 1",
        }
    bounds = np.array([actions.low, actions.high], np.float32)
    bounded = np.isfinite(bounds).all(axis=0)
    low, high = np.where(bounded, bounds, np.array([[-1], [1]], np.float32)).astype(float)

    def numbers(values: np.ndarray[Any, Any]) -> list[float | None]:
        return [float(value) if np.isfinite(value) else None for value in values]

    return {
        "kind": "continuous",
        "shape": list(actions.shape),
        "dtype": "float32",
        "names": _names("action", names, actions.size),
        "low": numbers(bounds[0]),
        "high": numbers(bounds[1]),
        "center": numbers((low + high) / 2),
        "half_range": numbers((high - low) / 2),
        "mapping": _MAPPING,
    }


def _names(what: str, given: Sequence[str] | None, size: int) -> list[str]:
    if given is None:
        return [f"{what}_{i}" for i in range(size)]
    names = [str(name) for name in given]
    if len(names) != size or len(set(names)) != size:
        raise ValueError(
            f"{what}_names must be {size} different names, one for each entry, got {names}."
        )
    return names


def _describe_timing(deployable: Deployable) -> dict[str, Any]:
    """Say how much time of the simulator passes from one decision to the next."""
    repeat = deployable.env.spec.action_repeat
    seconds = _simulator_step_seconds(deployable)
    period = None if seconds is None else repeat * seconds
    every = "simulator step" if repeat == 1 else f"{repeat} simulator steps"
    pace = "" if period is None else f", {period:g} s apart, at {1 / period:g} Hz,"
    return {
        "action_repeat": repeat,
        "simulator_step_seconds": seconds,
        "decision_seconds": period,
        "decisions_per_second": None if period is None else 1 / period,
        "meaning": f"the policy was trained to decide once every {every}{pace} and to hold its "
        "action in between; decide at that pace on the robot, too",
    }


def _simulator_step_seconds(deployable: Deployable) -> float | None:
    """Return the simulated seconds of a simulator step, where the environment's library says."""
    simulator = getattr(deployable.env, "simulator", None)
    seconds = getattr(getattr(simulator, "source", None), "dt", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        return None
    return float(seconds) if seconds > 0 else None


def _describe_leaves(leaves: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
        for name, leaf in leaves.items()
    ]
