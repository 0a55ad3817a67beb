"""`load_policy`: act with an exported policy, from NumPy observations to NumPy actions.

Nothing here knows the agent: the program in the folder does the computing, and the contract says
what it takes.
"""

import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from wm_collect.checks import check_count, check_positive
from wm_collect.deploy.contract import PROGRAM, WEIGHTS, read_contract
from wm_collect.deploy.program import read_program

# The stream of the policy's draws in an evaluation with the same seed (wm_collect.evaluate).
_POLICY_STREAM = 1
_LARGEST_SEED = 2**32 - 1
_MIN_TIMED_DECISIONS = 5


def load_policy(path: str | os.PathLike[str]) -> "DeployedPolicy":
    """Return the policy that `export_policy` or the command `export` wrote into a folder.

    Every file is compared with its digest before it is read, and nothing in the folder is pickled.

    Raises:
        FileNotFoundError: there is no such folder, or it is not a policy's.
        ValueError: the folder is damaged or of a newer format, or this JAX cannot run its program.
        ModuleNotFoundError: `flatbuffers` is missing, with which JAX reads programs.
    """
    folder = Path(path).absolute()
    contract = read_contract(folder)
    program = read_program((folder / PROGRAM).read_bytes(), folder, contract["program"])
    with np.load(folder / WEIGHTS, allow_pickle=False) as file:
        weights = {leaf["name"]: _on_device(file[leaf["name"]]) for leaf in contract["weights"]}
    return DeployedPolicy(contract, program, weights)


