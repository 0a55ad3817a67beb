"""The one loss: alignment of the batch, each term, what it trains, and what is masked."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import networks
from wm_dreamer.losses import (
    Sequences,
    Terms,
    WorldModelOutputs,
    return_normalizer,
    scales,
    sequences,
    world_model_terms,
)
from wm_dreamer.returns import lambda_return, replay_return
from wm_dreamer.rssm import Observed, RSSMState

from .tiny import (
    CONFIG,
    DISCRETE,
    assert_trees_close,
    fresh_learner,
    leaves_by_path,
    losses_and_gradients,
    make_config,
    moved_learner,
    random_batch,
    random_noise,
)

T, B, H, N = CONFIG.batch_length, CONFIG.batch_size, CONFIG.imag_horizon, 16
MODULES = ("encoder", "rssm", "decoder", "reward", "continue", "actor", "critic")


@pytest.fixture(scope="module")
def usual():
    """Total, outputs and gradient of the loss on the usual batch."""
    return losses_and_gradients()


# --- the batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])
def test_row_zero_of_a_window_is_context_only(config):
    batch = random_batch(config=config)
    data = sequences(batch, config=config)
    np.testing.assert_array_equal(data.obs, np.swapaxes(batch.obs[:, 1:], 0, 1))
    for name in ("reward", "is_first", "is_last", "is_terminal"):
        np.testing.assert_array_equal(getattr(data, name), getattr(batch, name)[:, 1:].T)
    np.testing.assert_array_equal(data.start.deter, batch.context_deter)
    one_hot = np.eye(config.classes)[batch.context_stoch]
    np.testing.assert_array_equal(data.start.stoch, one_hot.reshape(B, -1))


@pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])
def test_the_first_previous_action_is_the_contexts(config):
    batch = random_batch(config=config)
    action = np.asarray(batch.action)
    if config.discrete:
        action = np.eye(config.action_dim, dtype=np.float32)[action]
    prev_action = sequences(batch, config=config).prev_action
    assert prev_action.shape == (T, B, config.action_dim)
    np.testing.assert_array_equal(prev_action[0], action[:, 0])
    np.testing.assert_array_equal(prev_action[-1], action[:, -2])


# --- the terms of the world model -----------------------------------------------------------------


def row_terms(config=CONFIG, **changes):
    """Return the world model's terms of one row, predictions and data given."""
    s, c = config.stoch, config.classes
    uniform = np.full((1, 1, s, c), -np.log(c), np.float32)
    values = dict(
        obs_mean=np.zeros((1, config.obs_dim), np.float32),
        obs=np.zeros((1, 1, config.obs_dim), np.float32),
        reward_logits=np.zeros((1, config.bins), np.float32),
        reward=np.zeros((1, 1), np.float32),
        cont=np.zeros(1, np.float32),
        is_terminal=np.zeros((1, 1), bool),
        posterior=uniform,
        prior=uniform[0],
    )
    v = {k: jnp.asarray(x) for k, x in (values | changes).items()}
    state = RSSMState(jnp.zeros((1, config.deter)), jnp.zeros((1, s * c)))
    observed = Observed(state.deter[None], state.stoch[None], v["posterior"], jnp.zeros((1, 1, s)))
    model = WorldModelOutputs(
        observed,
        jnp.concatenate(state, axis=-1),
        v["prior"],
        v["obs_mean"],
        v["reward_logits"],
        v["cont"],
    )
    none = jnp.zeros((1, 1), bool)
    data = Sequences(
        obs=v["obs"],
        prev_action=jnp.zeros((1, 1, config.action_dim)),
        reward=v["reward"],
        is_first=none,
        is_last=none,
        is_terminal=v["is_terminal"],
        start=state,
    )
    names = ("reconstruction", "reward", "cont", "dyn", "rep")
    return dict(zip(names, world_model_terms(model, data, config=config), strict=True))


def test_reconstruction_is_a_sum_of_squares_in_symlog_space():
    obs = np.linspace(-30, 30, CONFIG.obs_dim, dtype=np.float32)[None]
    terms = row_terms(obs=obs[None])
    expected = np.sum((np.sign(obs) * np.log1p(np.abs(obs))) ** 2)
    np.testing.assert_allclose(terms["reconstruction"], [expected], rtol=1e-6)


def test_squared_errors_below_the_tolerance_and_their_gradients_are_zero():
    errors = np.zeros((1, CONFIG.obs_dim), np.float32)
    errors[0, :4] = 9.9e-5, -9.9e-5, 1.01e-4, 2.0

    def total(mean):
        return row_terms(obs_mean=mean)["reconstruction"][0]

    value, gradient = jax.value_and_grad(total)(jnp.asarray(errors))
    np.testing.assert_allclose(value, 1.01e-4**2 + 4, rtol=1e-6)
    np.testing.assert_allclose(gradient[0, :4], [0, 0, 2.02e-4, 4], rtol=1e-5)


