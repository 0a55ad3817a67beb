"""Runs on the disk: what is scored, what is judged, what is only reported, and what is written.

The folders are made up; `test_validation_end_to_end.py` trains.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from wm_collect.cli_options import EnvOptions

from .validation_tools import protocols, report, run, runs, train_or_resume, write_run

V = dataclasses.replace(
    protocols.DREAMERV3,
    run=protocols.DREAMERV3.run | {"log_frequency": 100},
    budgets={"CheetahRun": 2_000, "WalkerWalk": 2_000, "HopperHop": 2_000},
    seeds=(0, 1),
)
# 10 marks of 100 rows, which are 200 frames: the last tenth is what is logged at 1,800 and 2,000.
N = 10


def flat(value: float, n_seeds: int = 2, n: int = N) -> np.ndarray:
    return np.full((n_seeds, n), value)


def gathered(root: Path, env_id: str = "CheetahRun") -> runs.TaskRuns:
    found = [runs.read_run(V, folder) for folder in runs.run_folders(root / V.name)]
    return runs.gather(V, env_id, found)


@pytest.mark.parametrize("seeds", [(0, 1), (5,)])
def test_a_log_is_read_in_environment_frames(tmp_path: Path, seeds: tuple[int, ...]):
    returns = np.arange(float(N)) + 100 * np.arange(len(seeds))[:, None]
    found = runs.read_run(V, write_run(V, tmp_path, "CheetahRun", returns, seeds))
    # 16 environments pass the marks up to 15 rows late.
    assert found.curves.frames.tolist() == list(range(200, 2_001, 200))
    np.testing.assert_array_equal(found.curves.returns, returns)
    assert found.curves.seeds == found.seeds == seeds
    assert found.timesteps == 1_008 and found.departures == ()


def test_values_between_the_marks_are_left_out(tmp_path: Path):
    folder = write_run(V, tmp_path, "CheetahRun", flat(5.0, 1), (0,))
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"tick": 65, "timestep": 1_040, V.score: 777.0}) + "\n")
    assert 777.0 not in runs.read_run(V, folder).curves.returns


def test_a_whole_run_by_the_protocol_can_be_judged(tmp_path: Path):
    write_run(V, tmp_path, "CheetahRun", flat(5.0), (0, 1))
    found = gathered(tmp_path)
    assert found.unjudged == () and found.curves.returns.shape == (2, N)
    assert gathered(tmp_path, "WalkerWalk").unjudged == ("no run follows the protocol",)


def test_seeds_of_several_folders_count_together(tmp_path: Path):
    for seed in (0, 4, 7):
        write_run(V, tmp_path, "CheetahRun", flat(seed, 1), (seed,))
    found = gathered(tmp_path)
    assert found.unjudged == () and found.curves.seeds == (0, 4, 7)
    assert found.curves.returns[:, -1].tolist() == [0, 4, 7]


def test_what_is_not_judged(tmp_path: Path):
    def reasons(name: str, returns: np.ndarray, *seeds: tuple[int, ...]) -> str:
        for i, part in enumerate(seeds):
            write_run(V, tmp_path / name, "CheetahRun", returns[: len(part)], part, name=f"{i}")
        return "; ".join(gathered(tmp_path / name).unjudged)

    assert reasons("short", flat(5.0, n=9), (0, 1)) == "0 has 912 of 1,000 timesteps"
    assert reasons("few", flat(5.0), (0,)) == "1 of at least 2 seeds were trained"
    assert reasons("twice", flat(5.0), (0, 1), (1, 2)) == "seed 1 was trained more than once"
    stopped = flat(5.0)
    stopped[1, 6:] = np.nan
    assert reasons("stopped", stopped, (0, 1)) == (
        "seed 1 of 0 stopped learning or has no return at the end"
    )


@pytest.mark.parametrize(
    ("departure", "words"),
    [
        ({"settings": {"train_ratio": 64.0}}, "train_ratio 64.0 (registered: 512.0)"),
        ({"settings": {"model_size": "25m"}}, "model_size 25m (registered: 12m)"),
        ({"env": EnvOptions(env_params={"a": 1.0})}, "env_params {'a': 1.0}"),
        ({"options": {"log_frequency": 50}}, "log_frequency 50 (registered: 100)"),
    ],
)
def test_a_departure_is_named_and_its_run_not_judged(tmp_path: Path, departure, words: str):
    folder = write_run(V, tmp_path, "CheetahRun", flat(5.0), (0, 1), **departure)
    assert runs.read_run(V, folder).departures == (words,)
    assert gathered(tmp_path).unjudged == ("no run follows the protocol",)


def test_evaluations_are_scored_only_if_they_are_the_registered_ones(tmp_path: Path):
    v = protocols.TDMPC2
    options = {"num_episode_test": 3, "eval_frequency": 10_000, "log_frequency": 1_000}
    folder = write_run(v, tmp_path, "CheetahRun", flat(5.0, 3), (1, 2, 3), options=options)
    assert runs.read_run(v, folder).departures == (
        "eval_frequency 10000 (registered: 50000)",
        "num_episode_test 3 (registered: 10)",
    )


def test_a_finished_run_stays_finished_without_its_checkpoints(tmp_path: Path):
    folder = write_run(V, tmp_path, "CheetahRun", flat(5.0), (0, 1))
    assert train_or_resume.trained_timesteps(folder) == 1_008
    assert train_or_resume.trained_timesteps(tmp_path / "none") == 0


# The report.


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A report of one task that passes, one that fails, one unfinished and one off the protocol."""
    root = tmp_path_factory.mktemp("validation")
    reference = {
        env_id: {
            "playground": env_id,
            "step": [1_000, 1_800, 1_900],
            "seeds": [0, 1],
            "return": [[0, 400, 600], [None, 500, 700]],
        }
        for env_id in V.budgets
    }
    (root / "reference.json").write_text(json.dumps({"tasks": reference}))
    v = dataclasses.replace(V, reference=root / "reference.json")
    write_run(v, root, "CheetahRun", flat(450.0), (0, 1))
    write_run(v, root, "WalkerWalk", flat(449.0), (0, 1))
    write_run(v, root, "HopperHop", flat(3.0, n=5), (0, 1))
    changed = {"train_ratio": 64.0}
    write_run(v, root, "HopperHop", flat(900.0), (0, 1), name="fast", settings=changed)
    (root / v.name / "broken").mkdir()
    (root / v.name / "broken" / "config.json").write_text("{")
    verdict = report.write_report(v, root, root / "report")
    assert verdict.passed is None
    return root / "report", (root / "report" / "report.md").read_text(encoding="utf-8")


