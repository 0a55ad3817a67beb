"""What a run will need of the device's memory, told before anything is compiled.

The state (networks, optimiser, replay) is known to the byte. The working memory of an update is
estimated from its traced program, as if only what outlives a few operations took memory of its own,
since XLA computes the rest within its consumers: within a third of what XLA then allots on
the agents of this project.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

# An elementwise result read for the last time within so many operations is computed in place.
_FUSED_WITHIN = 20
# Written into the array they are given.
_IN_PLACE = {"dynamic_update_slice", "scatter", "scatter-add"}
_STORED = {
    "argmax",
    "concatenate",
    "cumsum",
    "dot_general",
    "gather",
    "reduce_max",
    "reduce_sum",
    "scan",
    "sort",
    "top_k",
    "while",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes that a run of S seeds needs on its device.

    Attributes:
        n_seeds: S.
        replay: of one seed's replay.
        learner: of one seed's other state: networks, optimiser, environments.
        shared: of data that all seeds read.
        working: estimate of what one seed's update needs besides; 0 if it was not asked for.
        device: of the device; None if it does not say.
        device_name: how the device is called, e.g. "cpu".
        replay_setting: the agent's setting that bounds the replay; None if there is none.
        replay_rows: what it bounds, as far as this run fills it.
    """

    n_seeds: int
    replay: int
    learner: int
    shared: int
    working: int
    device: int | None
    device_name: str
    replay_setting: str | None = None
    replay_rows: int = 0

    @property
    def per_seed(self) -> int:
        """Bytes that a further seed adds."""
        return self.replay + self.learner + self.working

    @property
    def total(self) -> int:
        """Bytes of the whole run."""
        return self.shared + self.n_seeds * self.per_seed

    @property
    def most_seeds(self) -> int | None:
        """The largest number of seeds that fits; None if the device does not say its memory."""
        if self.device is None:
            return None
        return max(0, (self.device - self.shared) // self.per_seed)

    def describe(self) -> dict[str, str]:
        """Return lines for a description."""
        parts = [f"networks and optimiser {size(self.learner)}"]
        if self.replay:
            parts.append(f"replay {size(self.replay)}")
        if self.working:
            parts.append(f"about {size(self.working)} to compute an update")
        seeds = "1 seed" if self.n_seeds == 1 else f"{self.n_seeds} seeds"
        text = f"about {size(self.total)} for {seeds}: {', '.join(parts)} a seed"
        if self.shared:
            text += f", {size(self.shared)} of data for all"
        lines = {"memory": text}
        if self.device is not None:
            lines["device"] = (
                f"{self.device_name} with {size(self.device)}: room for {self.most_seeds:,} seed(s)"
            )
        return lines

    def check(self) -> None:
        """Refuse a run that cannot fit.

        Raises:
            ValueError: the run needs more than the device has.
        """
        if self.device is None or self.total <= self.device:
            return
        n_seeds = self.n_seeds
        remedies = []
        if self.most_seeds:
            remedies.append(f"at most {self.most_seeds:,} seed(s)")
        else:
            n_seeds = 1
        room = (self.device - self.shared) // n_seeds - self.learner - self.working
        if self.replay_setting is not None and room > 0:
            # Rounded down to three digits.
            rows = room * self.replay_rows // self.replay
            rows -= rows % 10 ** max(0, len(str(rows)) - 3)
            alone = "" if n_seeds == self.n_seeds else " and one seed"
            remedies.append(f"a {self.replay_setting} of at most {rows:,}{alone}")
        remedy = " or ".join(remedies) if remedies else "a smaller model"
        raise ValueError(
            f"this run cannot fit: it needs {self.describe()['memory']}, but the device "
            f"({self.device_name}) has {size(self.device)}. Use {remedy}."
        )


def device_memory() -> tuple[int | None, str]:
    """Return the bytes of the default device's memory, and the device's name.

    For a CPU they are the machine's; None if it does not say.
    """
    device = jax.devices()[0]
    if device.platform == "cpu":
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu"
        except (AttributeError, OSError, ValueError):
            return None, "cpu"
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit"), device.device_kind


def tree_bytes(tree: Any) -> int:
    """Return the bytes of a pytree's arrays, or of their shapes."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def working_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Return an estimate of the bytes a function needs besides its arguments.

    Args:
        function: traced, not compiled.
        args: arrays or their shapes.
    """
    return _peak(jax.make_jaxpr(function)(*args).jaxpr)


def size(n_bytes: float) -> str:
    """Return a number of bytes for people.

    >>> size(831), size(7_200_000), size(1.24e10)
    ('831 B', '7.2 MB', '12.4 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.1f} {unit}"
    return f"{n_bytes:.0f} B"


def _bytes(array: Any) -> int:
    dtype = array.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return 4 * math.prod(jax.eval_shape(jax.random.key_data, array).shape)
    return math.prod(array.shape) * dtype.itemsize


def _peak(jaxpr: Jaxpr) -> int:
    """Return the most bytes that are alive at once while a program runs, arguments left out."""
    n = len(jaxpr.eqns)
    last_use = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if isinstance(v, Var)}
    last_use |= {v: n for v in jaxpr.outvars if isinstance(v, Var)}
    dying: dict[int, list[Var]] = {}
    for variable, i in last_use.items():
        dying.setdefault(i, []).append(variable)
    held: dict[Var, int] = {}
    alive = peak = 0
    for i, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        for variable in eqn.outvars:
            lasts = last_use.get(variable, i) - i >= _FUSED_WITHIN
            if name in _STORED or (lasts and name not in _IN_PLACE):
                held[variable] = _bytes(variable.aval)
                alive += held[variable]
        peak = max(peak, alive + max(map(_peak, _inner(eqn.params)), default=0))
        for variable in dying.get(i, []):
            alive -= held.pop(variable, 0)
    return peak


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the programs inside an operation, such as a loop's body."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part