def test_the_discount_is_part_of_the_continue_label():
    """At the label itself the loss is its entropy, 0.0204 nats, and its gradient zero."""
    at_label = np.log(CONFIG.gamma / (1 - CONFIG.gamma)).astype(np.float32)

    def cont(logit, terminal=False):
        return row_terms(cont=jnp.reshape(logit, 1), is_terminal=np.full((1, 1), terminal))["cont"][
            0
        ]

    value, slope = jax.value_and_grad(cont)(jnp.float32(at_label))
    entropy = -CONFIG.gamma * np.log(CONFIG.gamma) - np.log(1 / 333) / 333
    np.testing.assert_allclose(value, entropy, rtol=1e-4)
    assert abs(value - 0.0204) < 1e-4 and abs(slope) < 1e-6
    np.testing.assert_allclose(cont(2.0, True), np.log1p(np.exp(2.0)), rtol=1e-6)
    np.testing.assert_allclose(cont(0.0), np.log(2), rtol=1e-6)


def test_the_reward_is_a_two_hot_target_in_raw_units():
    logits = np.sin(0.1 * np.arange(255, dtype=np.float32))[None]
    for reward, log_prob in ((0.0, -5.6425972), (1.0, -5.2352476), (-3.7, -6.5251862)):
        terms = row_terms(reward_logits=logits, reward=np.full((1, 1), reward, np.float32))
        np.testing.assert_allclose(terms["reward"], [-log_prob], rtol=1e-5)


def log_softmax(x):
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def test_free_nats_are_a_floor_of_the_sum_over_the_latents():
    rng = np.random.default_rng(0)
    shape = (1, 1, CONFIG.stoch, CONFIG.classes)
    near, far = (log_softmax(s * rng.standard_normal(shape)).astype(np.float32) for s in (0.1, 3.0))
    prior = log_softmax(np.zeros(shape[1:])).astype(np.float32)
    terms = row_terms(posterior=near, prior=prior)
    np.testing.assert_array_equal([terms["dyn"], terms["rep"]], 1)
    terms = row_terms(posterior=far, prior=prior)
    expected = np.sum(np.exp(far) * (far - prior))
    assert expected > 1
    np.testing.assert_allclose([terms["dyn"][0], terms["rep"][0]], [expected] * 2, rtol=1e-5)
    # Each latent alone is below the floor, their sum is not.
    assert np.all(np.sum(np.exp(far) * (far - prior), axis=-1) < expected)


def test_dyn_trains_the_prior_and_rep_the_posterior():
    rng = np.random.default_rng(0)
    shape = (1, 1, CONFIG.stoch, CONFIG.classes)
    posterior, prior = (
        log_softmax(3 * rng.standard_normal(shape)).astype(np.float32) for _ in "ab"
    )
    for name, trained in (("dyn", 1), ("rep", 0)):

        def term(posterior, prior, name=name):
            return row_terms(posterior=posterior, prior=prior)[name][0]

        gradients = jax.grad(term, (0, 1))(jnp.asarray(posterior), jnp.asarray(prior[0]))
        assert [bool(np.any(g != 0)) for g in gradients] == [trained == i for i in (0, 1)]


# --- which parameters a term trains ---------------------------------------------------------------

TRAINS = {
    "reconstruction": ("decoder", "rssm", "encoder"),
    "reward": ("reward", "rssm", "encoder"),
    "cont": ("continue", "rssm", "encoder"),
    "dyn": ("rssm", "encoder"),
    "rep": ("rssm", "encoder"),
    "actor": ("actor",),
    "critic": ("critic",),
    "replay_critic": ("critic", "rssm", "encoder"),
}


@pytest.mark.parametrize("term", Terms._fields)
def test_a_term_trains_its_modules_and_gives_all_others_exactly_zero(term):
    _, _, gradients = losses_and_gradients(weights={term: 1.0})
    for path, gradient in leaves_by_path(gradients).items():
        trained = path.split("/")[0] in TRAINS[term]
        if "prior" in path:
            trained = term == "dyn"
        assert np.any(gradient != 0) == trained, path
        assert np.all(np.isfinite(gradient)), path


def scaled_sum(terms):
    return sum(
        scales(CONFIG)[name] * np.mean(np.float64(term)) for name, term in terms._asdict().items()
    )


def test_the_total_is_the_scaled_sum_of_the_means(usual):
    total, outputs, _ = usual
    np.testing.assert_allclose(total, scaled_sum(outputs.terms), rtol=1e-6)
    assert scales(CONFIG) == dict.fromkeys(Terms._fields, 1) | {"rep": 0.1, "replay_critic": 0.3}


