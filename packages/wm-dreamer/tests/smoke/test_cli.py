"""The command line as a user meets it: a tiny run, looked at, measured, continued and damaged."""

import dataclasses
import json
import re
import shutil

import pytest
from PIL import Image

from wm_collect.run_folder import RunFolder
from wm_collect.sinks import read_rows
from wm_dreamer.cli import run
from wm_dreamer.config import DreamerV3Settings

from .tiny import TINY

LENGTH = 30
ROWS = 120
# Every run of this file has the same rings, so that all of them share one compiled program.
SETTINGS = TINY | {"episode_length": LENGTH, "replay_capacity": 60}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    status = run(
        [
            "train",
            "CartPole-v1",
            *OPTIONS,
            f"--n-timesteps={ROWS}",
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
    assert config["settings"]["agent"] == "dreamerv3"
    assert config["settings"]["env_id"] == "CartPole-v1"
    assert config["settings"]["settings"] == dataclasses.asdict(DreamerV3Settings(**SETTINGS))
    assert config["settings"]["run"]["seed"] == [4]
    assert config["versions"]["jax"]

    rows = read_rows(folder / "metrics.jsonl")
    assert [row["timestep"] for row in rows] == list(range(20, ROWS + 1, 20))
    assert rows[0]["env_frames"] == 20
    # The first update at 8 x 2 + 4 = 20 rows, then half an update per row.
    assert [row["Train/n_updates"] for row in rows] == [1, 11, 21, 31, 41, 51]
    assert 1 <= rows[-1]["Eval/episodic mean reward"] <= LENGTH
    assert (folder / "metrics.csv").read_text().count("\n") == len(rows) + 1
    assert list((folder / "tensorboard").iterdir())
    assert sorted(p.name for p in (folder / "checkpoints").iterdir())


def test_train_draws_the_learning_curve_predictions_and_an_episode(folder):
    with Image.open(folder / "learning_curve.png") as curve:
        assert min(curve.size) > 400
    with Image.open(folder / "open_loop.png") as predictions:
        assert min(predictions.size) > 100
    with Image.open(folder / "evaluation.gif") as animation:
        assert 2 <= animation.n_frames <= LENGTH + 1


def test_evaluate_reports_each_run(folder, capsys):
    assert run(["evaluate", str(folder), "--episodes", "3"]) == 0
    out = capsys.readouterr().out
    assert f"after {ROWS} timesteps, 3 episode(s)" in out
    assert re.search(r"training seed 4: mean return \d+\.\d, .* mean length \d+\.\d", out)


def test_render_draws_an_episode_where_asked(folder, tmp_path, capsys):
    out = tmp_path / "episode.gif"
    assert run(["render", str(folder), "--out", str(out), "--seed", "3"]) == 0
    steps = float(re.search(r"Return (\d+\.0)", capsys.readouterr().out)[1])
    with Image.open(out) as animation:
        # A reward of 1 for every step, and a frame for the reset.
        assert animation.n_frames == steps + 1


def test_report_examines_the_run_and_says_where_the_page_is(folder, capsys):
    assert run(["report", str(folder), "--episodes", "2", "--best"]) == 0
    out = capsys.readouterr().out
    assert "Examining training seed 4 on 2 episode(s)." in out
    assert out.strip().endswith("report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "(with the best evaluation), on 2 evaluation episode(s) drawn with the seed 0" in page
    for title in (
        "Returns",
        "KL between posterior and prior",
        "An episode",
        "Open-loop prediction of observations",
        "Rewards",
        "Whether the episode goes on",
        "Critic&#x27;s value against realised returns",
        "Imagined return against realised returns",
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
    assert run(["resume", str(copy), f"--n-timesteps={ROWS + 40}"]) == 0
    config = json.loads((copy / "config.json").read_text())
    assert config["settings"]["run"]["n_timesteps"] == ROWS + 40
    (resumed,) = config["resumed"]
    assert (resumed["timestep"], resumed["n_timesteps"]) == (ROWS, ROWS + 40)
    rows = read_rows(copy / "metrics.jsonl")
    assert [row["timestep"] for row in rows] == list(range(20, ROWS + 41, 20))
    assert [row["Train/n_updates"] for row in rows[-2:]] == [61, 71]


def test_a_damaged_checkpoint_is_refused_and_the_previous_one_used_only_when_asked(copy, capsys):
    newest = sorted((copy / "checkpoints").iterdir())[-1]
    victim = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-7])
    more = f"--n-timesteps={ROWS + 20}"

    assert run(["resume", str(copy), more]) == 1
    complaint = capsys.readouterr().err
    assert str(newest) in complaint and "fallback" in complaint

    assert run(["resume", str(copy), more, "--fallback"]) == 0
    assert "at 60 of" in capsys.readouterr().out
    steps = [row["timestep"] for row in read_rows(copy / "metrics.jsonl")]
    assert steps == list(range(20, ROWS + 21, 20))


@pytest.mark.parametrize("command", ["resume", "evaluate", "render"])
def test_the_folder_of_another_agent_is_refused(command, tmp_path, capsys):
    other = RunFolder.create(tmp_path, "other", settings={"agent": "tdmpc2"})
    assert run([command, str(other.path)]) == 1
    error = capsys.readouterr().err.strip()
    assert "trained by 'tdmpc2'; wm-dreamer reads runs of 'dreamerv3'" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["info", "CartPole-v2"], "CartPole-v1"),
        (["info", "CartPole-v1", "--protocol", "fast"], "paper, dmc-proprio-paper, quick"),
        (["train", "CartPole-v1", "--n-timesteps", "0"], "n_timesteps"),
        (["train", "CartPole-v1", "--num-episode-test", "-1"], "num_episode_test"),
        (["train", "CartPole-v1", "--model-size", "7m"], "model_size must be one of 1m, 12m"),
        (["train", "CartPole-v1", "--deter", "2050"], "multiple of blocks=8"),
        (["train", "CartPole-v1", "--replay-capacity", "100"], "replay_capacity must hold"),
        (["train", "CartPole-v1", "--batch-length", "1"], "batch_length"),
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
    assert "CartPole-v1 (gymnax)" in out and "seeds 4" in out and "timesteps 120 rows" in out
    assert "checkpoints after" in out and out.endswith("120 rows")
    assert run(["info", str(folder), "--n-envs", "3"]) == 1
    assert "takes no options beside a run folder" in capsys.readouterr().err


def test_info_prints_the_paper_size(capsys):
    assert run(["info", "Pendulum-v1", "--protocol", "paper"]) == 0
    out = capsys.readouterr().out
    assert "Pendulum-v1" in out and "2048 in 8 blocks" in out and "0.996997" in out


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit) as stop:
        run(["train", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    missing = [
        field.name
        for field in dataclasses.fields(DreamerV3Settings)
        if f"--{field.name.replace('_', '-')}" not in shown
    ]
    assert not missing
