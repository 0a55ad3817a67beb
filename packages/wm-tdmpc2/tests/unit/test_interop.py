"""Names and layouts of the original's parameters, there and back."""

import jax
import numpy as np
import pytest

from wm_tdmpc2.interop import from_reference, load_reference, to_reference

from .tiny import CONFIG, fresh_learner, make_config, moved_learner

SUFFIXES = ("weight", "bias", "ln.weight", "ln.bias")


def reference_dict(config=CONFIG):
    state = moved_learner(config)
    return to_reference(state.wm_params, state.target_q_params, state.pi_params, config=config)


def assert_trees_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize(
    "config",
    [
        make_config(num_enc_layers=layers, num_q=q)
        for layers, q in [(1, 3), (2, 3), (3, 2), (4, 5), (5, 8)]
    ],
    ids=lambda config: f"{config.num_enc_layers} encoder layers, {config.num_q} members",
)
def test_parameters_survive_the_way_there_and_back(config):
    state, params = moved_learner(config), from_reference(reference_dict(config), config=config)
    assert_trees_equal(params.wm_params, state.wm_params)
    assert_trees_equal(params.target_q_params, state.target_q_params)
    assert_trees_equal(params.pi_params, state.pi_params)


def layer(name, weight, *, norm=True):
    """The original's shapes of one layer: weight `[out, in]`, and three vectors of its output."""
    vectors = ("bias", "ln.weight", "ln.bias") if norm else ("bias",)
    return {f"{name}.weight": weight} | {f"{name}.{v}": weight[:1] for v in vectors}


def test_names_and_shapes_are_the_originals():
    """Observations 5, actions 3, encoder 10, hidden 14, latent 12, 9 bins, 3 members."""
    expected = layer("_encoder.state.0", (10, 5)) | layer("_encoder.state.1", (12, 10))
    for i, weight in enumerate([(14, 15), (14, 14), (12, 14)]):
        expected |= layer(f"_dynamics.{i}", weight)
    for name, first, last in (("_reward", (14, 15), (9, 14)), ("_pi", (14, 12), (6, 14))):
        expected |= layer(f"{name}.0", first) | layer(f"{name}.1", (14, 14))
        expected |= layer(f"{name}.2", last, norm=False)
    member = [(14, 15), (14,), (14,), (14,), (14, 14), (14,), (14,), (14,), (9, 14), (9,)]
    for name in ("_Qs", "_target_Qs"):
        expected |= {f"{name}.params.{j}": (3, *shape) for j, shape in enumerate(member)}
    assert {name: value.shape for name, value in reference_dict().items()} == expected


def test_linear_weights_are_transposed_and_norms_are_not():
    state, theirs = moved_learner(), reference_dict()
    trunk = state.wm_params["dynamics"]["trunk"]
    np.testing.assert_array_equal(theirs["_dynamics.0.weight"], trunk["linear_0"]["kernel"].T)
    np.testing.assert_array_equal(theirs["_dynamics.0.ln.weight"], trunk["norm_0"]["scale"])
    np.testing.assert_array_equal(theirs["_dynamics.2.bias"], trunk["out"]["bias"])
    norm = state.wm_params["dynamics"]["norm"]
    np.testing.assert_array_equal(theirs["_dynamics.2.ln.bias"], norm["bias"])
    members = state.wm_params["q"]["linear_1"]["kernel"]
    np.testing.assert_array_equal(theirs["_Qs.params.4"][2], members[2].T)


def test_the_later_spelling_of_the_ensemble_is_read_too():
    later = {}
    for name, value in reference_dict().items():
        prefix, _, j = name.rpartition(".params.")
        if prefix not in ("_Qs", "_target_Qs"):
            later[name] = value
            continue
        layer, suffix = int(j) // 4, SUFFIXES[int(j) % 4]
        start = "_Qs.params" if prefix == "_Qs" else "_target_Qs_params"
        later[f"{start}.{layer}.{suffix}"] = value
        if prefix == "_Qs":
            later[f"_detach_Qs_params.{layer}.{suffix}"] = value
    later |= {"log_std_min": np.float32(-10), "log_std_dif": np.float32(12)}
    params = from_reference(later, config=CONFIG)
    assert_trees_equal(params.wm_params, moved_learner().wm_params)
    assert_trees_equal(params.target_q_params, moved_learner().target_q_params)


def test_double_precision_becomes_single():
    doubles = {name: value.astype(np.float64) for name, value in reference_dict().items()}
    params = from_reference(doubles, config=CONFIG)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_missing_unknown_and_misshapen_entries_are_named_together():
    broken = reference_dict()
    del broken["_pi.2.bias"]
    broken["_termination.0.weight"] = np.zeros((14, 12))
    broken["_reward.2.weight"] = np.zeros((101, 14))
    with pytest.raises(ValueError) as refusal:
        from_reference(broken, config=CONFIG)
    message = str(refusal.value)
    assert message.startswith("The reference parameters do not fit this configuration; ")
    assert "missing: _pi.2.bias" in message
    assert "unknown: _termination.0.weight" in message
    assert "misshapen: _reward.2.weight (expected (9, 14), got (101, 14))" in message


def test_parameters_of_another_depth_or_ensemble_are_refused():
    with pytest.raises(ValueError, match=r"unknown: _encoder\.state\.2\.weight"):
        from_reference(reference_dict(make_config(num_enc_layers=3)), config=CONFIG)
    with pytest.raises(ValueError, match=r"_Qs\.params\.9 \(expected \(3, 9\), got \(8, 9\)\)"):
        from_reference(reference_dict(make_config(num_enc_layers=5, num_q=8)), config=CONFIG)


def test_groups_can_be_written_alone():
    state = moved_learner()
    assert all(n.startswith("_pi.") for n in to_reference(pi_params=state.pi_params, config=CONFIG))
    assert len(to_reference(target_q_params=state.target_q_params, config=CONFIG)) == 10


def test_loading_into_a_learner_replaces_the_networks_only():
    learner = load_reference(fresh_learner(), reference_dict(), config=CONFIG)
    assert_trees_equal(learner.wm_params, moved_learner().wm_params)
    assert_trees_equal(learner.target_q_params, moved_learner().target_q_params)
    assert_trees_equal(learner.pi_params, moved_learner().pi_params)
    for name in ("wm_opt_state", "pi_opt_state", "q_scale", "pi_grad_norm_sq"):
        assert_trees_equal(getattr(learner, name), getattr(fresh_learner(), name))
