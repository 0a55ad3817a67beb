"""Chained updates against danijar/dreamerv3@29eb964, `Agent.train`.

The recordings `train_*.npz` hold real calls with their batches, draws, intermediates and gradients;
`world_model*.npz` holds one call with the scales of actor, critic and replayed critic at zero, so
that its gradient is the world model's alone. Parameters were moved off their initial values, the
slow critic differs from the critic, and the batches hold resets, terminals, actions beyond ±1 and
large rewards. We feed the recorded draws and chain from our own result of each call. In the
recordings of this repository the sizes are pairwise distinct (B 3, T 6, O 14, A 2 or 13, D 36 in 4
blocks, hidden 10, S 5, C 8, units 11, N 18, H 15).

Tolerances are explained where they are written (see also comparison.py). A float64 computation
agrees with the recordings to 2e-6 of each array's largest value, which is where they start from.

Not covered: draws (they are given), the replay's part of the call (wm-collect compares it),
metrics that only the original has (histograms, accuracies, extremes).
"""

import jax
import numpy as np
import pytest

from wm_dreamer.interop import to_reference
from wm_dreamer.update import MODULES

from .comparison import (
    EPS,
    LOGITS,
    NETWORK,
    assert_near,
    assert_near_largest,
    decoded,
    two_hot_loss,
)
from .recordings import config, load
from .updates import call_numbers, recorded_batch, replay

TRAIN = pytest.mark.recordings("dreamerv3/train_*.npz")
WORLD_MODEL = pytest.mark.recordings("dreamerv3/world_model*.npz")

# Sums of gradients over rows and steps cancel: a part of their error has the size of a rounding of
# what is summed, for which the largest gradient of the same network stands.
GRADIENT = 1e-5
GRADIENT_OF_NETWORK = 5e-7
NETWORKS_OF_THE_WORLD_MODEL = ("enc", "dyn", "dec", "rew", "con")


def compare(path, name, tolerance):
    """Compare an array of every call; the tolerance is a function of the call's two arrays."""
    calls = replay(path)
    for n, call in enumerate(calls, 1):
        assert_near(call.ours[name], call.theirs[name], tolerance(call), f"{name} of call {n}")


def compare_network(path, name, relative=NETWORK):
    compare(path, name, lambda call: relative * np.abs(call.theirs[name]).max())


def bins_of(path):
    return np.asarray(config(load(path)).two_hot.bins)


# --- bounds of what is derived --------------------------------------------------------------------


def kl_bound(path):
    """A KL is a difference of entropies of up to S·ln C nats, which round at their own size."""
    settings = config(load(path))
    return 5e-7 * settings.stoch * np.log(settings.classes)


def values_bound(call, name, bins):
    return decoded(call.ours[f"{name}_logits"], bins)


def returns_bound(path, call):
    """The recursion of the returns, for errors: of rewards, values and continuations."""
    settings, bins = config(load(path)), bins_of(path)
    of_reward, of_value = (values_bound(call, f"img/{n}", bins) for n in ("rew", "critic"))
    cont, value = (np.float64(call.theirs[f"img/{n}_mean"]) for n in ("con", "critic"))
    returns = np.float64(call.theirs["img/ret"])
    bound, later, result = of_value[:, -1], value[:, -1], []
    for j in range(returns.shape[1] - 1, -1, -1):
        target = (1 - settings.lam) * np.abs(value[:, j + 1]) + settings.lam * np.abs(later)
        of_target = (1 - settings.lam) * of_value[:, j + 1] + settings.lam * bound
        bound = of_reward[:, j + 1] + cont[:, j + 1] * of_target
        bound = bound + (NETWORK / 4 + 4 * EPS) * target + EPS * np.abs(returns[:, j])
        later = returns[:, j]
        result.append(bound)
    return np.stack(result[::-1], axis=1)


def replay_returns_bound(path, call):
    """Sums of recorded rewards and bootstraps, whose errors λ and γ do not enlarge."""
    returns = call.theirs["metric/replay_ret/dist"]
    return returns_bound(path, call)[:, 0].max() + 4 * EPS * np.abs(returns).max()


def normalizer_bound(path, calls):
    """A step of the average adds its rate's share of the returns' error; two roundings each."""
    rate = config(load(path)).retnorm_rate
    theirs = [c.theirs["img/retnorm_scale"] + abs(c.theirs["img/retnorm_offset"]) for c in calls]
    return sum(rate * returns_bound(path, call).max() for call in calls) + 2 * EPS * sum(theirs)


