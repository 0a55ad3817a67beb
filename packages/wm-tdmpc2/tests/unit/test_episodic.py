"""The episodic agent: its schedule, its losses, and what the planner does with terminations."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect.testing import CounterEnv
from wm_tdmpc2 import (
    TDMPC2,
    RowSchedule,
    TDMPC2Settings,
    draw_plan_noise,
    draw_update_noise,
    plan,
    resolve_config,
    schedule_of,
    update,
    world_model,
)
from wm_tdmpc2.networks import parameter_counts
from wm_tdmpc2.optimizer import world_model_optimizer
from wm_tdmpc2.train import make_algorithm, replay_of
from wm_tdmpc2.update import (
    EPISODIC_METRIC_NAMES,
    METRIC_NAMES,
    metric_names,
    td_target,
    termination_metrics,
    world_model_loss,
)

from .tiny import fresh_learner, make_config, make_spec, moved_learner, random_batch

# Losses and plans are unrolled over the horizon; a short one compiles faster.
CONFIG, PLAIN = (make_config(horizon=2, episodic=episodic) for episodic in (True, False))

examples = settings(max_examples=25, deadline=None, derandomize=True)

# --- the schedule ---------------------------------------------------------------------------------


def simulate(schedule, n_ticks):
    """One row of every environment, tick after tick; returns what each tick did.

    Actions are random until the rows of all environments together exceed the seed steps and as many
    ticks have passed as the longest episode has rows; that tick makes as many updates as there are
    seed steps; every later tick makes N times the updates per step, rounded, at least one.
    """
    rows, seeding, ticks = 0, True, []
    for tick in range(n_ticks):
        done = {"random": seeding, "before": rows}
        updates = 0
        rows += schedule.n_envs
        if not seeding:
            updates = max(1, round(schedule.n_envs * schedule.updates_per_step))
        elif rows > schedule.seed_steps and tick + 1 >= schedule.episode_length + 1:
            updates, seeding = schedule.seed_steps, False
        ticks.append(done | {"updates": updates})
    return {name: [tick[name] for tick in ticks] for name in ticks[0]}


# Seed phases shorter than an episode, as long as one, and several episodes long.
SCHEDULES = [
    RowSchedule(length, n_envs, seed_steps, ratio)
    for length, seed_steps in [(1, 4), (10, 3), (10, 10), (10, 33), (25, 111), (7, 1000)]
    for n_envs in (1, 3, 16)
    for ratio in (0.5, 1.0, 2.0)
]


def name_of(case):
    return f"T{case.episode_length}-S{case.seed_steps}-N{case.n_envs}-r{case.updates_per_step}"


@functools.partial(jax.jit, static_argnums=0)
def traced(schedule, ticks):
    return jax.vmap(
        lambda t: {
            "before": schedule.timesteps_before(t),
            "cumulative": schedule.updates_before(t),
            "random": schedule.is_random(t),
        }
    )(ticks)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=name_of)
def test_closed_forms_are_those_of_a_plain_loop(schedule):
    n_ticks = schedule.burst_tick + 40
    expected = simulate(schedule, n_ticks)
    cumulative = np.cumsum([0, *expected["updates"]]).tolist()
    assert [schedule.updates_before(t) for t in range(n_ticks + 1)] == cumulative
    assert [schedule.timesteps_before(t) for t in range(n_ticks)] == expected["before"]
    assert [schedule.is_random(t) for t in range(n_ticks)] == expected["random"]
    assert np.flatnonzero(expected["updates"])[0] == schedule.burst_tick


@pytest.mark.parametrize("schedule", SCHEDULES[::5], ids=name_of)
def test_traced_ticks_give_the_same_numbers(schedule):
    n_ticks = schedule.burst_tick + 40
    ours = traced(schedule, jnp.arange(n_ticks, dtype=jnp.int32))
    for name, function in (
        ("before", schedule.timesteps_before),
        ("cumulative", schedule.updates_before),
        ("random", schedule.is_random),
    ):
        np.testing.assert_array_equal(ours[name], [function(t) for t in range(n_ticks)], name)
    assert ours["cumulative"].dtype == ours["before"].dtype == jnp.int32


@pytest.mark.parametrize("n_envs", [1, 16])
def test_counts_stay_exact_in_32_bits_for_a_hundred_million_ticks(n_envs):
    schedule = RowSchedule(500, n_envs, 2500, 1.0)
    ticks = np.array([10**7, 99_999_999, 10**8])
    ours = traced(schedule, jnp.asarray(ticks, jnp.int32))
    np.testing.assert_array_equal(ours["before"], n_envs * ticks)
    expected = [schedule.updates_before(int(t)) for t in ticks]
    np.testing.assert_array_equal(ours["cumulative"], expected)


def test_every_environment_has_had_an_episode_before_the_first_update():
    """The longest one has its last row on tick T, however short the seed phase is."""
    assert RowSchedule(10, 16, 5, 1.0).burst_tick == 10
    assert RowSchedule(10, 1, 500, 1.0).burst_tick == 500
    assert RowSchedule(10, 3, 500, 1.0).burst_tick == 166


def test_the_schedule_of_an_episodic_configuration_counts_rows():
    config = make_config(n_envs=3, seed_steps=7, updates_per_step=0.5, episodic=True)
    assert schedule_of(config) == RowSchedule(50, 3, 7, 0.5)


def test_the_clock_of_an_episodic_agent_counts_rows():
    env = CounterEnv([8, 5], terminates=[False, True])
    clock = TDMPC2(env, n_envs=3, episodic=True).clock
    assert clock.unit == "rows"
    assert [clock.timestep(tick) for tick in (0, 1, 9, 10)] == [0, 3, 27, 30]
    assert clock.completed_at(28) == 10
    env.spec = dataclasses.replace(env.spec, action_repeat=4)
    repeated = TDMPC2(env, action_repeat=4, episodic=True).clock
    assert (repeated.timestep(150), repeated.env_frames(150)) == (150, 600)


# --- configuration --------------------------------------------------------------------------------


def test_a_task_that_terminates_needs_episodic():
    spec = make_spec(terminates=True)
    with pytest.raises(ValueError, match=r"tiny may terminate early; set episodic=True to learn"):
        resolve_config(TDMPC2Settings(), spec)
    config = resolve_config(TDMPC2Settings(episodic=True), spec)
    assert config.episodic and config.termination_coef == 1.0


def test_a_task_that_never_terminates_may_be_learnt_episodically():
    assert make_config(episodic=True).agent_episode_length == 50


def test_a_buffer_that_holds_an_episodes_steps_but_not_its_rows_is_refused():
    env = CounterEnv([8, 5], terminates=[False, True])
    with pytest.raises(ValueError, match=r"9 rows x 2 environment\(s\) = 18, got 17"):
        TDMPC2(env, n_envs=2, buffer_size=17, episodic=True)
    agent = TDMPC2(env, n_envs=2, buffer_size=18, episodic=True)
    assert replay_of(agent.config, 1000).capacity == 18
    assert agent.describe()["replay"].endswith("a shorter run holds less")


@pytest.mark.parametrize("coefficient", [-1.0, float("inf"), float("nan"), "1"])
def test_the_weight_of_the_termination_loss_is_checked(coefficient):
    with pytest.raises(ValueError, match=r"termination_coef must lie in \[0, inf\), got"):
        TDMPC2Settings(termination_coef=coefficient)


def test_the_head_adds_its_parameters_at_size_5_and_only_when_episodic():
    env = CounterEnv([500, 400], terminates=[False, True], obs_dim=24, action_dim=6)
    episodic = TDMPC2(env, episodic=True).parameter_counts()
    plain = TDMPC2(CounterEnv([500], obs_dim=24, action_dim=6)).parameter_counts()
    assert plain["total"] == 4_960_618 and "termination" not in plain
    assert episodic["total"] == 5_488_491 and episodic["termination"] == 527_873
    shared = {name: n for name, n in episodic.items() if name not in ("termination", "total")}
    assert shared == {name: n for name, n in plain.items() if name != "total"}
    assert parameter_counts(CONFIG)["termination"] == (12 + 1 + 2) * 14 + (14 + 1 + 2) * 14 + 15


def test_a_fresh_head_has_small_weights_and_leaves_the_other_networks_as_they_were():
    episodic, plain = fresh_learner(CONFIG), fresh_learner(PLAIN)
    head = episodic.wm_params["termination"]
    assert 0.01 < np.std(head["out"]["kernel"]) < 0.03
    np.testing.assert_array_equal(head["out"]["bias"], 0)
    rest = {name: p for name, p in episodic.wm_params.items() if name != "termination"}
    jax.tree.map(np.testing.assert_array_equal, rest, plain.wm_params)
    jax.tree.map(np.testing.assert_array_equal, episodic.pi_params, plain.pi_params)


def test_the_description_says_rows_and_that_terminations_are_learnt():
    env = CounterEnv([8, 5], terminates=[False, True])
    text = TDMPC2(env, n_envs=3, seed_steps=60, episodic=True).describe()
    assert "60 random rows" in text["schedule"] and "per 3 row(s)" in text["schedule"]
    assert text["episode"].startswith("up to 8 agent steps")
    assert text["episode"].endswith("terminations are learned")
    assert "1,000,000 rows are held" in text["replay"]
    assert "termination 527,873" in text["parameters"]
    plain = " ".join(TDMPC2(CounterEnv([8])).describe().values())
    assert "row" not in plain and "terminat" not in plain


# --- targets and losses ---------------------------------------------------------------------------


def noise(seed=0):
    return draw_update_noise(jax.random.key(seed), config=CONFIG)


def ended_batch(seed=0):
    """Slices of which the second and the fifth terminate at their end."""
    batch = random_batch(seed, CONFIG)
    return batch._replace(terminated=jnp.zeros(batch.reward.shape).at[-1, jnp.array([1, 4])].set(1))


@functools.cache
def targets(config):
    return jax.jit(functools.partial(td_target, config=config))


@functools.cache
def losses(config):
    @jax.jit
    def run(wm_params, batch, next_z, target, key):
        return world_model_loss(wm_params, batch, next_z, target, key, config=config)

    return run


def test_the_td_target_of_a_termination_is_the_reward_and_the_others_are_as_ever():
    learner, batch = moved_learner(CONFIG), ended_batch()
    # Also in the middle of a slice, where the replay never has one.
    for terminated in (batch.terminated, batch.terminated.at[0, 2].set(1)):
        marked = batch._replace(terminated=terminated)
        _, target = targets(CONFIG)(learner, marked, noise())
        _, unmasked = targets(PLAIN)(learner, marked, noise())
        ended = np.asarray(terminated) == 1
        np.testing.assert_array_equal(target[ended], batch.reward[ended])
        np.testing.assert_allclose(target[~ended], unmasked[~ended], rtol=1e-6, atol=1e-6)
        assert np.all(np.abs(unmasked - batch.reward)[ended] > 1e-3), "nothing was masked"


def test_a_target_without_terminations_is_that_of_an_agent_that_does_not_know_them():
    learner, batch = moved_learner(CONFIG), ended_batch()
    batch = batch._replace(terminated=jnp.zeros_like(batch.terminated))
    ours, plain = (targets(config)(learner, batch, noise()) for config in (CONFIG, PLAIN))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), ours, plain)


def test_a_batch_that_does_not_say_where_episodes_terminated_is_refused():
    batch = random_batch(config=CONFIG)
    with pytest.raises(ValueError, match=r"batches that say where episodes terminated"):
        jax.eval_shape(
            functools.partial(td_target, config=CONFIG), moved_learner(CONFIG), batch, noise()
        )


def cross_entropy(logits, terminated):
    """−y ln σ(x) − (1 − y) ln(1 − σ(x)), in float64 and without overflow."""
    x = np.asarray(logits, np.float64)
    return np.logaddexp(0, x) - np.asarray(terminated, np.float64) * x


def f1_score(predicted, ended):
    """The harmonic mean of precision and recall, counted one by one."""
    hits = sum(p and e for p, e in zip(predicted, ended, strict=True))
    if hits == 0:
        return 0.0
    precision, recall = hits / sum(predicted), hits / sum(ended)
    return 2 * precision * recall / (precision + recall)


metrics_of = jax.jit(termination_metrics)


@examples
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.1, 3, 80]))
def test_termination_metrics_are_those_of_numpy(seed, rate, scale):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.standard_normal((3, 8))).astype(np.float32)
    terminated = (rng.random((3, 8)) < rate).astype(np.float32)
    metrics = metrics_of(logits, terminated)
    np.testing.assert_allclose(
        metrics["termination_loss"], cross_entropy(logits, terminated).mean(), rtol=2e-6, atol=1e-7
    )
    np.testing.assert_allclose(metrics["termination_rate"], terminated[-1].mean(), rtol=1e-6)
    expected = f1_score((logits[-1] > 0).tolist(), (terminated[-1] == 1).tolist())
    np.testing.assert_allclose(metrics["termination_f1"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("logits", "ended", "f1"),
    [
        ([-3, -3, -3, -3], [0, 0, 0, 0], 0.0),  # nothing to predict, and nothing predicted
        ([-3, -3, -3, -3], [1, 0, 0, 1], 0.0),
        ([3, 3, -3, -3], [0, 0, 0, 0], 0.0),
        ([3, 3, -3, -3], [0, 0, 1, 1], 0.0),
        ([3, -3, -3, 3], [1, 0, 0, 1], 1.0),
        ([3, 3, -3, -3], [1, 0, 1, 0], 0.5),
        ([3, 3, 3, 3], [1, 0, 0, 0], 0.4),
        ([0, 0, 0, 0], [1, 1, 1, 1], 0.0),  # a probability of ½ predicts no termination
    ],
)
def test_f1_of_cases_by_hand(logits, ended, f1):
    # What the earlier steps say does not count.
    logits = np.array([[9, -9, 9, -9], logits], np.float32)
    ended = np.array([[0, 0, 0, 0], ended], np.float32)
    np.testing.assert_allclose(metrics_of(logits, ended)["termination_f1"], f1, rtol=1e-6)


def test_the_termination_loss_is_a_plain_mean_over_the_predicted_latents():
    """Neither weighted by ρ nor taken on encodings; every step counts alike."""
    learner, batch = moved_learner(CONFIG), ended_batch()
    next_z, target = targets(CONFIG)(learner, batch, noise())
    inputs = (learner.wm_params, batch, next_z, target, noise().value_dropout)
    _, (zs, metrics) = losses(CONFIG)(*inputs)
    logits = world_model.termination(learner.wm_params, zs[1:], config=CONFIG)
    assert logits.shape == batch.terminated.shape
    expected = cross_entropy(logits, batch.terminated).mean()
    np.testing.assert_allclose(metrics["termination_loss"], expected, rtol=1e-5)
    _, (_, other) = losses(make_config(horizon=2, episodic=True, rho=0.9))(*inputs)
    np.testing.assert_allclose(other["termination_loss"], expected, rtol=1e-5)
    assert abs(other["reward_loss"] - metrics["reward_loss"]) > 1e-3


@pytest.mark.parametrize("coefficient", [1.0, 2.5])
def test_the_total_weights_the_termination_loss_with_its_coefficient(coefficient):
    learner, batch = moved_learner(CONFIG), ended_batch()
    next_z, target = targets(CONFIG)(learner, batch, noise())
    total, (_, metrics) = losses(
        make_config(horizon=2, episodic=True, termination_coef=coefficient)
    )(learner.wm_params, batch, next_z, target, noise().value_dropout)
    expected = (
        20 * metrics["consistency_loss"]
        + 0.1 * (metrics["reward_loss"] + metrics["value_loss"])
        + coefficient * metrics["termination_loss"]
    )
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_array_equal(total, metrics["total_loss"])


def test_encoder_dynamics_and_head_learn_from_the_termination_loss_and_nobody_else():
    learner, batch = moved_learner(CONFIG), ended_batch()

    @jax.jit
    def gradients(wm_params, pi_params):
        def loss(wm_params, pi_params):
            state = learner.replace(wm_params=wm_params, pi_params=pi_params)
            next_z, target = td_target(state, batch, noise(), config=CONFIG)
            _, (_, metrics) = world_model_loss(
                wm_params, batch, next_z, target, noise().value_dropout, config=CONFIG
            )
            return metrics["termination_loss"]

        return jax.grad(loss, (0, 1))(wm_params, pi_params)

    of_world_model, of_policy = gradients(learner.wm_params, learner.pi_params)
    for name, network in of_world_model.items():
        learns = name in ("encoder", "dynamics", "termination")
        for leaf in jax.tree.leaves(network):
            assert np.any(leaf != 0) == learns, name
    assert not any(np.any(leaf != 0) for leaf in jax.tree.leaves(of_policy))


def test_the_head_learns_with_the_whole_learning_rate():
    """The first step of Adam is the step size; the encoder's is 0.3 of it."""
    wm_params = moved_learner(CONFIG).wm_params
    optimizer = world_model_optimizer(CONFIG)
    gradients = jax.tree.map(jnp.ones_like, wm_params)
    steps, _ = optimizer.update(gradients, optimizer.init(wm_params), wm_params)
    for name, size in (("termination", 3e-4), ("reward", 3e-4), ("encoder", 0.9e-4)):
        for leaf in jax.tree.leaves(steps[name]):
            np.testing.assert_allclose(leaf, -size, rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["episodic", "plain"])
