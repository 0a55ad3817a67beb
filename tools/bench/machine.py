"""What machine a benchmark ran on, and how fast it multiplies matrices."""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

_PEAK_SHAPES = ((512, 384, 384), (768, 512, 512), (512, 1024, 512), (1024, 1024, 1024))


def description() -> dict[str, Any]:
    """Return what identifies the machine and the software."""
    device = jax.devices()[0]
    return {
        "machine": _cpu_name() if device.platform == "cpu" else device.device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "platform": device.platform,
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def seconds_per_call(
    function: Callable[..., Any], *args: Any, budget_seconds: float = 3.0, least: int = 5
) -> list[float]:
    """Return the times of repeated calls after one call that is not counted."""
    jax.block_until_ready(function(*args))
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or time.perf_counter() - began < budget_seconds:
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return times


def matmul_peak_gflops() -> float:
    """Return the best rate of XLA's own float32 matrix product over a few shapes."""

    @jax.jit
    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    best = 0.0
    for n, k, m in _PEAK_SHAPES:
        a, b = jnp.ones((n, k)), jnp.ones((k, m))
        seconds = min(seconds_per_call(multiply, a, b, budget_seconds=0.5, least=20))
        best = max(best, 2e-9 * n * k * m / seconds)
    return best


def memory_gigabytes_per_second() -> float:
    """Return the rate at which XLA adds one to an array far larger than the caches, in place.

    Bytes read and bytes written both count.
    """
    n_bytes = 512 * 2**20

    @partial(jax.jit, donate_argnums=0)
    def add(a: jax.Array) -> jax.Array:
        return a + 1

    state = jnp.zeros(n_bytes // 4)
    times = []
    for _ in range(12):
        began = time.perf_counter()
        state = jax.block_until_ready(add(state))
        times.append(time.perf_counter() - began)
    return 2e-9 * n_bytes / min(times)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