def advantages_bound(path, calls):
    call, settings = calls[-1], config(load(path))
    shape = (-1, settings.imag_horizon)
    of_value = values_bound(call, "img/critic", bins_of(path))[:, :-1]
    advantage = np.abs(call.theirs["metric/adv/dist"].reshape(shape))
    scale = call.theirs["img/retnorm_scale"]
    of_scale = 2 * normalizer_bound(path, calls) / scale
    return (returns_bound(path, call) + of_value) / scale + advantage * (of_scale + 2 * EPS)


def log_prob_bound(path, call):
    """Discrete: of the log-probabilities. Continuous: of ((a − mean) / std)² / 2 and ln std."""
    if config(load(path)).discrete:
        return NETWORK * np.abs(call.theirs["img/actor_logits"]).max()
    loc, scale = (np.float64(call.ours[f"img/actor_{n}"][:, :-1]) for n in ("loc", "scale"))
    z = np.abs(call.ours["img/action"] - loc) / scale
    return np.sum((1 + z) * NETWORK / scale, axis=-1)


def weights(path, call):
    horizon = config(load(path)).imag_horizon
    return call.theirs["metric/weight/dist"].reshape(-1, horizon + 1)[:, :-1]


def critic_bound(path, call, part, target, of_target):
    """Two cross entropies: with the returns and with the slow critic's value, `part` img or rep."""
    settings, bins = config(load(path)), bins_of(path)
    steps = slice(None, target.shape[1])
    logits = call.ours[f"{part}/critic_logits"][:, steps]
    slow = call.theirs[f"{part}/slowcritic_mean"][:, steps]
    of_slow = values_bound(call, f"{part}/slowcritic", bins)[:, steps]
    of_returns = two_hot_loss(logits, target, of_target, bins)
    return of_returns + settings.slowreg * two_hot_loss(logits, slow, of_slow, bins)


# --- the world model ------------------------------------------------------------------------------


class WorldModelChecks:
    """What both kinds of recordings hold."""

    @pytest.mark.parametrize("name", ["wm/prev_action", "wm/stoch"])
    def test_given_actions_and_forced_latents_are_exact(self, recording, name):
        compare(recording, name, lambda call: 0)

    @pytest.mark.parametrize(
        "name",
        [
            f"wm/{name}"
            for name in ("embed", "deter", "post_logit", "prior_logit", "dec_symlog_mean")
        ],
    )
    def test_networks(self, recording, name):
        compare_network(recording, name)

    def test_continue_head(self, recording):
        for name in ("wm/con_logits", "wm/con_mean"):
            compare_network(recording, name)

    def test_reward_logits(self, recording):
        compare_network(recording, "wm/rew_logits", LOGITS)

    def test_decoded_rewards(self, recording):
        bins = bins_of(recording)
        compare(recording, "wm/rew_mean", lambda call: decoded(call.theirs["wm/rew_logits"], bins))

    def test_decoded_observations(self, recording):
        """symexp turns the absolute error into one relative to 1 + |observation|."""

        def bound(call):
            of_network = NETWORK * np.abs(call.theirs["wm/dec_symlog_mean"]).max()
            return of_network * (1 + np.abs(call.theirs["wm/dec_mean"]))

        compare(recording, "wm/dec_mean", bound)

    def test_kl_of_posterior_and_prior(self, recording):
        compare(recording, "wm/kl_raw", lambda call: kl_bound(recording))

    @pytest.mark.parametrize("name", ["post", "prior"])
    def test_entropies(self, recording, name):
        compare_network(recording, f"metric/{name}_ent/dist", 1e-6)

    @pytest.mark.parametrize("name", ["loss/vector", "loss/cont"])
    def test_reconstruction_and_continue_terms(self, recording, name):
        compare_network(recording, name)

    @pytest.mark.parametrize("name", ["dyn", "rep"])
    def test_kl_terms(self, recording, name):
        scale = getattr(config(load(recording)), f"{name}_scale")
        compare(recording, f"loss/{name}", lambda call: scale * kl_bound(recording))

    def test_reward_term(self, recording):
        bins, settings = bins_of(recording), config(load(recording))
        for n, call in zip(call_numbers(load(recording)), replay(recording), strict=True):
            reward = recorded_batch(load(recording).group(f"data/{n}")).reward[:, 1:]
            bound = two_hot_loss(call.theirs["wm/rew_logits"], reward, 0, bins)
            name = "loss/reward"
            assert_near(call.ours[name], call.theirs[name], settings.rew_scale * bound, f"call {n}")

    def test_gradients(self, recording):
        """Of the one total loss, tensor by tensor, before clipping."""
        for n, call in enumerate(replay(recording), 1):
            theirs = gradients_of(call)
            assert set(theirs) <= set(call.gradients)
            for name, gradient in theirs.items():
                bound = gradient_bound(theirs, name)
                assert_near(call.gradients[name], gradient, bound, f"{name} of call {n}")


