"""The command line from a single-task run to a measured agent of two tasks, as a user types it."""

import json

import numpy as np
import pytest
from PIL import Image

import wm_tdmpc2.cli
from wm_collect.deploy import load_policy
from wm_collect.sinks import read_rows
from wm_multitask import load_dataset
from wm_multitask.cli import run

from .fixed_tasks import LENGTHS, TINY, register

SINGLE = {name: value for name, value in TINY.items() if name != "task_dim"}
STEPS = 40
UPDATES = 12


def options(settings):
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with two single-task runs, their episodes, the dataset and a multi-task run."""
    register()
    root = tmp_path_factory.mktemp("runs")
    for name in ("narrow", "wide"):
        settings = SINGLE | {"seed_steps": 20, "n_timesteps": STEPS, "num_episode_test": 0}
        given = [*options(settings), "--no-animation", f"--root={root}", f"--name={name}"]
        assert wm_tdmpc2.cli.run(["train", name, "--terminates=False", *given]) == 0
        assert run(["export", str(root / name), str(root / f"{name}.npz")]) == 0
    files = [str(root / f"{name}.npz") for name in ("narrow", "wide")]
    assert run(["pool", *files, "--out", str(root / "dataset.npz")]) == 0
    given = {"n_timesteps": UPDATES, "num_episode_test": 1, "log_frequency": 4, "seed": 3}
    status = run(
        [
            "train",
            str(root / "dataset.npz"),
            *options(TINY | given),
            f"--root={root}",
            "--name=together",
        ]
    )
    assert status == 0
    return root


def test_the_dataset_holds_every_complete_episode_of_both_runs(root, capsys):
    dataset = load_dataset(root / "dataset.npz")
    # Runs of 40 steps; episodes of 12 steps are cut into windows of 8, two for each.
    assert dataset.tasks.names == ("narrow", "wide")
    assert dataset.episodes_per_task.tolist() == [STEPS // 8, 2 * (STEPS // 12)]
    assert run(["check", str(root / "dataset.npz")]) == 0
    out = capsys.readouterr().out
    assert dataset.content_hash in out and "Nothing is wrong with it." in out


def test_train_fills_the_run_folder(root):
    folder = root / "together"
    settings = json.loads((folder / "config.json").read_text())["settings"]
    assert settings["agent"] == "multitask" and settings["run"]["seed"] == [3]
    assert settings["dataset_hash"] == load_dataset(root / "dataset.npz").content_hash
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["timestep"] for row in rows] == [3, 4, 6, 8, 9, 12]
    for name in ("narrow", "wide"):
        assert rows[-1][f"Eval/episodic mean reward/{name}"] > 0
    assert rows[-1]["Eval/normalised score"] > 0
    assert (folder / "learning_curve.png").stat().st_size > 10_000


def test_evaluate_reports_each_task(root, capsys):
    assert run(["evaluate", str(root / "together"), "--episodes", "2", "--tasks", "wide"]) == 0
    out = capsys.readouterr().out
    assert f"after {UPDATES} updates, 2 episode(s) of each task" in out
    assert "wide: mean return" in out and "narrow: mean return" not in out


def test_report_examines_each_task(root, capsys):
    folder = root / "together"
    assert run(["report", str(folder), "--episodes", "2", "--tasks", "wide"]) == 0
    assert capsys.readouterr().out.strip().endswith("report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Examined: wide, training seed 3" in page and "Examined: narrow" not in page
    assert "<h3>Open-loop prediction of latents</h3>" in page
    assert f"after {UPDATES} updates" in page
    assert run(["report", str(folder), "--tasks", "wyde"]) == 1
    assert "wide" in capsys.readouterr().err


def test_resume_trains_further_on_the_same_data(root, capsys):
    folder = root / "together"
    assert run(["resume", str(folder)]) == 1
    assert "the run is complete with 12 timesteps" in capsys.readouterr().err
    assert run(["resume", str(folder), "--n-timesteps", "16"]) == 0
    assert f"at {UPDATES} of 16 timesteps" in capsys.readouterr().out
    assert read_rows(folder / "metrics.jsonl")[-1]["timestep"] == 16


def test_info_says_what_would_be_trained(root, capsys):
    assert run(["info", str(root / "dataset.npz"), *options(TINY)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "narrow: observation 3, action 1, 8 agent steps, discount 0.95, 5 episodes" in out
    assert "task embedding 6" in out and "task_dim 6 (paper: 96)" in out
    assert "for 1 seed: networks and optimiser" in out and "of data for all" in out


def test_info_tells_about_a_run(root, capsys):
    assert run(["info", str(root / "together")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "narrow: observation 3, action 1" in out and "checkpoints after" in out
    assert run(["info", str(root / "together"), "--task-dim", "6"]) == 1
    assert "takes no options beside a run folder" in capsys.readouterr().err


def test_render_draws_one_task(root, tmp_path, capsys):
    out = tmp_path / "wide.gif"
    assert run(["render", str(root / "together"), "--task", "wide", "--out", str(out)]) == 0
    assert "wide: return " in capsys.readouterr().out
    with Image.open(out) as animation:
        assert animation.n_frames == LENGTHS["wide"] + 1
    assert run(["render", str(root / "together")]) == 1
    assert "There are several tasks: name one of " in capsys.readouterr().err


MISTAKES = {
    "no such run": (["export", "nowhere", "out.npz"], "there is no run folder"),
    "no such dataset": (["train", "nowhere.npz"], "nowhere.npz"),
    "nothing to pool": (["pool"], "give at least one file of episodes"),
    "a setting out of range": (["info", "{dataset}", "--task-dim", "0"], "task_dim must be"),
    "another hash": (["check", "{dataset}", "--hash", "0" * 64], "0" * 64),
    "a dataset as episodes": (["pool", "{dataset}"], "dataset.npz"),
    "a run of another agent": (["resume", "{narrow}"], "was trained by 'tdmpc2'"),
    "an unknown task": (["evaluate", "{together}", "--tasks", "wyde"], "wide"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_end_in_one_sentence(root, case, capsys, monkeypatch):
    args, message = MISTAKES[case]
    monkeypatch.chdir(root)
    places = {name: str(root / name) for name in ("narrow", "together")}
    places["dataset"] = str(root / "dataset.npz")
    assert run([arg.format(**places) for arg in args]) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_other_data_under_the_runs_name_are_refused(root, tmp_path, capsys):
    """The run remembers what it was trained on."""
    config_path = root / "together" / "config.json"
    config = json.loads(config_path.read_text())
    other = tmp_path / "other.npz"
    assert run(["pool", str(root / "narrow.npz"), "--out", str(other)]) == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    config["settings"]["dataset"] = str(other)
    (copy / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert run(["evaluate", str(copy)]) == 1
    assert config["settings"]["dataset_hash"] in capsys.readouterr().err


def test_export_policy_writes_the_policy_of_one_task(root, tmp_path, capsys):
    out = tmp_path / "policy"
    given = ["--task", "wide", "--policy-only", "--out", str(out)]
    assert run(["export-policy", str(root / "together"), *given]) == 0
    assert "training seed 3" in capsys.readouterr().out
    policy = load_policy(out)
    assert policy(np.zeros(5)).shape == (2,)
    assert policy.contract["planner"] == {"task": "wide", "policy_only": True}

    assert run(["export-policy", str(root / "together"), "--out", str(tmp_path / "other")]) == 1
    assert "name one of narrow, wide" in capsys.readouterr().err
