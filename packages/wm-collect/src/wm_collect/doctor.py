"""Does the installation work? Versions, devices, right numbers, environments, folders.

`run_checks` makes all checks and lets none of them stop the others; `print_checks` shows them as
they end. A check is added by a function and a line in `CHECKS`.
"""

import contextlib
import dataclasses
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wm_collect import self_tests
from wm_collect.backends.mujoco_import import mujoco_imports
from wm_collect.compile_cache import enable_compile_cache
from wm_collect.environment import make_env
from wm_collect.quiet import quiet_xla
from wm_collect.render.physics import NoRendererError, open_renderer
from wm_collect.versions import installed_versions

Result = Literal["ok", "failed", "warning", "skipped", "info"]
_COLOURS = {"ok": "green", "failed": "red", "warning": "yellow", "skipped": "dim", "info": "cyan"}

# Rounding of float32 is 1e-7 at the size of a softmax's outputs; TF32 products err by 1e-4.
_ROUNDING = 1e-5
_LEAST_PRECISION = 1e-5


@dataclasses.dataclass(frozen=True)
class Check:
    """Outcome of one check.

    Attributes:
        name: what was checked.
        result: "ok"; "failed"; "warning", if it works but not as it might; "skipped", if there is
            nothing to check; or "info".
        detail: what was found and, where something is wrong, what to do.
    """

    name: str
    result: Result
    detail: str


