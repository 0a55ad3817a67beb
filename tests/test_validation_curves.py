"""The published curves are read as they are, and a wrong file is refused in a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from .validation_tools import curves, protocols

TASK = {
    "playground": "CheetahRun",
    "step": [100, 200],
    "seeds": [4, 7],
    "return": [[1.5, None], [0.0, 3.0]],
}


def written(path: Path, **changed) -> Path:
    path.write_text(json.dumps({"tasks": {"cheetah-run": TASK | changed}}))
    return path


@pytest.mark.parametrize(
    ("validation", "n_seeds", "n_points"),
    [(protocols.DREAMERV3, 5, 49), (protocols.TDMPC2, 3, 41)],
)
def test_the_files_of_the_project(validation, n_seeds: int, n_points: int):
    published = curves.load_reference(validation.reference)
    assert set(published) == set(validation.budgets)
    for env_id, found in published.items():
        n = 141 if env_id.startswith("Humanoid") else n_points
        assert found.returns.shape == (n_seeds, n) and len(found.seeds) == n_seeds
        assert np.nanmin(found.returns) >= 0 and np.nanmax(found.returns) <= 1000
        # The curve reaches the last tenth of the budget and does not pass its end.
        assert 0.9 * validation.budgets[env_id] < found.frames[-1] <= validation.budgets[env_id]


def test_the_one_missing_point_is_nan():
    published = curves.load_reference(protocols.TDMPC2.reference)
    missing = {env_id: int(np.isnan(found.returns).sum()) for env_id, found in published.items()}
    assert {env_id: n for env_id, n in missing.items() if n} == {"CartpoleSwingupSparse": 1}
    assert np.isnan(published["CartpoleSwingupSparse"].returns[2]).sum() == 1


def test_frames_and_agent_steps(tmp_path: Path):
    found = curves.load_reference(written(tmp_path / "curves.json"))["CheetahRun"]
    assert found.frames.tolist() == [100, 200] and found.agent_steps(2).tolist() == [50, 100]
    assert found.seeds == (4, 7)
    np.testing.assert_array_equal(found.returns, [[1.5, np.nan], [0.0, 3.0]])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step": [200, 100]}, "'cheetah-run' lacks ascending steps"),
        ({"return": [[1.0], [2.0]]}, "'cheetah-run' lacks a return for each seed and step"),
        ({"seeds": [1]}, "'cheetah-run' lacks a return for each seed and step"),
        ({"step": "many"}, "'cheetah-run' lacks"),
    ],
)
def test_a_wrong_task_is_named(tmp_path: Path, changed: dict, words: str):
    with pytest.raises(ValueError, match=words):
        curves.load_reference(written(tmp_path / "curves.json", **changed))


def test_wrong_files_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="There is no file of reference curves"):
        curves.load_reference(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="is not a file of reference curves"):
        curves.load_reference(tmp_path / "other.json")
    path = tmp_path / "twice.json"
    path.write_text(json.dumps({"tasks": {"one": TASK, "other": TASK}}))
    with pytest.raises(ValueError, match="two of its tasks are 'CheetahRun'"):
        curves.load_reference(path)