def test_an_update_reports_the_metrics_of_its_agent(config):
    take_step = functools.partial(update, config=config)
    after, metrics = jax.eval_shape(take_step, moved_learner(config), ended_batch(), noise())
    assert set(metrics) == set(metric_names(config))
    assert all(value.shape == () for value in metrics.values())
    expected = METRIC_NAMES + (EPISODIC_METRIC_NAMES if config.episodic else ())
    norms = {name for name in metric_names(config) if name.startswith("Train/grad_norm/")}
    assert set(metric_names(config)) == {*expected, *norms}
    assert ("Train/grad_norm/termination" in norms) == config.episodic
    assert jax.tree.structure(after) == jax.tree.structure(moved_learner(config))


# --- the planner ----------------------------------------------------------------------------------

OBS = jnp.array([0.3, -1.0, 0.5, 2.0, -0.2])


@functools.cache
def planner(config):
    return jax.jit(functools.partial(plan, config=config, eval_mode=False))


@functools.cache
def draws():
    return draw_plan_noise(jax.random.key(0), config=CONFIG)


def with_head(*, bias=None, **changes):
    """A learner's world model whose termination head ends with another layer."""
    wm_params = moved_learner(CONFIG).wm_params
    head = wm_params["termination"]
    out = head["out"] | changes
    if bias is not None:
        out["bias"] = jnp.full_like(out["bias"], bias)
    return wm_params | {"termination": head | {"out": out}}


