"""The optimiser against danijar/dreamerv3@29eb964, dreamerv3/jaxutils.py, `Optimizer`.

`numerics.npz` holds five updates of a few tensors on given gradients: zero and zero-initialised
ones, tiny, huge and clipped ones, and gradients whose squares underflow. `train_*.npz` holds the
gradients of whole agents at chained updates; fed to our optimiser, they must lead through the
recorded parameters, which were made by one optimiser over all networks.

Nothing but rounding may differ, and each bound below counts roundings. Not covered: components
whose squares are subnormal numbers, which devices treat differently; none is recorded.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wm_dreamer.optimizer import laprop, optimizer_of

from .recordings import config, load

ROUNDING = 2.0**-24


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What was recorded of an optimiser, by update, and what ours makes of the same gradients.

    Attributes:
        learning_rate, beta1, warmup: of both.
        gradients, directions, params, counts, norms: recorded, one entry per update; a direction
            is what the step size multiplies, parameters and counts are those after the update.
        nu, mu: the recorded averages, by the update (from 1) they were recorded after.
        ours: our parameters, state and steps after each update.
    """

    learning_rate: float
    beta1: float
    warmup: int
    gradients: list[dict]
    directions: list[dict]
    params: list[dict]
    counts: list[np.ndarray]
    norms: list[dict]
    nu: dict[int, dict]
    mu: dict[int, dict]
    ours: list[tuple]

    @property
    def factors(self):
        return [min(u / self.warmup, 1.0) if self.warmup else 1.0 for u in range(len(self.params))]


def repeat(optimizer, params, gradients):
    """Return our parameters, state and steps after each update."""

    @jax.jit
    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, updates

    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params)
    ours = []
    for g in gradients:
        params, state, updates = step(params, state, g)
        ours.append((params, state, updates))
    return ours


def updates_of(group):
    """Return the numbers of the updates, from 1, by which a group's arrays are named."""
    return range(1, len({name.split("/")[0] for name in group}) + 1)


def norms_of(metrics, prefix):
    return {name: metrics[f"{prefix}{name}_norm"] for name in ("grad", "update", "param")}


def directions_of(chain_updates, learning_rate):
    """The recorded chain ends with −learning_rate; the warm-up factor comes after it."""
    return [{k: v / -learning_rate for k, v in updates.items()} for updates in chain_updates]


@functools.cache
def on_given_gradients(path):
    recording = load(path)
    given = recording.meta["optimizer"]
    assert given["scaler"] == "rms" and given["momentum"] and given["schedule"] == "constant"
    assert not (given["wd"] or given["globclip"] or given["anneal"])
    same = {name: given[name] for name in ("agc", "beta1", "beta2", "eps", "warmup")}
    optimizer = laprop(given["lr"], agc_pmin=given["pmin"], **same)

    updates = updates_of(recording.group("opt/grads"))
    gradients = [recording.group(f"opt/grads/{t}") for t in updates]
    chained = [recording.group(f"opt/chain_updates/{t}") for t in updates]
    return Run(
        learning_rate=given["lr"],
        beta1=given["beta1"],
        warmup=given["warmup"],
        gradients=gradients,
        directions=directions_of(chained, given["lr"]),
        params=[recording.group(f"opt/params/{t}") for t in updates],
        counts=[recording[f"opt/step/{t}"] for t in updates],
        norms=[norms_of(recording.group(f"opt/metrics/{t}"), "") for t in updates],
        nu={t: recording.group(f"opt/nu/{t}") for t in updates},
        mu={t: recording.group(f"opt/mu/{t}") for t in updates},
        ours=repeat(optimizer, recording.group("opt/params/0"), gradients),
    )


@functools.cache
def in_a_whole_agent(path):
    recording = load(path)
    settings = config(recording)
    updates = updates_of(recording.group("out"))
    gradients = [recording.group(f"out/{t}/grad") for t in updates]
    chained = [recording.group(f"out/{t}/update") for t in updates]
    states = [recording.params_after(t) for t in (0, *updates)]

    def of_trained(state, prefix=""):
        return {name: state[prefix + name] for name in gradients[0]}

    return Run(
        learning_rate=settings.learning_rate,
        beta1=settings.beta1,
        warmup=settings.warmup,
        gradients=gradients,
        directions=directions_of(chained, settings.learning_rate),
        params=[of_trained(state) for state in states[1:]],
        counts=[state["agent/opt/step/value"] for state in states[1:]],
        norms=[norms_of(recording.group(f"out/{t}/metric"), "opt_") for t in updates],
        nu={updates[-1]: of_trained(states[-1], "agent/opt/rms/nu/")},
        mu={updates[-1]: of_trained(states[-1], "agent/opt/momentum/mu/")},
        ours=repeat(optimizer_of(settings), of_trained(states[0]), gradients),
    )