def run_checks(on_result: Callable[[Check], None] | None = None) -> list[Check]:
    """Make all checks; takes about a minute, most of it compiling environments.

    The compilation cache is switched on, as it is when an agent trains.

    Args:
        on_result: called with each check as it ends.

    Returns:
        All checks. An exception within one is its failure.
    """
    done = []
    for name, examine in CHECKS.items():
        try:
            with quiet_xla(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other people's, about their own packages
                result, detail = examine()
        except Exception as error:  # whatever is broken, the other checks are wanted
            result, detail = "failed", f"{type(error).__name__}: {error}"
        check = Check(name, result, detail)
        done.append(check)
        if on_result is not None:
            on_result(check)
    return done


def print_checks(console: Console | None = None) -> int:
    """Make all checks, print each as it ends, and return an exit status.

    Args:
        console: where to; None is standard output.

    Returns:
        1 if a check failed, else 0.
    """
    console = console or Console(highlight=False)
    checks = run_checks(lambda check: console.print(_line(check)))
    failed = [check.name for check in checks if check.result == "failed"]
    if failed:
        console.print(f"\nFailed: {', '.join(failed)}.", style="red")
        return 1
    console.print("\nEverything that is needed works.", style="green")
    return 0


def _line(check: Check) -> Table:
    """Return one line of the table, which is printed line by line."""
    line = Table.grid(padding=(0, 2))
    line.add_column(width=max(map(len, CHECKS), default=0), no_wrap=True)
    line.add_column(width=len("warning"), style=_COLOURS[check.result], no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(Text(check.name), check.result, Text(check.detail))
    return line


def _versions() -> tuple[Result, str]:
    listed = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    found = jax.__version_info__
    if found == self_tests.WRONG_JAX:
        return "failed", (
            f"jax {jax.__version__} silently computes wrong numbers on the CPU; install another "
            f'release: pip install "jax!={jax.__version__}". Found: {listed}.'
        )
    if found < self_tests.OLDEST_JAX:
        oldest = ".".join(map(str, self_tests.OLDEST_JAX))
        return "failed", (
            f"jax {jax.__version__} is older than {oldest}, the oldest release that is tested: "
            f'pip install --upgrade "jax>={oldest}". Found: {listed}.'
        )
    return "ok", listed


def _devices() -> tuple[Result, str]:
    return "ok", "; ".join(_described(device) for device in jax.local_devices())


def _described(device: jax.Device) -> str:
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        limit = stats["bytes_limit"]
        in_use = stats.get("bytes_in_use", 0) / 2**30
        memory = f"{limit / 2**30:.1f} GiB for JAX, {in_use:.1f} of it in use"
    elif device.platform == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = f"{os.cpu_count()} cores, {size / 2**30:.1f} GiB of memory in the machine"
    else:
        memory = "memory not told"
    return f"{device.platform} {device.id} ({device.device_kind}): {memory}"


def _small_matrices() -> tuple[Result, str]:
    try:
        error = self_tests.small_matrix_error()
    except RuntimeError as no_cpu:
        return "skipped", f"JAX has no CPU backend here ({no_cpu})"
    return _judged(error, 1e-4, "batched 3 × 3 products on the CPU")


def _jit() -> tuple[Result, str]:
    return _judged(self_tests.jit_error(), _ROUNDING, "a compiled network against the same eager")


def _vmap() -> tuple[Result, str]:
    return _judged(self_tests.vmap_error(), _ROUNDING, "a vmapped network against single inputs")


def _sharding() -> tuple[Result, str]:
    error = self_tests.sharding_error()
    if error is None:
        return "skipped", "there is one device only"
    return _judged(error, 8 * _ROUNDING, f"{jax.local_device_count()} devices against one")


def _judged(error: float, limit: float, what: str) -> tuple[Result, str]:
    if error <= limit:
        return "ok", f"{what}: largest difference {error:.1e}"
    return "failed", (
        f"{what}: they differ by {error:.1e}, more than {limit:.0e}. This installation computes "
        f"wrong numbers; install another release of jax and jaxlib, or update the GPU's driver."
    )


def _two_hot() -> tuple[Result, str]:
    found = self_tests.two_hot_at_zero()
    text = ", ".join(f"{name} {value}" for name, value in found.items())
    if any(found.values()):
        return "failed", f"equal logits must decode to exactly 0, but give {text}"
    return "ok", f"equal logits decode to exactly 0: {text}"


def _matmul() -> tuple[Result, str]:
    error = self_tests.matmul_error()
    text = f"relative error of a float32 matrix product: {error:.1e}"
    if error <= _LEAST_PRECISION:
        return "ok", text
    return "warning", (
        f"{text}, which is less precise than float32 (TF32 or bfloat16, faster). Set "
        f"JAX_DEFAULT_MATMUL_PRECISION=highest for results as on a CPU."
    )


def _environment(
    env_id: str, module: str | None = None, extra: str | None = None
) -> Callable[[], tuple[Result, str]]:
    """Return the check of one library by one of its environments."""

    def examine() -> tuple[Result, str]:
        if module is not None and importlib.util.find_spec(module) is None:
            return "skipped", f'not installed: pip install "wm-collect[{extra}]"'
        env = make_env(env_id)

        @jax.jit
        def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            state, _ = env.reset(key)
            moved = env.step(key, state, jnp.zeros(env.spec.action_dim, jnp.float32))
            return moved.obs, moved.reward

        obs, reward = run(jax.random.key(0))
        if not (np.isfinite(obs).all() and np.isfinite(reward)):
            return "failed", f"a step of {env_id} gave obs {obs} and reward {reward}"
        return "ok", f"{env_id} resets and steps"

    return examine


def _compile_cache() -> tuple[Result, str]:
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return "info", "switched off by JAX_ENABLE_COMPILATION_CACHE"
    folder = enable_compile_cache()
    chosen = settings.jax_compilation_cache_dir
    if folder is None and chosen and "://" in chosen:
        return "info", f"kept in {chosen}"
    if folder is not None:
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder):
            return "ok", str(folder)
    return "warning", (
        f"{folder or chosen or 'the default folder'} cannot be written, so every start compiles "
        f"again; set JAX_COMPILATION_CACHE_DIR to a folder that can."
    )


def _rendering() -> tuple[Result, str]:
    if importlib.util.find_spec("mujoco") is None:
        return "info", "MuJoCo is not installed; Gymnax needs no renderer"
    with mujoco_imports():
        import mujoco

        try:
            open_renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 16, 16).close()
        except NoRendererError as error:
            return "info", f"{error} Until then Brax and Playground are drawn as curves."
    return "info", f"MuJoCo draws, with MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')}"


CHECKS: dict[str, Callable[[], tuple[Result, str]]] = {
    "versions": _versions,
    "devices": _devices,
    "compile cache": _compile_cache,
    "small matrices": _small_matrices,
    "jit": _jit,
    "vmap": _vmap,
    "sharding": _sharding,
    "two-hot": _two_hot,
    "matmul precision": _matmul,
    "gymnax": _environment("Pendulum-v1"),
    "brax": _environment("inverted_pendulum", "brax", "brax"),
    "playground": _environment("CartpoleBalance", "mujoco_playground", "playground"),
    "rendering": _rendering,
}
"""All checks by name, in the order in which they are made."""