def gradients_of(call):
    return {k.removeprefix("grad/"): v for k, v in call.theirs.items() if k[:5] == "grad/"}


def network_of(name):
    return name.split("/")[1]


def gradient_bound(theirs, name):
    """Return the bound of one tensor's gradient, given all recorded ones of the call."""
    of_network = [np.abs(g).max() for k, g in theirs.items() if network_of(k) == network_of(name)]
    return GRADIENT * np.abs(theirs[name]).max() + GRADIENT_OF_NETWORK * max(of_network)


@WORLD_MODEL
class TestWorldModelAlone(WorldModelChecks):
    def test_only_the_world_model_has_a_gradient(self, recording):
        for call in replay(recording):
            for name, gradient in call.gradients.items():
                learns = network_of(name) in NETWORKS_OF_THE_WORLD_MODEL
                assert np.any(gradient != 0) == learns, name
                assert (f"grad/{name}" in call.theirs) == learns, name

    def test_total_and_gradient_norm(self, recording):
        for call in replay(recording):
            total, norm = (call.theirs[f"metric/opt_{n}"] for n in ("loss", "grad_norm"))
            assert_near_largest(call.total, total, NETWORK)
            squares = [np.sum(np.square(np.float64(g))) for g in call.gradients.values()]
            assert_near_largest(np.sqrt(sum(squares)), norm, GRADIENT)


# --- whole updates --------------------------------------------------------------------------------