def decide(wm_params, config=CONFIG):
    prev_mean = jnp.zeros((CONFIG.horizon, CONFIG.action_dim))
    decision = planner(config)(
        wm_params,
        moved_learner(CONFIG).pi_params,
        OBS,
        prev_mean,
        jnp.array(True),
        draws(),
    )
    return jax.tree.map(np.asarray, decision)


def candidates(decision):
    """The first iteration's: policy trajectories, then samples around zero."""
    sampled = np.clip(CONFIG.max_std * draws().mppi_eps[0], -1, 1)
    return jnp.asarray(np.concatenate([decision.trace.pi_actions, sampled], axis=1))


@jax.jit
def rollout(wm_params, pi_params, actions):
    """Rewards `[H, N]`, termination logits `[H, N]` and final values `[N]` of candidates."""
    z = world_model.encode(wm_params, OBS, config=CONFIG)
    z = jnp.broadcast_to(z, (CONFIG.num_samples, CONFIG.latent_dim))
    rewards, logits = [], []
    for action in actions:
        rewards.append(CONFIG.two_hot.mean(world_model.reward(wm_params, z, action, config=CONFIG)))
        z = world_model.next(wm_params, z, action, config=CONFIG)
        logits.append(world_model.termination(wm_params, z, config=CONFIG))
    noise = draws()
    action = world_model.pi(pi_params, z, noise.terminal_eps[0], config=CONFIG).action
    two = world_model.q_pair(
        wm_params["q"], z, action, noise.q_pair[0], noise.dropout[0], config=CONFIG
    )
    return jnp.stack(rewards), jnp.stack(logits), jnp.mean(two, axis=0)


