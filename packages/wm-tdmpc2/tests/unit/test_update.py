"""One update: its first step, which parameter learns from what, and what it leaves alone."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_tdmpc2 import draw_update_noise, update
from wm_tdmpc2.update import (
    METRIC_NAMES,
    metric_names,
    policy_loss,
    td_target,
    world_model_loss,
)

from .tiny import CONFIG, fresh_learner, moved_learner, random_batch, random_latents

take_step = jax.jit(functools.partial(update, config=CONFIG))


def noise(seed=0):
    return draw_update_noise(jax.random.key(seed), config=CONFIG)


def leaves_by_path(tree):
    return {
        "/".join(str(getattr(k, "key", k)) for k in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@jax.jit
def gradients_of_each_loss(learner, batch, draws):
    next_z, target = td_target(learner, batch, draws, config=CONFIG)

    def losses(wm_params):
        _, (_, metrics) = world_model_loss(
            wm_params, batch, next_z, target, draws.value_dropout, config=CONFIG
        )
        return {n: metrics[f"{n}_loss"] for n in ("consistency", "reward", "value")}

    return jax.jacrev(losses)(learner.wm_params)


# --- the first update -----------------------------------------------------------------------------


def test_the_first_td_target_is_the_reward():
    """Fresh Q networks decode to exactly 0."""
    batch = random_batch()
    _, target = jax.jit(functools.partial(td_target, config=CONFIG))(
        fresh_learner(), batch, noise()
    )
    np.testing.assert_array_equal(target, batch.reward)


def test_the_first_losses_are_those_of_uniform_predictions():
    """ln K whatever the target, weighted: ln K·(1 + ρ + ρ²)/H."""
    _, metrics = take_step(fresh_learner(), random_batch(), noise())
    expected = math.log(9) * (1 + 0.5 + 0.25) / 3
    np.testing.assert_allclose(metrics["reward_loss"], expected, rtol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], expected, rtol=1e-6)
    np.testing.assert_allclose(math.log(101) * 1.75 / 3, 2.692154, rtol=1e-6)


def test_the_first_gradients_of_reward_and_q_reach_their_last_layers_only():
    """Encoder and dynamics learn from the consistency loss alone."""
    losses = gradients_of_each_loss(fresh_learner(), random_batch(), noise())
    for loss, gradients in losses.items():
        for path, gradient in leaves_by_path(gradients).items():
            network, *_, layer, _ = path.split("/")
            if loss == "consistency":
                learns = network in ("encoder", "dynamics")
            else:
                learns = network == {"reward": "reward", "value": "q"}[loss] and layer == "out"
            assert np.any(gradient != 0) == learns, (loss, path)


# --- who learns from what -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "networks"),
    [
        ("consistency", {"encoder", "dynamics"}),
        ("reward", {"encoder", "dynamics", "reward"}),
        ("value", {"encoder", "dynamics", "q"}),
    ],
)
def test_each_loss_trains_its_own_networks(loss, networks):
    gradients = gradients_of_each_loss(moved_learner(), random_batch(), noise())[loss]
    for path, gradient in leaves_by_path(gradients).items():
        assert np.any(gradient != 0) == (path.split("/")[0] in networks), path


def test_nothing_learns_from_the_td_target():
    """Not the encoder that reads the next observations, not the policy, not target Q."""

    @jax.jit
    def gradients(wm_params, pi_params, target_q_params):
        def total(wm_params, pi_params, target_q_params):
            learner = moved_learner().replace(
                wm_params=wm_params, pi_params=pi_params, target_q_params=target_q_params
            )
            next_z, target = td_target(learner, random_batch(), noise(), config=CONFIG)
            return jnp.sum(next_z) + jnp.sum(target)

        return jax.grad(total, (0, 1, 2))(wm_params, pi_params, target_q_params)

    learner = moved_learner()
    result = gradients(learner.wm_params, learner.pi_params, learner.target_q_params)
    for leaf in jax.tree.leaves(result):
        np.testing.assert_array_equal(leaf, 0)


def test_every_parameter_of_the_policy_learns_and_its_scale_does_not_carry_gradient():
    """S moves with the values it is computed from, but is a constant of the loss."""

    @jax.jit
    def gradients(pi_params, learner, zs):
        def loss_and_scale(pi_params):
            q_params = learner.wm_params["q"]
            return policy_loss(
                pi_params,
                {**learner.wm_params, "q": q_params},
                zs,
                learner.q_scale,
                noise(),
                config=CONFIG,
            )

        return jax.jacrev(loss_and_scale)(pi_params)

    learner = moved_learner()
    zs = random_latents((CONFIG.horizon + 1, CONFIG.batch_size))
    of_loss, of_scale = gradients(learner.pi_params, learner, zs)
    for path, gradient in leaves_by_path(of_loss).items():
        assert np.any(gradient != 0), path
    for leaf in jax.tree.leaves(of_scale):
        np.testing.assert_array_equal(leaf, 0)


def test_the_policys_draws_do_not_reach_the_world_model_of_the_same_update():
    learner, batch = moved_learner(), random_batch()
    usual, _ = take_step(learner, batch, noise(0))
    other_draws = noise(0)._replace(pi_eps=noise(1).pi_eps, pi_q_pair=jnp.array([2, 0]))
    other, _ = take_step(learner, batch, other_draws)
    jax.tree.map(np.testing.assert_array_equal, usual.wm_params, other.wm_params)
    jax.tree.map(np.testing.assert_array_equal, usual.target_q_params, other.target_q_params)
    assert any(
        np.any(a != b)
        for a, b in zip(
            jax.tree.leaves(usual.pi_params), jax.tree.leaves(other.pi_params), strict=True
        )
    )


# --- the whole step -------------------------------------------------------------------------------


def test_target_q_moves_a_hundredth_of_the_way_to_the_new_q():
    learner = moved_learner()
    after, _ = take_step(learner, random_batch(), noise())
    jax.tree.map(
        lambda old, new, q: np.testing.assert_allclose(
            new, 0.99 * np.asarray(old) + 0.01 * np.asarray(q), rtol=1e-5, atol=1e-7
        ),
        learner.target_q_params,
        after.target_q_params,
        after.wm_params["q"],
    )


def test_the_reported_gradient_norm_includes_the_last_policy_gradient():
    """√(own² + carried²); the carried part is the policy's gradient after its own clip."""
    learner, batch = moved_learner(), random_batch()
    first, alone = take_step(learner, batch, noise())
    assert float(first.pi_grad_norm_sq) > 0
    carried = learner.replace(pi_grad_norm_sq=jnp.float32(9.0))
    _, metrics = take_step(carried, batch, noise())
    np.testing.assert_allclose(metrics["grad_norm"] ** 2, alone["grad_norm"] ** 2 + 9, rtol=1e-5)