@TRAIN
class TestWholeUpdates(WorldModelChecks):
    def test_replayed_critics(self, recording):
        bins = bins_of(recording)
        for name in ("critic", "slowcritic"):
            logits = f"rep/{name}_logits"
            compare_network(recording, logits, LOGITS)
            compare(
                recording,
                f"rep/{name}_mean",
                lambda call, logits=logits: decoded(call.theirs[logits], bins),
            )

    def test_imagined_states(self, recording):
        """The deterministic states and the prior were recorded of the first call only."""
        call = replay(recording)[0]
        for name in ("img/deter", "img/logit"):
            assert_near_largest(call.ours[name], call.theirs[name], NETWORK, name)
        compare(recording, "img/stoch", lambda call: 0)

    def test_actor_at_the_start_and_at_every_imagined_state(self, recording):
        names = ("logits",) if config(load(recording)).discrete else ("loc", "scale")
        for name in names:
            compare_network(recording, f"img/actor_{name}")
            for call in replay(recording):
                theirs = call.theirs[f"img/start_actor_{name}"]
                assert_near_largest(call.ours[f"img/actor_{name}"][:, 0], theirs, NETWORK, name)

    def test_actions_are_the_forced_ones(self, recording):
        for call in replay(recording):
            start, others = call.theirs["img/start_action"], call.theirs["img/action"]
            theirs = np.concatenate([start[:, None], others[:, :-1]], axis=1)
            relative = 0 if config(load(recording)).discrete else NETWORK
            assert_near_largest(call.ours["img/action"], theirs, relative)

    def test_imagined_rewards_continuations_and_values(self, recording):
        bins = bins_of(recording)
        for name in ("rew", "critic", "slowcritic"):
            compare(
                recording,
                f"img/{name}_mean",
                lambda call, name=name: values_bound(call, f"img/{name}", bins),
            )
        for name in ("img/con_logits", "img/con_mean"):
            compare_network(recording, name)

    def test_rewards_and_values_as_the_loss_sees_them(self, recording):
        """The reward of a start is the data's, its continuation has no discount."""
        bins = bins_of(recording)
        for ours, network in (("rew", "rew"), ("val", "critic")):
            compare(
                recording,
                f"metric/{ours}/dist",
                lambda call, name=network: values_bound(call, f"img/{name}", bins).reshape(-1),
            )
        compare_network(recording, "metric/weight/dist")

    def test_returns(self, recording):
        compare(recording, "img/ret", lambda call: returns_bound(recording, call))
        compare(recording, "metric/ret/dist", lambda c: returns_bound(recording, c).reshape(-1))

    def test_return_normalizer(self, recording):
        calls = replay(recording)
        for n, call in enumerate(calls, 1):
            bound = normalizer_bound(recording, calls[:n])
            for name in ("img/retnorm_offset", "img/retnorm_scale"):
                assert_near(call.ours[name], call.theirs[name], bound, name)
            state = load(recording).params_after(n)
            for name, ours in call.updated.after.retnorm._asdict().items():
                assert_near(ours, state[f"agent/retnorm/{name}/value"], bound, name)

    def test_advantages_and_normalised_returns(self, recording):
        calls = replay(recording)
        for n, call in enumerate(calls, 1):
            bound = advantages_bound(recording, calls[:n]).reshape(-1)
            for name in ("metric/adv/dist", "metric/ret_normed/dist"):
                bound = bound + 4 * EPS * np.abs(call.theirs[name]).max()
                assert_near(call.ours[name], call.theirs[name], bound, f"{name} of call {n}")

    def test_policy_entropies(self, recording):
        compare_network(recording, "metric/ent/action/dist")

    def test_actor_term(self, recording):
        calls, settings = replay(recording), config(load(recording))
        for n, call in enumerate(calls, 1):
            advantage = np.abs(call.theirs["metric/adv/dist"].reshape(call.theirs["img/ret"].shape))
            log_prob = np.abs(call.ours["img/log_prob"])
            bound = log_prob_bound(recording, call) * advantage
            bound = bound + log_prob * advantages_bound(recording, calls[:n])
            bound = weights(recording, call) * bound + NETWORK * log_prob * advantage
            name, bound = "loss/actor", settings.actor_scale * bound
            assert_near(call.ours[name], call.theirs[name], bound, f"{name} of call {n}")

    def test_critic_term(self, recording):
        settings = config(load(recording))
        for n, call in enumerate(replay(recording), 1):
            of_returns = returns_bound(recording, call)
            bound = critic_bound(recording, call, "img", call.theirs["img/ret"], of_returns)
            bound = weights(recording, call) * bound + NETWORK * np.abs(call.theirs["loss/critic"])
            name, bound = "loss/critic", settings.critic_scale * bound
            assert_near(call.ours[name], call.theirs[name], bound, f"{name} of call {n}")

    def test_replayed_returns(self, recording):
        name = "metric/replay_ret/dist"
        compare(recording, name, lambda call: replay_returns_bound(recording, call))

    def test_replayed_critic_term(self, recording):
        settings = config(load(recording))
        for n, call in enumerate(replay(recording), 1):
            name = "loss/replay_critic"
            theirs = call.theirs[name]
            returns = call.theirs["metric/replay_ret/dist"].reshape(theirs.shape)
            of_returns = replay_returns_bound(recording, call)
            bound = critic_bound(recording, call, "rep", returns, of_returns)
            assert_near(call.ours[name], theirs, settings.repval_scale * bound, f"call {n}")

    def test_latents_to_be_written_back(self, recording):
        for call in replay(recording):
            written = call.updated.written
            assert_near_largest(written.deter, call.theirs["writeback/deter"], NETWORK)
            np.testing.assert_array_equal(written.stoch, call.theirs["writeback/stoch"])

    def test_parameters_after_every_call(self, recording):
        for n, (call, bounds) in enumerate(steps_of(recording), 1):
            state = load(recording).params_after(n)
            ours = to_reference(call.updated.after.params, config=config(load(recording)))
            for name, value in ours.items():
                what = f"{name} after call {n}"
                assert_near(value, state[name], bounds[name].of_parameters, what)

    def test_slow_critic_after_every_call(self, recording):
        """Copied at the first call; afterwards a weighted sum of it and the critic, rounded."""
        settings, rounding = config(load(recording)), 0
        for n, (call, bounds) in enumerate(steps_of(recording), 1):
            state = load(recording).params_after(n)
            ours = to_reference(
                call.updated.after.params, call.updated.after.slow_critic, config=settings
            )
            for name in (name for name in ours if network_of(name) == "slowcritic"):
                critic = name.replace("slowcritic", "critic")
                rounding = 2 * n * EPS * (np.abs(state[name]) + np.abs(state[critic]))
                bound = bounds[critic].of_parameters + rounding
                assert_near(ours[name], state[name], bound, f"{name} after call {n}")

    def test_averages_of_the_optimiser_after_the_last_call(self, recording):
        settings = config(load(recording))
        *_, (call, bounds) = steps_of(recording)
        state = load(recording).params_after(len(replay(recording)))
        averages = call.updated.after.opt_state[1]
        for ours, theirs, bound in (
            (averages.nu, "rms/nu", "of_nu"),
            (averages.mu, "momentum/mu", "of_mu"),
        ):
            for name, value in to_reference(ours, config=settings).items():
                recorded = state[f"agent/opt/{theirs}/{name}"]
                assert_near(value, recorded, getattr(bounds[name], bound), f"{theirs} of {name}")

    def test_counters(self, recording):
        for n, call in enumerate(replay(recording), 1):
            state = load(recording).params_after(n)
            _, averages, schedule = call.updated.after.opt_state
            assert call.updated.after.updates == state["agent/updater/updates/value"] == n
            assert schedule.count == state["agent/opt/step/value"]
            assert averages.count == state["agent/opt/rms/step"]
            assert averages.count == state["agent/opt/momentum/step"]

    def test_metrics(self, recording):
        """Means of arrays compared above.

        The bound is relative to the array's largest entry; a sum of n entries, one by one, rounds n
        times.
        """
        settings = config(load(recording))
        for call in replay(recording):
            for ours, (theirs, array, relative) in METRICS.items():
                scale = getattr(settings, SCALES.get(ours, ""), 1.0)
                largest = np.abs(call.theirs[array]).max() / scale
                relative = relative + EPS / 4 * call.theirs[array].size
                assert_near(
                    call.updated.metrics[ours], call.theirs[theirs], relative * largest, ours
                )
            for name, value in NORMALIZER_METRICS.items():
                assert call.updated.metrics[name] == value(call), name
            # The reference logs no norms of single modules' gradients.
            norms = {f"Train/grad_norm/{name}" for name in MODULES}
            assert set(call.updated.metrics) == set(METRICS) | set(NORMALIZER_METRICS) | norms
            total = np.sqrt(sum(np.square(call.updated.metrics[name]) for name in norms))
            np.testing.assert_allclose(call.updated.metrics["Train/grad_norm"], total, rtol=1e-6)


