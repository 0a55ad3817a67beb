"""Settings: what is refused and how, and what is filled in from the task."""

import dataclasses

import numpy as np
import optax
import pytest

from wm_tdmpc2 import (
    MODEL_SIZES,
    TDMPC2Settings,
    default_seed_steps,
    discount,
    resolve_config,
)

from .tiny import make_config, make_spec

NAN, INF = float("nan"), float("inf")

REFUSED = [
    (dict(model_size=7), r"model_size must be one of 1, 5, 19, 48, 317, got 7"),
    (dict(model_size="5"), r"model_size must be one of 1, 5, 19, 48, 317, got '5'"),
    (dict(n_envs=0), r"n_envs must be a whole number of at least 1, got 0"),
    (dict(n_envs=2.0), r"n_envs must be a whole number of at least 1, got 2\.0"),
    (dict(n_envs=True), r"n_envs must be a whole number of at least 1, got True"),
    (dict(enc_dim=0), r"enc_dim must be a whole number of at least 1, got 0"),
    (dict(mlp_dim=-4), r"mlp_dim must be a whole number of at least 1, got -4"),
    (dict(latent_dim=13), r"latent_dim must be a multiple of simnorm_dim=8, got 13"),
    (dict(simnorm_dim=24), r"latent_dim must be a multiple of simnorm_dim=24, got 512"),
    (dict(num_enc_layers=0), r"num_enc_layers must be .*1.*got 0"),
    (dict(num_q=1), r"num_q must be at least 2, because values are combined over a pair"),
    (dict(num_bins=2), r"num_bins must be a whole number of at least 3, got 2"),
    (dict(vmax=0.0), r"vmax must be a positive number, got 0\.0"),
    (dict(vmax=INF), r"vmax must be a positive number, got inf"),
    (dict(dropout=1.0), r"dropout must lie in \[0, 1\), got 1\.0"),
    (dict(dropout=-0.1), r"dropout must lie in \[0, 1\), got -0\.1"),
    (dict(dropout=NAN), r"dropout must lie in \[0, 1\), got nan"),
    (dict(horizon=0), r"horizon must be a whole number of at least 1, got 0"),
    (dict(rho=0.0), r"rho must lie in \(0, 1\], got 0\.0"),
    (dict(rho="half"), r"rho must lie in \(0, 1\], got 'half'"),
    (dict(consistency_coef=-1.0), r"consistency_coef must lie in \[0, inf\), got -1\.0"),
    (dict(reward_coef=INF), r"reward_coef must lie in \[0, inf\), got inf"),
    (dict(entropy_coef=NAN), r"entropy_coef must lie in \[0, inf\), got nan"),
    (dict(learning_rate=0.0), r"learning_rate must be a positive number, got 0\.0"),
    (dict(learning_rate="3e-4"), r"learning_rate must be a positive number, got '3e-4'"),
    (dict(grad_clip_norm=-20.0), r"grad_clip_norm must be a positive number, got -20\.0"),
    (dict(pi_eps=0.0), r"pi_eps must be a positive number, got 0\.0"),
    (dict(tau=1.5), r"tau must lie in \(0, 1\], got 1\.5"),
    (dict(log_std_max=-11.0), r"log_std_max must be above log_std_min=-10\.0, got -11\.0"),
    (dict(log_std_min=NAN), r"log_std_min must lie in \(-inf, inf\), got nan"),
    (dict(batch_size=0), r"batch_size must be a whole number of at least 1, got 0"),
    (dict(buffer_size=1e6), r"buffer_size must be a whole number of at least 1, got 1000000\.0"),
    (dict(seed_steps=0), r"seed_steps must be a whole number of at least 1, got 0"),
    (dict(updates_per_step=0.0), r"updates_per_step must be a positive number, got 0\.0"),
    (dict(gamma=1.01), r"gamma must lie in \(0, 1\], got 1\.01"),
    (dict(discount_denom=0), r"discount_denom must be a whole number of at least 1, got 0"),
    (dict(discount_min=0.999), r"discount_min must be at most discount_max=0\.995, got 0\.999"),
    (dict(iterations=0), r"iterations must be a whole number of at least 1, got 0"),
    (dict(num_elites=600), r"num_elites must be between 1 and num_samples=512, got 600"),
    (dict(num_pi_trajs=512), r"num_pi_trajs must be below num_samples=512, so that some"),
    (dict(num_pi_trajs=-1), r"num_pi_trajs must be a whole number of at least 0, got -1"),
    (dict(min_std=0.0), r"min_std must be a positive number, got 0\.0"),
    (dict(max_std=0.01), r"max_std must be at least min_std=0\.05, got 0\.01"),
    (dict(max_std=INF), r"max_std must be a positive number, got inf"),
    (dict(temperature=NAN), r"temperature must be a positive number, got nan"),
    (dict(episode_length=0), r"episode_length must be a whole number of at least 1, got 0"),
    (dict(action_repeat=0), r"action_repeat must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(
    ("settings", "message"), REFUSED, ids=[f"{n}={v}" for s, _ in REFUSED for n, v in s.items()]
)
def test_settings_that_no_task_could_use_are_refused_with_a_sentence(settings, message):
    with pytest.raises(ValueError, match=message) as refusal:
        TDMPC2Settings(**settings)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(
    ("settings", "spec", "message"),
    [
        (dict(), dict(discrete=True), r"TD-MPC2 plans over continuous actions, but tiny has 3"),
        (dict(), dict(terminates=True), r"episodes of fixed length, but tiny may terminate early"),
        (dict(horizon=51), dict(), r"horizon must be at most the episode length of 50 .* got 51"),
        (dict(buffer_size=49), dict(), r"hold at least one episode .* 50 steps x 1 .* got 49"),
        (dict(buffer_size=199, n_envs=4), dict(), r"50 steps x 4 environment\(s\) = 200, got 199"),
    ],
    ids=["discrete", "terminates", "horizon", "buffer", "buffer for four"],
)
def test_settings_that_do_not_fit_the_task_are_refused_with_a_sentence(settings, spec, message):
    with pytest.raises(ValueError, match=message):
        resolve_config(TDMPC2Settings(**settings), make_spec(**spec))


def test_the_largest_and_smallest_accepted_values_are_accepted():
    edges = dict(horizon=50, buffer_size=50, rho=1.0, tau=1.0, gamma=1.0, dropout=0.0)
    config = resolve_config(TDMPC2Settings(num_pi_trajs=0, num_elites=512, **edges), make_spec())
    assert config.horizon == config.agent_episode_length == 50


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert TDMPC2Settings(batch_size=np.int64(8)) == TDMPC2Settings(batch_size=8)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(25, 0.95), (100, 0.95), (200, 0.975), (250, 0.98), (500, 0.99), (1000, 0.995), (5000, 0.995)],
)
def test_discount_follows_the_episode_length(length, expected):
    assert discount(length) == pytest.approx(expected, rel=1e-15)
    config = resolve_config(TDMPC2Settings(), make_spec(episode_length=length))
    assert config.gamma == discount(length)


