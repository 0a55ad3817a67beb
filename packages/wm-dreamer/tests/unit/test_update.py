"""One update: what moves and what does not, the slow critic, the one optimiser, and its program."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wm_dreamer.losses import loss, scales, sequences
from wm_dreamer.optimizer import optimizer_of
from wm_dreamer.update import METRIC_NAMES, slow_update, update

from .tiny import (
    CONFIG,
    assert_trees_close,
    assert_trees_equal,
    fresh_learner,
    leaves_by_path,
    losses_and_gradients,
    make_config,
    moved_learner,
    random_batch,
    random_noise,
    update_program,
)

T, B, H = CONFIG.batch_length, CONFIG.batch_size, CONFIG.imag_horizon
N = T * B
WORLD_MODEL = ("encoder", "rssm", "decoder", "reward", "continue")


def step(learner, seed=0):
    return update_program()(learner, random_batch(seed), random_noise(seed))


@pytest.fixture(scope="module")
def chain():
    """A learner off its start and the results of two updates."""
    before = moved_learner()
    first = step(before)
    second = step(first[0], seed=1)
    return before, first, second


# --- what moves -----------------------------------------------------------------------------------


def test_the_first_update_leaves_parameters_and_moves_everything_else(chain):
    before, (after, _, metrics), _ = chain
    assert_trees_equal(after.params, before.params)
    assert metrics["Train/update_norm"] == 0
    averages = after.opt_state[1]
    assert averages.count == 1 and after.updates == 1
    for tree in (averages.mu, averages.nu):
        assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(tree))
    assert after.retnorm.low != before.retnorm.low and after.retnorm.high != before.retnorm.high


def test_the_second_update_moves_every_parameter(chain):
    _, (before, _, _), (after, _, _) = chain
    old, new = leaves_by_path(before.params), leaves_by_path(after.params)
    for path in old:
        assert np.any(old[path] != new[path]), path
    assert after.updates == 2


def test_the_slow_critic_is_copied_once_and_then_follows(chain):
    _, (first, _, _), (second, _, _) = chain
    assert_trees_equal(first.slow_critic, first.params["critic"])
    expected = jax.tree.map(
        lambda slow, critic: 0.98 * slow + 0.02 * critic,
        first.slow_critic,
        second.params["critic"],
    )
    assert_trees_close(second.slow_critic, expected, 1e-6)
    assert not np.array_equal(
        second.slow_critic["out"]["kernel"], second.params["critic"]["out"]["kernel"]
    )


def test_slow_update_alone():
    slow, critic = {"w": jnp.array([0.0, 10.0])}, {"w": jnp.array([100.0, -10.0])}
    copied = slow_update(slow, critic, jnp.int32(0), config=CONFIG)
    np.testing.assert_array_equal(copied["w"], critic["w"])
    for updates in (1, 5):
        mixed = slow_update(slow, critic, jnp.int32(updates), config=CONFIG)
        np.testing.assert_allclose(mixed["w"], [2.0, 9.6], rtol=1e-6)
    faster = slow_update(slow, critic, jnp.int32(1), config=make_config(slow_rate=0.5))
    np.testing.assert_allclose(faster["w"], [50.0, 0.0], atol=1e-6)


def test_a_fresh_agent_after_its_first_update():
    after, _, metrics = step(fresh_learner())
    assert_trees_equal(after.params, fresh_learner().params)
    assert_trees_equal(after.slow_critic, after.params["critic"])
    for name in ("imagined_return", "value", "td_error", "advantage"):
        assert metrics[f"Train/{name}"] == 0
    assert metrics["Train/retnorm_scale"] == 1
    np.testing.assert_allclose(metrics["reward"], np.log(255), rtol=1e-6)


def test_written_latents_are_the_posterior_before_the_step(chain):
    _, (learner, _, _), (_, written, _) = chain
    _, outputs, _ = losses_and_gradients(learner, random_batch(1), random_noise(1))
    observed = outputs.world_model.observed
    assert written.deter.shape == (B, T, CONFIG.deter)
    assert written.stoch.shape == (B, T, CONFIG.stoch) and written.stoch.dtype == np.int32
    np.testing.assert_allclose(written.deter, np.swapaxes(observed.deter, 0, 1), atol=1e-6)
    np.testing.assert_array_equal(written.stoch, np.swapaxes(observed.classes, 0, 1))


def test_an_update_keeps_structure_shapes_and_dtypes(chain):
    before, (after, _, _), _ = chain
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert old.shape == new.shape and old.dtype == new.dtype


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_have_their_names(chain):
    _, (_, _, metrics), _ = chain
    assert set(metrics) == set(METRIC_NAMES) and len(METRIC_NAMES) == len(set(METRIC_NAMES))
    assert all(value.shape == () and np.isfinite(value) for value in metrics.values())


def test_reported_terms_are_unscaled_and_recombine(chain):
    _, (_, _, metrics), _ = chain
    reported = {"cont": "continue"}
    total = sum(
        factor * metrics[reported.get(name, name)] for name, factor in scales(CONFIG).items()
    )
    np.testing.assert_allclose(metrics["total"], total, rtol=1e-6)
    np.testing.assert_allclose(metrics["dyn"], metrics["rep"], rtol=1e-6)


def test_metrics_are_means_and_norms_of_what_the_loss_computes(chain):
    before, (_, _, metrics), (after, _, second) = chain
    total, outputs, gradients = losses_and_gradients(before)
    behavior, data = outputs.behavior, sequences(random_batch(), config=CONFIG)
    # Statistics are over the states 0 to H; the start's reward and continuation are the data's.
    rewards = np.concatenate([data.reward.reshape(1, -1), behavior.reward])
    cont = np.concatenate([1 - data.is_terminal.reshape(1, -1), behavior.cont])
    expected = {
        "total": total,
        "Train/grad_norm": optax.tree.norm(gradients),
        "Train/imagined_reward": rewards.mean(),
        "Train/imagined_return": np.mean(behavior.returns),
        "Train/replay_return": np.mean(outputs.replay_returns),
        "Train/value": np.mean(behavior.value),
        "Train/td_error": np.mean(np.abs(behavior.returns - behavior.value[:-1])),
        "Train/advantage": np.mean(outputs.advantage),
        "Train/weight": np.cumprod(cont, axis=0).mean(),
        "Train/policy_entropy": np.mean(behavior.policy.entropy()),
        "Train/retnorm_low": outputs.retnorm.low,
        "Train/retnorm_high": outputs.retnorm.high,
        "Train/retnorm_scale": max(1.0, outputs.retnorm.high - outputs.retnorm.low),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    log_classes = CONFIG.stoch * np.log(CONFIG.classes)
    for name in ("Train/prior_entropy", "Train/posterior_entropy"):
        assert 0 < metrics[name] < log_classes
    norm = optax.tree.norm(after.params)
    np.testing.assert_allclose(second["Train/param_norm"], norm, rtol=1e-5)


# --- the one optimiser ----------------------------------------------------------------------------

FAST = make_config(learning_rate=0.01, warmup=0)


def parts_of(tree):
    """World model, actor and critic."""
    return [{m: tree[m] for m in ms} for ms in (WORLD_MODEL, ("actor",), ("critic",))]


@functools.cache
def optimizer_program():
    """One step of the joint optimiser, and of three that know one network each."""
    optimizer = optimizer_of(FAST)

    def one(gradients, state, params):
        steps, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, steps), state

    @jax.jit
    def both(gradients, params, state, states):
        joint = one(gradients, state, params)
        apart = [one(*x) for x in zip(parts_of(gradients), states, parts_of(params), strict=True)]
        return joint, apart

    def start(params):
        return optimizer.init(params), [optimizer.init(part) for part in parts_of(params)]

    return start, both


def test_one_optimiser_equals_three_with_equal_counters():
    start, both = optimizer_program()
    learner = moved_learner()
    joint = apart = learner.params
    state, states = start(learner.params)
    for seed in range(3):
        _, _, gradients = losses_and_gradients(
            learner.replace(params=joint), random_batch(seed), random_noise(seed)
        )
        (joint, state), results = both(gradients, joint, state, states)
        states = [s for _, s in results]
        apart = {name: tree for part, _ in results for name, tree in part.items()}
    for path, value in leaves_by_path(joint).items():
        other = np.asarray(leaves_by_path(apart)[path])
        np.testing.assert_array_max_ulp(np.asarray(value), other, maxulp=4)


def test_stepping_the_world_model_first_would_differ():
    """All gradients are taken at the parameters before the step."""
    start, both = optimizer_program()
    learner = moved_learner()
    state, states = start(learner.params)
    _, _, gradients = losses_and_gradients(learner)
    (joint, _), _ = both(gradients, learner.params, state, states)
    stepped = learner.params | {name: joint[name] for name in WORLD_MODEL}
    _, _, later = losses_and_gradients(learner.replace(params=stepped))
    mixed = gradients | {name: later[name] for name in ("actor", "critic")}
    (sequential, _), _ = both(mixed, learner.params, state, states)
    for name in ("actor", "critic"):
        difference = jax.tree.map(lambda a, b: np.abs(a - b).max(), joint[name], sequential[name])
        assert max(jax.tree.leaves(difference)) > 1e-3
    # `update` is the joint one: same directions, whatever the step size.
    after, _, _ = step(learner)
    expected = jax.tree.map(lambda mu: mu / 0.1, after.opt_state[1].mu)
    moved = jax.tree.map(lambda new, old: (old - new) / 0.01, joint, learner.params)
    assert_trees_close(moved, expected, 1e-3)


# --- the program ----------------------------------------------------------------------------------


def test_compiled_and_eager_agree():
    """The loss, whose outputs are everything an update computes forwards."""
    learner, data = moved_learner(), sequences(random_batch(), config=CONFIG)
    total, eager = loss(
        learner.params, learner.slow_critic, learner.retnorm, data, random_noise(), config=CONFIG
    )
    compiled_total, jitted, _ = losses_and_gradients()
    np.testing.assert_allclose(compiled_total, total, rtol=1e-5)
    assert_trees_close(jitted.terms, eager.terms, 2e-5)
    assert_trees_close(jitted.world_model.observed, eager.world_model.observed, 5e-6)
    assert_trees_close(jitted.behavior, eager.behavior, 2e-5)
    assert_trees_close(jitted.retnorm, eager.retnorm, 1e-5)


def test_two_seeds_at_once_equal_each_alone():
    inputs = [(moved_learner(seed=s), random_batch(s), random_noise(s)) for s in (1, 2)]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *inputs)
    together = jax.jit(jax.vmap(functools.partial(update, config=CONFIG)))(*stacked)
    for i, given in enumerate(inputs):
        (learner, written, metrics), (other, other_written, other_metrics) = (
            update_program()(*given),
            jax.tree.map(lambda x, i=i: x[i], together),
        )
        for name, value in metrics.items():
            np.testing.assert_allclose(
                other_metrics[name], value, rtol=2e-5, atol=1e-6, err_msg=name
            )
        np.testing.assert_allclose(other_written.deter, written.deter, atol=2e-6)
        np.testing.assert_array_equal(other_written.stoch, written.stoch)
        assert_trees_close(other.slow_critic, learner.slow_critic, 1e-6)
        nu, other_nu = learner.opt_state[1].nu, other.opt_state[1].nu
        assert_trees_close(other_nu, nu, 1e-4)


Loop = collections.namedtuple("Loop", ["length", "reverse", "sizes"])


def loops_of(jaxpr):
    """Yield every scan, with the number of elements of each array that enters or leaves a step."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            inner = equation.params["jaxpr"].jaxpr
            n_constants = equation.params["num_consts"]
            arrays = [*inner.invars[n_constants:], *inner.outvars]
            sizes = [int(np.prod(v.aval.shape)) for v in arrays]
            yield Loop(equation.params["length"], equation.params["reverse"], sizes)
        assert equation.primitive.name != "while"
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from loops_of(inner)


