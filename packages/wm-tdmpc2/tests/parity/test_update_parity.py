"""Chained updates against nicklashansen/tdmpc2@5f6fade, `TDMPC2.update` (the same at b67b21c).

The recordings `update*.npz` hold real calls with their batches, draws and intermediates; parameters
were moved off their initial values and target Q apart from Q. `update` uses the paper's clip norm
of 20, `update_clip` one at which both clips act. We feed the recorded draws and chain from our own
result of each call. In the recordings of this repository the sizes are pairwise distinct (O 7, A 9,
Z 24, M 20, E 12, B 6, Nq 5).

The recordings `multitask*.npz` are of several tasks, some absent from a batch, some embeddings
longer than the unit ball. `episodic*.npz` is e9f5932 in its episodic mode: its policy loss and its
clip are not ours, so there the policy is not compared and its gradient never carried.

Not covered: dropout (the recordings are made without; see test_dropout_parity.py).

Tolerances. Both sides compute in float32 and differ in the order of their sums, so a network's
output agrees to a handful of roundings (1.2e-7) of its largest entry. The original itself moves as
much on another SIMD path: losses and norms 1e-5, TD targets 5e-6. Where rounding is amplified (a
saturated tanh, a value decoded by symexp, Adam's division by a tiny second moment), the tolerance
follows the amplification, element by element where it differs between elements.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from wm_tdmpc2.interop import to_reference
from wm_tdmpc2.task_context import renormalised

from .updates import (
    adam_pi,
    adam_wm,
    coding_doubt,
    program,
    recorded_inputs,
    replay,
    saturation_doubt,
)

# A network's output, relative to its largest entry.
NETWORK = 2e-6
# Losses and norms, relative.
LOSS = 1e-5
# What the later code reports of its own policy loss.
LATER_POLICY_METRICS = {"pi_loss", "pi_grad_norm", "pi_entropy", "pi_scaled_entropy"}


def assert_near(ours, theirs, tolerance, what):
    """Compare with a tolerance in the values' own units, one for all or one per element."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, what
    np.testing.assert_array_less(np.abs(ours - theirs), tolerance + 1e-30, err_msg=what)


def assert_near_max(ours, theirs, relative, what):
    """Compare with a tolerance relative to the largest recorded entry."""
    assert_near(ours, theirs, relative * np.abs(theirs).max(), what)


def decoded_tolerance(call, values):
    """Return what the logits' roundings make of decoded values.

    Logits of size L are off by about `NETWORK`·L, their expectation in symlog space by no more than
    a few times that, and symexp turns the absolute error into one relative to 1 + |value|.
    """
    return 3e-6 * np.abs(call.ours["wm/q_logits"]).max() * (1 + np.abs(values))


@pytest.mark.parametrize("name", ["td/next_z", "td/mean", "td/log_std", "wm/zs"])
def test_latents_and_td_policy_match_5f6fade(update_recording, name):
    for i, call in enumerate(replay(update_recording)):
        assert_near_max(call.ours[name], call.theirs[name], NETWORK, f"call {i}")


@pytest.mark.parametrize("name", ["policy/mean", "policy/log_std"])
def test_policy_at_the_latents_matches_5f6fade(update_recording, name):
    for i, call in enumerate(replay(update_recording)):
        assert_near_max(call.ours[name], call.theirs[name], NETWORK, f"call {i}")


@pytest.mark.parametrize("part", ["td", "policy"])
def test_sampled_actions_match_5f6fade(update_recording, part):
    """A log-std off by 2e-5 (`NETWORK` of its range) moves the action by (1 - a²)|ε|σ·2e-5."""
    for i, call in enumerate(replay(update_recording)):
        theirs = {k: v.astype(np.float64) for k, v in call.theirs.items() if k.startswith(part)}
        action, sigma = theirs[f"{part}/action"], np.exp(theirs[f"{part}/log_std"])
        slope = (1 - action**2) * np.abs(call.theirs[f"draw/{'td' if part == 'td' else 'pi'}_eps"])
        assert_near(
            call.ours[f"{part}/action"], action, NETWORK + 2e-5 * slope * sigma, f"call {i}"
        )