# --- what the optimiser makes of the bounds of gradients ------------------------------------------


class StepBounds:
    """Bounds of one tensor after a number of calls, from the bounds of its gradients.

    Each normalised gradient is y = g / √nu: an error of g that is as large as g itself moves y by
    about 1. Such components exist, so that momenta are compared element by element: by the error
    of g relative to √nu, averaged as the momentum averages, but no more than y can differ at all.
    Parameters add the step size times that, and the rounding of each sum.
    """

    def __init__(self):
        self.nu = self.of_nu = self.of_mu = self.of_parameters = 0.0

    def add(self, settings, n, gradient, of_gradient, before, after):
        gradient, before = np.float64(gradient), np.float64(before)
        norm = np.linalg.norm(gradient)
        allowed = settings.agc * max(settings.agc_pmin, np.linalg.norm(before))
        clip = 1 / max(1.0, norm / allowed)
        of_clip = of_gradient * np.sqrt(gradient.size) / norm + 10 * EPS if norm else 0
        clipped = clip * gradient
        of_clipped = clip * of_gradient + np.abs(clipped) * of_clip

        kept = settings.beta2
        self.nu = kept * self.nu + (1 - kept) * clipped**2
        of_square = 2 * np.abs(clipped) * of_clipped + of_clipped**2
        self.of_nu = kept * self.of_nu + (1 - kept) * of_square + 4 * EPS * self.nu
        root = np.sqrt(self.nu / (1 - kept**n))
        with np.errstate(divide="ignore", invalid="ignore"):
            of_root = self.of_nu / (2 * self.nu)
            of_y = of_clipped / root + np.abs(clipped) / root * (of_root + 8 * EPS)
        # A component that is exactly zero stays so; |y| is at most √n at update n.
        of_y = np.where(root > 0, np.minimum(of_y, 2 * np.sqrt(n)), 0)
        self.of_mu = settings.beta1 * self.of_mu + (1 - settings.beta1) * of_y
        factor = min((n - 1) / settings.warmup, 1.0) if settings.warmup else 1.0
        if factor:
            of_step = self.of_mu / (1 - settings.beta1**n)
            moved = factor * settings.learning_rate * of_step + EPS * np.abs(after)
            self.of_parameters = self.of_parameters + moved


