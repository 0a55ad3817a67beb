"""The validation from its runner to its report, on toy tasks whose returns are known.

Every step of a toy task is worth the same, so an episode's return says nothing about learning and
everything about the way from a run's log to the page.
"""

import dataclasses
import functools
import json
from pathlib import Path

import pytest

from wm_collect import register_env, registered_envs
from wm_collect.checkpoint import Checkpoints
from wm_collect.metrics import TRAIN_RETURN
from wm_collect.sinks import read_rows
from wm_collect.testing import ConstantRewardEnv

from .validation_tools import multitask, protocols, report, run, train_or_resume

LENGTH = 10
REWARDS = {"toy-one": 30.0, "toy-two": 50.0}
TINY = {
    "model_size": 1,
    "enc_dim": 8,
    "mlp_dim": 8,
    "latent_dim": 8,
    "batch_size": 8,
    "horizon": 1,
    "num_samples": 8,
    "num_elites": 4,
    "num_pi_trajs": 2,
    "iterations": 1,
}


def register() -> None:
    for i, (name, reward) in enumerate(REWARDS.items()):
        if name not in registered_envs():
            size = {"obs_dim": 2 + i, "action_dim": 1 + i, "episode_length": LENGTH}
            register_env(name, functools.partial(ConstantRewardEnv, reward, **size))
    if "toy-broken" not in registered_envs():
        register_env("toy-broken", broken)


def broken() -> None:
    raise ValueError("The toy is broken.")