@pytest.mark.parametrize("part", ["td", "policy"])
def test_log_pi_matches_5f6fade_up_to_the_rounding_of_a_saturated_tanh(
    paper_update_recording, part
):
    """1 - a² is off by the last bits of a, up to 6e-7; the log divides that by 1 - a² + 1e-6."""
    for i, call in enumerate(replay(paper_update_recording)):
        theirs = call.theirs[f"{part}/log_pi"][..., 0]
        room = np.maximum(1 - call.theirs[f"{part}/action"].astype(np.float64) ** 2, 0)
        saturation = np.sum(6e-7 / (np.maximum(room - 6e-7, 0) + 1e-6), axis=-1)
        tolerance = NETWORK * np.abs(theirs).max() + saturation
        assert_near(call.ours[f"{part}/log_pi"], theirs, tolerance, f"call {i}")


@pytest.mark.parametrize("name", ["td/q_min", "policy/q_avg"])
def test_values_of_the_drawn_pair_match_5f6fade(update_recording, name):
    """Minimum under target Q, mean under the stepped Q; at the recorded latents and actions."""
    for i, call in enumerate(replay(update_recording)):
        theirs = call.theirs[name][..., 0]
        assert_near(call.ours[name], theirs, decoded_tolerance(call, theirs), f"call {i}")


def test_td_targets_match_5f6fade(update_recording):
    """At our own latents and actions, whose errors add to the value's."""
    for i, call in enumerate(replay(update_recording)):
        theirs, values = call.theirs["td/target"][..., 0], call.theirs["td/q_min"][..., 0]
        tolerance = 2 * decoded_tolerance(call, values) + 1e-6 * np.abs(theirs)
        assert_near(call.ours["td/target"], theirs, tolerance, f"call {i}")


def test_losses_per_step_match_5f6fade(update_recording):
    """The cross entropies at the recorded TD target, so that each is judged by itself."""
    for i, call in enumerate(replay(update_recording)):
        ours, theirs = call.ours, call.theirs
        consistency = theirs["wm/consistency_mse"]
        np.testing.assert_allclose(ours["wm/consistency_mse"], consistency, rtol=LOSS)
        largest_logit = np.abs(ours["wm/reward_logits"]).max()
        reward_ce = theirs["wm/reward_ce"][..., 0]
        assert_near(ours["wm/reward_ce"], reward_ce, 6e-6 * largest_logit, f"call {i} reward")
        largest_logit = np.abs(ours["wm/q_logits"]).max()
        value_ce = np.moveaxis(theirs["wm/value_ce"][..., 0], 1, 0)
        assert_near(ours["wm/value_ce"], value_ce, 6e-6 * largest_logit, f"call {i} value")


def test_q_logits_match_5f6fade(update_recording):
    recorded = [c for c in replay(update_recording) if "wm/q_logits" in c.theirs]
    assert recorded
    for call in recorded:
        assert_near_max(call.ours["wm/q_logits"], call.theirs["wm/q_logits"], NETWORK, "q_logits")


def test_world_model_gradients_match_5f6fade(update_recording):
    check_gradients(update_recording, "grad_wm")


def test_policy_gradients_match_5f6fade(paper_update_recording):
    check_gradients(paper_update_recording, "grad_pi")


def check_gradients(recording, name):
    """Compare before clipping, tensor by tensor.

    The gradient of a tensor before a LayerNorm is a difference of larger terms, so a part of its
    error has the size of a rounding of the whole gradient. Coded rewards add their own doubt to the
    world model's, saturated actions theirs to the policy's.
    """
    calls = [c for c in replay(recording) if names_of(c, f"{name}/")]
    assert calls
    for call in calls:
        doubt = (saturation_doubt if name == "grad_pi" else coding_doubt)(call, recording)
        ours = call.ours[name]
        assert set(ours) == names_of(call, f"{name}/")
        norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in ours.values()))
        for tensor, gradient in ours.items():
            theirs = call.theirs[f"{name}/{tensor}"]
            tolerance = LOSS * np.abs(theirs).max() + 2e-7 * norm + doubt.get(tensor, 0.0)
            assert_near(gradient, theirs, tolerance, tensor)


@pytest.mark.parametrize(
    "name", ["wm_norm_own", "carried_pi_norm", "pi_norm", "pi_norm_after", "wm_norm_reported"]
)
def test_clip_norms_match_5f6fade(update_recording, name):
    if update_recording.is_later and name.startswith("pi_norm"):
        pytest.skip("the later code trains its policy by another loss")
    for call in replay(update_recording):
        ours = call.ours["info/grad_norm" if name == "wm_norm_reported" else f"clip/{name}"]
        np.testing.assert_allclose(ours, call.theirs[f"clip/{name}"], rtol=LOSS)
        assert call.theirs["clip/max_norm"] == np.float32(update_recording.config.grad_clip_norm)


