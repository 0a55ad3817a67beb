"""One agent for the 19 original tasks of mt30, learned from the histories of single-task agents.

    uv run python tools/validation/multitask.py --dry-run
    uv run python tools/validation/multitask.py

Trains TD-MPC2 on each task, exports every episode of each run, pools them in the order of mt30,
pins the dataset by its hash, trains one agent on it offline, and compares that agent with its
sources by the criteria of `acceptance.judge_offline`. It validates the mechanisms; the paper's own
dataset is another one. Every stage keeps what it made below `--root`: start the same command again
to go on.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import multitask_pipeline
import numpy as np
from multitask_pipeline import Pipeline, Source
from train_or_resume import trained_timesteps

from validation import tasks
from validation.acceptance import SHARE_OF_SOURCE, OfflineResult, Verdict, judge_offline
from validation.curves import Curves
from validation.pages import criteria_list, reasons_list, table, write_page
from validation.protocols import ROOT, TDMPC2, Validation
from validation.provenance import record_sitting, sittings
from validation.report import provenance
from validation.run import Job, attempt, print_plan, train_all
from validation.runs import Run, gather, read_run
from wm_collect.forecast import size
from wm_collect.protocol import changes
from wm_collect.run_folder import RunFolder
from wm_multitask import MultiTaskDataset, load_dataset
from wm_multitask.config import MultiTaskSettings

_DATASET = "dataset.npz"
_MANIFEST = "dataset.json"
_TOGETHER = "multitask"
_PICTURE = "returns.png"
_PAGE = "report.md"
STAGES = ("sources", "dataset", "train", "evaluate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskValidation:
    """One agent for several tasks, and the agents it learns from.

    Attributes:
        sources: the single-task runs; their tasks in the order of the tasks' ids.
        settings: settings of the one agent that differ from its defaults.
        run: options of its training, n_timesteps included.
        episodes: evaluation episodes of each task and agent, in the comparison.
    """

    sources: Validation
    settings: Mapping[str, Any]
    run: Mapping[str, Any]
    episodes: int = 10

    def job(self, root: Path, chunk: int | None = None) -> Job:
        """Return what the runner trains: the sources."""
        sources = self.sources
        return Job(
            validation=sources,
            root=root,
            tasks=tuple(sources.budgets),
            seeds=sources.seeds,
            chunk=chunk,
        )

    def pipeline(self, root: Path) -> Pipeline:
        """Return the stages after the sources, as the tool of the small pipeline runs them."""
        job = self.job(root)
        return Pipeline(
            sources=tuple(
                Source(
                    task, job.options(task, self.sources.n_timesteps(task)), job.folder(task).name
                )
                for task in job.tasks
            ),
            multitask={**self.settings, **self.run},
            episodes=self.episodes,
        )

    def folder(self, root: Path) -> Path:
        """Return the folder of all that is made."""
        return root / self.sources.name


# The sources end at 1,000,000 agent steps: the paper's replay then still holds every episode.
MULTITASK = MultiTaskValidation(
    sources=dataclasses.replace(
        TDMPC2,
        name="multitask",
        budgets={tasks.TDMPC2[name]: 2_000_000 for name in tasks.MT30},
    ),
    settings={"model_size": 19},
    run={
        "n_timesteps": 1_000_000,
        "log_frequency": 10_000,
        "eval_frequency": 100_000,
        "num_episode_test": 10,
    },
)


def make_dataset(validation: MultiTaskValidation, root: Path) -> None:
    """Export, pool and pin the dataset, unless a pinned one is there.

    Raises:
        ValueError: a source is not finished, or the pinned dataset is not what was pinned.
    """
    folder = validation.folder(root)
    if (folder / _MANIFEST).exists():
        pinned_dataset(validation, root)
        return
    job = validation.job(root)
    unfinished = [
        task
        for task in job.tasks
        if trained_timesteps(job.folder(task)) < validation.sources.n_timesteps(task)
    ]
    if unfinished:
        raise ValueError(
            f"The dataset needs the whole history of every source, and {', '.join(unfinished)} "
            "did not end yet: train the sources first."
        )
    multitask_pipeline.make_dataset(validation.pipeline(root), folder)
    dataset = load_dataset(folder / _DATASET)
    manifest = {
        "file": _DATASET,
        "sha256": dataset.content_hash,
        "tasks": list(dataset.tasks.names),
        "episodes": dataset.episodes_per_task.tolist(),
    }
    unfinished_file = folder / f"{_MANIFEST}.new"
    unfinished_file.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished_file, folder / _MANIFEST)


def pinned_dataset(validation: MultiTaskValidation, root: Path) -> MultiTaskDataset:
    """Return the dataset, once it is known to be the one that was pinned.

    Raises:
        FileNotFoundError: there is none, or it is not pinned.
        ValueError: it is another one, or its tasks are not those of the validation, in order.
    """
    folder = validation.folder(root)
    if not (folder / _MANIFEST).exists():
        raise FileNotFoundError(f"{folder} holds no pinned dataset: run the stage dataset first.")
    manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    dataset = load_dataset(folder / _DATASET, expected_hash=manifest["sha256"])
    wanted = tuple(validation.sources.budgets)
    if dataset.tasks.names != wanted:
        raise ValueError(
            f"The tasks of {folder / _DATASET} are {', '.join(dataset.tasks.names)}, but they must "
            f"be {', '.join(wanted)}, in this order."
        )
    return dataset


def train_together(validation: MultiTaskValidation, root: Path) -> None:
    """Train the one agent on the pinned dataset, or the rest of it.

    Raises:
        FileNotFoundError, ValueError: see `pinned_dataset`.
    """
    pinned_dataset(validation, root)
    folder = validation.folder(root)
    if trained_timesteps(folder / _TOGETHER) < validation.run["n_timesteps"]:
        record_sitting(folder / _TOGETHER)
    multitask_pipeline.train_multitask(validation.pipeline(root), folder)


def evaluate(validation: MultiTaskValidation, root: Path, out: Path) -> Verdict:
    """Compare the one agent with its sources, and write the page and the picture.

    Args:
        validation: the protocol.
        root: folder of all validation runs.
        out: folder of the report; made.

    Returns:
        The verdict.

    Raises:
        FileNotFoundError, ValueError: see `pinned_dataset`, or a run is missing.
    """
    dataset = pinned_dataset(validation, root)
    job = validation.job(root)
    together = _read_together(validation, root, dataset)
    sources = [read_run(validation.sources, job.folder(task)) for task in job.tasks]
    general = _why_nothing_is_judged(validation, together)
    unjudged = {
        task: [*gather(validation.sources, task, sources).unjudged, *general] for task in job.tasks
    }
    rows = multitask_pipeline.measure(validation.pipeline(root), validation.folder(root))
    results = {
        row["task"]: OfflineResult(
            ours=row["means"]["multitask"],
            source=row["means"]["source"],
            random=row["means"]["random"],
        )
        for row in rows
    }
    for task, result in results.items():
        if not result.judged:
            unjudged[task].append("its source agents hardly earn more than random actions")
    verdict = judge_offline(
        [result for task, result in results.items() if not unjudged[task]], len(results)
    )
    out.mkdir(parents=True, exist_ok=True)
    multitask_pipeline.draw(rows, out / _PICTURE)
    write_page(
        out / _PAGE,
        title=f"One TD-MPC2 agent for {len(rows)} tasks: {verdict.word}",
        criteria=verdict.criteria,
        how=(
            f"Mean returns of {validation.episodes} fresh episodes of each agent. A task passes if "
            f"the one agent, learned offline, earns at least {SHARE_OF_SOURCE:g} of the mean of "
            "the agents whose whole histories it learned from. Offline training on the authors' "
            "own data is not compared."
        ),
        picture=f"![Returns of every evaluation episode, by task and agent]({_PICTURE})",
        sections={
            "Tasks": _task_table(results, unjudged),
            "Not judged, and why": reasons_list(unjudged),
            "Provenance": [*_pinned(dataset), "", *provenance([*sources, together])],
        },
    )
    return verdict


def _read_together(validation: MultiTaskValidation, root: Path, dataset: MultiTaskDataset) -> Run:
    """Return the run of the one agent; it has no curve to compare."""
    folder = validation.folder(root) / _TOGETHER
    run = RunFolder.open(folder)
    stored = run.settings
    departures = changes(
        MultiTaskSettings(**stored["settings"]),
        MultiTaskSettings(**validation.settings),
        "registered",
    )
    if stored["dataset_hash"] != dataset.content_hash:
        departures.append("another dataset than the pinned one")
    seeds = tuple(stored["run"]["seed"])
    nothing = np.zeros(0, np.int64)
    return Run(
        folder=folder,
        env_id="all tasks",
        seeds=seeds,
        curves=Curves(frames=nothing, returns=np.zeros((len(seeds), 0)), seeds=seeds),
        timesteps=trained_timesteps(folder),
        departures=tuple(departures),
        config=run.config,
        sittings=tuple(sittings(folder)),
    )


def _why_nothing_is_judged(validation: MultiTaskValidation, together: Run) -> list[str]:
    """Return why the one agent cannot be judged, each reason as a clause; empty if it can."""
    reasons = [f"the one agent has {departure}" for departure in together.departures]
    wanted = validation.run["n_timesteps"]
    if together.timesteps < wanted:
        reasons.append(f"the one agent has {together.timesteps:,} of {wanted:,} updates")
    return reasons


def _task_table(
    results: Mapping[str, OfflineResult], unjudged: Mapping[str, Sequence[str]]
) -> list[str]:
    rows = []
    for i, (task, result) in enumerate(results.items()):
        word = "not judged" if unjudged[task] else "passes" if result.passed else "fails"
        share = f"{result.ours / result.source:.2f}" if result.source > 0 else "–"
        returns = (result.random, result.source, result.ours)
        rows.append([str(i), task, *(f"{value:.1f}" for value in returns), share, word])
    return table(["id", "task", "random", "sources", "one agent", "share", "judgement"], rows)


def _pinned(dataset: MultiTaskDataset) -> list[str]:
    return [
        f"Dataset: {dataset.n_episodes:,} episodes of {dataset.n_rows:,} rows, SHA-256 "
        f"`{dataset.content_hash}`."
    ]


def print_multitask_plan(validation: MultiTaskValidation, root: Path) -> None:
    """Print what would be trained."""
    print_plan(validation.job(root))
    sources, n_bytes, n_episodes = validation.sources, 0, 0
    agents = [
        sources.command.agent.from_protocol(sources.protocol, task, **sources.settings)
        for task in sources.budgets
    ]
    specs = [agent.env.spec for agent in agents]
    width = max(spec.obs_dim for spec in specs) + max(spec.action_dim for spec in specs) + 1
    for spec in specs:
        n = len(sources.seeds) * sources.n_timesteps(spec.env_id) // spec.episode_length
        n_episodes += n
        n_bytes += 4 * n * (spec.episode_length + 1) * width
    print(
        f"Then one agent of size {validation.settings['model_size']} learns from all "
        f"{n_episodes:,} episodes, {size(n_bytes)} on the device, in "
        f"{validation.run['n_timesteps']:,} updates."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages asked for and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Start the same command again to go on after an interruption.",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of all validation runs")
    parser.add_argument("--stage", choices=STAGES, help="only this stage; all in turn if none")
    parser.add_argument(
        "--chunk-timesteps",
        type=int,
        metavar="N",
        help="train each source to its next multiple of N, and end",
    )
    parser.add_argument("--out", type=Path, help="folder of the report; below the root if none")
    parser.add_argument("--dry-run", action="store_true", help="only print the plan")
    options = parser.parse_args(arguments)
    if options.dry_run:
        print_multitask_plan(MULTITASK, options.root)
        return 0
    try:
        job = MULTITASK.job(options.root, options.chunk_timesteps)
    except ValueError as error:
        parser.error(str(error))
    out = options.out or options.root / "report-multitask"
    return run_stages(MULTITASK, job, out, [options.stage] if options.stage else STAGES)


def run_stages(validation: MultiTaskValidation, job: Job, out: Path, stages: Sequence[str]) -> int:
    """Run stages one after the other, up to the first that fails; return the exit status."""
    verdicts: list[Verdict] = []
    actions = {
        "dataset": lambda: make_dataset(validation, job.root),
        "train": lambda: train_together(validation, job.root),
        "evaluate": lambda: verdicts.append(evaluate(validation, job.root, out)),
    }
    for stage in stages:
        if stage == "sources":
            failures = train_all(job)
        else:
            failure = attempt(actions[stage])
            failures = {} if failure is None else {f"the stage {stage}": failure}
        for name, sentence in failures.items():
            print(f"{name} failed: {sentence}")
        if failures:
            return 1
    for verdict in verdicts:
        print("\n".join([*criteria_list(verdict.criteria), f"{verdict.word}: {out / _PAGE}"]))
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
