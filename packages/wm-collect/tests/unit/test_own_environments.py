"""Ids of the form module:attribute, as somebody writes them on the command line."""

import itertools
import sys
from pathlib import Path

import pytest

from wm_collect import make_env

FILE = """
from wm_collect.testing import CounterEnv

missing = "not an environment"
ready = CounterEnv([7])
pair = (1, 2, 3)


class Counter(CounterEnv):
    def __init__(self):
        super().__init__([5])


def make(episode_length=4):
    return CounterEnv([episode_length])
"""
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, of a name that no test has imported before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    name = f"own_environments_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(FILE)
    return name


@pytest.mark.parametrize(("attribute", "length"), [("Counter", 5), ("make", 4), ("ready", 7)])
def test_a_class_a_function_and_an_object_are_found(
    module: str, attribute: str, length: int
) -> None:
    assert make_env(f"{module}:{attribute}").spec.episode_length == length


def test_a_builder_is_asked_for_what_it_accepts(module: str) -> None:
    assert make_env(f"{module}:make", episode_length=9).spec.episode_length == 9


@pytest.mark.parametrize(
    ("attribute", "error", "sentence"),
    [
        ("makes", ValueError, "has no 'makes'; it defines Counter, make"),
        ("missing", TypeError, "is of type str; give an environment object, its class"),
        ("", ValueError, 'write it as "module:attribute"'),
    ],
)
def test_a_wrong_attribute_is_answered_with_what_there_is(
    module: str, attribute: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        make_env(f"{module}:{attribute}")


def test_a_missing_module_is_told_from_one_that_misses_something(
    module: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"no module 'nowhere' in {tmp_path}"):
        make_env("nowhere:make")
    (tmp_path / "needs.py").write_text("import something_else")
    with pytest.raises(ModuleNotFoundError, match="something_else"):
        make_env("needs:make")
