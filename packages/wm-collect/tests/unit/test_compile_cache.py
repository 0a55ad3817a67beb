"""The compilation cache: a second start compiles nothing, says nothing, and computes the same."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from wm_collect.compile_cache import count_compilations, enable_compile_cache

SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def settings_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from jax.experimental.compilation_cache import compilation_cache

    for name in SETTINGS:
        monkeypatch.delenv(name.upper(), raising=False)
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_given_directory_is_used_and_every_program_is_kept(tmp_path: Path) -> None:
    assert enable_compile_cache(tmp_path / "new" / "cache") == tmp_path / "new" / "cache"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "new" / "cache")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert jax.config.jax_persistent_cache_min_entry_size_bytes == -1


def test_a_directory_the_user_set_is_left_alone(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "users own"))
    assert enable_compile_cache() == tmp_path / "users own"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "users own")


def test_a_threshold_the_user_set_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "7")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 7.0)
    enable_compile_cache(tmp_path)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 7


def test_the_default_lies_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert enable_compile_cache() == tmp_path / "wm" / "jax"


def test_a_cache_switched_off_stays_off(tmp_path: Path) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    assert enable_compile_cache(tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


def test_a_directory_that_cannot_be_written_is_an_error_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written: choose another directory"):
        enable_compile_cache(tmp_path / "file" / "cache")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert enable_compile_cache() is None


def test_compiled_and_loaded_programs_are_told_apart(tmp_path: Path) -> None:
    enable_compile_cache(tmp_path)

    def program(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 3

    x = jnp.arange(5.0)
    with count_compilations() as first:
        jax.jit(program)(x)
    jax.clear_caches()
    with count_compilations() as second:
        jax.jit(program)(x)
    with count_compilations() as third:
        pass
    assert (first.compiled, first.loaded) == (["jit(program)"], 0)
    assert (second.compiled, second.loaded) == ([], 1)
    assert (third.compiled, third.loaded) == ([], 0)


START = """
import sys
import jax, jax.numpy as jnp
from wm_collect.compile_cache import count_compilations, enable_compile_cache
from wm_collect.quiet import quiet_xla
enable_compile_cache(sys.argv[1])
with quiet_xla(), count_compilations() as counts:
    x = jax.random.normal(jax.random.key(0), (40, 40))
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, c: jnp.tanh(c @ c) + i / 3, x))
    y = step(x)
print(len(counts.compiled), counts.loaded, hash(y.tobytes()))
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing_says_nothing_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    results = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", START, str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        results.append(done.stdout.split())
    (compiled, loaded, first), (compiled_again, loaded_again, second) = results
    assert int(compiled) > 0 and int(loaded) == 0
    assert int(compiled_again) == 0 and int(loaded_again) == int(compiled)
    assert first == second
