"""Chained decisions against nicklashansen/tdmpc2@5f6fade, `TDMPC2.plan` (the same at b67b21c).

The recordings `plan*.npz` hold real decisions with their draws and what every iteration saw. We
feed the draws to the jitted planner and chain its mean from our own result of each decision. In the
recordings of this repository N is 32, of which 11 from the policy, E 10, A 9 (21 in
`plan_wide_action`, where the planner takes two more iterations).

Not covered: dropout (the recordings are made without; see test_dropout_parity.py); environments
side by side (tests/unit/test_planner.py).

Tolerances: the original on another SIMD path moves means by 1e-5 and values by 5e-5; the elite sets
and the choice stay. Elites must be the same here too: a set that differed would be a finding, not
a rounding.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_tdmpc2 import PlanNoise, TDMPC2Settings, plan, resolve_config, world_model
from wm_tdmpc2.interop import from_reference

from .recordings import spec_of

MEAN = 1e-5
VALUE = 5e-5


@functools.cache
def planner(config, eval_mode):
    return jax.jit(functools.partial(plan, config=config, eval_mode=eval_mode))


@functools.cache
def encoder(config):
    return jax.jit(functools.partial(world_model.encode, config=config))


@functools.cache
def replay(recording):
    """Return `(theirs, ours)` of every decision, chained."""
    config = recording.config
    params = from_reference(recording.group("params/"), config=config)
    # The first decision has t0 set, so that this mean must not be read.
    mean = jnp.full((config.horizon, config.action_dim), jnp.nan)
    decisions = []
    for i in range(len(recording.meta["chain_t0_eval"])):
        theirs = recording.group(f"act{i}/")
        noise = recorded_noise(theirs)
        decide = planner(config, bool(theirs["eval_mode"]))
        ours = decide(
            params.wm_params,
            params.pi_params,
            jnp.asarray(theirs["obs"]),
            mean,
            jnp.asarray(theirs["t0"]),
            noise,
        )
        mean = ours.mean
        decisions.append((theirs, jax.tree.map(np.asarray, ours)))
    return tuple(decisions)


def recorded_noise(theirs):
    n_iterations, *_, action_dim = theirs["draw/mppi_eps"].shape
    # Without exploration noise in eval mode; NaN would show where it was used all the same.
    final_eps = theirs.get("draw/final_eps", np.full(action_dim, np.nan, np.float32))
    return PlanNoise(
        traj_eps=jnp.asarray(theirs["draw/traj_eps"]),
        mppi_eps=jnp.asarray(theirs["draw/mppi_eps"]),
        terminal_eps=jnp.asarray(theirs["draw/terminal_eps"]),
        dropout=jax.random.split(jax.random.key(0), n_iterations),
        q_pair=jnp.asarray(theirs["draw/q_pair"], jnp.int32),
        elite_uniform=jnp.float32(theirs["draw/elite_uniform_f64"]),
        final_eps=jnp.asarray(final_eps),
    )


def assert_near(ours, theirs, tolerance, what):
    assert np.shape(ours) == np.shape(theirs), what
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, err_msg=what)


def test_latent_of_the_observation_matches_5f6fade(plan_recording):
    config = plan_recording.config
    params = from_reference(plan_recording.group("params/"), config=config)
    for theirs, _ in replay(plan_recording):
        z = encoder(config)(params.wm_params, jnp.asarray(theirs["obs"]))
        assert_near(z, theirs["z"][0], 2e-6, "z")


def test_policy_trajectories_match_5f6fade(plan_recording):
    for theirs, ours in replay(plan_recording):
        assert_near(ours.trace.pi_actions, theirs["pi_actions"], MEAN, "pi_actions")


def test_values_of_every_candidate_and_iteration_match_5f6fade(plan_recording):
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        values = theirs["iter/value"][..., 0]
        assert_near(ours.trace.value, values, VALUE * max(1, np.abs(values).max()), f"decision {i}")


def test_elites_are_those_of_5f6fade_in_order_of_value(plan_recording):
    for theirs, ours in replay(plan_recording):
        for iteration, expected in enumerate(theirs["iter/elite_idxs"]):
            assert set(ours.trace.elite_idx[iteration]) == set(expected)
            taken = np.take(ours.trace.value[iteration], ours.trace.elite_idx[iteration])
            assert np.all(np.diff(taken) <= 0)
            elite_value = theirs["iter/elite_value"][iteration, :, 0]
            assert_near(taken, elite_value, VALUE * max(1, np.abs(elite_value).max()), "elites")


def test_scores_match_5f6fade(plan_recording):
    """exp(temperature·ΔV): the values' error times the temperature, relative to the score."""
    temperature = plan_recording.config.temperature
    for theirs, ours in replay(plan_recording):
        size = max(1, np.abs(theirs["iter/value"]).max())
        np.testing.assert_allclose(
            ours.trace.score,
            theirs["iter/score"][..., 0],
            rtol=2 * temperature * VALUE * size,
            atol=1e-8,
        )
        np.testing.assert_allclose(ours.trace.score.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_sampling_distributions_match_5f6fade(plan_recording, name):
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        assert_near(getattr(ours.trace, name), theirs[f"iter/{name}"], MEAN, f"decision {i}")


def test_the_mean_handed_on_matches_5f6fade(plan_recording):
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        assert_near(ours.mean, theirs["prev_mean_out"], MEAN, f"decision {i}")
        np.testing.assert_array_equal(ours.mean, ours.trace.mean[-1])


def test_last_candidates_follow_from_our_trace(plan_recording):
    for theirs, ours in replay(plan_recording):
        mean, std = ours.trace.mean[-2][:, None], ours.trace.std[-2][:, None]
        sampled = np.clip(mean + std * theirs["draw/mppi_eps"][-1], -1, 1)
        candidates = np.concatenate([ours.trace.pi_actions, sampled], axis=1)
        # The noise is a few units, and multiplies the deviation's error.
        assert_near(candidates, theirs["candidates_last"], 6 * MEAN, "candidates")


def test_chosen_elite_and_action_match_5f6fade(plan_recording):
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        cumulative = np.cumsum(ours.trace.score[-1].astype(np.float64))
        u = theirs["draw/elite_uniform_f64"]
        choice = np.searchsorted(cumulative / cumulative[-1], u, side="right")
        assert choice == theirs["elite_choice"]
        assert_near(ours.action, theirs["action"], 3 * MEAN, f"decision {i}")


def test_every_way_to_start_and_both_modes_are_recorded(plan_recording):
    """A chain must warm-start at least once; the two-mode chains must hold both modes."""
    chain = [tuple(flags) for flags in plan_recording.meta["chain_t0_eval"]]
    recorded = [(bool(t["t0"]), bool(t["eval_mode"])) for t, _ in replay(plan_recording)]
    assert recorded == chain
    assert chain[0][0] and not all(t0 for t0, _ in chain)


def test_resolved_iterations_are_those_of_5f6fade(plan_recording):
    """The default, and two more from 20 action dimensions on."""
    config = plan_recording.config
    spec = spec_of(
        obs_dim=config.obs_dim,
        action_dim=config.action_dim,
        episode_length=config.agent_episode_length,
    )
    resolved = resolve_config(TDMPC2Settings(), spec)
    assert resolved.iterations == len(plan_recording["act0/draw/mppi_eps"])
    assert resolved.gamma == config.gamma
