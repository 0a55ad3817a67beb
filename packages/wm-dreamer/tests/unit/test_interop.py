"""Names and layouts of the original's parameters, there and back."""

import functools

import jax
import numpy as np
import pytest

from wm_dreamer.interop import from_reference, load_reference, to_reference
from wm_dreamer.networks import init_params
from wm_dreamer.update import init_learner

from .tiny import CONFIG, DISCRETE, assert_trees_equal, drawn, make_config, moved_learner

PARTS = {"position": 4, "speed/angular": 3, "height": 2}


def reference_dict(config=CONFIG, **options):
    learner = moved_learner(config)
    return to_reference(learner.params, learner.slow_critic, config=config, **options)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        DISCRETE,
        make_config(enc_layers=1, dec_layers=3, rew_layers=2, con_layers=2, critic_layers=1),
        make_config(actor_layers=4, bins=31, blocks=2),
    ],
    ids=["continuous", "discrete", "other depths", "other bins and blocks"],
)
def test_parameters_survive_the_way_there_and_back(config):
    learner = moved_learner(config)
    back = from_reference(reference_dict(config), config=config)
    assert_trees_equal(back.params, learner.params)
    assert_trees_equal(back.slow_critic, learner.slow_critic)


def layer(name, kernel, *, norm=True):
    """The original's shapes of one layer; block kernels are `[G, in / G, out / G]`."""
    out = kernel[-1] * (kernel[0] if len(kernel) == 3 else 1)
    shapes = {f"agent/{name}/kernel": kernel, f"agent/{name}/bias": (out,)}
    return shapes | ({f"agent/{name}/norm/scale": (out,)} if norm else {})


def layers_of_the_specification(actions):
    """Its table of layers at the size "tiny", with the observation parts pos [4] and vel [3]."""
    expected = {}
    for name, kernel in {
        "enc/mlp0": (7, 16),
        "enc/mlp1": (16, 16),
        "enc/mlp2": (16, 16),
        "dyn/dynin0": (40, 12),
        "dyn/dynin1": (30, 12),
        "dyn/dynin2": (3, 12),
        "dyn/dyn0": (4, 46, 10),
        "dyn/obs0": (56, 12),
        "dyn/img0": (40, 12),
        "dyn/img1": (12, 12),
        "dec/mlp0": (70, 16),
        "dec/mlp1": (16, 16),
        "dec/mlp2": (16, 16),
        "rew/h0": (70, 16),
        "con/h0": (70, 16),
        **{f"{m}/h0": (70, 16) for m in ("actor", "critic", "slowcritic")},
        **{f"{m}/h{i}": (16, 16) for m in ("actor", "critic", "slowcritic") for i in (1, 2)},
    }.items():
        expected |= layer(name, kernel)
    for name, kernel in {
        "dyn/dyncore": (4, 10, 30),
        "dyn/obslogit": (12, 30),
        "dyn/imglogit": (12, 30),
        "dec/out_pos/out": (16, 4),
        "dec/out_vel/out": (16, 3),
        "rew/dist/out": (16, 256),
        "con/dist/out": (16, 1),
        "critic/dist/out": (16, 256),
        "slowcritic/dist/out": (16, 256),
        **{f"actor/action/{name}": (16, 3) for name in actions},
    }.items():
        expected |= layer(name, kernel, norm=False)
    return expected


@pytest.mark.parametrize(("discrete", "tensors"), [(False, 83), (True, 81)])
def test_names_and_shapes_are_the_originals(discrete, tensors):
    config = make_config(
        **dict(obs_dim=7, action_dim=3, discrete=discrete),
        **dict(deter=40, hidden=12, stoch=6, classes=5, blocks=4, units=16),
        **dict(enc_layers=3, dec_layers=3, actor_layers=3, critic_layers=3),
    )
    learner = moved_learner(config)
    ours = to_reference(
        learner.params, learner.slow_critic, config=config, obs_parts={"pos": 4, "vel": 3}
    )
    expected = layers_of_the_specification(("out",) if discrete else ("out", "std"))
    assert {name: value.shape for name, value in ours.items()} == expected
    assert len([name for name in ours if "slowcritic" not in name]) == tensors
    # Counted with the 256th outputs, as the original does.
    trained = sum(v.size for name, v in ours.items() if "slowcritic" not in name)
    assert trained == (23435 if discrete else 23486)


def test_layouts_are_the_same_on_both_sides():
    params, theirs = moved_learner().params, reference_dict()
    for name, ours in {
        "enc/mlp0/kernel": params["encoder"]["linear_0"]["kernel"],
        "enc/mlp1/norm/scale": params["encoder"]["norm_1"]["scale"],
        "dyn/dyncore/bias": params["rssm"]["gates"]["bias"],
        "dyn/dyn0/kernel": params["rssm"]["hidden"]["kernel"],
        "dec/out_vector/out/kernel": params["decoder"]["out"]["kernel"],
        "con/dist/out/bias": params["continue"]["out"]["bias"],
        "actor/action/std/kernel": params["actor"]["std"]["kernel"],
    }.items():
        np.testing.assert_array_equal(theirs[f"agent/{name}"], ours)
        assert theirs[f"agent/{name}"].dtype == np.float32


