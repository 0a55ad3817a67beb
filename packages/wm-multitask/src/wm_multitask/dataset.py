"""Offline data: the episodes of one task, and of several tasks pooled into one set of arrays.

Rows are aligned on the observation, as the single-task replay stores them: row k of an episode
holds its k-th observation, the reward received on entering it (0 in row 0) and the action chosen
at it (0 in the last row). An episode of T agent steps has T + 1 rows. The reference stores the
action and the reward that led to an observation; the slices cut out of the two are the same.

A pooled dataset has one number of rows R for all of its episodes, as the reference's has. Where
tasks of different T meet, longer episodes are cut into windows of R rows (see `pool_tasks`).
Training draws uniformly from the pooled episodes, so a task's share of the batches is in
proportion to its number of episodes, or of windows.

Arrays are NumPy's, possibly memory-mapped: nothing here reads more than a part of them at once.

Source: nicklashansen/tdmpc2@b67b21c, tdmpc2/trainer/offline_trainer.py, `OfflineTrainer.train`
(what the stored data hold).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wm_collect.checks import check_count
from wm_multitask.arrays import chunks, hash_of
from wm_multitask.tasks import Task, TaskSet, differing_fields
from wm_multitask.violations import find_violations


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TaskEpisodes:
    """Complete episodes of one task, not padded; N of them, with T + 1 rows each.

    Made as it is; `check` says whether the arrays are what they should be.

    Attributes:
        task: which task.
        obs: observations, `[N, T + 1, O]` float32.
        action: action chosen at each observation, `[N, T + 1, A]` float32 in [-1, 1]; 0 in row T.
        reward: reward on entering each observation, `[N, T + 1]` float32; 0 in row 0.
    """

    task: Task
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray

    @property
    def n_episodes(self) -> int:
        """Return N."""
        return len(self.obs)

    @functools.cached_property
    def content_hash(self) -> str:
        """Return the SHA-256 of the task and of all arrays, as 64 hexadecimal digits."""
        return hash_of(self.task.to_json(), self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {"obs": self.obs, "action": self.action, "reward": self.reward}

    def check(self) -> None:
        """Check everything the attributes promise.

        Raises:
            ValueError: something is violated; each violation is named, see
                `MultiTaskDataset.check`.
        """
        self._check(numbers=True)

    def check_shapes(self) -> None:
        """Check dtypes and shapes only, which reads no number.

        Raises:
            ValueError: one of them is not what the attributes promise.
        """
        self._check(numbers=False)

    def _check(self, *, numbers: bool) -> None:
        n_episodes = len(self.obs) if np.ndim(self.obs) else 0
        arrays = {**self.arrays(), "task": np.zeros(n_episodes, np.int32)}
        findings = find_violations(TaskSet((self.task,)), arrays, numbers=numbers)
        n_rows = np.shape(self.obs)[1:2]
        wanted = self.task.episode_length + 1
        if n_rows and n_rows[0] < wanted:
            findings.add(
                f"task {self.task.name!r}: episodes of {self.task.episode_length} agent steps have "
                f"{wanted} rows, but the arrays have {n_rows[0]}"
            )
        findings.raise_if_any(f"The episodes of task {self.task.name!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiTaskDataset:
    """N episodes of several tasks, padded to common widths, with R rows each.

    Made by `pool_tasks` or `load_dataset`. Its arrays are not to be written to.

    Attributes:
        tasks: the tasks, by id.
        obs: observations, 0 beyond the task's own dimensions, `[N, R, O]` float32.
        action: action chosen at each observation, 0 beyond the task's own dimensions and in the
            last row, `[N, R, A]` float32 in [-1, 1].
        reward: reward on entering each observation, 0 in row 0, `[N, R]` float32.
        task: id of each episode's task, `[N]` int32.
    """

    tasks: TaskSet
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    task: np.ndarray

    @property
    def n_episodes(self) -> int:
        """Return N: episodes, or windows where episodes were cut."""
        return len(self.obs)

    @property
    def n_rows(self) -> int:
        """Return R."""
        return self.obs.shape[1]

    @property
    def episodes_per_task(self) -> np.ndarray:
        """Return the episodes, or windows, of each task by id, `[n_tasks]` int64."""
        return np.bincount(self.task, minlength=self.tasks.n_tasks)

    @functools.cached_property
    def content_hash(self) -> str:
        """Return the SHA-256 of the tasks and of all arrays, as 64 hexadecimal digits."""
        return hash_of(self.tasks.to_json(), self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {
            "obs": self.obs,
            "action": self.action,
            "reward": self.reward,
            "task": self.task,
        }

    def check(self) -> None:
        """Check everything the attributes promise, part by part.

        Each array has its dtype and rank, all have the same N and R, and R is no more than any
        task's T + 1; every number is finite; paddings, the action of last rows and the reward of
        first rows are exactly 0; actions lie in [-1, 1]; task ids are in range, and every task has
        an episode.

        Raises:
            ValueError: something is violated. Every violation is named with its task, episode and
                field; at most 20 are listed and the others counted.
        """
        check(self)

    def check_shapes(self) -> None:
        """Check dtypes, shapes and task ids only, which reads no further number.

        Raises:
            ValueError: one of them is not what the attributes promise.
        """
        findings = find_violations(self.tasks, self.arrays(), numbers=False)
        findings.raise_if_any("The dataset")

    def extended(self, *episodes: TaskEpisodes) -> "MultiTaskDataset":
        """Return a dataset with more episodes at the end; this one is left as it is.

        A task that is not there yet takes the next id, and everything is padded anew where it is
        wider than the others. R stays: longer episodes are cut into windows.

        Args:
            *episodes: of tasks that are there or new ones.

        Returns:
            A new dataset, in memory.

        Raises:
            ValueError: episodes are shorter than R rows, or not valid, or their task has the name
                of one that is there but is not equal to it.
        """
        groups = _grouped(episodes, self.tasks.tasks)
        tasks = TaskSet(tuple(task for task, _ in groups))
        for task, parts in groups:
            if parts and task.episode_length + 1 < self.n_rows:
                raise ValueError(
                    f"The dataset has {self.n_rows} rows per episode, but those of task "
                    f"{task.name!r} have only {task.episode_length + 1}; pool all episodes again "
                    "with pool_tasks, which cuts the longer ones."
                )
        blocks = [
            _Block(task_id, part, np.arange(part.n_episodes))
            for task_id, (_, parts) in enumerate(groups)
            for part in parts
        ]
        return _filled(tasks, self.n_rows, blocks, start=self)


def check(dataset: MultiTaskDataset) -> None:
    """Check a dataset; see `MultiTaskDataset.check`, which calls this."""
    findings = find_violations(dataset.tasks, dataset.arrays(), numbers=True)
    findings.raise_if_any("The dataset")


def pool_tasks(
    episodes: Sequence[TaskEpisodes],
    *,
    rows: int | None = None,
    max_episodes_per_task: int | None = None,
) -> MultiTaskDataset:
    """Pool the episodes of several tasks into one dataset.

    Tasks get their ids in the order in which they first appear. Several `TaskEpisodes` of one task,
    of several seeds, follow one another. Episodes lie sorted by task, and within a task in the
    order given.

    All episodes of a dataset have the same number of rows R: T + 1 when all tasks have the same T,
    else the smallest T + 1. Longer episodes are cut into windows of R rows that share one row with
    the next: they begin at rows 0, R − 1, 2 (R − 1), ..., and where rows are left over one more
    window ends with the episode. So every transition is in at least one window, and those before
    the end may be in two. A window's first reward and last action are set to 0; no slice of it
    reads them. Discounts still come from each task's own T, see `TaskSet.discounts`.

    Training draws uniformly from the pooled windows, so a task's share of the batches is in
    proportion to its number of windows.

    Args:
        episodes: at least one; each is checked.
        rows: R, from 2 to the smallest T + 1; None for the smallest T + 1.
        max_episodes_per_task: keep only this many episodes of each task, before they are cut,
            spread evenly over all of its episodes in their order, the last one included.

    Returns:
        The dataset, in memory.

    Raises:
        ValueError: there is nothing to pool, episodes are not valid, tasks of the same name
            differ, or a number is out of range.
    """
    if not episodes:
        raise ValueError("There are no episodes to pool; give a TaskEpisodes for each task.")
    if max_episodes_per_task is not None:
        check_count("max_episodes_per_task", max_episodes_per_task, 1)
    groups = _grouped(episodes, ())
    tasks = TaskSet(tuple(task for task, _ in groups))
    shortest = min(tasks.tasks, key=lambda task: task.episode_length)
    n_rows = shortest.episode_length + 1
    if rows is not None:
        check_count("rows", rows, 2)
        if rows > n_rows:
            raise ValueError(
                f"rows must be at most {n_rows}, which is what episodes of the task "
                f"{shortest.name!r} have, got {rows}."
            )
        n_rows = rows
    blocks = [
        _Block(task_id, part, kept)
        for task_id, (_, parts) in enumerate(groups)
        for part, kept in zip(parts, _kept(parts, max_episodes_per_task), strict=True)
    ]
    return _filled(tasks, n_rows, blocks)


def window_starts(n_rows: int, rows: int) -> np.ndarray:
    """Return where the windows of `rows` rows begin in an episode of `n_rows` rows.

    Args:
        n_rows: T + 1.
        rows: R, from 2 to T + 1.

    Returns:
        The first row of each window, increasing; see `pool_tasks`.
    """
    starts = np.arange(0, n_rows - rows + 1, rows - 1)
    last = n_rows - rows
    return starts if starts[-1] == last else np.append(starts, last)


# Pooling.


class _Block(NamedTuple):
    """Some episodes of one `TaskEpisodes`, on their way into a dataset."""

    task_id: int
    part: TaskEpisodes
    kept: np.ndarray  # indices of episodes


def _grouped(
    episodes: Sequence[TaskEpisodes], known: Sequence[Task]
) -> list[tuple[Task, list[TaskEpisodes]]]:
    """Return the parts of each task by id, checked; known tasks come first."""
    groups: dict[str, tuple[Task, list[TaskEpisodes]]] = {task.name: (task, []) for task in known}
    for part in episodes:
        task, parts = groups.setdefault(part.task.name, (part.task, []))
        difference = differing_fields(task, part.task)
        if difference:
            raise ValueError(
                f"Two tasks are named {task.name!r} but are not the same: {difference}. Give them "
                "different names, or export both from equal environments."
            )
        part.check()
        parts.append(part)
    return list(groups.values())


def _kept(parts: Sequence[TaskEpisodes], limit: int | None) -> Iterator[np.ndarray]:
    """Yield which episodes of each part are kept of all of one task's."""
    total = sum(part.n_episodes for part in parts)
    n = total if limit is None else min(limit, total)
    # Spread evenly, the newest included.
    chosen = (np.arange(1, n + 1) * total) // n - 1
    first = 0
    for part in parts:
        inside = (chosen >= first) & (chosen < first + part.n_episodes)
        yield chosen[inside] - first
        first += part.n_episodes


