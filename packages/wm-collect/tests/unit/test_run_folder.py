"""Run folders: settings written once, nothing overwritten, foreign folders explained."""

import json
import re
from pathlib import Path

import jax
import pytest

from wm_collect.run_folder import RunFolder


def test_the_settings_come_back_with_versions_and_command(tmp_path: Path) -> None:
    settings = {"seed": [0, 1], "lr": 3e-4, "env_id": "Pendulum-v1"}
    made = RunFolder.create(tmp_path / "runs", "first", settings=settings)
    opened = RunFolder.open(made.path)
    assert opened.settings == settings
    assert opened.config["versions"]["jax"] == jax.__version__
    assert isinstance(opened.config["command"], list)
    assert opened.path == tmp_path / "runs" / "first"
    text = opened.config_path.read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_every_path_lies_in_the_folder(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "r", settings={})
    paths = {
        "config.json": run.config_path,
        "metrics.jsonl": run.metrics_jsonl,
        "metrics.csv": run.metrics_csv,
        "checkpoints": run.checkpoints,
        "learning_curve.png": run.learning_curve,
        "evaluation.gif": run.evaluation_gif,
    }
    assert {name: path.relative_to(tmp_path / "r").as_posix() for name, path in paths.items()} == {
        name: name for name in paths
    }


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "r", settings={"a": 1})
    with pytest.raises(FileExistsError, match="exists: choose another name, resume that run"):
        RunFolder.create(tmp_path, "r", settings={"a": 2})
    assert RunFolder.open(tmp_path / "r").settings == {"a": 1}


def test_default_names_tell_the_run_and_are_unique(tmp_path: Path) -> None:
    runs = [
        RunFolder.create(tmp_path, settings={}, env_id="dm_control/cup:catch", agent="tdmpc2")
        for _ in range(3)
    ]
    names = [run.path.name for run in runs]
    assert len(set(names)) == 3
    assert all(re.match(r"dm_control_cup_catch-tdmpc2-\d{8}-\d{6}(-\d)?$", name) for name in names)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/abs"])
def test_a_name_that_is_a_path_is_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a plain folder name"):
        RunFolder.create(tmp_path / "runs", name, settings={})
    assert not (tmp_path / "runs").exists()


def test_settings_that_are_not_plain_make_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="plain values"):
        RunFolder.create(tmp_path, "r", settings={"policy": print})
    assert not (tmp_path / "r").exists()


def test_a_foreign_folder_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FileNotFoundError, match=r"it lacks config\.json, checkpoints"):
        RunFolder.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no run folder"):
        RunFolder.open(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": 1}'])
def test_a_damaged_configuration_is_named(text: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "r", settings={})
    run.config_path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is not a run's configuration"):
        RunFolder.open(run.path)
