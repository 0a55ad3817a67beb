"""`Task` and `TaskSet`: what is known about the tasks before any of their data is read.

Both are static: plain values, hashable, fit to be a static argument of a jitted function. A task's
id is its position in the set. Observations and actions of all tasks are padded with zeros at the
end to the widest task's size; the action mask says which dimensions a task has.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wm_collect import Environment, make_env
from wm_collect.checks import check_count
from wm_tdmpc2 import discount

EnvParam = bool | int | float | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One continuous-control task with episodes of fixed length.

    The sizes describe its data; the last four fields say how `make_env` builds its environment
    again.

    Attributes:
        name: what logs and messages call it.
        obs_dim: O, width of its own observations.
        action_dim: A, width of its own actions.
        episode_length: T, in agent steps.
        env_id: id or registered name of the environment.
        action_repeat: simulator steps per agent step.
        env_episode_length: time limit asked for, in simulator steps; None is the environment's own.
        env_params: parameters of the environment that were changed; given as a mapping, kept as
            pairs sorted by name; None if there are none.

    Raises:
        ValueError: a size is not a positive whole number, a name is empty, or a parameter is not a
            plain value.
    """

    name: str
    obs_dim: int
    action_dim: int
    episode_length: int
    env_id: str
    action_repeat: int = 1
    env_episode_length: int | None = None
    env_params: Mapping[str, EnvParam] | tuple[tuple[str, EnvParam], ...] | None = None

    def __post_init__(self) -> None:
        for name in ("name", "env_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a text that is not empty, got {value!r}.")
        sizes = ["obs_dim", "action_dim", "episode_length", "action_repeat"]
        if self.env_episode_length is not None:
            sizes.append("env_episode_length")
        for name in sizes:
            check_count(name, getattr(self, name), 1)
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.env_params is not None:
            object.__setattr__(self, "env_params", _sorted_pairs(self.env_params))

    def make_env(self) -> Environment:
        """Build the task's environment.

        Raises:
            ModuleNotFoundError: the environment's library is not installed.
            ValueError: the id is unknown here, or the environment has other sizes than the task.
        """
        params = None if self.env_params is None else dict(self.env_params)
        env = make_env(
            self.env_id,
            episode_length=self.env_episode_length,
            action_repeat=self.action_repeat,
            env_params=params,
            terminates=False,
        )
        for name in ("obs_dim", "action_dim", "episode_length"):
            own, found = getattr(self, name), getattr(env.spec, name)
            if own != found:
                raise ValueError(
                    f"The task {self.name!r} has {name}={own}, but its environment "
                    f"{self.env_id!r} has {found} here: it is not the one the data come from."
                )
        return env

    def to_json(self) -> dict[str, Any]:
        """Return the task as plain values for JSON."""
        values = dataclasses.asdict(self)
        if self.env_params is not None:
            values["env_params"] = dict(self.env_params)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Task":
        """Make a task of what `to_json` returned.

        Raises:
            ValueError: a field is missing, unknown or out of range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known:
            got = sorted(values) if isinstance(values, Mapping) else values
            raise ValueError(f"A task is stored with the fields {sorted(known)}, got {got}.")
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class TaskSet:
    """The tasks of a dataset and of an agent, in the order of their ids.

    Attributes:
        tasks: at least one task, each with a name of its own; any iterable is accepted.

    Raises:
        ValueError: there is no task, or two have the same name.
    """

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks:
            raise ValueError("A task set needs at least one task, got none.")
        for task in self.tasks:
            if not isinstance(task, Task):
                raise ValueError(f"A task set is made of Task objects, got {task!r}.")
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"The tasks of a set need names of their own, but {_listed(repeated)} "
                "is there more than once; give name= when exporting."
            )

    @property
    def n_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, by id."""
        return tuple(task.name for task in self.tasks)

    @property
    def obs_dim(self) -> int:
        """Return the padded width of observations, O of the widest task."""
        return max(task.obs_dim for task in self.tasks)

    @property
    def action_dim(self) -> int:
        """Return the padded width of actions, A of the widest task."""
        return max(task.action_dim for task in self.tasks)

    def discounts(
        self, denom: int = 5, minimum: float = 0.95, maximum: float = 0.995
    ) -> np.ndarray:
        """Return each task's discount, from its own T as `wm_tdmpc2.discount` has it.

        Args:
            denom: f = T / denom.
            minimum: lower clamp.
            maximum: upper clamp.

        Returns:
            γ by task id, `[n_tasks]` float32.
        """
        values = [
            discount(task.episode_length, denom=denom, minimum=minimum, maximum=maximum)
            for task in self.tasks
        ]
        return np.array(values, np.float32)

    @property
    def action_masks(self) -> np.ndarray:
        """Return 1 on each task's own action dimensions and 0 after, `[n_tasks, A]` float32."""
        widths = np.array([task.action_dim for task in self.tasks])
        return (np.arange(self.action_dim)[None, :] < widths[:, None]).astype(np.float32)

    def index(self, name: str) -> int:
        """Return the id of a task.

        Raises:
            ValueError: no task has the name; the message lists close ones.
        """
        if name in self.names:
            return self.names.index(name)
        folded = {known.lower(): known for known in self.names}
        close = difflib.get_close_matches(str(name).lower(), folded, n=5, cutoff=0.55)
        hint = (
            f"Close matches: {_listed(folded[match] for match in close)}."
            if close
            else f"The tasks are {_listed(self.names)}."
        )
        raise ValueError(f"No task is named {name!r}. {hint}")

    def chosen(self, name: str | None) -> int:
        """Return the id of the task of that name, or of the only one if none is given.

        Raises:
            ValueError: no task has the name, or none is given and there are several.
        """
        if name is not None:
            return self.index(name)
        if self.n_tasks > 1:
            raise ValueError(f"There are several tasks: name one of {', '.join(self.names)}.")
        return 0

    def to_json(self) -> dict[str, Any]:
        """Return the set as plain values for JSON."""
        return {"tasks": [task.to_json() for task in self.tasks]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TaskSet":
        """Make a set of what `to_json` returned.

        Raises:
            ValueError: the values are not those of a task set.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("tasks"), list):
            raise ValueError(f"A task set is stored as a list under 'tasks', got {values!r}.")
        return cls(tuple(Task.from_json(task) for task in values["tasks"]))


def differing_fields(one: Task, other: Task) -> str:
    """Return which fields of two tasks differ and how, as a clause; empty if none does."""
    pairs = [
        (field.name, getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(Task)
    ]
    return ", ".join(f"{name} is {a!r} and {b!r}" for name, a, b in pairs if a != b)


def _sorted_pairs(
    params: Mapping[str, EnvParam] | Iterable[tuple[str, EnvParam]],
) -> tuple[tuple[str, EnvParam], ...]:
    given = dict(params)
    for name, value in given.items():
        plain = isinstance(value, bool | int | str)
        plain = plain or (isinstance(value, float) and math.isfinite(value))
        if not isinstance(name, str) or not plain:
            raise ValueError(
                "env_params must map names to plain values (finite numbers, true or false, "
                f"texts), got {value!r} for {name!r}."
            )
    return tuple(sorted(given.items()))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