def _filled(
    tasks: TaskSet,
    n_rows: int,
    blocks: Sequence[_Block],
    *,
    start: MultiTaskDataset | None = None,
) -> MultiTaskDataset:
    """Return a new dataset: the episodes of `start`, if any, then the windows of the blocks."""
    windows = [window_starts(block.part.task.episode_length + 1, n_rows) for block in blocks]
    n_new = [len(block.kept) * len(begins) for block, begins in zip(blocks, windows, strict=True)]
    n_old = 0 if start is None else start.n_episodes
    n = n_old + sum(n_new)
    pooled = MultiTaskDataset(
        tasks=tasks,
        obs=np.zeros((n, n_rows, tasks.obs_dim), np.float32),
        action=np.zeros((n, n_rows, tasks.action_dim), np.float32),
        reward=np.zeros((n, n_rows), np.float32),
        task=np.zeros(n, np.int32),
    )
    if start is not None:
        pooled.obs[:n_old, :, : start.obs.shape[-1]] = start.obs
        pooled.action[:n_old, :, : start.action.shape[-1]] = start.action
        pooled.reward[:n_old] = start.reward
        pooled.task[:n_old] = start.task
    first = n_old
    for block, begins, n_block in zip(blocks, windows, n_new, strict=True):
        part, own = block.part, block.part.task
        pooled.task[first : first + n_block] = block.task_id
        for nth, begin in enumerate(begins):
            end = begin + n_rows
            # The windows of an episode lie next to each other.
            place = first + nth
            for chosen in chunks(block.kept, part.obs):
                to = slice(place, place + len(chosen) * len(begins), len(begins))
                pooled.obs[to, :, : own.obs_dim] = part.obs[chosen, begin:end]
                pooled.action[to, :-1, : own.action_dim] = part.action[chosen, begin : end - 1]
                pooled.reward[to, 1:] = part.reward[chosen, begin + 1 : end]
                place = to.stop
        first += n_block
    return pooled
