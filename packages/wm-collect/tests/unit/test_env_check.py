"""Each rule of `check_env` is broken by a tiny environment that breaks no other."""

import io
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from wm_collect import check_env, make_env
from wm_collect.testing import CounterEnv

from .line_environments import Line, ReadyLine, State, TimedLine
from .toy_environments import Box, GymnaxToy, Params


class NoInterface:
    def observe(self) -> int:
        return 0


class AutoResetWrapper(Line):
    """Has the name of a wrapper of Brax."""


class Branches(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action if state.obs[0] > 0 else -action)


class UsesNumpy(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, jnp.asarray(np.tanh(np.asarray(action))))


class CallsBack(Line):
    def step(self, state: State, action: jax.Array) -> State:
        place = jax.pure_callback(
            lambda x: x,
            jax.ShapeDtypeStruct((1,), jnp.float32),
            state.obs,
            vmap_method="sequential",
        )
        return super().step(state._replace(obs=place), action)


class Prints(Line):
    def step(self, state: State, action: jax.Array) -> State:
        jax.debug.callback(lambda x: None, state.obs)
        return super().step(state, action)


@jax.custom_batching.custom_vmap
def _one_at_a_time(x: jax.Array) -> jax.Array:
    return x


@_one_at_a_time.def_vmap
def _no_batches(axis_size: int, in_batched: Any, x: jax.Array) -> Any:
    raise NotImplementedError("no batches here")


@jax.custom_batching.custom_vmap
def _mixes_environments(x: jax.Array) -> jax.Array:
    return x


@_mixes_environments.def_vmap
def _mixed(axis_size: int, in_batched: Any, x: jax.Array) -> Any:
    return jnp.flip(x, axis=0), True


class NotVmappable(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, _one_at_a_time(action))


class Mixes(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state._replace(obs=_mixes_environments(state.obs)), action)


class DrawsWithNumpy(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action + np.random.default_rng().uniform(-0.1, 0.1))


class CountsOutside(Line):
    counter = itertools.count()

    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action)._replace(reward=jnp.float32(next(self.counter)))


class LeavesArraysBehind(Line):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        self.place = state.obs
        return state

    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state._replace(obs=self.place), action)


class ObservesTable(Line):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        return state._replace(obs=state.obs[None])

    def step(self, state: State, action: jax.Array) -> State:
        moved = super().step(state._replace(obs=state.obs[0]), action)
        return moved._replace(obs=moved.obs[None])


