"""Defaults, heuristics, parameter counts and initial values of nicklashansen/tdmpc2@5f6fade.

`init_and_counts.json` holds the learnable parameters of every model size on walker-walk (24
observations, 6 actions) and statistics of fresh parameters at sizes 1 and 5; `numerics.npz` the
resolved `config.yaml` and the discounts of several episode lengths.
"""

import functools

import jax
import numpy as np
import pytest

from wm_collect.testing import CounterEnv
from wm_tdmpc2 import MODEL_SIZES, TDMPC2, TDMPC2Settings, discount, init_learner, resolve_config
from wm_tdmpc2.interop import to_reference

from .recordings import spec_of

WALKER = dict(obs_dim=24, action_dim=6)
# Ours and theirs; target Q is counted apart.
MODULES = {
    "encoder": "_encoder",
    "dynamics": "_dynamics",
    "reward": "_reward",
    "policy": "_pi",
    "q": "_Qs",
    "total": "total_params",
}


def sizes_of(recording, group):
    prefix = "walker-walk/"
    found = [int(name.removeprefix(prefix)) for name in recording.meta[group] if prefix in name]
    assert found
    return found


def test_parameter_counts_match_5f6fade_at_every_size(counts_recording):
    for size in sizes_of(counts_recording, "counts"):
        theirs = counts_recording.meta["counts"][f"walker-walk/{size}"]
        ours = TDMPC2(CounterEnv([500], **WALKER), model_size=size).parameter_counts()
        assert ours == {name: theirs[module] for name, module in MODULES.items()}
        assert theirs["_target_Qs"] == ours["q"]


def test_widths_of_the_presets_match_5f6fade(counts_recording):
    for size in sizes_of(counts_recording, "counts"):
        theirs = dict(counts_recording.meta["counts"][f"walker-walk/{size}"]["widths"])
        assert theirs.pop("task_dim") == 0
        assert MODEL_SIZES[size] == theirs


@functools.cache
def fresh(size):
    """Return fresh parameters of a size under the original names."""
    settings = TDMPC2Settings(model_size=size)
    config = resolve_config(settings, spec_of(**WALKER, episode_length=500))
    learner = jax.jit(functools.partial(init_learner, config=config))(jax.random.key(0))
    return to_reference(
        learner.wm_params, learner.target_q_params, learner.pi_params, config=config
    )


def test_fresh_parameters_are_distributed_like_those_of_5f6fade(counts_recording):
    """Zeros and ones exactly where recorded; elsewhere mean and deviation to sampling error.

    Both are samples of n values of N(0, 0.02²): their means differ by 0.02·√(2/n) and their
    deviations by 0.02/√n, taken five times.
    """
    for size in sizes_of(counts_recording, "init"):
        theirs = counts_recording.meta["init"][f"walker-walk/{size}"]
        ours = fresh(size)
        assert set(ours) == set(theirs)
        for name, statistics in theirs.items():
            values = ours[name].astype(np.float64)
            assert list(values.shape) == statistics["shape"], name
            assert bool((values == 0).all()) == statistics["all_zero"], name
            assert bool((values == 1).all()) == statistics["all_one"], name
            error = 5 * 0.02 / np.sqrt(values.size)
            assert abs(values.mean() - statistics["mean"]) < np.sqrt(2) * error, name
            assert abs(values.std() - statistics["std"]) < error, name


def test_fresh_weights_are_not_truncated(counts_recording):
    """The original truncates at ±2, a hundred deviations; at two deviations it would show."""
    for size in sizes_of(counts_recording, "init"):
        theirs = counts_recording.meta["init"][f"walker-walk/{size}"]
        large = [n for n, s in theirs.items() if np.prod(s["shape"]) > 30_000 and s["std"] > 0]
        assert large
        for name in large:
            assert theirs[name]["max"] > 3.5 * 0.02
            assert fresh(size)[name].max() > 3.5 * 0.02 and fresh(size)[name].min() < -3.5 * 0.02


def test_fresh_target_is_a_copy_of_q(counts_recording):
    for size in sizes_of(counts_recording, "init"):
        ours = fresh(size)
        for j in range(10):
            np.testing.assert_array_equal(ours[f"_target_Qs.params.{j}"], ours[f"_Qs.params.{j}"])


def test_fresh_members_of_the_ensemble_differ(counts_recording):
    for size in sizes_of(counts_recording, "init"):
        first_layer = fresh(size)["_Qs.params.0"]
        assert all(np.any(first_layer[0] != member) for member in first_layer[1:])


# Sizes are the recording's own; dropout is switched off in recordings.
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (name, name)
        for name in (
            "simnorm_dim",
            "num_bins",
            "vmax",
            "horizon",
            "rho",
            "consistency_coef",
            "reward_coef",
            "value_coef",
            "enc_lr_scale",
            "grad_clip_norm",
            "tau",
            "entropy_coef",
            "log_std_min",
            "log_std_max",
            "buffer_size",
            "discount_denom",
            "discount_min",
            "discount_max",
            "iterations",
            "min_std",
            "max_std",
            "temperature",
        )
    ]
    + [("learning_rate", "lr")],
)
def test_defaults_are_those_of_5f6fade(numerics_recording, ours, theirs):
    assert getattr(TDMPC2Settings(), ours) == numerics_recording.meta["config"][theirs]


def test_discounts_match_5f6fade_for_every_recorded_episode_length(numerics_recording):
    lengths = numerics_recording["discount/episode_length"]
    ours = [discount(int(length)) for length in lengths]
    np.testing.assert_array_equal(ours, numerics_recording["discount/gamma_f64"])
