"""What the arrays of a dataset must be, and every place where they are not.

`find_violations` looks at dtypes and shapes, and if asked at every number, some episodes at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wm_multitask.arrays import episodes_per_chunk
from wm_multitask.tasks import TaskSet

# Violations spelled out in one message; the others are counted.
MAX_LISTED = 20

_RANKS = {"obs": 3, "action": 3, "reward": 2, "task": 1}
_DTYPES = {"obs": np.float32, "action": np.float32, "reward": np.float32, "task": np.int32}
_AXES = {"obs": "[N, R, O]", "action": "[N, R, A]", "reward": "[N, R]", "task": "[N]"}


class _Rule(NamedTuple):
    """What the numbers of a field must be, and which of them are not.

    `broken(values, own)` takes some episodes `[n, R, ...]` and whether a dimension is the task's
    own, `[n, O]`, `[n, A]` or, for rewards, `[n, 1]`; it returns booleans of the shape of `values`.
    """

    field: str
    wanted: str
    broken: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _not_finite(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


def _in_padding(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    return (values != 0) & ~own[:, None, :]


def _outside_bounds(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (np.abs(values) > 1)


def _nonzero_last(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    broken = np.zeros(values.shape, bool)
    broken[:, -1] = values[:, -1] != 0
    return broken


def _nonzero_first(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    broken = np.zeros(values.shape, bool)
    broken[:, 0] = values[:, 0] != 0
    return broken


_RULES = (
    _Rule("obs", "every number must be finite", _not_finite),
    _Rule("obs", "padding must be exactly 0", _in_padding),
    _Rule("action", "every number must be finite", _not_finite),
    _Rule("action", "padding must be exactly 0", _in_padding),
    _Rule("action", "actions must lie in [-1, 1]", _outside_bounds),
    _Rule("action", "the last row has no action and must be 0", _nonzero_last),
    _Rule("reward", "every number must be finite", _not_finite),
    _Rule("reward", "row 0 has no reward and must be 0", _nonzero_first),
)


class Findings:
    """Violations: the first of them in words, all of them counted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.n = 0

    def add(self, line: str) -> None:
        """Add one violation."""
        self.add_each(range(1), lambda _: line)

    def add_each(self, where: Sequence[int] | np.ndarray, describe: Callable[[int], str]) -> None:
        """Add a violation for each of `where`; only the listed ones are described."""
        room = max(0, MAX_LISTED - len(self.lines))
        self.lines += [describe(int(i)) for i in where[:room]]
        self.n += len(where)

    def raise_if_any(self, subject: str) -> None:
        """Raise a `ValueError` that lists the violations, if there are any."""
        if not self.n:
            return
        more = self.n - len(self.lines)
        lines = self.lines + ([f"and {more} more"] if more else [])
        raise ValueError(f"{subject} cannot be used:\n" + "\n".join(f"- {x}" for x in lines))


def find_violations(tasks: TaskSet, arrays: Mapping[str, np.ndarray], *, numbers: bool) -> Findings:
    """Check arrays by name, `task` among them; of the numbers only task ids unless `numbers`."""
    findings = Findings()
    sound = _check_shapes(tasks, arrays, findings)
    if "task" not in sound:
        return findings
    ids = np.asarray(arrays["task"])
    known = (ids >= 0) & (ids < tasks.n_tasks)
    findings.add_each(
        np.flatnonzero(~known),
        lambda i: (
            f"episode {i}, task: id {ids[i]} is no task, the {tasks.n_tasks} task(s) have "
            f"ids 0 to {tasks.n_tasks - 1}"
        ),
    )
    counts = np.bincount(ids[known], minlength=tasks.n_tasks)
    findings.add_each(
        np.flatnonzero(counts == 0),
        lambda i: f"task {tasks.names[i]!r} (id {i}), task: it has no episode",
    )
    for rule in _RULES if numbers else ():
        if rule.field in sound:
            _check_numbers(rule, arrays[rule.field], ids, known, tasks, findings)
    return findings