def relative_error(size):
    """Bound of nu and of a normalised gradient, relative, for a tensor of `size` elements.

    A clip factor divides two norms. The order of their sums is free: `size` roundings add up like
    a random walk and the root halves them, which makes √size / 2 for each norm. Some twenty others
    follow: roots, squares, divisions, products, in both programs.
    """
    return (20 + np.sqrt(size)) * ROUNDING


def bounds(run, name):
    """Yield, per update, the bounds of mu, of the direction and of the parameters of a tensor.

    Those are sums that may cancel, so the bounds follow the size of what is added: of normalised
    gradients, which are recovered from consecutive momenta, and of steps.
    """
    mu = averaged = drift = 0.0
    for k, (directions, params) in enumerate(zip(run.directions, run.params, strict=True), 1):
        direction, correction = np.float64(directions[name]), 1 - run.beta1**k
        before, mu = mu, direction * correction
        normalised = np.abs(mu - run.beta1 * before) / (1 - run.beta1)
        averaged = run.beta1 * averaged + (1 - run.beta1) * normalised
        of_mu = relative_error(direction.size) * averaged
        of_direction = of_mu / correction + 8 * ROUNDING * np.abs(direction)
        factor = run.factors[k - 1]
        if factor:
            rounded = 2 * ROUNDING * np.abs(params[name])
            drift = drift + factor * run.learning_rate * of_direction + rounded
        yield of_mu, of_direction, drift


def assert_within(ours, theirs, bound, name):
    error = np.abs(np.asarray(ours, np.float64) - theirs)
    assert error.shape == np.shape(theirs), name
    excess = np.max(error - bound, initial=0.0)
    assert excess <= 0, f"{name}: {excess} above the bound; the largest error is {error.max()}"


class Checks:
    """What must hold of every recorded run; `read` makes the run from a file's path."""

    def test_parameters_after_every_update(self, recording):
        run = self.read(recording)
        for name in run.params[0]:
            for u, (_, _, bound) in enumerate(bounds(run, name)):
                assert_within(run.ours[u][0][name], run.params[u][name], bound, f"{name} at {u}")

    def test_steps_of_every_update(self, recording):
        run = self.read(recording)
        for name in run.params[0]:
            for u, (_, bound, _) in enumerate(bounds(run, name)):
                scale = run.factors[u] * run.learning_rate
                theirs = -scale * np.float64(run.directions[u][name])
                assert_within(run.ours[u][2][name], theirs, scale * bound, f"{name} at {u}")

    def test_averages(self, recording):
        run = self.read(recording)
        for t in run.nu:
            state = run.ours[t - 1][1][1]
            for name, nu in run.nu[t].items():
                assert_within(state.nu[name], nu, relative_error(nu.size) * nu, f"nu of {name}")
                of_mu, _, _ = list(bounds(run, name))[t - 1]
                assert_within(state.mu[name], run.mu[t][name], of_mu, f"mu of {name}")

    def test_counts(self, recording):
        run = self.read(recording)
        for (_, (_, averages, schedule), _), count in zip(run.ours, run.counts, strict=True):
            assert averages.count == schedule.count == count

    def test_norms_are_of_raw_gradients_whole_steps_and_parameters_after_the_update(
        self, recording
    ):
        run = self.read(recording)
        for g, (params, _, steps), theirs in zip(run.gradients, run.ours, run.norms, strict=True):
            for name, tree in (("grad", g), ("update", steps), ("param", params)):
                size = sum(leaf.size for leaf in jax.tree.leaves(tree))
                ours = optax.tree.norm(tree)
                np.testing.assert_allclose(ours, theirs[name], rtol=relative_error(size))


@pytest.mark.recordings("dreamerv3/numerics*.npz")
class TestGivenGradients(Checks):
    read = staticmethod(on_given_gradients)


@pytest.mark.recordings("dreamerv3/train_*.npz")
class TestWholeAgents(Checks):
    read = staticmethod(in_a_whole_agent)