class GrowsObs(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        return moved._replace(obs=jnp.concatenate([moved.obs, moved.obs]))


class Float64Obs(ReadyLine):
    def reset(self, key: jax.Array) -> Any:
        state, _ = super().reset(key)
        return state, np.zeros(1)


class IntObs(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        return moved._replace(obs=jnp.sign(moved.obs).astype(jnp.int32))


class IntReward(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action)._replace(reward=jnp.int32(1))

    def reset(self, key: jax.Array) -> State:
        return super().reset(key)._replace(reward=jnp.int32(0))


class VectorReward(Line):
    def reset(self, key: jax.Array) -> State:
        return super().reset(key)._replace(reward=jnp.zeros(1))

    def step(self, state: State, action: jax.Array) -> State:
        moved = super().step(state, action)
        return moved._replace(reward=-jnp.abs(moved.obs))


class FloatFlags(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        return super().step(key, state, action)._replace(terminated=jnp.zeros(()))


class StateGrows(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        return moved._replace(state={"inner": moved.state})


class StateChangesType(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        moved.state.__dict__["steps"] = moved.state.steps * 1.0
        return moved


class RewardChangesType(Line):
    """Its state holds an int reward after a reset and a float one after a step."""

    def reset(self, key: jax.Array) -> State:
        return super().reset(key)._replace(reward=jnp.int32(0))


class SaysNothing(Line):
    terminates = None  # type: ignore[assignment]


class NoTimeLimit(Line):
    episode_length = None  # type: ignore[assignment]


class NeverTruncates(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        return super().step(key, state, action)._replace(truncated=jnp.array(False))


class EndsEarly(Line):
    def step(self, state: State, action: jax.Array) -> State:
        moved = super().step(state, action)
        return moved._replace(done=moved.obs[0] > 0.4)


class ClockTerminates(TimedLine):
    """Raises done at its time limit, as if the task were over."""

    terminates = False
    episode_length = 6

    def step(self, state: Any, action: jax.Array) -> Any:
        moved = super().step(state, action)
        return moved._replace(done=moved.time >= 6)


class UndeclaredClock(ClockTerminates):
    terminates = True
    episode_length = 20


class BothFlags(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        # Only some of the episodes terminate, and those at the time limit.
        return moved._replace(terminated=moved.truncated & (moved.obs[0] > 0))


class CachedReset(Line):
    def reset(self, key: jax.Array) -> State:
        return super().reset(jax.random.key(3))


class DeclaredCachedReset(CachedReset):
    reset_ignores_key = True


class RestoresFirst(TimedLine):
    """Goes back to the cached first state of the episode when it ends, as Brax's wrapper does."""

    def reset(self, key: jax.Array) -> Any:
        state = super().reset(key)
        return {"now": state, "first": state}

    def step(self, state: Any, action: jax.Array) -> Any:
        moved = super().step(state["now"], action)
        restored = jax.tree.map(
            lambda new, first: jnp.where(moved.done, first, new), moved, state["first"]
        )
        return {"now": restored._replace(reward=moved.reward, done=moved.done), **state}


class ResetsFromStepKey(ReadyLine):
    """Draws a new start from the step's key when an episode ends, as Gymnax's step does."""

    def __init__(self) -> None:
        super().__init__(terminates=True)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        done = moved.truncated
        fresh, fresh_obs = self.reset(key)
        state = jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, moved.state)
        return moved._replace(state=state, obs=jnp.where(done, fresh_obs, moved.obs))


class ResetsOneStepLate(ResetsFromStepKey):
    """Ignores the first action after an end, and starts anew instead."""

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = ReadyLine.step(self, key, state, action)
        over = state.steps >= self.spec.episode_length
        fresh, fresh_obs = self.reset(key)
        state = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, moved.state)
        return moved._replace(
            state=state,
            obs=jnp.where(over, fresh_obs, moved.obs),
            truncated=moved.truncated & ~over,
        )


class Far(TimedLine):
    """Leaves its starts behind, which a new start would not."""

    def step(self, state: Any, action: jax.Array) -> Any:
        return super().step(state, 5.0 + action)


class ResetsFromStateKey(Far):
    """Draws a new start from the key in its state when an episode ends."""

    def step(self, state: Any, action: jax.Array) -> Any:
        moved = super().step(state, action)
        fresh = self.reset(jax.random.fold_in(state.key, 1))
        chosen = jax.tree.map(lambda a, b: jnp.where(moved.done, a, b), fresh, moved)
        return chosen._replace(done=moved.done)


class NanReward(Line):
    def step(self, state: State, action: jax.Array) -> State:
        moved = super().step(state, action)
        return moved._replace(reward=jnp.log(moved.obs[0]))


class InfiniteObs(Line):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action)._replace(obs=1 / jnp.zeros(1))


class MendedToy(GymnaxToy):
    """The toy's own broken habits, mended."""

    def reset_env(self, key: jax.Array, params: Params) -> Any:
        obs, state = super().reset_env(key, params)
        return obs, {**state, "last": 0.0}

    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> Any:
        obs, state, _, *rest = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(1), *rest


class InvertedBox(MendedToy):
    def action_space(self, params: Params) -> Box:
        return Box(1.0, -1.0, (1,))


class NoBox(MendedToy):
    def action_space(self, params: Params) -> Any:
        return "two buttons"


class UnboundedBox(MendedToy):
    def action_space(self, params: Params) -> Box:
        return Box(-np.inf, np.inf, (1,))


class NoClip(ReadyLine):
    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        moved = super().step(key, state, action)
        return moved._replace(reward=moved.reward - jnp.abs(action[0]))


BROKEN = [
    (NoInterface, "interface", "error", "action_size"),
    (AutoResetWrapper, "interface", "error", "bare environment"),
    (Branches, "jittable", "error", "jnp.where"),
    (UsesNumpy, "jittable", "error", "jax.numpy"),
    (CallsBack, "host-callback", "error", "pure_callback"),
    (Prints, "host-callback", "warning", "jax.debug"),
    (NotVmappable, "vmappable", "error", "no batches here"),
    (Mixes, "vmappable", "error", "other results than alone"),
    (DrawsWithNumpy, "pure", "error", "numpy.random"),
    (CountsOutside, "pure", "error", "keep counters in the state"),
    (LeavesArraysBehind, "pure", "error", "left behind"),
    (ObservesTable, "obs-shape", "error", "(1, 1)"),
    (GrowsObs, "obs-shape", "error", "(2,) after a step"),
    (lambda: ReadyLine(obs_dim=3), "obs-shape", "error", "spec.obs_dim is 3"),
    (Float64Obs, "obs-dtype", "error", "float64 observations (a NumPy array)"),
    (IntObs, "obs-dtype", "error", "step returns int32"),
    (IntReward, "reward-dtype", "warning", "int32 rewards"),
    (VectorReward, "scalars", "error", "reward[0]"),
    (FloatFlags, "flag-dtype", "error", "terminated is float32"),
    (StateGrows, "state-structure", "error", "same fields from both"),
    (StateChangesType, "state-dtype", "error", ".steps of the state is int32 after a reset"),
    (RewardChangesType, "state-dtype", "warning", ".reward of the state is int32"),
    (SaysNothing, "terminates-unknown", "error", "terminates=True or terminates=False"),
    (NoTimeLimit, "time-limit", "error", "episode_length"),
    (NeverTruncates, "time-limit", "error", "truncated = steps >= 6"),
    (EndsEarly, "early-end", "error", "Declare terminates=True"),
    (ClockTerminates, "time-limit-as-termination", "error", "exactly 6 agent steps"),
    (UndeclaredClock, "time-limit-as-termination", "warning", "exactly 6 agent steps"),
    (CachedReset, "reset-ignores-key", "error", "same state for different keys"),
    (DeclaredCachedReset, "reset-ignores-key", "warning", "as is declared"),
    (ResetsFromStepKey, "auto-reset", "error", "the step that ends an episode"),
    (ResetsOneStepLate, "auto-reset", "error", "the step after an end"),
    (ResetsFromStateKey, "auto-reset", "error", "the step that ends an episode"),
    (NanReward, "finite", "error", "The reward was NaN or infinite after step"),
    (InfiniteObs, "finite", "error", "The observation was NaN or infinite after step 1"),
    (InvertedBox, "action-bounds", "error", "[1.0, -1.0]"),
    (NoBox, "action-bounds", "error", "two buttons"),
    (UnboundedBox, "action-bounds", "warning", "no finite bounds"),
    (lambda: ReadyLine(action_low=()), "action-bounds", "error", "action_low=()"),
    (lambda: ReadyLine(action_low=(2.0,)), "action-bounds", "error", "action_low=(2.0,)"),
    (NoClip, "action-clipping", "warning", "jnp.clip"),
    (lambda: BothFlags(terminates=True), "both-flags", "error", "truncated & ~terminated"),
]


@pytest.mark.parametrize(
    ("make", "rule", "severity", "words"),
    BROKEN,
    ids=[f"{rule}-{make.__name__}" for make, rule, *_ in BROKEN],
)
def test_a_broken_rule_is_found_and_no_other(
    make: Any, rule: str, severity: str, words: str
) -> None:
    report = check_env(make())
    assert [(f.severity, f.rule) for f in report.findings] == [(severity, rule)]
    assert words in report.findings[0].message
    assert report.ok == (severity == "warning")


@pytest.mark.parametrize(
    "env",
    [
        Line(),
        TimedLine(),
        Far(),
        ReadyLine(),
        MendedToy(),
        make_env(Line(), action_repeat=2),
        CounterEnv([3, 5, 4], terminates=[True, False, True]),
        "CartPole-v1",
        "Pendulum-v1",
    ],
    ids=lambda env: env if isinstance(env, str) else type(env).__name__,
)
def test_a_good_environment_has_no_errors(env: Any) -> None:
    report = check_env(env, n_steps=60 if isinstance(env, str) else None)
    report.raise_if_bad()
    assert report.n_steps > 0
    # The counter records actions as they come, and says so; the short run cannot see the limits.
    assert {f.rule for f in report.findings} <= {"action-clipping", "too-few-steps"}


def test_all_findings_are_reported_errors_first_and_shown() -> None:
    class Bad(EndsEarly):
        terminates = None  # type: ignore[assignment]

        def reset(self, key: jax.Array) -> State:
            return State(jnp.zeros(1), jnp.int32(0), jnp.array(False))

    report = check_env(Bad())
    assert [f.rule for f in report.findings] == [
        "terminates-unknown",
        "reset-ignores-key",
        "state-dtype",
    ]
    with pytest.raises(ValueError, match=r"'Bad' breaks rules(.|\n)*reset-ignores-key: ") as error:
        report.raise_if_bad()
    assert "state-dtype" not in str(error.value)

    console = Console(width=200, file=io.StringIO())
    report.print(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f.rule in shown and f.severity in shown for f in report.findings)


def test_too_few_steps_are_said_and_refused() -> None:
    (finding,) = check_env(Line(), n_steps=3).findings
    assert (finding.severity, finding.rule) == ("warning", "too-few-steps")
    assert "n_steps=8" in finding.message
    with pytest.raises(ValueError, match="n_steps must be at least 1"):
        check_env(Line(), n_steps=0)


def test_arguments_of_make_env_are_taken() -> None:
    assert check_env(SaysNothing(), terminates=False).ok
    assert check_env(NoTimeLimit(), episode_length=6).n_steps == 8
    with pytest.raises(ValueError, match="Unknown environment id"):
        check_env("Pendulum-v2")


def test_float64_shows_when_it_is_switched_on() -> None:
    class Doubles(Line):
        def reset(self, key: jax.Array) -> State:
            state = super().reset(key)
            return state._replace(obs=state.obs.astype(float), reward=jnp.float32(0))

        def step(self, state: State, action: jax.Array) -> State:
            moved = super().step(state, action)
            return moved._replace(reward=moved.reward.astype(jnp.float32))

    with jax.enable_x64(True):
        rules = [f.rule for f in check_env(Doubles()).findings]
    assert rules == ["obs-dtype"]
