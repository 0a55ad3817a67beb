"""`check_env`: run an environment as an agent would, and say in sentences what breaks the rules."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from wm_collect.compile_cache import enable_compile_cache
from wm_collect.env_check import running
from wm_collect.env_check.given import Given, look_at
from wm_collect.env_check.report import EnvReport, Finding
from wm_collect.env_check.resets import resets_itself
from wm_collect.env_check.running import Episodes
from wm_collect.env_check.tracing import trace
from wm_collect.environment import Environment
from wm_collect.quiet import quiet_xla

# Enough for one episode of every environment of the libraries.
_MOST_STEPS = 2000
# After these errors there is no program to run.
_BLOCKING = frozenset(
    {
        "flag-dtype",
        "host-callback",
        "interface",
        "jittable",
        "obs-shape",
        "pure",
        "scalars",
        "state-structure",
        "vmappable",
    }
)


def check_env(
    env: str | Any,
    *,
    n_steps: int | None = None,
    seed: int = 0,
    episode_length: int | None = None,
    env_params: Any = None,
    terminates: bool | None = None,
) -> EnvReport:
    """Check that an environment keeps the rules on which collection and training rely.

    The functions are traced as they were given, before `make_env` converts, counts and clips; then
    a few episodes with random actions are run as an agent would run them.

    Args:
        env: whatever `make_env` takes.
        n_steps: agent steps of each episode that is run; None for one whole episode, at most 2000.
        seed: draws resets, steps and actions.
        episode_length: as for `make_env`.
        env_params: as for `make_env`.
        terminates: as for `make_env`.

    Returns:
        All findings, errors first. See `docs/environments.md` for the rules.

    Raises:
        ModuleNotFoundError: the environment's library is not installed.
        ValueError: there is no such id, or an argument does not suit it.
    """
    if n_steps is not None and n_steps < 1:
        raise ValueError(f"n_steps must be at least 1, got {n_steps}.")
    enable_compile_cache()
    options = {
        "episode_length": episode_length,
        "env_params": env_params,
        "terminates": terminates,
    }
    name, given, findings = look_at(env, **options)
    n_run = 0
    if given is not None:
        with quiet_xla():
            found, n_run = _trace_and_run(given, n_steps, jax.random.key(seed))
        findings += found
    return EnvReport(
        env_id=name,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity)),
        n_steps=n_run,
        n_episodes=running.N_EPISODES if n_run else 0,
    )


def _trace_and_run(given: Given, n_steps: int | None, key: jax.Array) -> tuple[list[Finding], int]:
    findings = trace(given, given.adapt().spec if given.ready_made else None)
    blocking = [f for f in findings if f.severity == "error" and f.rule in _BLOCKING]
    # A ready-made environment goes into the loop as it is, so its state must keep its types.
    blocking += [f for f in findings if f.severity == "error" and f.rule == "state-dtype"]
    if blocking:
        return findings, 0
    try:
        env = given.adapt()
        time_limit = env.spec.episode_length
        # Two steps beyond the end show what an environment does there.
        n_run = min(time_limit + 2, _MOST_STEPS) if n_steps is None else n_steps
        episodes = running.run_episodes(env, n_run, key)
        if not given.of_library:  # physics compile for minutes, and their libraries test this
            findings += _purity(given, key)
        findings += _outcomes(env, given, episodes)
        findings += resets_itself(env, episodes, key)
        if given.ready_made and not env.spec.discrete:
            findings += _clipping(env, key)
    except Exception as error:  # the environment's own code may raise anything
        message = f"Running it failed: {type(error).__name__}: {error}"
        return [*findings, Finding("error", "jittable", message)], 0
    return findings, n_run


def _purity(given: Given, key: jax.Array) -> Iterator[Finding]:
    """Compute the same reset and step three times: twice alone, and once beside another."""
    once, again = (running.reset_and_step(given, key) for _ in range(2))
    if not _all_equal(once, again):
        yield Finding(
            "error",
            "pure",
            "The same inputs gave different results when Python ran again. Draw random numbers "
            "from the key with jax.random, not with numpy.random or random, and keep counters in "
            "the state.",
        )
    elif not _all_close(once, running.reset_and_step_vmapped(given, key)):
        yield Finding(
            "error",
            "vmappable",
            "Under jax.vmap the same inputs give other results than alone; use operations that "
            "treat each environment by itself.",
        )


def _outcomes(env: Environment, given: Given, episodes: Episodes) -> Iterator[Finding]:
    """Look at what the episodes consisted of and how they ended."""
    yield from _not_finite(episodes)
    spec = env.spec
    if not episodes.resets_vary:
        if spec.reset_ignores_key:
            yield Finding(
                "warning",
                "reset-ignores-key",
                "Every episode starts from the same state, as is declared: an agent sees less "
                "variety than with a start drawn from the key.",
            )
        else:
            yield Finding(
                "error",
                "reset-ignores-key",
                "reset gives the same state for different keys. Draw the start from the key (a "
                "wrapper that caches its first state does not), or declare "
                "reset_ignores_key=True if it is meant.",
            )
    yield from _ends(env, given, episodes)


def _not_finite(episodes: Episodes) -> Iterator[Finding]:
    """Look for the first observation or reward that is not a finite number."""
    counted = np.arange(len(episodes.obs))[:, None] <= episodes.ends
    bad_obs = ~np.isfinite(episodes.obs).all(-1) & counted
    bad_reward = ~np.isfinite(episodes.reward) & counted
    if not np.isfinite(episodes.reset_obs).all():
        yield _error("finite", "A reset returned an observation that is NaN or infinite.")
    elif bad_obs.any() or bad_reward.any():
        # Where an observation is not finite, `make_env` has made the reward NaN as well.
        what, bad = ("observation", bad_obs) if bad_obs.any() else ("reward", bad_reward)
        step = int(bad.any(1).argmax()) + 1
        yield _error(
            "finite",
            f"The {what} was NaN or infinite after step {step}; guard divisions, logarithms and "
            f"square roots, and keep the simulation stable.",
        )


def _ends(env: Environment, given: Given, episodes: Episodes) -> Iterator[Finding]:
    """Compare when and how episodes ended with what is declared."""
    spec, ends, n_run = env.spec, episodes.ends, len(episodes.obs)
    ended = ends < n_run
    lengths = ends[ended] + 1
    lanes = np.flatnonzero(ended)
    terminated = episodes.terminated[ends[ended], lanes]
    truncated = episodes.truncated[ends[ended], lanes]
    limit = spec.episode_length
    if given.ready_made and (terminated & truncated).any():
        yield _error(
            "both-flags",
            "terminated and truncated were true on the same step. Where both happen, it is a "
            "termination: set truncated = truncated & ~terminated.",
        )
    if (lengths > limit).any() or (n_run >= limit and (~ended).any()):
        yield _error(
            "time-limit",
            f"An episode went on after its time limit of {limit} agent steps. Set truncated = "
            f"steps >= {limit}, with the steps counted in the state.",
        )
    elif n_run < limit and (~ended).any():
        yield Finding(
            "warning",
            "too-few-steps",
            f"The time limit of {limit} agent steps was not reached in {n_run} steps, so what "
            f"happens there was not seen; check with n_steps={limit + 2}.",
        )
    early = lengths < limit
    if not spec.terminates and early.any():
        how = "terminated" if terminated[early.argmax()] else "was truncated"
        yield _error(
            "early-end",
            f"terminates=False promises {limit} agent steps for every episode, but one {how} "
            f"after {lengths[early].min()}. Declare terminates=True, or correct episode_length.",
        )
    elif not spec.terminates and terminated.any():
        yield _error("time-limit-as-termination", _limit_as_termination(limit))
    elif terminated.all() and len(lengths) > 1 and len(np.unique(lengths)) == 1:
        yield Finding(
            "warning", "time-limit-as-termination", _limit_as_termination(int(lengths[0]))
        )


def _limit_as_termination(steps: int) -> str:
    return (
        f"Every episode terminated after exactly {steps} agent steps. If that is a time limit, "
        f"declare it as episode_length and leave done false there: the value of what comes after "
        f"a termination is taken to be 0."
    )


def _clipping(env: Environment, key: jax.Array) -> Iterator[Finding]:
    at_bounds, beyond = running.step_at_and_beyond_the_bounds(env, key)
    if not _all_equal(at_bounds, beyond):
        yield Finding(
            "warning",
            "action-clipping",
            "Actions outside [-1, 1] act differently from those at the bounds, and an agent may "
            "choose them. Begin step with action = jnp.clip(action, -1, 1).",
        )


def _all_equal(one: Any, other: Any) -> bool:
    return _compared(one, other, lambda a, b: np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _all_close(one: Any, other: Any) -> bool:
    def close(a: np.ndarray, b: np.ndarray) -> bool:
        # Contacts and iterative solvers magnify the rounding of batched kernels.
        return np.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)

    return _compared(one, other, close)


def _compared(one: Any, other: Any, same: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(same(a, b) for a, b in pairs)


def _error(rule: str, message: str) -> Finding:
    return Finding("error", rule, message)