def test_scales_are_the_settings():
    names = ("rec", "rew", "con", "dyn", "rep", "actor", "critic", "repval")
    config = make_config(**{f"{name}_scale": i + 0.5 for i, name in enumerate(names)})
    assert scales(config) == {name: i + 0.5 for i, name in enumerate(Terms._fields)}


# --- imagined states ------------------------------------------------------------------------------


def test_every_trained_row_is_a_start_last_and_terminal_ones_too(usual):
    _, outputs, _ = usual
    observed, start = outputs.world_model.observed, outputs.imagined.state
    np.testing.assert_array_equal(start.deter[0], observed.deter.reshape(N, -1))
    np.testing.assert_array_equal(start.stoch[0], observed.stoch.reshape(N, -1))


def test_weights_start_with_the_data_and_go_on_with_predictions(usual):
    _, outputs, _ = usual
    behavior = outputs.behavior
    alive = 1 - np.asarray(sequences(random_batch(), config=CONFIG).is_terminal).reshape(-1)
    assert 0 < alive.sum() < N
    np.testing.assert_array_equal(behavior.weight[0], alive)
    expected = np.cumprod(np.concatenate([alive[None], behavior.cont[:-1]]), axis=0)
    np.testing.assert_allclose(behavior.weight, expected, rtol=1e-6)
    np.testing.assert_array_equal(behavior.weight[:, alive == 0], 0)
    for term in (outputs.terms.actor, outputs.terms.critic):
        np.testing.assert_array_equal(np.asarray(term)[:, alive == 0], 0)


def test_values_and_predictions_are_the_heads_at_the_imagined_states(usual):
    """Values are the online critic's; rewards and continuations those of the next states."""
    _, outputs, _ = usual
    learner, imagined, behavior = moved_learner(), outputs.imagined, outputs.behavior
    states = [
        jnp.concatenate([x, last[None]])
        for x, last in zip(imagined.state, imagined.last_state, strict=True)
    ]
    x = jnp.concatenate(states, axis=-1)

    @jax.jit
    def heads(params, slow):
        critic = networks.critic(CONFIG)
        value, slow_value = (networks.apply(critic, p, x) for p in (params["critic"], slow))
        reward = networks.apply(networks.reward_head(CONFIG), params["reward"], x)
        cont = networks.apply(networks.continue_head(CONFIG), params["continue"], x)
        return [CONFIG.two_hot.mean(v) for v in (value, slow_value, reward)], cont[..., 0]

    (value, slow, reward), cont = heads(learner.params, learner.slow_critic)
    expected = (value, slow[:-1], reward[1:], jax.nn.sigmoid(cont[1:]))
    fields = (behavior.value, behavior.slow_value, behavior.reward, behavior.cont)
    for ours, theirs in zip(fields, expected, strict=True):
        # Two-hot means of networks far from their start are sums of large terms.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    returns = lambda_return(
        behavior.reward, behavior.cont, behavior.value[1:], behavior.value[-1], CONFIG.lam
    )
    np.testing.assert_allclose(behavior.returns, returns, rtol=1e-5)


def test_the_normaliser_is_updated_before_it_is_read(usual):
    _, outputs, _ = usual
    normalizer = return_normalizer(CONFIG)
    state = normalizer.update(moved_learner().retnorm, outputs.behavior.returns)
    np.testing.assert_allclose(outputs.retnorm, state, rtol=1e-5)
    behavior = outputs.behavior
    expected = (behavior.returns - behavior.value[:-1]) / normalizer.scale(state)
    np.testing.assert_allclose(outputs.advantage, expected, rtol=1e-5)
    assert np.all(np.asarray(state) != np.asarray(moved_learner().retnorm))


def test_actor_term_is_reinforce_with_an_entropy_bonus(usual):
    _, outputs, _ = usual
    behavior = outputs.behavior
    log_prob = behavior.policy.log_prob(outputs.imagined.action)
    bonus = CONFIG.actent * behavior.policy.entropy()
    expected = -behavior.weight * (log_prob * outputs.advantage + bonus)
    assert outputs.terms.actor.shape == (H, N)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(outputs.terms.actor, expected, rtol=0, atol=1e-5 * largest)


def test_critic_term_has_two_targets_and_no_normalisation(usual):
    _, outputs, _ = usual
    behavior, two_hot = outputs.behavior, CONFIG.two_hot
    expected = two_hot.loss(behavior.critic_logits, behavior.returns)
    expected += CONFIG.slowreg * two_hot.loss(behavior.critic_logits, behavior.slow_value)
    expected *= behavior.weight
    largest = np.abs(expected).max()
    np.testing.assert_allclose(outputs.terms.critic, expected, rtol=0, atol=1e-5 * largest)


# --- replayed critic ------------------------------------------------------------------------------