def published(path: Path, n_frames: int) -> Path:
    """Write curves whose lowest seed reaches 400 at the end, on every toy task."""
    task = {"step": [n_frames // 2, n_frames], "seeds": [0, 1], "return": [[0, 400], [0, 600]]}
    tasks = {name: {"playground": name, **task} for name in (*REWARDS, "toy-broken")}
    path.write_text(json.dumps({"tasks": tasks}))
    return path


N_TIMESTEPS = 120
EVERY = 20


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory) -> multitask.MultiTaskValidation:
    """Two toys, and one agent for both, at the smallest sizes."""
    register()
    path = published(tmp_path_factory.mktemp("published") / "curves.json", N_TIMESTEPS)
    sources = dataclasses.replace(
        protocols.TDMPC2,
        name="toys",
        protocol="paper",
        settings=TINY | {"seed_steps": 20},
        run={
            "log_frequency": EVERY,
            "eval_frequency": 2 * EVERY,
            "num_episode_test": 0,
            "animation": False,
        },
        # Not in the order of their names: this order numbers the tasks.
        budgets={"toy-two": N_TIMESTEPS, "toy-one": N_TIMESTEPS},
        seeds=(3, 5),
        score=TRAIN_RETURN,
        reference=path,
    )
    return multitask.MultiTaskValidation(
        sources=sources,
        settings=TINY | {"task_dim": 4},
        run={"n_timesteps": 6, "num_episode_test": 0},
        episodes=2,
    )


class Killed(BaseException):
    """What ends a process at any moment: nothing catches it."""


@pytest.fixture(scope="module")
def trained(validation, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A root whose runner was killed as it was about to save, and started again."""
    root = tmp_path_factory.mktemp("runs")
    toys = validation.sources
    budgets = {"toy-broken": N_TIMESTEPS, **toys.budgets}
    job = run.Job(
        validation=dataclasses.replace(toys, budgets=budgets),
        root=root,
        tasks=tuple(budgets),
        seeds=toys.seeds,
    )
    save, saved = Checkpoints.save, []

    def save_once(self, tick, *rest, **named):
        if saved:
            raise Killed
        saved.append(tick)
        return save(self, tick, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_once)
        with pytest.raises(Killed):
            run.train_all(job)
    # Saved at the second mark, killed at the fourth: the log is ahead of the checkpoint.
    assert logged(root) == {"toy-two": marks(4 * EVERY)}
    assert train_or_resume.trained_timesteps(job.folder("toy-two")) == 2 * EVERY
    return root, run.train_all(job)


def logged(root: Path) -> dict[str, list[float]]:
    """Return the timesteps of every log row, by task."""
    return {
        path.parent.name.removesuffix("-seeds-3-5"): [row["timestep"] for row in read_rows(path)]
        for path in root.glob("toys/*/metrics.jsonl")
    }


def marks(n: int) -> list[int]:
    return list(range(EVERY, n + 1, EVERY))


def test_the_runner_goes_on_where_it_was_killed(trained):
    root, _ = trained
    assert logged(root) == {"toy-two": marks(N_TIMESTEPS), "toy-one": marks(N_TIMESTEPS)}


def test_a_task_that_fails_is_reported_and_the_others_go_on(trained):
    _, failures = trained
    assert list(failures) == ["toy-broken"]
    assert failures["toy-broken"].endswith("The toy is broken.")


def test_a_finished_task_is_left_alone(trained, validation, capsys):
    root, _ = trained
    assert run.train_all(validation.job(root)) == {}
    out = capsys.readouterr().out
    assert out.count("is complete.") == 2 and "Resuming" not in out


def test_the_plan_states_lengths_and_memory(trained, validation, capsys):
    root, _ = trained
    job = dataclasses.replace(validation.job(root), tasks=("toy-one",))
    run.print_plan(job)
    words = capsys.readouterr().out.splitlines()[-2].split()
    assert words[:4] == ["toy-one", *[str(N_TIMESTEPS)] * 3]
    assert words[5] in ("kB", "MB") and float(words[4]) > 0

    run.print_plan(dataclasses.replace(job, overrides={"mlp_dim": "64", "rho": "0.7"}))
    first, changed, *_, row, _ = capsys.readouterr().out.splitlines()
    assert "seeds 3, 5 side by side" in first
    assert changed == "Off the protocol, so never judged: mlp_dim=64, rho=0.7"
    # Nothing of it is trained, and it is of another size.
    assert row.split()[3] == "0" and row.split()[4:6] != words[4:6]


def test_the_report_finds_what_the_toys_pay(trained, validation, tmp_path: Path):
    root, _ = trained
    verdict = report.write_report(validation.sources, root, tmp_path)
    assert verdict.passed is False
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    # Ten steps of 30 or 50, against a bar of 350.
    row = "| {} | 108 to 120 | {} | {} | 500.0 | 400.0 | 350.0 | {} | {} |"
    assert row.format("toy-one", "300.0", "300, 300", "-200.0", "fails") in text
    assert row.format("toy-two", "500.0", "500, 500", "+0.0", "passes") in text
    for name, resumed_at in (("toy-two", "40"), ("toy-one", "never")):
        line = next(x for x in text.splitlines() if x.startswith(f"| {name}-seeds-3-5"))
        assert f"| {resumed_at} |" in line and "not recorded" not in line


# One agent for both.


@pytest.fixture(scope="module")
def pooled(trained, validation, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The same root after the other stages, and their exit status."""
    root, _ = trained
    job = validation.job(root)
    return root, multitask.run_stages(validation, job, root / "report", multitask.STAGES[1:])


def test_the_dataset_is_the_whole_history_of_every_seed_in_order(pooled, validation):
    root, _ = pooled
    dataset = multitask.pinned_dataset(validation, root)
    assert dataset.tasks.names == ("toy-two", "toy-one")
    # Two seeds of 120 steps, in episodes of 10.
    assert dataset.episodes_per_task.tolist() == [24, 24]
    manifest = json.loads((root / "toys" / "dataset.json").read_text())
    assert manifest["sha256"] == dataset.content_hash
    assert manifest["episodes"] == [24, 24]


def test_the_page_compares_the_one_agent_with_its_sources(pooled):
    root, status = pooled
    # Random actions earn as much as any agent, so there is nothing to judge.
    assert status == 0
    text = (root / "report" / "report.md").read_text(encoding="utf-8")
    assert "# One TD-MPC2 agent for 2 tasks: no verdict" in text
    assert "| 0 | toy-two | 500.0 | 500.0 | 500.0 | 1.00 | not judged |" in text
    assert "| 1 | toy-one | 300.0 | 300.0 | 300.0 | 1.00 | not judged |" in text
    assert "- toy-two, toy-one: its source agents hardly earn more than random actions." in text
    assert "| multitask | 0 | 6 | none |" in text
    assert (root / "report" / "returns.png").stat().st_size > 10_000


def test_another_dataset_than_the_pinned_one_is_refused(pooled, validation, capsys):
    root, _ = pooled
    job, manifest = validation.job(root), root / "toys" / "dataset.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(json.loads(text)["sha256"], "0" * 64))
    try:
        for stage in multitask.STAGES[1:]:
            assert multitask.run_stages(validation, job, root / "no", [stage]) == 1
            assert f"the stage {stage} failed: " in capsys.readouterr().out
    finally:
        manifest.write_text(text)
    assert not (root / "no").exists()


def test_there_is_no_dataset_without_finished_sources(validation, tmp_path: Path, capsys):
    stages = multitask.STAGES[1:]
    job = validation.job(tmp_path)
    assert multitask.run_stages(validation, job, tmp_path / "report", stages) == 1
    assert "toy-two, toy-one did not end yet: train the sources first" in capsys.readouterr().out
    assert multitask.run_stages(validation, job, tmp_path / "report", ["train"]) == 1
    assert "holds no pinned dataset: run the stage dataset first" in capsys.readouterr().out


def test_mt30_is_trained_in_its_order_with_histories_that_fit_the_replay():
    sources = multitask.MULTITASK.sources
    assert list(sources.budgets)[:4] == ["WalkerStand", "WalkerWalk", "WalkerRun", "CheetahRun"]
    assert len(sources.budgets) == 19
    assert sources.registered.buffer_size >= sources.n_timesteps("WalkerStand") == 1_000_000