def test_the_page_judges_by_the_lowest_seed(page):
    _, text = page
    assert "# DreamerV3 and its published curves: no verdict" in text
    assert "- no: 2 of 3 tasks are judged (at least 80 % wanted)" in text
    # The reference's seeds score 500 and 600 in the window, so the bar is 450.
    row = "1,800 to 2,000 | {} | {} | 550.0 | 500.0 | 450.0 | {} | {} |"
    assert f"| CheetahRun | {row.format('450.0', '450, 450', '-100.0', 'passes')}" in text
    assert f"| WalkerWalk | {row.format('449.0', '449, 449', '-101.0', 'fails')}" in text


def test_the_page_says_what_is_not_judged_and_why(page):
    _, text = page
    assert "- HopperHop: HopperHop-seeds-0-1 has 512 of 1,000 timesteps." in text
    assert "- fast: train_ratio 64.0 (registered: 512.0). 1,008 timesteps, score 900.0." in text
    assert "- broken cannot be read" in text


def test_the_page_says_where_runs_come_from(page):
    _, text = page
    assert "| CheetahRun-seeds-0-1 | 0, 1 | 1,008 | none | not recorded |" in text
    assert "- v1: brax " in text and "wm-dreamer " in text


def test_the_picture_is_beside_the_page(page):
    folder, text = page
    assert "](curves.png)" in text
    assert (folder / "curves.png").stat().st_size > 10_000


def test_no_runs_give_no_verdict(tmp_path: Path, capsys):
    assert report.main(["dreamerv3", "--root", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "no verdict" in capsys.readouterr().out
    assert "There are no runs yet." in (tmp_path / "out" / "report.md").read_text()


# What the runner is asked.


def job(**changed) -> run.Job:
    values = {"validation": V, "root": Path("root"), "tasks": ("CheetahRun",), "seeds": (0, 1)}
    return run.Job(**values | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tasks": ("Cheetah",)}, "Cheetah has no published curve; the tasks are CheetahRun,"),
        ({"overrides": {"ratio": "64"}}, "--set ratio is no setting; they are "),
        ({"chunk": 100}, "must be a multiple of 25,000"),
        ({"chunk": 0}, "must be a multiple of 25,000"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(changed: dict, words: str):
    with pytest.raises(ValueError, match=words):
        job(**changed)


def test_runs_off_the_protocol_have_folders_of_their_own():
    assert job().folder("CheetahRun") == Path("root/dreamerv3/CheetahRun-seeds-0-1")
    changed = job(overrides={"train_ratio": "64"})
    assert changed.folder("CheetahRun").name == "CheetahRun-seeds-0-1-train_ratio=64"
    assert changed.options("CheetahRun", 500)["train_ratio"] == "64"


def test_a_chunk_is_trained_from_where_a_run_is(tmp_path: Path, monkeypatch):
    v = dataclasses.replace(V, budgets=dict.fromkeys(V.budgets, 200_000))
    # 16 environments have made 25,008 rows when the mark of 25,000 is passed.
    write_run(v, tmp_path, "CheetahRun", flat(5.0, n=250), (0, 1))
    started = {}
    monkeypatch.setattr(
        run, "train", lambda program, subject, options, folder: started.update({folder: options})
    )
    for chunk, ends in ((25_000, (50_000, 25_000)), (None, (100_000, 100_000))):
        asked = job(validation=v, root=tmp_path, tasks=("CheetahRun", "WalkerWalk"), chunk=chunk)
        assert run.train_all(asked) == {}
        assert tuple(options["n_timesteps"] for options in started.values()) == ends


@pytest.mark.parametrize("validation", protocols.VALIDATIONS.values(), ids=lambda v: v.name)
def test_a_run_ends_with_the_published_budget(validation: protocols.Validation):
    for env_id, budget in validation.budgets.items():
        n_timesteps = validation.n_timesteps(env_id)
        assert n_timesteps * validation.registered.action_repeat == budget
        assert n_timesteps % validation.score_every == 0
    assert (
        validation.n_timesteps("WalkerWalk")
        == validation.command.agent.protocols[validation.protocol].run["n_timesteps"]
    )