def test_the_output_that_is_never_read_is_dropped_and_restored_as_zero():
    theirs = reference_dict()
    for module, ours in (
        ("rew", moved_learner().params["reward"]),
        ("critic", moved_learner().params["critic"]),
        ("slowcritic", moved_learner().slow_critic),
    ):
        for leaf in ("kernel", "bias"):
            padded = theirs[f"agent/{module}/dist/out/{leaf}"]
            assert padded.shape[-1] == CONFIG.bins + 1
            np.testing.assert_array_equal(padded[..., -1], 0)
            np.testing.assert_array_equal(padded[..., :-1], ours["out"][leaf])


def test_an_observation_of_several_parts_has_one_output_layer_each_there():
    theirs = reference_dict(obs_parts=PARTS, action_key="arm/joint.1")
    decoder = moved_learner().params["decoder"]["out"]
    start = 0
    for name, width in (("position", 4), ("speed_angular", 3), ("height", 2)):
        for leaf in ("kernel", "bias"):
            part = theirs[f"agent/dec/out_{name}/out/{leaf}"]
            np.testing.assert_array_equal(part, decoder[leaf][..., start : start + width])
        start += width
    assert "agent/actor/arm_joint_1/out/kernel" in theirs
    back = from_reference(theirs, config=CONFIG, obs_parts=PARTS, action_key="arm/joint.1")
    assert_trees_equal(back.params, moved_learner().params)


def test_the_name_of_a_single_part_is_taken_from_the_arrays():
    theirs = reference_dict(obs_parts={"image": CONFIG.obs_dim})
    assert_trees_equal(from_reference(theirs, config=CONFIG).params, moved_learner().params)


def test_several_parts_need_their_widths():
    with pytest.raises(ValueError, match=r"parts \['height', 'position', 'speed_angular'\]: give"):
        from_reference(reference_dict(obs_parts=PARTS), config=CONFIG)


def test_names_without_prefix_doubles_and_other_state_are_accepted():
    theirs = {
        name.removeprefix("agent/"): value.astype(np.float64)
        for name, value in reference_dict().items()
    }
    theirs |= {"opt/step/value": np.int32(3), "retnorm/low/value": np.float32(0)}
    theirs |= {"updater/updates/value": np.int32(3), "opt/rms/nu/agent/enc/mlp0/bias": np.zeros(3)}
    back = from_reference(theirs, config=CONFIG)
    assert_trees_equal(back.params, moved_learner().params)
    assert {leaf.dtype for leaf in jax.tree.leaves(back.params)} == {np.dtype(np.float32)}


def test_missing_unknown_and_misshapen_entries_are_named_together():
    broken = reference_dict()
    del broken["agent/dyn/obs0/norm/scale"]
    broken["agent/dyn/dynin3/kernel"] = np.zeros((3, 10))
    broken["agent/rew/dist/out/bias"] = np.zeros(255)
    with pytest.raises(ValueError) as refusal:
        from_reference(broken, config=CONFIG)
    message = str(refusal.value)
    assert message.startswith("The reference parameters do not fit this configuration; ")
    assert "missing: dyn/obs0/norm/scale;" in message
    assert "unknown: dyn/dynin3/kernel;" in message
    assert "misshapen: rew/dist/out/bias (expected (256,), got (255,))" in message


def test_parameters_of_another_size_or_action_space_are_refused():
    with pytest.raises(
        ValueError, match=r"enc/mlp1/kernel \(expected \(14, 14\), got \(13, 13\)\)"
    ):
        from_reference(reference_dict(make_config(units=13)), config=CONFIG)
    with pytest.raises(ValueError, match=r"missing: actor/action/std/kernel"):
        from_reference(reference_dict(make_config(discrete=True, action_dim=3)), config=CONFIG)


def test_gradients_can_be_written_without_a_slow_critic():
    theirs = to_reference(moved_learner().params, config=CONFIG)
    assert not any("slowcritic" in name for name in theirs)
    back = from_reference(theirs, config=CONFIG)
    assert back.slow_critic is None
    assert_trees_equal(back.params, moved_learner().params)


def test_loading_into_a_learner_replaces_the_networks_only():
    other = moved_learner(seed=7)
    learner = load_reference(moved_learner(), reference_dict_of(other), config=CONFIG)
    assert_trees_equal(learner.params, other.params)
    assert_trees_equal(learner.slow_critic, other.slow_critic)
    for name in ("opt_state", "retnorm", "updates"):
        assert_trees_equal(getattr(learner, name), getattr(moved_learner(), name))


def reference_dict_of(learner):
    return to_reference(learner.params, learner.slow_critic, config=CONFIG)


def test_without_a_slow_critic_the_critic_is_copied():
    theirs = to_reference(moved_learner(seed=7).params, config=CONFIG)
    learner = load_reference(moved_learner(), theirs, config=CONFIG)
    assert_trees_equal(learner.slow_critic, moved_learner(seed=7).params["critic"])


def test_every_parameter_of_a_learner_has_a_name():
    shapes = jax.eval_shape(functools.partial(init_learner, config=CONFIG), jax.random.key(0))
    tensors = len(jax.tree.leaves((shapes.params, shapes.slow_critic)))
    assert len(reference_dict()) == tensors
    init = functools.partial(init_params, config=CONFIG)
    params = drawn(jax.eval_shape(init, jax.random.key(0)), seed=3)
    named = to_reference(params, config=CONFIG)
    unread = 2 * (CONFIG.units + 1)
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(value.size for value in named.values()) == total + unread
