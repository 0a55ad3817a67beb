"""Chained decisions against nicklashansen/tdmpc2@5f6fade, `TDMPC2.plan` (the same at b67b21c).

The recordings `plan*.npz` hold real decisions with their draws and what every iteration saw. We
feed the draws to the jitted planner and chain its mean from our own result of each decision. In the
recordings of this repository N is 32, of which 11 from the policy, E 10, A 9 (21 in
`plan_wide_action`, where the planner takes two more iterations).

Not covered: dropout (the recordings are made without; see test_dropout_parity.py); environments
side by side (tests/unit/test_planner.py).

The recordings `multitask*.npz` hold decisions for one of several tasks, `episodic*.npz` decisions
of e9f5932 with predicted terminations (its choice of the executed elite is drawn differently).

Tolerances: the original on another SIMD path moves means by 1e-5 and values by 5e-5 (episodic 1e-4
and 6e-4); the elite sets and the choice stay. Elites must be the same here too: a set that differed
would be a finding, not a rounding.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_tdmpc2 import PlanNoise, TDMPC2Settings, plan, resolve_config, world_model
from wm_tdmpc2.interop import from_reference
from wm_tdmpc2.task_context import renormalised

from .recordings import spec_of
from .updates import n_calls, rounded

MEAN, EPISODIC_MEAN = 1e-5, 1e-4
VALUE, EPISODIC_VALUE = 5e-5, 6e-4

DECISION = re.compile(r"act\d+/")


@functools.cache
def planner(config, eval_mode):
    return jax.jit(functools.partial(plan, config=config, eval_mode=eval_mode))


@functools.cache
def encoder(config):
    return jax.jit(functools.partial(world_model.encode, config=config))


@functools.cache
def replay(recording):
    """Return `(theirs, ours)` of every decision, chained."""
    return decisions(recording, parameters(recording))


def decisions(recording, params):
    config = recording.config
    # The first decision has t0 set, so that this mean must not be read.
    mean = jnp.full((config.horizon, config.action_dim), jnp.nan)
    made = []
    for i in range(n_decisions(recording)):
        theirs = recording.group(f"act{i}/")
        noise = recorded_noise(theirs)
        decide = planner(config, bool(theirs["eval_mode"]))
        task = recording.task_context(theirs["task"].reshape(())) if config.n_tasks else None
        ours = decide(
            params.wm_params,
            params.pi_params,
            jnp.asarray(theirs["obs"]),
            mean,
            jnp.asarray(theirs["t0"]),
            noise,
            task=task,
        )
        mean = ours.mean
        made.append((theirs, jax.tree.map(np.asarray, ours)))
    return tuple(made)


def n_decisions(recording):
    return len({name.partition("/")[0] for name in recording.arrays if DECISION.match(name)})


@functools.cache
def parameters(recording):
    """Return the parameters during the decisions."""
    if recording.is_multitask:
        # Those of the last update, with the table of embeddings the recording then stretched.
        named = recording.group(f"call{n_calls(recording) - 1}/params_after/")
        named["_task_emb.weight"] = recording["act_emb_before"]
    else:
        named = recording.group("params/") or recording.group("act_params/")
    return from_reference(named, config=recording.config)


def tolerances(recording):
    """Return the tolerances of means and values.

    A predicted termination sharpens both. With several tasks we add what one rounding of every
    parameter makes of the means: the embedding is added to the first layers in another order than
    in the original (T48), and values of 50 differ by 1e-3 after such a rounding.
    """
    if recording.is_episodic:
        return EPISODIC_MEAN, EPISODIC_VALUE
    return (MEAN + 2 * mean_rounding(recording) if recording.is_multitask else MEAN), VALUE


@functools.cache
def mean_rounding(recording):
    """Return how far one rounding of every parameter moves a mean of the recorded decisions."""
    params = parameters(recording)
    usual = [ours for _, ours in replay(recording)]
    moved = []
    for seed in range(3):
        other = params._replace(wm_params=rounded(params.wm_params, seed))
        moved.extend(decisions(recording, other))
    return max(
        np.abs(theirs.trace.mean - ours.trace.mean).max()
        for (_, theirs), ours in zip(moved, usual * 3, strict=True)
    )


def elite_uniform(theirs):
    """Return the uniform draw that chooses the recorded elite.

    The later code draws by another rule, from exponentials; for its choice we take the middle of
    the uniforms that make the same one.
    """
    if "draw/elite_uniform_f64" in theirs:
        return theirs["draw/elite_uniform_f64"]
    score = theirs["iter/score"][-1, :, 0].astype(np.float64)
    ends = np.concatenate([[0], np.cumsum(score)]) / score.sum()
    return ends[theirs["elite_choice"] : theirs["elite_choice"] + 2].mean()


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
        elite_uniform=jnp.float32(elite_uniform(theirs)),
        final_eps=jnp.asarray(final_eps),
    )


def assert_near(ours, theirs, tolerance, what):
    assert np.shape(ours) == np.shape(theirs), what
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, err_msg=what)


def test_latent_of_the_observation_matches_5f6fade(plan_recording):
    config = plan_recording.config
    params = parameters(plan_recording)
    for theirs, _ in replay(plan_recording):
        shown = {}
        if config.n_tasks:
            task = jnp.asarray(theirs["task"].reshape(()), jnp.int32)
            shown["embedding"] = renormalised(params.wm_params["task_emb"], task)[task]
        z = encoder(config)(params.wm_params, jnp.asarray(theirs["obs"]), **shown)
        assert_near(z, theirs["z"][0], 2e-6, "z")


def test_policy_trajectories_match_5f6fade(plan_recording):
    for theirs, ours in replay(plan_recording):
        assert_near(ours.trace.pi_actions, theirs["pi_actions"], MEAN, "pi_actions")


def test_values_of_every_candidate_and_iteration_match_5f6fade(plan_recording):
    _, value = tolerances(plan_recording)
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        values = theirs["iter/value"][..., 0]
        assert_near(ours.trace.value, values, value * max(1, np.abs(values).max()), f"decision {i}")


def test_elites_are_those_of_5f6fade_in_order_of_value(plan_recording):
    _, value = tolerances(plan_recording)
    for theirs, ours in replay(plan_recording):
        for iteration, expected in enumerate(theirs["iter/elite_idxs"]):
            assert set(ours.trace.elite_idx[iteration]) == set(expected)
            taken = np.take(ours.trace.value[iteration], ours.trace.elite_idx[iteration])
            assert np.all(np.diff(taken) <= 0)
            elite_value = theirs["iter/elite_value"][iteration, :, 0]
            assert_near(taken, elite_value, value * max(1, np.abs(elite_value).max()), "elites")


def test_scores_match_5f6fade(plan_recording):
    """exp(temperature·ΔV): the values' error times the temperature, relative to the score."""
    temperature = plan_recording.config.temperature
    _, value = tolerances(plan_recording)
    for theirs, ours in replay(plan_recording):
        size = max(1, np.abs(theirs["iter/value"]).max())
        np.testing.assert_allclose(
            ours.trace.score,
            theirs["iter/score"][..., 0],
            rtol=2 * temperature * value * size,
            atol=1e-8,
        )
        np.testing.assert_allclose(ours.trace.score.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_sampling_distributions_match_5f6fade(plan_recording, name):
    mean, _ = tolerances(plan_recording)
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        assert_near(getattr(ours.trace, name), theirs[f"iter/{name}"], mean, f"decision {i}")


def test_the_mean_handed_on_matches_5f6fade(plan_recording):
    mean, _ = tolerances(plan_recording)
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        assert_near(ours.mean, theirs["prev_mean_out"], mean, f"decision {i}")
        np.testing.assert_array_equal(ours.mean, ours.trace.mean[-1])


def test_last_candidates_follow_from_our_trace(plan_recording):
    for theirs, ours in replay(plan_recording):
        mean, std = ours.trace.mean[-2][:, None], ours.trace.std[-2][:, None]
        sampled = np.clip(mean + std * theirs["draw/mppi_eps"][-1], -1, 1)
        if plan_recording.is_multitask:
            sampled = sampled * plan_recording["action_masks"][int(theirs["task"].reshape(()))]
        candidates = np.concatenate([ours.trace.pi_actions, sampled], axis=1)
        # The noise is a few units, and multiplies the deviation's error.
        assert_near(
            candidates, theirs["candidates_last"], 6 * tolerances(plan_recording)[0], "candidates"
        )


def test_chosen_elite_and_action_match_5f6fade(plan_recording):
    for i, (theirs, ours) in enumerate(replay(plan_recording)):
        cumulative = np.cumsum(ours.trace.score[-1].astype(np.float64))
        u = elite_uniform(theirs)
        choice = np.searchsorted(cumulative / cumulative[-1], u, side="right")
        assert choice == theirs["elite_choice"]
        assert_near(
            ours.action, theirs["action"], 3 * tolerances(plan_recording)[0], f"decision {i}"
        )


def test_padded_dimensions_are_never_acted_in(multitask_recording):
    for theirs, ours in replay(multitask_recording):
        mask = multitask_recording["action_masks"][int(theirs["task"].reshape(()))]
        for values in (ours.action, ours.mean, ours.trace.mean, ours.trace.std):
            np.testing.assert_array_equal(np.asarray(values)[..., mask == 0], 0)


def test_decisions_do_not_keep_the_renormalised_embedding(multitask_recording):
    """The original does (T36); ours gives the row it would have kept."""
    before, after = (multitask_recording[n] for n in ("act_emb_before", "act0/emb_after"))
    looked_up = int(multitask_recording["act0/task"].reshape(()))
    table = jnp.asarray(before)
    ours = renormalised(table, jnp.int32(looked_up))
    np.testing.assert_allclose(ours, after, atol=1e-6)
    np.testing.assert_array_equal(np.delete(ours, looked_up, 0), np.delete(before, looked_up, 0))


def test_terminations_are_predicted_at_every_step_of_the_recorded_decisions(episodic_recording):
    """Otherwise the values above would not tell whether a termination ends a candidate's sum."""
    ended = np.stack([t["termination_prob"][..., 0] > 0.5 for t, _ in replay(episodic_recording)])
    # By step of the plan, over decisions, iterations and candidates.
    assert np.all(ended.mean(axis=(0, 1, 3)) > 0) and not np.all(ended.any(axis=2))


def test_every_way_to_start_and_both_modes_are_recorded(single_plan_recording):
    """A chain must warm-start at least once; the two-mode chains must hold both modes."""
    chain = [tuple(flags) for flags in single_plan_recording.meta["chain_t0_eval"]]
    recorded = [(bool(t["t0"]), bool(t["eval_mode"])) for t, _ in replay(single_plan_recording)]
    assert recorded == chain
    assert chain[0][0] and not all(t0 for t0, _ in chain)


def test_resolved_iterations_are_those_of_5f6fade(single_plan_recording):
    """The default, and two more from 20 action dimensions on."""
    config = single_plan_recording.config
    spec = spec_of(
        obs_dim=config.obs_dim,
        action_dim=config.action_dim,
        episode_length=config.agent_episode_length,
    )
    resolved = resolve_config(TDMPC2Settings(), spec)
    assert resolved.iterations == len(single_plan_recording["act0/draw/mppi_eps"])
    assert resolved.gamma == config.gamma