def rolled_out(wm_params, decision):
    outputs = rollout(wm_params, moved_learner(CONFIG).pi_params, candidates(decision))
    return [np.asarray(x, np.float64) for x in outputs]


def test_where_every_step_terminates_a_candidate_is_worth_its_first_reward():
    decision = decide(with_head(bias=1e3))
    rewards, logits, _ = rolled_out(with_head(bias=1e3), decision)
    assert (logits > 0).all() and np.ptp(rewards[0]) > 0.1
    np.testing.assert_allclose(decision.trace.value[0], rewards[0], rtol=1e-4, atol=1e-4)


def test_a_candidate_is_worth_what_comes_before_its_predicted_termination():
    """One candidate after the other, with a head whose predictions differ between them."""
    wm_params = with_head()
    _, logits, _ = rolled_out(wm_params, decide(wm_params))
    shifted = wm_params["termination"]["out"]["bias"] - np.quantile(logits, 0.6)
    wm_params = with_head(bias=jnp.float32(shifted[0]))
    decision = decide(wm_params)
    rewards, logits, final = rolled_out(wm_params, decision)
    values, ends = [], []
    for n in range(CONFIG.num_samples):
        value, discount, end = 0.0, 1.0, None
        for t in range(CONFIG.horizon):
            if end is None:
                value += discount * rewards[t, n]
            discount *= CONFIG.gamma
            if logits[t, n] > 0 and end is None:
                end = t
        values.append(value if end is not None else value + discount * final[n])
        ends.append(end)
    assert set(ends) == {0, 1, None}, "the head is no longer undecided"
    np.testing.assert_allclose(decision.trace.value[0], values, rtol=1e-4, atol=1e-4)