def test_small_clip_norm_recording_has_both_clips_active(update_clip_recording):
    """Without this the tests above could pass with a clip that never acts."""
    limit = update_clip_recording.config.grad_clip_norm
    both = [
        call.ours["info/grad_norm"] > 1.1 * limit and call.ours["clip/pi_norm"] > 1.1 * limit
        for call in replay(update_clip_recording)
    ]
    assert any(both[1:])


def test_forgetting_the_policy_gradient_in_the_clip_would_show(update_clip_recording):
    """The clip of the second call sees the first call's policy gradient; without it, it differs."""
    config = update_clip_recording.config
    call = replay(update_clip_recording)[1]
    forgetful = call.before.replace(pi_grad_norm_sq=jnp.zeros(()))
    after, *_ = program(config)(forgetful, *recorded_inputs(call.theirs, update_clip_recording))
    ours = to_reference(after.wm_params, config=config)
    difference = max(np.abs(v - call.theirs[f"params_after/{n}"]).max() for n, v in ours.items())
    assert difference > 1e-5


def test_running_scale_chain_matches_5f6fade(update_recording):
    """Each update adds tau times the error of the percentiles of decoded values."""
    tolerance = 1e-6
    for call in replay(update_recording):
        q0 = call.theirs["scale/q0"][:, 0]
        np.testing.assert_array_equal(call.theirs["policy/q_avg"][0, :, 0], q0)
        before, after = (call.ours[f"scale/{name}"] for name in ("before", "after"))
        assert_near(before, call.theirs["scale/before"], tolerance, "before")
        error = decoded_tolerance(call, q0).max()
        assert_near(
            call.ours["scale/percentiles"], call.theirs["scale/percentiles"][:, 0], error, ""
        )
        tolerance += 2 * update_recording.config.tau * error + 1e-6 * after
        assert_near(after, call.theirs["scale/after"], tolerance, "after")


def test_metrics_match_5f6fade(update_recording):
    for call in replay(update_recording):
        names = names_of(call, "info/")
        if update_recording.is_later:
            assert names >= LATER_POLICY_METRICS
            names -= LATER_POLICY_METRICS
        ours = {n.removeprefix("info/") for n in call.ours if n.startswith("info/")}
        # The reference logs no norms of single networks.
        ours = {name for name in ours if not name.startswith("Train/grad_norm/")}
        assert names == ours - LATER_POLICY_METRICS if update_recording.is_later else names == ours
        for name in names - {"pi_loss"}:
            ours, theirs = call.ours[f"info/{name}"], call.theirs[f"info/{name}"]
            np.testing.assert_allclose(ours, theirs, rtol=LOSS, err_msg=name)
        if update_recording.is_later:
            continue
        # The policy loss is a difference of terms, of which the scaled values are the largest.
        values = call.theirs["policy/q_avg"]
        tolerance = decoded_tolerance(call, values).max() / call.theirs["scale/after"]
        assert_near(call.ours["info/pi_loss"], call.theirs["info/pi_loss"], tolerance, "pi_loss")


def test_parameters_after_every_call_match_5f6fade(update_recording):
    """All networks, target Q included, to 1e-6 and what Adam makes of rounded gradients."""
    config = update_recording.config
    calls = replay(update_recording)
    for i, (call, doubt) in enumerate(zip(calls, adam_doubts(calls, config), strict=True)):
        after = call.after
        ours = to_reference(after.wm_params, after.target_q_params, after.pi_params, config=config)
        assert set(ours) == names_of(call, "params_after/")
        if update_recording.is_later:
            ours = {name: value for name, value in ours.items() if not name.startswith("_pi.")}
        for name, value in ours.items():
            online = name.replace("_target_Qs", "_Qs")
            rate = config.tau if online != name else 1.0
            theirs = call.theirs[f"params_after/{name}"]
            # Parameters well above 1 are rounded in larger steps.
            tolerance = 1e-6 * np.maximum(1, np.abs(theirs)) + rate * doubt[online]
            assert_near(value, theirs, tolerance, f"call {i} {name}")


def test_most_parameters_are_compared_far_below_one_step(update_recording):
    """Were Adam's doubt as large as its steps, the test above would say nothing."""
    config = update_recording.config
    calls = replay(update_recording)
    doubt = np.concatenate([d.ravel() for d in adam_doubts(calls, config)[-1].values()])
    assert np.mean(doubt < 0.1 * len(calls) * config.learning_rate) > 0.8


