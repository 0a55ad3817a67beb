"""Learning curves of several seeds, and the published ones as plain figures.

The x-axis is always *environment frames*: simulator steps, before the action is repeated. An agent
step is `action_repeat` of them.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = Path(__file__).parents[2] / "docs" / "data" / "reference_curves"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """Returns of S seeds at n common places of the x-axis.

    Attributes:
        frames: environment frames, ascending, `[n]` int64.
        returns: undiscounted episode returns, NaN where a seed has none, `[S, n]` float64.
        seeds: what the seeds are called, `[S]`.
    """

    frames: np.ndarray
    returns: np.ndarray
    seeds: tuple[int, ...]

    def agent_steps(self, action_repeat: int) -> np.ndarray:
        """Return the x-axis in agent steps, `[n]` int64.

        Args:
            action_repeat: simulator steps per agent step.
        """
        return self.frames // action_repeat


def load_reference(path: Path) -> dict[str, Curves]:
    """Read published curves; a `null` in the file, a point the source lacks, becomes NaN.

    Args:
        path: a file as `docs/data/reference_curves/README.txt` describes it.

    Returns:
        The curves of each task, by its Playground id.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not such a file; one sentence says why.
    """
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file of reference curves {path}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of reference curves: {error!r}.") from error
    curves: dict[str, Curves] = {}
    for name, values in tasks.items():
        try:
            env_id, read = values["playground"], _curves(values)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used: its task {name!r} lacks {error}.") from error
        if env_id in curves:
            raise ValueError(f"{path} cannot be used: two of its tasks are {env_id!r}.")
        curves[env_id] = read
    return curves


def reference_names(path: Path) -> dict[str, str]:
    """Return the Playground id of each task of a file of reference curves, by the source's name."""
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    return {name: values["playground"] for name, values in tasks.items()}


def _curves(values: dict[str, Any]) -> Curves:
    frames = np.asarray(values["step"], np.int64)
    if not frames.size or (np.diff(frames) <= 0).any():
        raise ValueError("ascending steps")
    rows = values["return"]
    if not rows or {len(row) for row in rows} != {frames.size} or len(rows) != len(values["seeds"]):
        raise ValueError("a return for each seed and step")
    # In float64, None becomes NaN.
    return Curves(frames=frames, returns=np.asarray(rows, np.float64), seeds=tuple(values["seeds"]))