def test_imagination_is_not_differentiated():
    """The update's loops: observing there and back, imagining there, and the two returns.

    A reversed loop over imagined steps is allowed one number per start, which a return is; the
    backward pass of a rollout would carry whole states.
    """
    traced = jax.make_jaxpr(functools.partial(update, config=CONFIG))(
        moved_learner(), random_batch(), random_noise()
    )
    loops = list(loops_of(traced.jaxpr))
    found = collections.Counter((loop.length, loop.reverse) for loop in loops)
    assert len({T, H, T - 1}) == 3
    assert found == {
        (T, False): 1,
        (T, True): 1,
        (H, False): 1,
        (H, True): 1,
        (T - 1, True): 1,
    }
    (returns,) = [loop for loop in loops if (loop.length, loop.reverse) == (H, True)]
    assert max(returns.sizes) <= N
    (rollout,) = [loop for loop in loops if (loop.length, loop.reverse) == (H, False)]
    assert max(rollout.sizes) >= N * CONFIG.deter


def test_memory_grows_by_the_imagined_states_and_not_by_residuals():
    """With a wide recurrent state, a step's residuals would be several times the state itself.

    The block-diagonal core alone would keep its hidden layer and the gates, 4 D numbers per start.
    """
    sizes = dict(deter=512, hidden=4, units=4, stoch=2, classes=2, bins=5, blocks=8)
    layers = {f"{n}_layers": 1 for n in ("enc", "dec", "actor", "critic")}

    def temporary(horizon):
        config = make_config(**sizes, **layers, imag_horizon=horizon)
        learner = moved_learner(config)
        data, noise = (
            sequences(random_batch(config=config), config=config),
            random_noise(config=config),
        )

        def total(params):
            return loss(params, learner.slow_critic, learner.retnorm, data, noise, config=config)[0]

        program = jax.jit(jax.grad(total)).lower(learner.params).compile()
        return program.memory_analysis().temp_size_in_bytes

    few, many = temporary(4), temporary(44)
    per_step_and_start = (many - few) / (40 * N * 4)
    assert per_step_and_start < 2.5 * 512


# --- it learns ------------------------------------------------------------------------------------


def test_updates_fit_one_batch_better_and_better():
    learner, losses = fresh_learner(), []
    for i in range(60):
        learner, _, metrics = update_program()(learner, random_batch(), random_noise(i))
        losses.append(float(metrics["reconstruction"] + metrics["reward"] + metrics["continue"]))
    assert losses[-1] < 0.9 * losses[0]


# --- numbers that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["obs", "reward", "halted"])
def test_an_update_that_is_not_finite_or_halted_leaves_the_learner_as_it_is(broken):
    learner, batch = moved_learner(), random_batch(0)
    if broken != "halted":
        bad = jnp.asarray(getattr(batch, broken)).at[0, -1].set(jnp.nan)
        batch = batch._replace(**{broken: bad})
    program = jax.jit(functools.partial(update, config=CONFIG))
    after, _, metrics = program(learner, batch, random_noise(0), halted=broken == "halted")
    assert_trees_equal(after, learner)
    assert np.isfinite(metrics["total"]) == (broken == "halted")