def steps_of(path):
    """Yield each call with the bounds of every tensor after it."""
    recording = load(path)
    settings = config(recording)
    bounds = {name: StepBounds() for name in gradients_of(replay(path)[0])}
    for n, call in enumerate(replay(path), 1):
        before, after = (recording.params_after(i) for i in (n - 1, n))
        theirs = gradients_of(call)
        for name, gradient in theirs.items():
            of_gradient = gradient_bound(theirs, name)
            if network_of(name) in ("rew", "critic") and name.split("/")[2] == "dist":
                # The output that is never read has no gradient at all.
                of_gradient = np.where(gradient == 0, 0, of_gradient)
            bounds[name].add(settings, n, gradient, of_gradient, before[name], after[name])
        yield call, bounds


# Ours, theirs, an array of the size of what is averaged, and the tolerance relative to its largest
# entry. Two-hot terms hold D22.
TWO_HOT = 5e-6
METRICS = {
    "reconstruction": ("metric/vector_loss", "loss/vector", NETWORK),
    "reward": ("metric/reward_loss", "loss/reward", TWO_HOT),
    "continue": ("metric/cont_loss", "loss/cont", NETWORK),
    "dyn": ("metric/dyn_loss", "loss/dyn", NETWORK),
    "rep": ("metric/rep_loss", "loss/rep", NETWORK),
    "actor": ("metric/actor_loss", "loss/actor", NETWORK),
    "critic": ("metric/critic_loss", "loss/critic", TWO_HOT),
    "replay_critic": ("metric/replay_critic_loss", "loss/replay_critic", TWO_HOT),
    "total": ("metric/opt_loss", "metric/opt_loss", NETWORK),
    "Train/grad_norm": ("metric/opt_grad_norm", "metric/opt_grad_norm", GRADIENT),
    "Train/update_norm": ("metric/opt_update_norm", "metric/opt_update_norm", GRADIENT),
    "Train/param_norm": ("metric/opt_param_norm", "metric/opt_param_norm", NETWORK),
    "Train/policy_entropy": ("metric/ent/action/mean", "metric/ent/action/dist", NETWORK),
    "Train/prior_entropy": ("metric/prior_ent/mean", "metric/prior_ent/dist", NETWORK),
    "Train/posterior_entropy": ("metric/post_ent/mean", "metric/post_ent/dist", NETWORK),
    "Train/imagined_reward": ("metric/rew/mean", "metric/rew/dist", NETWORK),
    "Train/imagined_return": ("metric/ret/mean", "metric/ret/dist", NETWORK),
    "Train/replay_return": ("metric/replay_ret/mean", "metric/replay_ret/dist", NETWORK),
    "Train/value": ("metric/val/mean", "metric/val/dist", NETWORK),
    "Train/td_error": ("metric/td_error", "metric/adv/dist", TWO_HOT),
    "Train/advantage": ("metric/adv/mean", "metric/adv/dist", NETWORK),
    "Train/weight": ("metric/weight/mean", "metric/weight/dist", NETWORK),
}
# Reported terms are unscaled, recorded arrays are not.
SCALES = {
    "reconstruction": "rec_scale",
    "reward": "rew_scale",
    "continue": "con_scale",
    "dyn": "dyn_scale",
    "rep": "rep_scale",
    "actor": "actor_scale",
    "critic": "critic_scale",
    "replay_critic": "repval_scale",
}
NORMALIZER_METRICS = {
    "Train/retnorm_low": lambda call: float(call.updated.after.retnorm.low),
    "Train/retnorm_high": lambda call: float(call.updated.after.retnorm.high),
    "Train/retnorm_scale": lambda call: float(call.ours["img/retnorm_scale"]),
}


@TRAIN
def test_every_recorded_parameter_has_a_gradient_and_a_step(recording):
    """Nothing of the original is left without a counterpart."""
    for n, call in enumerate(replay(recording), 1):
        changed = {
            name
            for name in load(recording).group(f"params/{n}")
            if name.split("/")[1] not in ("opt", "updater", "retnorm", "slowcritic")
        }
        assert changed <= set(call.gradients) == set(gradients_of(call))
        assert bool(changed) == any(
            np.any(a != b)
            for a, b in zip(
                jax.tree.leaves(call.updated.before.params),
                jax.tree.leaves(call.updated.after.params),
                strict=True,
            )
        )