PREDICTS_NEVER = {
    "far below": dict(bias=-1e3),
    "exactly one half": dict(bias=0.0, kernel=jnp.zeros((CONFIG.mlp_dim, 1))),
}


@pytest.mark.parametrize("out", PREDICTS_NEVER.values(), ids=PREDICTS_NEVER)
def test_a_head_that_predicts_no_termination_plans_as_if_there_was_none(out):
    ours = decide(with_head(**out))
    theirs = decide(with_head(**out), PLAIN)
    np.testing.assert_array_equal(ours.trace.elite_idx, theirs.trace.elite_idx)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), ours, theirs)


def test_policy_trajectories_do_not_look_at_the_head():
    never, always = (decide(with_head(bias=bias)) for bias in (-1e3, 1e3))
    np.testing.assert_array_equal(never.trace.pi_actions, always.trace.pi_actions)
    assert np.any(never.trace.value != always.trace.value)


# --- the counters of a run ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def algorithm():
    agent = TDMPC2(CounterEnv([8, 2], terminates=[False, True]), episodic=True, horizon=3)
    return make_algorithm(agent.env, agent.config, replay_of(agent.config, 100))


def test_a_run_without_an_episode_to_learn_from_is_refused_with_a_sentence(algorithm):
    sentence = algorithm.check({"n_starved_updates": 3})
    assert re.match(r"no stored episode of counter is long enough .* horizon=3 needs", sentence)
    assert sentence.endswith(
        "Use a shorter horizon, a smaller action_repeat or a longer seed phase."
    )


def test_a_run_that_always_found_an_episode_is_not(algorithm):
    assert algorithm.check({"n_starved_updates": 0}) is None
    assert algorithm.metric_names == metric_names(CONFIG)
