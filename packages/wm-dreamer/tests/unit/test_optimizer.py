"""The optimiser against its worked example and a float64 oracle written from its equations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_dreamer.config import DreamerV3Settings
from wm_dreamer.optimizer import (
    LaPropState,
    adaptive_gradient_clip,
    laprop,
    optimizer_of,
    scale_by_laprop,
    warmup_schedule,
)


def oracle(params, gradients, *, lr, warmup, agc=0.3, pmin=1e-3, b1=0.9, b2=0.999, eps=1e-20):
    """One tensor in float64: parameters, direction and normalised gradient after each update."""
    p = np.asarray(params, np.float64)
    m = v = np.zeros_like(p)
    all_params, directions, normalised = [], [], []
    for u, g in enumerate(np.asarray(gradients, np.float64)):
        allowed = agc * max(pmin, np.sqrt((p**2).sum()))
        g = g / max(1.0, np.sqrt((g**2).sum()) / allowed)
        v = b2 * v + (1 - b2) * g**2
        # The bias corrections are those of float32 on purpose, see scale_by_laprop.
        c1, c2 = (float(1 - np.float32(b) ** np.float32(u + 1)) for b in (b1, b2))
        normalised.append(g / (np.sqrt(v / c2) + eps))
        m = b1 * m + (1 - b1) * normalised[-1]
        directions.append(m / c1)
        p = p - lr * (min(u / warmup, 1) if warmup else 1) * directions[-1]
        all_params.append(p)
    return np.array(all_params), np.array(directions), np.array(normalised)


def run(optimizer, params, gradients_of_step, compile_step=jax.jit):
    """Return the parameters, the state and the updates after each step."""
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params)
    step = compile_step(optimizer.update)
    history = []
    for gradients in gradients_of_step:
        updates, state = step(jax.tree.map(jnp.asarray, gradients), state, params)
        params = optax.apply_updates(params, updates)
        history.append((params, state, updates))
    return history


def f32(*values):
    return jnp.asarray(values, jnp.float32)


WORKED_PARAMS = {"w": f32(3, 4), "b": f32(0, 0)}
WORKED_GRADIENTS = [
    {"w": f32(6, 8), "b": f32(1e-3, 0)},
    {"w": f32(-0.3, 0.4), "b": f32(0, 1e-4)},
    {"w": f32(0, 1), "b": f32(2e-4, -1e-4)},
]


def test_three_updates_worked_by_hand():
    directions = {
        "w": [(0.9999934, 0.9999934), (0.23826067, 0.7091013), (0.1503416, 0.84384596)],
        "b": [(0.9999934, 0), (0.473681, 0.7441294), (0.6534851, 0.01772218)],
    }
    history = run(laprop(4e-5, warmup=2), WORKED_PARAMS, WORKED_GRADIENTS)
    for u, (_, (_, state, _), _) in enumerate(history):
        for name in directions:
            direction = state.mu[name] / np.float32(1 - 0.9 ** (u + 1))
            # Absolute, because momentum may cancel normalised gradients of about 1.
            np.testing.assert_allclose(direction, directions[name][u], rtol=1e-6, atol=2e-7)
    params = history[-1][0]
    np.testing.assert_allclose(params["w"], [2.9999893, 3.999952], rtol=1e-7)
    np.testing.assert_allclose(params["b"], [-3.5613022e-5, -1.5591475e-5], rtol=2e-6)


def test_the_first_update_moves_no_parameter_but_advances_the_state():
    params, (_, state, schedule), _ = run(laprop(), WORKED_PARAMS, WORKED_GRADIENTS)[0]
    for name, before in WORKED_PARAMS.items():
        np.testing.assert_array_equal(params[name], before)
    assert state.count == schedule.count == 1
    assert state.count.dtype == jnp.int32
    # The clip left (0.9, 1.2) of the gradient: 0.3 of the norm 5 in the direction (6, 8).
    np.testing.assert_allclose(state.nu["w"], [0.81e-3, 1.44e-3], rtol=1e-6)
    np.testing.assert_allclose(state.mu["w"], [0.1, 0.1], rtol=1e-5)


def test_the_first_direction_shows_the_float32_bias_correction():
    """1 − 0.999 in float32 is 0.00099998712, not 0.001."""
    update = scale_by_laprop()
    direction, _ = update.update(f32(1.0), update.init(f32(0.0)))
    np.testing.assert_allclose(direction, 0.9999934, atol=6e-8)


def test_momentum_averages_normalised_gradients_which_is_not_adam():
    """After 1, 100: LaProp averages 1 and 1.41; Adam divides the average 53 by the RMS 71."""
    gradients = [f32(1.0), f32(100.0)]
    ours = run(scale_by_laprop(), f32(0.0), gradients)[-1][2]
    adam = run(optax.scale_by_adam(eps=1e-20), f32(0.0), gradients)[-1][2]
    np.testing.assert_allclose(
        ours, (0.09 + 0.1 * 100 / np.sqrt(10.000999 / 0.001999)) / 0.19, rtol=1e-5
    )
    assert abs(ours[0] - adam[0]) > 0.4


def test_a_zero_gradient_gives_a_zero_update():
    zeros = {"p": f32(0, 1)}
    history = run(laprop(warmup=0), zeros, [jax.tree.map(jnp.zeros_like, zeros)] * 3)
    for params, _, updates in history:
        np.testing.assert_array_equal(updates["p"], [0, 0])
        np.testing.assert_array_equal(params["p"], zeros["p"])


@pytest.mark.parametrize("size", [1e-6, 1e-10, 1e-14])
def test_tiny_gradients_are_normalised_like_others(size):
    _, _, updates = run(laprop(1.0, warmup=0), f32(0, 0), [size * f32(1, -2)])[0]
    np.testing.assert_allclose(updates, [-0.9999934, 0.9999934], rtol=2e-6)


def test_a_gradient_whose_square_underflows_is_divided_by_eps():
    _, state, direction = run(scale_by_laprop(), f32(1.0), [f32(1e-23)])[0]
    np.testing.assert_array_equal(state.nu, [0])
    np.testing.assert_allclose(direction, [1e-3], rtol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "parameter", "expected"),
    [
        ((30.0, 40.0), (3.0, 4.0), (0.9, 1.2)),  # 50 against 0.3 · 5
        ((0.9, 1.2), (3.0, 4.0), (0.9, 1.2)),  # exactly allowed
        ((3e-4, 4e-4), (0.0, 0.0), (1.8e-4, 2.4e-4)),  # 5e-4 against 0.3 · pmin
        ((1e-4, 0.0), (0.0, 0.0), (1e-4, 0.0)),
        ((1e-30, 0.0), (1.0, 1.0), (1e-30, 0.0)),  # the norm underflows
        ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_gradients_are_clipped_to_a_share_of_the_parameters_norm(gradient, parameter, expected):
    clip = adaptive_gradient_clip(0.3, 1e-3)
    clipped, _ = clip.update(f32(*gradient), clip.init(f32(*parameter)), f32(*parameter))
    np.testing.assert_allclose(clipped, expected, rtol=3e-7)


def test_the_norm_is_that_of_the_whole_tensor_whatever_its_rank():
    rng = np.random.default_rng(0)
    g, p = (rng.standard_normal(24).astype(np.float32) for _ in range(2))
    clip = adaptive_gradient_clip(0.1)
    flat, _ = clip.update(jnp.asarray(g), clip.init(p), jnp.asarray(p))
    for shape in [(24, 1), (4, 6), (2, 3, 4)]:
        cube, _ = clip.update(jnp.reshape(g, shape), clip.init(p), jnp.reshape(p, shape))
        np.testing.assert_allclose(np.ravel(cube), flat, rtol=3e-7)
    np.testing.assert_allclose(np.linalg.norm(flat), 0.1 * np.linalg.norm(p), rtol=1e-6)


def test_a_broken_gradient_stays_visible():
    clip = adaptive_gradient_clip()
    clipped, _ = clip.update(f32(np.nan, 1.0), clip.init(f32(1, 1)), f32(1, 1))
    assert np.isnan(clipped).all()


@pytest.mark.parametrize("optimizer", [adaptive_gradient_clip(), laprop()], ids=["clip", "laprop"])
def test_an_update_without_parameters_is_refused_with_a_sentence(optimizer):
    params = f32(1.0, 2.0)
    with pytest.raises(ValueError, match=r"compares gradients with parameters; call update\(") as e:
        optimizer.update(params, optimizer.init(params))
    assert str(e.value).endswith(".")


@pytest.mark.parametrize(
    ("count", "warmup", "expected"),
    [
        (0, 1000, 0.0),
        (1, 1000, 4e-8),
        (500, 1000, 2e-5),
        (1000, 1000, 4e-5),
        (10**6, 1000, 4e-5),
        (1, 3, 4e-5 / 3),
        (0, 0, 4e-5),
        (7, 0, 4e-5),
    ],
)
def test_the_step_size_rises_linearly_from_zero(count, warmup, expected):
    rate = warmup_schedule(4e-5, warmup)(jnp.int32(count))
    assert rate.dtype == jnp.float32
    np.testing.assert_allclose(rate, expected, rtol=2e-7)


def test_a_schedule_of_the_update_count_is_warmed_up_too():
    rate = warmup_schedule(optax.linear_schedule(1.0, 0.0, 10), warmup=4)
    rates = [float(rate(jnp.int32(u))) for u in range(6)]
    np.testing.assert_allclose(rates, [0, 0.9 / 4, 0.8 / 2, 0.7 * 3 / 4, 0.6, 0.5], rtol=1e-6)
    rate = optax.linear_schedule(1.0, 0.0, 10)
    history = run(laprop(rate, warmup=0), f32(10.0), [f32(1.0)] * 2)
    np.testing.assert_allclose(history[0][2], [-1.0], rtol=1e-5)
    np.testing.assert_allclose(history[1][2], [-0.9], rtol=1e-5)


def random_tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "enc": {"mlp0": {"kernel": (7, 5), "bias": (5,)}, "scale": (5,)},
        "actor": {"kernel": (2, 3, 4)},
        "critic": {"bias": (6,), "scalar": ()},
    }
    sizes = 10.0 ** rng.uniform(-8, 2, 6)
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda s: isinstance(s, tuple))
    drawn = [s * rng.standard_normal(shape) for s, shape in zip(sizes, leaves, strict=True)]
    return structure.unflatten([jnp.asarray(x, jnp.float32) for x in drawn])


def assert_trees_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_one_optimiser_for_each_network_makes_the_same_updates_as_one_for_all():
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, 5)]

    # Not compiled: two programs may round in another order, by a unit in the last place.
    def run_plainly(params, gradients):
        return run(laprop(1e-2, warmup=2), params, gradients, compile_step=lambda step: step)

    together = run_plainly(params, gradients)
    for name in params:
        alone = run_plainly(params[name], [g[name] for g in gradients])
        for (ours, ours_state, _), (all_params, state, _) in zip(alone, together, strict=True):
            assert_trees_equal(ours, all_params[name])
            assert_trees_equal(ours_state[1].nu, state[1].nu[name])
            assert_trees_equal(ours_state[1].mu, state[1].mu[name])
            assert ours_state[1].count == state[1].count


def test_state_and_updates_keep_the_tree_and_its_types():
    params = random_tree(0)
    optimizer = laprop()
    state = optimizer.init(params)
    updates, after = jax.eval_shape(optimizer.update, random_tree(1), state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    for tree, like in [(after, state), (updates, params)]:
        shapes = jax.tree.map(lambda x: (x.shape, x.dtype), (tree, like))
        assert shapes[0] == shapes[1]
    assert isinstance(state[1], LaPropState)
    assert all(not np.any(x) for x in jax.tree.leaves(state))


def test_seeds_side_by_side_are_clipped_by_themselves():
    params = [random_tree(seed) for seed in (0, 1)]
    gradients = [random_tree(seed) for seed in (2, 3)]
    optimizer = laprop(1e-2, warmup=0)

    def step(p, g):
        return optimizer.update(g, optimizer.init(p), p)[0]

    def stack(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    ours = jax.jit(jax.vmap(step))(stack(params), stack(gradients))
    theirs = stack([jax.jit(step)(p, g) for p, g in zip(params, gradients, strict=True)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


@jax.jit
def four_updates(params, gradients):
    """Return parameters and directions after each of four updates, `[4, ...]`."""
    optimizer = laprop(0.01, warmup=2)
    state = optimizer.init(params)
    all_params, directions = [], []
    for k, g in enumerate(gradients, start=1):
        updates, state = optimizer.update(g, state, params)
        params = params + updates
        all_params.append(params)
        directions.append(state[1].mu / jnp.float32(1 - 0.9**k))
    return jnp.stack(all_params), jnp.stack(directions)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    exponents=st.lists(st.integers(-10, 8), min_size=4, max_size=4),
    params_exponent=st.integers(-6, 2),
    draws=st.lists(
        # Squares stay inside float32's normal range, because the oracle does not underflow.
        st.lists(st.just(0.0) | st.floats(-1, -1e-3) | st.floats(1e-3, 1), min_size=6, max_size=6),
        min_size=5,
        max_size=5,
    ),
)
def test_updates_match_a_float64_oracle_at_any_scale(exponents, params_exponent, draws):
    draws = np.array(draws)
    params = np.float32(draws[0] * 10.0**params_exponent)
    gradients = np.float32(draws[1:] * 10.0 ** np.array(exponents)[:, None])
    ours_params, ours_directions = four_updates(params, gradients)
    theirs_params, directions, normalised = oracle(params, gradients, lr=0.01, warmup=2)
    # Eight units in the last place of each normalised gradient; momentum may cancel them.
    error = 1e-6 * np.abs(normalised).max()
    np.testing.assert_allclose(ours_directions, directions, rtol=1e-6, atol=error)
    # A step's error, four times, and the rounding of four sums.
    error = 4 * (0.01 * 2 * error + 6e-8 * np.abs(theirs_params).max())
    np.testing.assert_allclose(ours_params, theirs_params, rtol=0, atol=error)


def test_the_optimiser_of_a_configuration():
    changes = dict(agc=0.1, agc_pmin=0.01, beta1=0.8, beta2=0.99, eps=1e-3, warmup=2)
    config = DreamerV3Settings(learning_rate=0.1, **changes)
    params, gradients = random_tree(0), [random_tree(seed) for seed in (1, 2)]
    ours = run(optimizer_of(config), params, gradients)
    theirs = run(laprop(0.1, **changes), params, gradients)
    assert_trees_equal(ours, theirs)
    names = dict(lr=0.1, warmup=2, agc=0.1, pmin=0.01, b1=0.8, b2=0.99, eps=1e-3)
    actor = [tree["actor"]["kernel"] for tree in (params, *gradients, ours[-1][0])]
    expected, _, _ = oracle(actor[0], actor[1:-1], **names)
    np.testing.assert_allclose(actor[-1], expected[-1], rtol=1e-6, atol=1e-6)