def test_discount_settings_reach_the_discount():
    settings = TDMPC2Settings(discount_denom=10, discount_min=0.5, discount_max=0.7)
    assert resolve_config(settings, make_spec(episode_length=50)).gamma == 0.7
    assert resolve_config(settings, make_spec(episode_length=25)).gamma == pytest.approx(0.6)
    assert resolve_config(TDMPC2Settings(gamma=0.9), make_spec()).gamma == 0.9


@pytest.mark.parametrize(
    ("length", "expected"), [(25, 1000), (100, 1000), (200, 1000), (500, 2500), (1000, 5000)]
)
def test_seed_phase_is_five_episodes_and_at_least_a_thousand_steps(length, expected):
    assert default_seed_steps(length) == expected
    assert resolve_config(TDMPC2Settings(), make_spec(episode_length=length)).seed_steps == expected


def test_a_given_seed_phase_is_kept():
    assert resolve_config(TDMPC2Settings(seed_steps=7), make_spec()).seed_steps == 7


@pytest.mark.parametrize(("action_dim", "iterations"), [(1, 6), (19, 6), (20, 8), (38, 8)])
def test_wide_action_spaces_get_two_more_iterations(action_dim, iterations):
    settings = TDMPC2Settings()
    for _ in range(2):  # The reference adds 2 again for a second agent (T42).
        assert resolve_config(settings, make_spec(action_dim=action_dim)).iterations == iterations


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_a_width_given_by_hand_overrides_the_preset(size):
    """Deviation T34: in the reference the preset wins."""
    assert TDMPC2Settings(model_size=size).widths() == MODEL_SIZES[size]
    by_hand = {"enc_dim": 8, "latent_dim": 16, "num_q": 4}
    assert TDMPC2Settings(model_size=size, **by_hand).widths() == MODEL_SIZES[size] | by_hand


def test_a_resolved_configuration_has_every_blank_filled_and_keeps_the_rest():
    settings = TDMPC2Settings(model_size=1, rho=0.7, batch_size=33, n_envs=4)
    config = resolve_config(settings, make_spec(obs_dim=24, action_dim=6, episode_length=500))
    assert (config.obs_dim, config.action_dim, config.agent_episode_length) == (24, 6, 500)
    # The simulator's episode length stays the user's business; None is the environment's own.
    filled = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    assert [name for name, value in filled.items() if value is None] == ["episode_length"]
    assert (config.rho, config.batch_size, config.n_envs) == (0.7, 33, 4)


def test_configurations_are_frozen_and_hash_by_value():
    assert hash(make_config()) == hash(make_config()) and make_config() == make_config()
    assert make_config() != make_config(rho=0.6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().rho = 0.1


def test_a_learning_rate_schedule_is_accepted():
    schedule = optax.constant_schedule(1e-3)
    assert resolve_config(TDMPC2Settings(learning_rate=schedule), make_spec())


def test_two_hot_coding_has_the_configured_bins():
    two_hot = make_config(num_bins=9, vmax=4.0).two_hot
    np.testing.assert_allclose(two_hot.bins, np.arange(-4, 5))
