"""`tools/mutation`: the lists of faults fit the sources, and `check.py` tells outcomes apart.

Judging all faults takes an hour or two; the verdicts are kept in `docs/data/mutation.jsonl`.
"""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from . import workspace

check = workspace.load_file("tools/mutation/check.py")
AGENTS = sorted(check.FAULTS)
VERDICTS = workspace.ROOT / "docs" / "data" / "mutation.jsonl"

TOY = "packages/toy/src/toy/__init__.py"
NEAR = "packages/toy/tests/unit/test_near.py"
SUITE = ("packages/toy/tests/parity",)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_fault_changes_one_place_of_a_file_that_can_still_be_read(agent: str):
    for fault in check.FAULTS[agent]:
        text = (workspace.ROOT / fault.file).read_text(encoding="utf-8")
        tree = ast.parse(fault.changed(text))

        # Also a comment or a layout could be changed.
        assert ast.dump(tree) != ast.dump(ast.parse(text)), fault.name


@pytest.mark.parametrize("agent", AGENTS)
def test_faults_are_many_and_their_names_and_changes_unique(agent: str):
    faults = check.FAULTS[agent]

    assert len(faults) >= 40
    assert max(Counter(fault.name for fault in faults).values()) == 1
    assert max(Counter(fault.digest for fault in faults).values()) == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_the_tests_near_a_fault_exist(agent: str):
    for test in {test for fault in check.FAULTS[agent] for test in fault.tests}:
        file, *names = test.partition("[")[0].split("::")
        source = (workspace.ROOT / file).read_text(encoding="utf-8")

        assert all(f"{name}(" in source or f"class {name}" in source for name in names), test


@pytest.mark.parametrize("agent", AGENTS)
def test_every_fault_was_caught_as_it_is_written(agent: str):
    verdicts = check.read_verdicts(VERDICTS)
    for fault in check.FAULTS[agent]:
        line = verdicts.pop((agent, fault.name), None)

        assert line, f"{fault.name} was never judged; run tools/mutation/check.py --out {VERDICTS}"
        assert (line["verdict"], line["digest"]) == ("caught", fault.digest), fault.name
    assert not [name for of, name in verdicts if of == agent], "verdicts of faults that are gone"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A workspace with one package, whose parity suite does not see everything."""
    files = {
        TOY: "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n",
        NEAR: "import toy\n\n\ndef test_half():\n    assert toy.half(4) == 2\n",
        f"{SUITE[0]}/test_far.py": (
            "import toy\n\n\n"
            "def test_zero():\n    assert toy.double(0) == 0\n\n\n"
            "def test_one():\n    assert toy.double(1) == 2\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / "original" / name).parent.mkdir(parents=True)
        (tmp_path / "original" / name).write_text(text)
    copy = tmp_path / "copy"
    check.copy_workspace(tmp_path / "original", copy)
    return copy


@pytest.mark.parametrize(
    ("before", "after", "tests", "verdict", "test"),
    [
        ("2 * x", "3 * x", (NEAR,), "caught", f"{SUITE[0]}/test_far.py::test_one"),
        ("x / 2", "x / 3", (NEAR,), "caught", f"{NEAR}::test_half"),
        ("x / 2", "x / 3", (), "survived", ""),
        ("2 * x", "x.twice", (), "crashed", f"{SUITE[0]}/test_far.py::test_zero"),
        ("def double(x)", "import nowhere\n\n\ndef double(x)", (), "broken", ""),
    ],
    ids=["far", "near", "nowhere", "error", "import"],
)
def test_outcomes_are_told_apart(
    toy: Path, tmp_path: Path, before: str, after: str, tests: tuple[str, ...], verdict: str, test
):
    fault = check.Fault("a_fault", TOY, before, after, "", tests)
    original = (toy / TOY).read_text()

    outcome = check.judge(fault, toy, SUITE, tmp_path / "cache")

    assert (outcome.verdict, outcome.test) == (verdict, test), outcome.error
    assert bool(outcome.error) == (verdict != "survived")
    assert (toy / TOY).read_text() == original


def test_a_package_from_elsewhere_is_not_judged(toy: Path, tmp_path: Path):
    """Here `zipimport`, a part of Python that is found before everything on the path."""
    other = toy / "packages" / "toy" / "src" / "zipimport"
    other.mkdir()
    (other / "__init__.py").write_text("")

    outcome = check.run_tests(toy, SUITE, tmp_path / "cache", writes_cache=True)

    assert outcome.verdict == "broken" and "was to be tested" in outcome.error


@pytest.mark.parametrize("text", ["return 1\n", "return 2 * x\nreturn 2 * x\n"])
def test_a_text_that_does_not_occur_once_is_refused_with_a_sentence(text: str):
    fault = check.Fault("a_fault", TOY, "2 * x", "3 * x", "")

    with pytest.raises(ValueError, match=r"a_fault: the text to be replaced occurs [02] times"):
        fault.changed(text)


def test_a_fault_in_a_package_with_recordings_of_its_own_is_tried_on_them_too():
    own = check.Fault("a", "packages/wm-collect/src/wm_collect/row.py", "", "", "")
    other = check.Fault("b", "packages/wm-dreamer/src/wm_dreamer/rssm.py", "", "", "")

    assert check.suite_of(own, SUITE) == (*SUITE, "packages/wm-collect/tests/parity")
    assert check.suite_of(other, SUITE) == SUITE


def test_the_last_verdict_of_a_fault_counts(tmp_path: Path):
    lines = [
        {"agent": "dreamerv3", "fault": "a", "verdict": "survived"},
        {"agent": "tdmpc2", "fault": "a", "verdict": "crashed"},
        {"agent": "dreamerv3", "fault": "a", "verdict": "caught"},
    ]
    path = tmp_path / "verdicts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    read = check.read_verdicts(path)

    assert {key: line["verdict"] for key, line in read.items()} == {
        ("dreamerv3", "a"): "caught",
        ("tdmpc2", "a"): "crashed",
    }


def test_the_table_counts_verdicts_by_file():
    judged = [
        (check.Fault("a", TOY, "", "", ""), "caught"),
        (check.Fault("b", TOY, "", "", ""), "survived"),
        (check.Fault("c", "packages/toy/src/toy/other.py", "", "", ""), "caught"),
    ]

    assert check.table(judged).splitlines() == [
        "| where | faults | caught | survived | crashed | broken |",
        "| --- | --- | --- | --- | --- | --- |",
        "| toy __init__.py | 2 | 1 | 1 | 0 | 0 |",
        "| toy other.py | 1 | 1 | 0 | 0 | 0 |",
        "| all | 3 | 2 | 1 | 0 | 0 |",
    ]