class DeployedPolicy:
    """A trained policy that acts for N environments (or robots), one decision at a time.

    What the policy remembers from one decision to the next (its *carry*) is kept inside. With the
    same seed, number of environments and observations it acts as the agent's own evaluation does.

        policy = load_policy("policy")
        policy.reset(n=1, seed=0)  # an episode begins; compiles once
        action = policy(obs)  # obs [O] or [1, O], action in the environment's units

    Made by `load_policy`, for one environment and seed 0.

    Attributes:
        contract: what `contract.json` says: sizes, names, bounds, where the policy comes from.
        n: environments that it acts for, N.
    """

    def __init__(
        self, contract: dict[str, Any], program: jax.export.Exported, weights: dict[str, jax.Array]
    ) -> None:
        self.contract = contract
        self._weights = weights
        self._obs_dim: int = contract["observation"]["shape"][0]

        def decide(
            weights: Any, carry: Any, obs: Any, is_first: Any, seed_key: Any, step: Any
        ) -> tuple[jax.Array, Any]:
            key = jax.random.wrap_key_data(seed_key, impl="threefry2x32")
            key_data = jax.random.key_data(jax.random.fold_in(key, step))
            return program.call(weights, carry, obs, is_first, key_data)

        self._decide = jax.jit(decide)
        self._begin(1, 0)

    def reset(self, n: int = 1, seed: int = 0) -> None:
        """Begin an episode in each of `n` environments, and draw from `seed` from now on.

        Compiles the program if it was not yet called for `n` environments, which takes seconds:
        do it before the control loop starts.

        Args:
            n: environments, at least 1.
            seed: 0 to 2³² − 1; draws whatever the policy draws.

        Raises:
            ValueError: a number is out of range.
        """
        check_count("n", n, 1)
        check_count("seed", seed, 0)
        if seed > _LARGEST_SEED:
            raise ValueError(f"seed must be at most {_LARGEST_SEED}, got {seed}.")
        self._begin(int(n), int(seed))
        self._run(np.zeros((self.n, self._obs_dim), np.float32), self._begins)

    def _begin(self, n: int, seed: int) -> None:
        self.n = n
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), _POLICY_STREAM)
        self._seed_key = np.asarray(jax.random.key_data(key))
        self._step = 0
        self._carry: dict[str, Any] = {
            leaf["name"]: _on_device(np.zeros((n, *leaf["shape"]), leaf["dtype"]))
            for leaf in self.contract["carry"]
        }
        self._begins = np.ones(n, bool)

    def __call__(
        self, obs: ArrayLike, is_first: ArrayLike | bool | None = None
    ) -> np.ndarray[Any, Any]:
        """Choose the next action of each environment.

        Args:
            obs: observations `[N, O]`, or `[O]` for one environment; any real numbers, in the units
                the policy was trained on. Converted to float32.
            is_first: bool `[N]`: true where an episode begins with this observation, so that the
                row's carry is forgotten. None says that no row begins, except at the first decision
                after `reset`, where all do.

        Returns:
            Actions in the environment's units, inside its bounds: float32 `[N, ...]` or int32
            `[N]`, without the leading axis if `obs` had none. A new array.

        Raises:
            TypeError: an argument is not made of real numbers, or of truth values.
            ValueError: an argument has the wrong shape; an observation is not finite; or the
                policy computes an action that is not finite. Nothing is remembered of such a call:
                the next one goes on from the same carry.
        """
        rows, single = self._rows(obs)
        begins = self._first_rows(is_first)
        action, carry = self._run(rows, begins)
        self._check_finite(
            action, "the policy's action is not finite although its observations are"
        )
        self._carry, self._step, self._begins = carry, self._step + 1, np.zeros(self.n, bool)
        return action[0] if single else action

    @property
    def carry(self) -> dict[str, np.ndarray[Any, Any]]:
        """What the policy remembers, by name: a copy of each array, `[N, ...]`.

        Assigning such a dictionary goes on from there, for example to try two futures of one
        moment; it says nothing about the random draws, which go on counting decisions.

        Raises:
            ValueError: assigned names, shapes or dtypes are not the contract's.
        """
        return {name: np.array(value) for name, value in self._carry.items()}

    @carry.setter
    def carry(self, values: Mapping[str, ArrayLike]) -> None:
        expected = {leaf["name"]: leaf for leaf in self.contract["carry"]}
        if set(values) != set(expected):
            raise ValueError(
                f"the carry of this policy has the entries {sorted(expected)}, got "
                f"{sorted(values)}."
            )
        carry = {}
        for name, leaf in expected.items():
            array, shape = np.array(values[name]), (self.n, *leaf["shape"])
            if array.shape != shape or array.dtype != leaf["dtype"]:
                raise ValueError(
                    f"the carry {name!r} must be {leaf['dtype']} of shape {shape} for "
                    f"n={self.n}, got {array.dtype} of shape {array.shape}."
                )
            carry[name] = _on_device(array)
        self._carry, self._begins = carry, np.zeros(self.n, bool)

    def rate(self, seconds: float = 1.0) -> float:
        """Measure how often the policy can decide on this machine, compilation left out.

        Decides for `n` environments on observations of zeros, and remembers nothing of it.

        Args:
            seconds: about how long to measure; at least five decisions are made.

        Returns:
            Decisions per second: the inverse of the median time of one.

        Raises:
            ValueError: `seconds` is not a positive number.
        """
        check_positive("seconds", seconds)
        rows, begins = np.zeros((self.n, self._obs_dim), np.float32), np.zeros(self.n, bool)
        self._run(rows, begins)  # compiles, if need be
        taken: list[float] = []
        while sum(taken) < seconds or len(taken) < _MIN_TIMED_DECISIONS:
            began = time.perf_counter()
            self._run(rows, begins)
            taken.append(time.perf_counter() - began)
        return 1 / statistics.median(taken)

    def _run(
        self, rows: np.ndarray[Any, Any], begins: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Return the actions and the next carry, and remember neither."""
        step = np.uint32(self._step % 2**32)
        action, carry = self._decide(self._weights, self._carry, rows, begins, self._seed_key, step)
        return np.array(action), carry

    def _rows(self, obs: ArrayLike) -> tuple[np.ndarray[Any, Any], bool]:
        """Return observations as float32 `[N, O]`, and whether they came without the leading axis.

        Raises:
            TypeError: they are not real numbers.
            ValueError: the shape is wrong, or a row is not finite.
        """
        given = np.asarray(obs)
        if given.dtype.kind not in "fiu":
            raise TypeError(
                f"obs must hold real numbers, which become float32, got the dtype {given.dtype}."
            )
        single = self.n == 1 and given.shape == (self._obs_dim,)
        if not single and given.shape != (self.n, self._obs_dim):
            alone = f" or ({self._obs_dim},)" if self.n == 1 else ""
            raise ValueError(
                f"obs must have the shape ({self.n}, {self._obs_dim}){alone}: {self._obs_dim} "
                f"numbers for each of n={self.n} environment(s); got {given.shape}. "
                "policy.reset(n=…) changes n."
            )
        with np.errstate(over="ignore"):  # too large for float32 is infinite, which is refused
            rows = np.array(given, np.float32).reshape(self.n, self._obs_dim)
        self._check_finite(rows, "obs is not finite")
        return rows, single

    def _first_rows(self, is_first: ArrayLike | bool | None) -> np.ndarray[Any, Any]:
        """Return which rows begin an episode, bool `[N]`."""
        if is_first is None:
            return self._begins
        given = np.asarray(is_first)
        if given.dtype != bool:
            raise TypeError(f"is_first must hold True or False, got the dtype {given.dtype}.")
        if given.shape != (self.n,) and not (given.shape == () and self.n == 1):
            raise ValueError(
                f"is_first must have the shape ({self.n},), one entry per environment, got "
                f"{given.shape}."
            )
        return given.reshape(self.n) | self._begins

    def _check_finite(self, array: np.ndarray[Any, Any], what: str) -> None:
        wrong = ~np.isfinite(array).reshape(self.n, -1).all(axis=1)
        if wrong.any():
            rows = ", ".join(map(str, np.flatnonzero(wrong)))
            raise ValueError(
                f"{what} in row(s) {rows}; the call is not remembered, so the next one goes on "
                "from the carry before it."
            )


def _on_device(array: np.ndarray[Any, Any]) -> jax.Array:
    """Put an array where the program's results are, so that no call differs from another.

    JAX compiles again for an array that lies elsewhere or is not bound to a device.
    """
    return jax.device_put(array, jax.devices()[0])