def test_no_carried_gradient_is_larger_than_the_clip_norm():
    learner = moved_learner()
    steep = jax.tree.map(lambda p: 30 * p, learner.wm_params["q"])
    learner = learner.replace(wm_params=learner.wm_params | {"q": steep})
    after, _ = take_step(learner, random_batch(), noise())
    assert float(after.pi_grad_norm_sq) <= CONFIG.grad_clip_norm**2 * (1 + 1e-6)


def test_metrics_have_their_names_and_recombine():
    learner = moved_learner()
    _, metrics = take_step(learner, random_batch(), noise())
    assert set(metrics) == set(metric_names(CONFIG))
    assert all(value.shape == () and np.isfinite(value) for value in metrics.values())
    total = 20 * metrics["consistency_loss"] + 0.1 * (
        metrics["reward_loss"] + metrics["value_loss"]
    )
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-6)
    norms = [metrics[f"Train/grad_norm/{name}"] for name in ("encoder", "dynamics", "reward", "q")]
    norm = np.sqrt(np.sum(np.square(norms)) + learner.pi_grad_norm_sq)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-6)


@pytest.mark.parametrize("broken", ["obs", "reward", "halted"])
def test_an_update_that_is_not_finite_or_halted_leaves_the_learner_as_it_is(broken):
    learner, batch = moved_learner(), random_batch()
    if broken != "halted":
        bad = jnp.asarray(getattr(batch, broken)).at[0, 0].set(jnp.nan)
        batch = batch._replace(**{broken: bad})
    step = jax.jit(functools.partial(update, config=CONFIG))
    after, metrics = step(learner, batch, noise(), halted=broken == "halted")
    for old, new in zip(jax.tree.leaves(learner), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.isfinite(metrics["total_loss"]) == (broken == "halted")


def test_a_policy_loss_that_is_not_finite_leaves_the_policy_as_it_is():
    learner, batch = moved_learner(), random_batch()
    bad = noise()._replace(pi_eps=jnp.full_like(noise().pi_eps, jnp.nan))
    after, metrics = jax.jit(functools.partial(update, config=CONFIG))(learner, batch, bad)
    assert np.isnan(metrics["pi_loss"]) and np.isfinite(metrics["total_loss"])
    for name in ("pi_params", "pi_opt_state", "q_scale", "pi_grad_norm_sq"):
        old, new = (jax.tree.leaves(getattr(state, name)) for state in (learner, after))
        for a, b in zip(old, new, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    old, new = jax.tree.leaves(learner.wm_params), jax.tree.leaves(after.wm_params)
    assert all(not np.array_equal(a, b) for a, b in zip(old, new, strict=True))


def test_an_update_keeps_structure_shapes_and_dtypes_and_counts_one_step():
    learner = moved_learner()
    after, _ = take_step(learner, random_batch(), noise())
    assert jax.tree.structure(after) == jax.tree.structure(learner)
    for old, new in zip(jax.tree.leaves(learner), jax.tree.leaves(after), strict=True):
        assert old.shape == new.shape and old.dtype == new.dtype
    counts = {
        int(leaf)
        for path, leaf in leaves_by_path((after.wm_opt_state, after.pi_opt_state)).items()
        if path.endswith("count")
    }
    assert counts == {1}


def test_the_order_of_slices_does_not_matter():
    """A batch is a set: losses average over it, and percentiles sort it."""
    learner, batch, draws = moved_learner(), random_batch(), noise()
    order = jnp.array([3, 0, 5, 1, 4, 2])
    shuffled = jax.tree.map(lambda x: x[:, order], batch)
    shuffled_draws = draws._replace(td_eps=draws.td_eps[:, order], pi_eps=draws.pi_eps[:, order])
    _, metrics = take_step(learner, batch, draws)
    _, other = take_step(learner, shuffled, shuffled_draws)
    for name in METRIC_NAMES:
        np.testing.assert_allclose(metrics[name], other[name], rtol=2e-5, err_msg=name)


def test_updates_fit_one_batch_better_and_better():
    learner, batch = fresh_learner(), random_batch()
    losses = []
    for step in range(60):
        learner, metrics = take_step(learner, batch, noise(step))
        losses.append(float(metrics["reward_loss"]))
    assert losses[-1] < 0.95 * losses[0]