def test_replayed_returns_bootstrap_from_the_imagined_return_of_the_same_row(usual):
    _, outputs, _ = usual
    data = sequences(random_batch(), config=CONFIG)
    expected = replay_return(
        data.reward,
        data.is_last,
        data.is_terminal,
        outputs.behavior.returns[0].reshape(T, B),
        gamma=CONFIG.gamma,
        lam=CONFIG.repval_lam,
    )
    np.testing.assert_allclose(outputs.replay_returns, expected, rtol=1e-5)


def test_transitions_out_of_a_last_row_are_masked_but_counted(usual):
    _, outputs, _ = usual
    last = np.asarray(sequences(random_batch(), config=CONFIG).is_last)[:-1]
    term = np.asarray(outputs.terms.replay_critic)
    assert term.shape == (T - 1, B) and last.any()
    np.testing.assert_array_equal(term == 0, last)


def test_replayed_critic_term_has_two_targets(usual):
    _, outputs, _ = usual
    two_hot, n = CONFIG.two_hot, (T - 1) * B
    logits = outputs.replay_logits[:n]
    expected = two_hot.loss(logits, outputs.replay_returns.reshape(-1))
    expected += CONFIG.slowreg * two_hot.loss(logits, outputs.replay_slow_value[:n])
    last = np.asarray(sequences(random_batch(), config=CONFIG).is_last)[:-1]
    expected = np.where(last, 0, np.asarray(expected).reshape(T - 1, B))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(outputs.terms.replay_critic, expected, rtol=0, atol=1e-5 * largest)


# --- the whole ------------------------------------------------------------------------------------


def test_a_fresh_agent_starts_at_the_known_losses():
    """Rewards and values exactly 0, ln 255 per two-hot target, a scale of 1."""
    total, outputs, _ = losses_and_gradients(fresh_learner())
    behavior, ln255 = outputs.behavior, np.log(255)
    for zero in (behavior.reward, behavior.value, behavior.slow_value, behavior.returns):
        np.testing.assert_array_equal(zero, 0)
    np.testing.assert_array_equal(outputs.advantage, 0)
    np.testing.assert_array_equal(outputs.replay_slow_value, 0)
    assert return_normalizer(CONFIG).scale(outputs.retnorm) == 1
    terms = outputs.terms
    np.testing.assert_allclose(terms.reward, ln255, rtol=1e-6)
    np.testing.assert_allclose(terms.critic, 2 * ln255 * behavior.weight, rtol=1e-5)
    last = sequences(random_batch(), config=CONFIG).is_last[:-1]
    np.testing.assert_allclose(terms.replay_critic, 2 * ln255 * (1 - last), rtol=1e-5)
    np.testing.assert_allclose(total, scaled_sum(terms), rtol=1e-6)


def test_the_order_of_sequences_does_not_matter(usual):
    """The batch is a set; rows of imagination move with their sequences, and means stay."""
    total, outputs, gradients = usual
    batch, noise = random_batch(), random_noise()

    def swapped(x):
        return np.asarray(x)[::-1]

    def swapped_starts(x):
        rows = np.asarray(x).reshape(H, T, B, *x.shape[2:])
        return rows[:, :, ::-1].reshape(x.shape)

    other = losses_and_gradients(
        batch=jax.tree.map(swapped, batch),
        noise=noise._replace(
            posterior=np.asarray(noise.posterior)[:, ::-1],
            action=swapped_starts(noise.action),
            prior=swapped_starts(noise.prior),
        ),
    )
    np.testing.assert_allclose(other[0], total, rtol=1e-6)
    assert_trees_close(other[2], gradients, 2e-5)
    terms = jax.tree.map(np.asarray, outputs.terms)
    np.testing.assert_allclose(
        other[1].terms.actor.reshape(H, T, B)[..., ::-1].reshape(H, N),
        terms.actor,
        rtol=0,
        atol=2e-5 * np.abs(terms.actor).max(),
    )


def test_the_context_rows_own_data_is_not_trained_on(usual):
    """Only its latents and its action enter; its observation, reward and flags do not."""
    batch = random_batch()
    changed = {}
    for name in ("obs", "reward"):
        values = np.array(getattr(batch, name))
        values[:, 0] += 5
        changed[name] = values
    for name in ("is_last", "is_terminal"):
        values = np.array(getattr(batch, name))
        values[:, 0] = True
        changed[name] = values
    total, *_ = losses_and_gradients(batch=batch._replace(**changed))
    np.testing.assert_array_equal(total, usual[0])
    moved = batch._replace(context_deter=batch.context_deter + 0.1)
    assert losses_and_gradients(batch=moved)[0] != usual[0]


def test_the_discount_follows_the_horizon():
    config = dataclasses.replace(CONFIG, return_horizon=10.0)
    terms = row_terms(config, cont=np.full(1, 50.0, np.float32))
    np.testing.assert_allclose(terms["cont"], [50 * 0.1], rtol=1e-5)
