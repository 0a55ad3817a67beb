"""Compare the runs of a validation with the published curves, by criteria fixed beforehand.

    uv run python tools/validation/report.py dreamerv3
    uv run python tools/validation/report.py tdmpc2 --out report

Reads the run folders below `--root`, trains nothing, and writes a page and a picture. Runs that are
not finished, or that depart from the registered protocol, are reported and never judged.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import numpy as np

from validation.acceptance import (
    MARGIN,
    TaskResult,
    Verdict,
    bar_of,
    judge,
    judge_task,
    window_means,
    window_start,
)
from validation.curves import Curves, load_reference
from validation.pages import criteria_list, distinct, reasons_list, table, write_page
from validation.plots import draw_curves
from validation.protocols import ROOT, VALIDATIONS, Validation
from validation.runs import Run, TaskRuns, gather, read_run, run_folders
from wm_collect.metrics import TRAIN_RETURN

_PICTURE = "curves.png"
_PAGE = "report.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskReport:
    """One task: its runs, the published curves, and what comes of them.

    Attributes:
        budget: environment frames of a run.
        runs: the runs that follow the protocol.
        reference: the published curves.
        scores: of our seeds, `[S]`; None without a run.
        reference_scores: of the published seeds, `[R]`.
        result: the judgement; None if the task is not judged.
    """

    budget: int
    runs: TaskRuns
    reference: Curves
    scores: np.ndarray | None
    reference_scores: np.ndarray
    result: TaskResult | None

    @property
    def bar(self) -> float:
        """Return what our mean has to reach."""
        return bar_of(self.reference_scores)

    @property
    def word(self) -> str:
        """Return the judgement in a word or two."""
        if self.result is None:
            return "not judged"
        return "passes" if self.result.passed else "fails"


def compare(validation: Validation, runs: Sequence[Run]) -> tuple[dict[str, TaskReport], Verdict]:
    """Judge runs.

    Args:
        validation: the protocol.
        runs: all runs there are; those off the protocol count for nothing.

    Returns:
        The report of each task, in the order of the budgets, and the verdict.

    Raises:
        ValueError: the file of published curves cannot be used.
    """
    published = load_reference(validation.reference)
    tasks = {}
    for env_id, budget in validation.budgets.items():
        if env_id not in published:
            raise ValueError(f"{validation.reference} has no curve of {env_id!r}.")
        own, reference = gather(validation, env_id, runs), published[env_id]
        reference_scores = window_means(reference.frames, reference.returns, budget)
        scores = None
        if own.curves is not None:
            scores = window_means(own.curves.frames, own.curves.returns, budget)
        result = None
        if scores is not None and not own.unjudged:
            result = judge_task(scores, reference_scores)
        tasks[env_id] = TaskReport(
            budget=budget,
            runs=own,
            reference=reference,
            scores=scores,
            reference_scores=reference_scores,
            result=result,
        )
    results = [task.result for task in tasks.values() if task.result is not None]
    return tasks, judge(results, len(tasks))


def write_report(validation: Validation, root: Path, out: Path) -> Verdict:
    """Write the page and the picture of a validation.

    Args:
        validation: the protocol.
        root: folder of all validation runs.
        out: folder of the report; made.

    Returns:
        The verdict.
    """
    runs, unreadable = [], []
    for folder in run_folders(root / validation.name):
        try:
            runs.append(read_run(validation, folder))
        except (ValueError, KeyError, OSError) as error:
            unreadable.append(f"- {folder.name} cannot be read: {error}")
    tasks, verdict = compare(validation, runs)
    unjudged = {env_id: task.runs.unjudged for env_id, task in tasks.items()}
    draw_curves(
        {env_id: (task.runs.curves, task.reference) for env_id, task in tasks.items()},
        validation.budgets,
        {env_id: task.bar for env_id, task in tasks.items()},
        {env_id: task.word for env_id, task in tasks.items()},
        out / _PICTURE,
    )
    write_page(
        out / _PAGE,
        title=f"{validation.command.agent.name} and its published curves: {verdict.word}",
        criteria=verdict.criteria,
        how=_how_scored(validation),
        picture=f"![Our curves above the published ones, by task]({_PICTURE})",
        sections={
            "Tasks": _task_table(tasks),
            "Not judged, and why": reasons_list(unjudged),
            "Off the protocol: reported, never judged": _off_protocol(validation, runs),
            "Folders that cannot be read": unreadable,
            "Provenance": provenance(runs),
        },
    )
    return verdict


def _how_scored(validation: Validation) -> str:
    trained = validation.score == TRAIN_RETURN
    what = "training episodes" if trained else "evaluations of 10 episodes"
    seeds = ", ".join(map(str, validation.seeds))
    return (
        f"Protocol `{validation.protocol}`, seeds {seeds}. A seed's score is the mean return of "
        f"its {what} in the last tenth of the run's environment frames; the published curves are "
        "scored alike. A task passes if the mean over our seeds reaches the bar: the score of the "
        f"lowest published seed, minus {MARGIN:.0f}. The published curves are of dm_control, the "
        "runs of MuJoCo Playground's ports, so the comparison is approximate."
    )


def _task_table(tasks: dict[str, TaskReport]) -> list[str]:
    rows = []
    for env_id, task in tasks.items():
        ours = seeds = difference = "–"
        if task.scores is not None and np.isfinite(task.scores).any():
            ours = f"{np.nanmean(task.scores):.1f}"
            seeds = ", ".join(f"{s:.0f}" if np.isfinite(s) else "–" for s in task.scores)
        if task.result is not None:
            difference = f"{task.result.difference:+.1f}"
        rows.append(
            [
                env_id,
                f"{window_start(task.budget):,} to {task.budget:,}",
                ours,
                seeds,
                f"{task.reference_scores.mean():.1f}",
                f"{task.reference_scores.min():.1f}",
                f"{task.bar:.1f}",
                difference,
                task.word,
            ]
        )
    columns = ["task", "window, frames", "ours", "our seeds", "published", "its lowest seed"]
    return table([*columns, "bar", "ours − published", "judgement"], rows)


def _off_protocol(validation: Validation, runs: Sequence[Run]) -> list[str]:
    lines = []
    for run in runs:
        if not run.departures:
            continue
        score = "no score yet"
        if run.env_id in validation.budgets:
            budget = validation.budgets[run.env_id]
            means = window_means(run.curves.frames, run.curves.returns, budget)
            if np.isfinite(means).any():
                score = f"score {np.nanmean(means):.1f}"
        lines.append(
            f"- {run.folder.name}: {', '.join(run.departures)}. "
            f"{run.timesteps:,} timesteps, {score}."
        )
    return lines


def provenance(runs: Sequence[Run]) -> list[str]:
    """Return lines that say where runs come from: a table, and the versions it refers to."""
    if not runs:
        return ["There are no runs yet."]
    letters: dict[str, str] = {}
    rows = []
    for run in runs:
        resumes = run.config.get("resumed", [])
        versions = [run.config["versions"], *(resume["versions"] for resume in resumes)]
        texts = [", ".join(f"{name} {number}" for name, number in v.items()) for v in versions]
        for text in texts:
            letters.setdefault(text, f"v{len(letters) + 1}")
        rows.append(
            [
                run.folder.name,
                ", ".join(map(str, run.seeds)),
                f"{run.timesteps:,}",
                ", ".join(run.departures) or "none",
                distinct(sitting["date"][:10] for sitting in run.sittings),
                distinct(f"{s['machine']}, {s['cores']} cores" for s in run.sittings),
                distinct(sitting["revision"] or "no git" for sitting in run.sittings),
                ", ".join(f"{resume['timestep']:,}" for resume in resumes) or "never",
                distinct(letters[text] for text in texts),
            ]
        )
    columns = ["run", "seeds", "timesteps", "departures", "dates", "machine", "revision"]
    lines = table([*columns, "resumed at", "versions"], rows)
    return [*lines, "", *(f"- {letter}: {text}" for text, letter in letters.items())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and return the exit status: 1 if the validation failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("validation", choices=list(VALIDATIONS), help="which published curves")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of all validation runs")
    parser.add_argument("--out", type=Path, help="folder of the report; below the root if none")
    options = parser.parse_args(arguments)
    out = options.out or options.root / f"report-{options.validation}"
    verdict = write_report(VALIDATIONS[options.validation], options.root, out)
    print("\n".join([*criteria_list(verdict.criteria), f"{verdict.word}: {out / _PAGE}"]))
    return 1 if verdict.passed is False else 0


if __name__ == "__main__":
    sys.exit(main())
