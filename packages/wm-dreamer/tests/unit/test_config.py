"""Settings: what is refused and how, and what is filled in from the model size and the task."""

import dataclasses
from fractions import Fraction

import numpy as np
import optax
import pytest

from wm_collect.environment import EnvSpec
from wm_dreamer.config import MODEL_SIZES, DreamerV3Config, DreamerV3Settings, resolve_config

NAN, INF = float("nan"), float("inf")


def make_spec(**changes):
    """A task: 5 observations, 3 continuous actions, at most 50 steps."""
    values = dict(
        env_id="tiny",
        backend="custom",
        obs_dim=5,
        action_dim=3,
        discrete=False,
        episode_length=50,
        action_repeat=1,
        terminates=False,
        reset_ignores_key=False,
        action_low=(-1.0,) * 3,
        action_high=(1.0,) * 3,
    )
    return EnvSpec(**(values | changes))


REFUSED = [
    (dict(model_size="7m"), r"model_size must be one of 1m, 12m, 25m, .*, 400m, got '7m'"),
    (dict(model_size=12), r"model_size must be one of 1m, 12m, .* got 12"),
    (dict(model_size=["12m"]), r"model_size must be one of 1m, 12m, .* got \['12m'\]"),
    (dict(n_envs=0), r"n_envs must be a whole number of at least 1, got 0"),
    (dict(n_envs=16.0), r"n_envs must be a whole number of at least 1, got 16\.0"),
    (dict(n_envs=True), r"n_envs must be a whole number of at least 1, got True"),
    (dict(units=0), r"units must be a whole number of at least 1, got 0"),
    (dict(hidden=-8), r"hidden must be a whole number of at least 1, got -8"),
    (dict(deter=2050), r"deter must be a multiple of blocks=8, got 2050"),
    (dict(blocks=3), r"deter must be a multiple of blocks=3, got 2048"),
    (dict(blocks=0), r"blocks must be a whole number of at least 1, got 0"),
    (dict(classes=1), r"classes must be a whole number of at least 2, got 1"),
    (dict(stoch=0), r"stoch must be a whole number of at least 1, got 0"),
    (dict(enc_layers=0), r"enc_layers must be a whole number of at least 1, got 0"),
    (dict(dec_layers=0), r"dec_layers must be a whole number of at least 1, got 0"),
    (dict(rew_layers=0), r"rew_layers must be a whole number of at least 1, got 0"),
    (dict(con_layers=0), r"con_layers must be a whole number of at least 1, got 0"),
    (dict(actor_layers=1.5), r"actor_layers must be a whole number of at least 1, got 1\.5"),
    (dict(critic_layers="3"), r"critic_layers must be a whole number of at least 1, got '3'"),
    (dict(bins=2), r"bins must be a whole number of at least 3, got 2"),
    (dict(free_nats=-1.0), r"free_nats must lie in \[0, inf\), got -1\.0"),
    (dict(unimix=1.0), r"unimix must lie in \[0, 1\), got 1\.0"),
    (dict(unimix=NAN), r"unimix must lie in \[0, 1\), got nan"),
    (dict(actor_unimix=-0.01), r"actor_unimix must lie in \[0, 1\), got -0\.01"),
    (dict(dyn_scale=-1), r"dyn_scale must lie in \[0, inf\), got -1"),
    (dict(rep_scale=INF), r"rep_scale must lie in \[0, inf\), got inf"),
    (dict(rec_scale=NAN), r"rec_scale must lie in \[0, inf\), got nan"),
    (dict(rew_scale="1"), r"rew_scale must lie in \[0, inf\), got '1'"),
    (dict(con_scale=True), r"con_scale must lie in \[0, inf\), got True"),
    (dict(actor_scale=-0.1), r"actor_scale must lie in \[0, inf\), got -0\.1"),
    (dict(critic_scale=-0.1), r"critic_scale must lie in \[0, inf\), got -0\.1"),
    (dict(repval_scale=-0.1), r"repval_scale must lie in \[0, inf\), got -0\.1"),
    (dict(train_ratio=0), r"train_ratio must be a positive number, got 0"),
    (dict(train_ratio=INF), r"train_ratio must be a positive number, got inf"),
    (dict(batch_size=0), r"batch_size must be a whole number of at least 1, got 0"),
    (dict(batch_length=1), r"batch_length must be a whole number of at least 2, got 1"),
    (dict(imag_horizon=0), r"imag_horizon must be a whole number of at least 1, got 0"),
    (dict(return_horizon=1), r"return_horizon must lie in \(1, inf\), got 1"),
    (dict(return_horizon=INF), r"return_horizon must lie in \(1, inf\), got inf"),
    (dict(lam=1.01), r"lam must lie in \[0, 1\], got 1\.01"),
    (dict(repval_lam=-0.1), r"repval_lam must lie in \[0, 1\], got -0\.1"),
    (dict(actent=-3e-4), r"actent must lie in \[0, inf\), got -0\.0003"),
    (dict(slowreg=-1.0), r"slowreg must lie in \[0, inf\), got -1\.0"),
    (dict(slow_rate=0.0), r"slow_rate must lie in \(0, 1\], got 0\.0"),
    (dict(retnorm_rate=1.5), r"retnorm_rate must lie in \(0, 1\], got 1\.5"),
    (dict(retnorm_limit=0.0), r"retnorm_limit must be a positive number, got 0\.0"),
    (dict(minstd=0.0), r"minstd must be a positive number, got 0\.0"),
    (dict(maxstd=0.05), r"maxstd must be at least minstd=0\.1, got 0\.05"),
    (dict(learning_rate=0.0), r"learning_rate must be a positive number, got 0\.0"),
    (dict(learning_rate="4e-5"), r"learning_rate must be a positive number, got '4e-5'"),
    (dict(agc=0.0), r"agc must be a positive number, got 0\.0"),
    (dict(agc_pmin=-1e-3), r"agc_pmin must be a positive number, got -0\.001"),
    (dict(beta1=1.0), r"beta1 must lie in \[0, 1\), got 1\.0"),
    (dict(beta2=-0.5), r"beta2 must lie in \[0, 1\), got -0\.5"),
    (dict(eps=0.0), r"eps must lie in \[1\.17549e-38, inf\), got 0\.0"),
    (dict(eps=1e-46), r"eps must lie in \[1\.17549e-38, inf\), got 1e-46"),
    (dict(warmup=-1), r"warmup must be a whole number of at least 0, got -1"),
    (dict(warmup=1e3), r"warmup must be a whole number of at least 0, got 1000\.0"),
    (dict(replay_capacity=5e6), r"replay_capacity must be a whole number of at least 1, got"),
    (dict(replay_capacity=1039), r"hold the rows of a first batch, 65 \(batch_length and 1 more\)"),
    (dict(replay_capacity=79, n_envs=1), r"and 16 more\) x 1 environment\(s\) = 80, got 79"),
    (dict(episode_length=0), r"episode_length must be a whole number of at least 1, got 0"),
    (dict(action_repeat=0), r"action_repeat must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(
    ("settings", "message"),
    REFUSED,
    ids=["-".join(f"{n}={v}" for n, v in settings.items()) for settings, _ in REFUSED],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(settings, message):
    with pytest.raises(ValueError, match=message) as refusal:
        DreamerV3Settings(**settings)
    assert str(refusal.value).endswith(".")


def test_every_number_among_the_settings_is_checked():
    refused = {name for settings, _ in REFUSED for name in settings}
    assert refused == {field.name for field in dataclasses.fields(DreamerV3Settings)}


def test_the_largest_and_smallest_accepted_values_are_accepted():
    edges = dict(lam=0.0, repval_lam=1.0, slow_rate=1.0, retnorm_rate=1.0, maxstd=0.1, warmup=0)
    zeros = dict(unimix=0.0, actor_unimix=0, free_nats=0.0, repval_scale=0, beta1=0.0, beta2=0.0)
    small = dict(batch_length=2, imag_horizon=1, n_envs=1, batch_size=1, replay_capacity=3, bins=3)
    assert DreamerV3Settings(**edges, **zeros, **small, train_ratio=Fraction(1, 3))


def test_a_replay_of_exactly_the_first_batch_is_accepted():
    """64 rows of each of 16 environments hold no item, one more row in each holds 16."""
    assert DreamerV3Settings(replay_capacity=65 * 16)
    assert DreamerV3Settings(replay_capacity=80, n_envs=1)
    assert DreamerV3Settings(replay_capacity=67 * 6, n_envs=6)


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert DreamerV3Settings(batch_size=np.int64(8)) == DreamerV3Settings(batch_size=8)


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_the_presets_follow_one_rule(size):
    widths = MODEL_SIZES[size]
    units = widths["units"]
    assert widths == dict(units=units, hidden=units, deter=8 * units, classes=units // 16)
    config = resolve_config(DreamerV3Settings(model_size=size), make_spec())
    assert {name: getattr(config, name) for name in widths} == widths
    assert config.feature_dim == 8 * units + 32 * (units // 16)


def test_units_of_the_presets():
    units = [64, 256, 384, 512, 768, 1024, 1536]
    assert [widths["units"] for widths in MODEL_SIZES.values()] == units
    assert DreamerV3Settings().widths() == MODEL_SIZES["12m"]


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_a_width_given_by_hand_overrides_the_preset(size):
    by_hand = {"deter": 40, "classes": 5}
    settings = DreamerV3Settings(model_size=size, **by_hand)
    assert settings.widths() == MODEL_SIZES[size] | by_hand
    assert resolve_config(settings, make_spec()).feature_dim == 40 + 32 * 5


def test_a_resolved_configuration_has_every_blank_filled_and_keeps_the_rest():
    settings = DreamerV3Settings(model_size="1m", lam=0.7, batch_size=33, n_envs=4)
    spec = make_spec(obs_dim=24, action_dim=6, episode_length=500, discrete=True, terminates=True)
    config = resolve_config(settings, spec)
    assert (config.obs_dim, config.action_dim, config.agent_episode_length) == (24, 6, 500)
    assert config.discrete is True and config.terminates is True
    # The simulator's episode length stays the user's business; None is the environment's own.
    filled = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    assert [name for name, value in filled.items() if value is None] == ["episode_length"]
    assert (config.lam, config.batch_size, config.n_envs) == (0.7, 33, 4)


def test_the_discount_follows_from_the_return_horizon():
    config = resolve_config(DreamerV3Settings(), make_spec())
    assert config.gamma == pytest.approx(0.996996996996997, rel=1e-15)
    assert DreamerV3Settings(return_horizon=2).gamma == 0.5


def test_the_two_hot_coding_has_the_configured_bins():
    two_hot = resolve_config(DreamerV3Settings(bins=41), make_spec()).two_hot
    assert two_hot.bins.shape == (41,) and two_hot.bins[20] == 0
    np.testing.assert_allclose(two_hot.bins[-1], np.expm1(20.0), rtol=1e-6)


def test_configurations_are_frozen_and_hash_by_value():
    def config(**changes):
        return resolve_config(DreamerV3Settings(**changes), make_spec())

    assert hash(config()) == hash(config()) and config() == config()
    assert config() != config(lam=0.6)
    assert isinstance(config(), DreamerV3Config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().lam = 0.1


def test_a_learning_rate_schedule_is_accepted():
    schedule = optax.constant_schedule(1e-3)
    settings = DreamerV3Settings(learning_rate=schedule)
    assert resolve_config(settings, make_spec()).learning_rate is schedule
