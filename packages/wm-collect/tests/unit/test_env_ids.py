import sys
from itertools import combinations

import pytest

from wm_collect import known_ids, make_env
from wm_collect.backends.mujoco_import import mujoco_imports
from wm_collect.env_ids import resolve


def test_no_id_is_in_two_libraries() -> None:
    for (_, a), (_, b) in combinations(known_ids().items(), 2):
        assert not set(a) & set(b)


def test_tables_list_what_the_installed_libraries_have() -> None:
    import gymnax

    with mujoco_imports():
        import mujoco_playground
        from brax import envs

    ids = known_ids()
    assert set(ids["gymnax"]) == set(gymnax.registered_envs)
    assert set(ids["brax"]) == set(envs._envs)
    assert set(ids["playground"]) == set(mujoco_playground.registry.ALL_ENVS)


@pytest.mark.parametrize(
    ("env_id", "backend", "name"),
    [
        ("Pendulum-v1", "gymnax", "Pendulum-v1"),
        ("gymnax/Pendulum-v1", "gymnax", "Pendulum-v1"),
        ("CartpoleBalance", "playground", "CartpoleBalance"),
        ("playground/CartpoleBalance", "playground", "CartpoleBalance"),
        ("reacher", "brax", "reacher"),
        ("brax/reacher", "brax", "reacher"),
    ],
)
def test_ids_find_their_library(env_id: str, backend: str, name: str) -> None:
    module, found = resolve(env_id)
    assert (module.__name__.rpartition(".")[2], found) == (backend, name)


@pytest.mark.parametrize(
    ("wrong", "hints"),
    [
        ("pendulum-v1", ["'Pendulum-v1' (gymnax)"]),
        (
            "CartpolBalance",
            ["'CartpoleBalance' (playground, needs pip install \"wm-collect[playground]\")"],
        ),
        ("hoper", ["'hopper' (brax, needs pip install \"wm-collect[brax]\")"]),
        ("brax/Pendulum-v1", ["Unknown environment id 'brax/Pendulum-v1'", "'Pendulum-v1'"]),
        ("#", ["No known id is close"]),
    ],
)
def test_unknown_id_lists_close_matches_with_their_extras(wrong: str, hints: list[str]) -> None:
    with pytest.raises(ValueError, match="Unknown environment id") as error:
        make_env(wrong)
    assert all(hint in str(error.value) for hint in hints)


@pytest.mark.parametrize(
    ("env_id", "module", "what"),
    [
        ("hopper", "brax", r"pip install \"wm-collect\[brax\]\""),
        ("CartpoleBalance", "mujoco_playground", r"pip install \"wm-collect\[playground\]\""),
        ("Pendulum-v1", "gymnax", r"pip install \"wm-collect\""),
    ],
)
def test_missing_library_says_what_to_install(
    env_id: str, module: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=what):
        make_env(env_id)
