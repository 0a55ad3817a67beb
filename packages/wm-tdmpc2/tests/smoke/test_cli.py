"""The command line as a user meets it: a tiny run, looked at, measured, continued and damaged."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from wm_collect.deploy import load_policy
from wm_collect.sinks import read_rows
from wm_tdmpc2.cli import run
from wm_tdmpc2.config import TDMPC2Settings

from .tiny import TINY

LENGTH = 20
STEPS = 120
SETTINGS = TINY | {"episode_length": LENGTH, "seed_steps": 60}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    status = run(
        [
            "train",
            "Pendulum-v1",
            *OPTIONS,
            f"--n-timesteps={STEPS}",
            "--num-episode-test=2",
            "--eval-frequency=60",
            "--log-frequency=20",
            "--seed=4",
            "--tensorboard",
            f"--root={root}",
            "--name=first",
        ]
    )
    assert status == 0
    return root / "first"


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the run that a test may continue; it trains only, to save compilations."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["settings"]["run"] |= {"num_episode_test": 0, "animation": False, "tensorboard": False}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_train_fills_the_run_folder(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["env_id"] == "Pendulum-v1"
    assert config["settings"]["settings"] == dataclasses.asdict(TDMPC2Settings(**SETTINGS))
    assert config["settings"]["run"]["seed"] == [4]
    assert config["versions"]["jax"]

    rows = read_rows(folder / "metrics.jsonl")
    assert [row["timestep"] for row in rows] == list(range(20, STEPS + 1, 20))
    assert rows[-1]["Train/n_updates"] == STEPS - 1
    assert rows[-1]["Eval/episodic mean reward"] < 0
    assert (folder / "metrics.csv").read_text().count("\n") == len(rows) + 1
    assert list((folder / "tensorboard").iterdir())


def test_train_draws_the_learning_curve_and_an_episode(folder):
    with Image.open(folder / "learning_curve.png") as curve:
        assert min(curve.size) > 400
    with Image.open(folder / "evaluation.gif") as animation:
        assert animation.n_frames == LENGTH + 1


def test_evaluate_reports_each_run(folder, capsys):
    assert run(["evaluate", str(folder), "--episodes", "3"]) == 0
    out = capsys.readouterr().out
    assert f"after {STEPS} timesteps, 3 episode(s)" in out
    assert "training seed 4: mean return -" in out


def test_render_draws_an_episode_where_asked(folder, tmp_path, capsys):
    out = tmp_path / "episode.gif"
    assert run(["render", str(folder), "--out", str(out), "--seed", "3"]) == 0
    with Image.open(out) as animation:
        assert animation.n_frames == LENGTH + 1
    assert "Return -" in capsys.readouterr().out


def test_report_examines_the_run_and_says_where_the_page_is(folder, capsys):
    assert run(["report", str(folder), "--episodes", "2", "--best"]) == 0
    out = capsys.readouterr().out
    assert "Examining training seed 4 on 2 episode(s)." in out
    assert out.strip().endswith("report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "(with the best evaluation), on 2 evaluation episode(s) drawn with the seed 0" in page
    for title in (
        "Returns",
        "World-model losses",
        "An episode",
        "Open-loop prediction of latents",
        "Open-loop prediction of rewards",
        "Rewards",
        "Planner&#x27;s value against realised returns",
    ):
        assert f"<h3>{title}</h3>" in page, title


def test_report_without_a_checkpoint_shows_the_log_only(copy, capsys):
    shutil.rmtree(copy / "checkpoints")
    assert run(["report", str(copy)]) == 0
    assert "no checkpoint yet" in capsys.readouterr().out
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "<h3>World-model losses</h3>" in page and "Open-loop" not in page


def test_report_refuses_no_episodes(folder, capsys):
    assert run(["report", str(folder), "--episodes", "0"]) == 1
    assert "episodes must be at least 1, got 0." in capsys.readouterr().err


def test_plot_draws_runs_over_each_other(folder, copy, tmp_path):
    out = tmp_path / "both.png"
    assert run(["plot", str(folder), str(copy), "--out", str(out)]) == 0
    with Image.open(out) as picture:
        assert min(picture.size) > 400


def test_resuming_a_finished_run_says_how_to_go_on(folder, capsys):
    assert run(["resume", str(folder)]) == 1
    assert "--n-timesteps" in capsys.readouterr().err


def test_a_longer_resume_goes_on_in_the_same_log(copy):
    assert run(["resume", str(copy), f"--n-timesteps={STEPS + 40}"]) == 0
    config = json.loads((copy / "config.json").read_text())
    assert config["settings"]["run"]["n_timesteps"] == STEPS + 40
    (resumed,) = config["resumed"]
    assert (resumed["timestep"], resumed["n_timesteps"]) == (STEPS, STEPS + 40)
    steps = [row["timestep"] for row in read_rows(copy / "metrics.jsonl")]
    assert steps == list(range(20, STEPS + 41, 20))


def test_a_damaged_checkpoint_is_refused_and_the_previous_one_used_only_when_asked(copy, capsys):
    newest = sorted((copy / "checkpoints").iterdir())[-1]
    victim = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-7])
    more = f"--n-timesteps={STEPS + 20}"

    assert run(["resume", str(copy), more]) == 1
    complaint = capsys.readouterr().err
    assert str(newest) in complaint and "fallback" in complaint

    assert run(["resume", str(copy), more, "--fallback"]) == 0
    assert "at 60 of" in capsys.readouterr().out
    steps = [row["timestep"] for row in read_rows(copy / "metrics.jsonl")]
    assert steps == list(range(20, STEPS + 21, 20))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["info", "Pendulum-v2"], "Pendulum-v1"),
        (["info", "CartPole-v1"], "discrete"),
        (["info", "Pendulum-v1", "--protocol", "fast"], "paper, dmc-paper, quick"),
        (["train", "Pendulum-v1", "--n-timesteps", "0"], "n_timesteps"),
        (["train", "Pendulum-v1", "--num-elites", "600"], "num_samples=512"),
        (["evaluate", "no-such-folder"], "no-such-folder"),
        (["resume", "."], "not a run folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_end_with_one_sentence_and_make_no_folder(
    args, sentence, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run(args) == 1
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert "\n" not in error and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_info_tells_about_a_run(folder, capsys):
    assert run(["info", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Pendulum-v1 (gymnax)" in out and "seeds 4" in out and "timesteps 120 env steps" in out
    assert "checkpoints after" in out and out.endswith("120 env steps")
    assert run(["info", str(folder), "--n-envs", "3"]) == 1
    assert "takes no options beside a run folder" in capsys.readouterr().err


def test_info_prints_the_paper_size(capsys):
    assert run(["info", "Pendulum-v1"]) == 0
    assert "4,932,192" in capsys.readouterr().out


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit) as stop:
        run(["train", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    missing = [
        field.name
        for field in dataclasses.fields(TDMPC2Settings)
        if f"--{field.name.replace('_', '-')}" not in shown
    ]
    assert not missing


def test_export_writes_a_policy_that_runs_without_this_library(folder, tmp_path, capsys):
    out = tmp_path / "policy"
    given = ["--iterations", "2", "--num-samples", "12", "--best"]
    assert run(["export", str(folder), "--out", str(out), *given]) == 0
    shown = capsys.readouterr().out
    assert "training seed 4" in shown and "policy.stablehlo" in shown
    assert re.search(r"One decision takes [\d.]+ ms: [\d,]+ Hz on this", shown)

    policy = load_policy(out)
    assert policy.contract["planner"]["num_elites"] == 3
    assert policy.contract["provenance"]["run"] == "first"
    actions = [policy(np.zeros(3)) for _ in range(3)]
    (snippet,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    bare = subprocess.run(
        [sys.executable, "-c", snippet], cwd=out, capture_output=True, text=True, timeout=300
    )
    assert bare.returncode == 0, bare.stderr
    np.testing.assert_allclose(
        [float(number) for number in re.findall(r"\[\[(.+?)\]\]", bare.stdout)],
        np.ravel(actions),
        rtol=1e-5,
    )

    assert run(["export", str(folder), "--out", str(out)]) == 1
    assert "exists: choose another folder" in capsys.readouterr().err


def test_export_refuses_a_seed_that_was_not_trained(folder, tmp_path, capsys):
    out = tmp_path / "policy"
    assert run(["export", str(folder), "--out", str(out), "--training-seed", "5"]) == 1
    assert "--training-seed must be one of 4, got 5" in capsys.readouterr().err
    assert not out.exists()