def _check_shapes(tasks: TaskSet, arrays: Mapping[str, np.ndarray], findings: Findings) -> set[str]:
    """Add what is wrong with dtypes and shapes; return the fields whose numbers can be read."""
    widths = {"obs": tasks.obs_dim, "action": tasks.action_dim}
    sound: set[str] = set()
    n_and_r: dict[str, tuple[int, ...]] = {}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            findings.add(f"{name}: must be a NumPy array, is a {type(array).__name__}")
            continue
        if array.dtype != _DTYPES[name]:
            wanted = np.dtype(_DTYPES[name]).name
            findings.add(f"{name}: must have dtype {wanted}, has {array.dtype}")
        if array.ndim != _RANKS[name]:
            findings.add(f"{name}: must be {_AXES[name]}, has shape {list(array.shape)}")
            continue
        n_and_r[name] = array.shape[:2]
        first = next(iter(n_and_r))
        common = min(len(n_and_r[first]), len(n_and_r[name]))
        if n_and_r[name][:common] != n_and_r[first][:common]:
            findings.add(
                f"{name}: begins with the sizes {list(n_and_r[name])}, but {first} with "
                f"{list(n_and_r[first])}; N and R must be equal"
            )
        elif name in widths and array.shape[2] != widths[name]:
            findings.add(
                f"{name}: must be {widths[name]} wide, as the widest task, is {array.shape[2]}"
            )
        elif array.dtype.kind in ("i" if name == "task" else "fiu"):
            sound.add(name)
    rows = next((shape[1] for shape in n_and_r.values() if len(shape) == 2), None)
    if rows is not None and rows < 2:
        findings.add(f"obs: an episode has at least 2 rows, R is {rows}")
    too_short = [i for i, task in enumerate(tasks.tasks) if rows and rows > task.episode_length + 1]
    findings.add_each(
        too_short,
        lambda i: (
            f"task {tasks.names[i]!r} (id {i}), obs: its episodes have "
            f"{tasks.tasks[i].episode_length + 1} rows, but R is {rows}"
        ),
    )
    return sound if rows is None or rows >= 2 else set()


def _check_numbers(
    rule: _Rule,
    array: np.ndarray,
    ids: np.ndarray,
    known: np.ndarray,
    tasks: TaskSet,
    findings: Findings,
) -> None:
    """Add the episodes that break a rule, looking at some episodes at a time."""
    own = _own_dimensions(rule.field, tasks, array)
    size = episodes_per_chunk(array)
    for start in range(0, len(array), size):
        values = np.asarray(array[start : start + size])
        part_ids, part_known = ids[start : start + size], known[start : start + size]
        # Of an unknown task, nothing is padding.
        valid = own[np.where(part_known, part_ids, 0)] | ~part_known[:, None]
        broken = rule.broken(values, valid)
        bad = np.flatnonzero(broken.reshape(len(values), -1).any(axis=1))

        def describe(
            i: int, start: int = start, values: np.ndarray = values, broken: np.ndarray = broken
        ) -> str:
            place = tuple(np.argwhere(broken[i])[0])
            where = f"row {place[0]}" + "".join(f", dimension {k}" for k in place[1:])
            return (
                f"{_task_label(tasks, ids[start + i])}, episode {start + i}, {rule.field}: "
                f"{where} is {values[i][place]}, {rule.wanted}"
            )

        findings.add_each(bad, describe)


def _own_dimensions(field: str, tasks: TaskSet, array: np.ndarray) -> np.ndarray:
    """Return by task id which dimensions of a field are the task's own, bool `[n_tasks, D]`."""
    if array.ndim < 3:
        return np.ones((tasks.n_tasks, 1), bool)
    widths = np.array([getattr(task, f"{field}_dim") for task in tasks.tasks])
    return np.arange(array.shape[2])[None, :] < widths[:, None]


def _task_label(tasks: TaskSet, task_id: int) -> str:
    known = 0 <= task_id < tasks.n_tasks
    return f"task {tasks.names[task_id]!r} (id {task_id})" if known else f"unknown task {task_id}"