def adam_doubts(calls, config):
    """Return, per call and tensor, how far rounded gradients may have moved each parameter so far.

    Adam steps by lr·m/√v, so an error δ of the gradient moves a parameter by lr·δ/√v, at most by
    the whole step in either direction. δ is the tolerance of a gradient relative to its tensor,
    twice because `update` uses its own TD target.
    """
    doubts, total = [], {}
    for i, call in enumerate(calls):
        for moments_of in (adam_wm, adam_pi):
            moments = moments_of(call.after, config).exp_avg_sq
            moments = {name: np.asarray(v, np.float64) for name, v in moments.items()}
            sizes = {n: np.sqrt(v / (1 - 0.999 ** (i + 1))) for n, v in moments.items()}
            for name, size in sizes.items():
                error = 2 * LOSS * size.max()
                step = config.learning_rate * np.minimum(2.0, error / np.maximum(size, 1e-30))
                total[name] = total.get(name, 0.0) + step
        doubts.append(dict(total))
    return doubts


@pytest.mark.parametrize(("optimizer", "moments_of"), [("wm", adam_wm), ("pi", adam_pi)])
def test_adam_moments_after_the_last_call_match_5f6fade(update_recording, optimizer, moments_of):
    prefix = f"adam_{optimizer}/"
    if not update_recording.group(f"{prefix}exp_avg/"):
        pytest.skip(f"{update_recording.name} does not record this optimiser's state")
    calls = replay(update_recording)
    ours = moments_of(calls[-1].after, update_recording.config)
    assert ours.step == update_recording[f"{prefix}step"] == len(calls)
    for field in ("exp_avg", "exp_avg_sq"):
        theirs = update_recording.group(f"{prefix}{field}/")
        moments = getattr(ours, field)
        if update_recording.is_multitask:
            # Of several tasks only the embedding's moments are recorded.
            moments = {name: moments[name] for name in theirs}
        assert set(moments) == set(theirs)
        for name, value in moments.items():
            # Every call adds a gradient with its own error.
            assert_near_max(value, theirs[name], LOSS * len(calls), f"{field} {name}")


def test_termination_logits_and_losses_match_e9f5932(episodic_recording):
    for i, call in enumerate(replay(episodic_recording)):
        theirs = call.theirs["wm/termination_logits"][..., 0]
        assert_near_max(call.ours["wm/termination_logits"], theirs, NETWORK, f"call {i}")
        ended = call.theirs["batch/terminated"][..., 0].astype(np.float64)
        probability = 1 / (1 + np.exp(-theirs.astype(np.float64)))
        entropy = -np.mean(ended * np.log(probability) + (1 - ended) * np.log(1 - probability))
        np.testing.assert_allclose(call.ours["info/termination_loss"], entropy, rtol=LOSS)


def test_recorded_batches_hold_terminations_at_ends_and_none(episodic_recording):
    """Without both the masked targets above would say nothing."""
    rates = [call.ours["info/termination_rate"] for call in replay(episodic_recording)]
    assert min(rates) == 0 and max(rates) > 0
    for call in replay(episodic_recording):
        ended = call.theirs["batch/terminated"] > 0
        np.testing.assert_array_equal(
            call.theirs["td/target"][ended], call.theirs["batch/reward"][ended]
        )


def test_embeddings_are_renormalised_where_5f6fade_renormalises(multitask_recording):
    """At the first look-up and after the world model's step, the batch's tasks alone."""
    absent = 0
    for call in replay(multitask_recording):
        lookups = call.theirs["emb/after_each_lookup"]
        before = np.asarray(call.before.wm_params["task_emb"])
        present = np.unique(call.theirs["batch/task"])
        first = np.asarray(renormalised(jnp.asarray(before), jnp.asarray(present)))
        assert_near(first, lookups[0], 1e-6, "first look-up")
        others = np.setdiff1d(np.arange(len(before)), present)
        np.testing.assert_array_equal(first[others], before[others])
        absent += np.sum(np.linalg.norm(before[others], axis=1) > 1)
        assert_near(call.ours["emb/after"], lookups[-1], 1e-6, "after the policy's look-up")
    # With two tasks the recordings have none that is absent.
    assert absent or len(before) == 2, "no call leaves a long row of an absent task alone"


def names_of(call, prefix):
    return {k.removeprefix(prefix) for k in call.theirs if k.startswith(prefix)}
