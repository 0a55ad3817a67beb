"""The example of `docs/environments.md`, as its reader would use it: checked, trained, resumed."""

import sys
from pathlib import Path

import pytest

import wm_dreamer.cli
import wm_tdmpc2.cli
from wm_collect.sinks import read_rows

from . import documents

TINY = {
    wm_dreamer.cli: (
        "--model-size=1m --units=16 --deter=32 --hidden=16 --stoch=4 --classes=4 --blocks=4 "
        "--enc-layers=1 --dec-layers=1 --actor-layers=1 --critic-layers=1 --bins=41 --batch-size=4 "
        "--batch-length=8 --imag-horizon=3 --warmup=4 --replay-capacity=200 --n-envs=2 "
        "--train-ratio=16"
    ),
    wm_tdmpc2.cli: (
        "--model-size=1 --enc-dim=16 --mlp-dim=32 --latent-dim=16 --batch-size=16 "
        "--num-samples=16 --num-elites=4 --num-pi-trajs=4 --iterations=2 --seed-steps=25"
    ),
}
RUN = "--num-episode-test=0 --no-animation --root=runs --name=line"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code of the example, written to `my_env.py` in the current folder."""
    blocks = [block.text for block in documents.blocks("docs/environments.md")]
    (text,) = [text for text in blocks if "class Line:" in text]
    (tmp_path / "my_env.py").write_text(f"import jax\nimport jax.numpy as jnp\n{text}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "my_env", raising=False)
    return text


def test_the_example_is_short(example: str):
    assert len([line for line in example.splitlines() if line.strip()]) <= 20


def test_the_example_passes_its_check_and_shows_its_rows(example: str, capsys):
    assert wm_dreamer.cli.run(["check", "my_env:Line", "--rows=27"]) == 0
    out = capsys.readouterr().out
    assert "nothing is wrong" in out
    # The table has the head of the first episode, its end and the next one's beginning.
    assert out.count("yes") == 3


def test_errors_end_with_status_1_and_without_rows(example: str, capsys, tmp_path: Path):
    text = (tmp_path / "my_env.py").read_text()
    (tmp_path / "bad_env.py").write_text(text.replace("terminates = False", "terminates = None"))
    assert wm_tdmpc2.cli.run(["check", "bad_env:Line"]) == 1
    out = capsys.readouterr().out
    assert "terminates-unknown" in out and "episode return" not in out
    assert wm_tdmpc2.cli.run(["check", "bad_env:Line", "--terminates", "False", "--rows=0"]) == 0


@pytest.mark.parametrize("cli", TINY, ids=lambda cli: cli.__name__)
def test_both_agents_train_and_resume_the_example(cli, example: str, tmp_path: Path):
    train = f"train my_env:Line {TINY[cli]} {RUN} --n-timesteps=60"
    assert cli.run(train.split()) == 0
    assert cli.run(["resume", "runs/line", "--n-timesteps=80"]) == 0
    rows = read_rows(tmp_path / "runs" / "line" / "metrics.jsonl")
    assert rows[-1]["timestep"] >= 75
    assert rows[-1]["Train/n_updates"] > 0
