"""Networks: parameter counts of every size, initial values, and the layers written out in NumPy."""

import functools

import jax
import numpy as np
import pytest

from wm_dreamer import networks
from wm_dreamer.config import MODEL_SIZES

from .tiny import CONFIG, DISCRETE, fresh_learner, make_config, moved_learner

MODULES = ("encoder", "rssm", "decoder", "reward", "continue", "actor", "critic")

# --- parameter counts -----------------------------------------------------------------------------

TINY = dict(deter=40, hidden=12, stoch=6, classes=5, blocks=4, units=16)
FULL = dict(stoch=32, blocks=8)
TASKS = {
    "walk": dict(obs_dim=7, action_dim=3),
    "choose": dict(obs_dim=7, action_dim=3, discrete=True),
    "walker": dict(obs_dim=24, action_dim=6),
    "cartpole": dict(obs_dim=4, action_dim=2, discrete=True),
    "pendulum": dict(obs_dim=3, action_dim=1),
}
LAYERS = dict(enc_layers=3, dec_layers=3, actor_layers=3, critic_layers=3)

# Parameters of the original by module, and all but the slow critic's. Its two-hot heads have a
# 256th output, which is never read; ours have 255.
COUNTS = {
    ("tiny", "walk"): (720, 6336, 1847, 5504, 1169, 1830, 6080, 23452),
    ("tiny", "choose"): (720, 6336, 1847, 5504, 1169, 1779, 6080, 23401),
    ("1m", "walker"): (10112, 364416, 51096, 57728, 41153, 50316, 66176, 640867),
    ("1m", "cartpole"): (8832, 364160, 49796, 57728, 41153, 49666, 66176, 637381),
    ("1m", "pendulum"): (8768, 364096, 49731, 57728, 41153, 49666, 66176, 637188),
    ("12m", "walker"): (138752, 5783040, 794136, 721664, 656129, 791052, 853760, 9738019),
    ("12m", "cartpole"): (133632, 5782016, 788996, 721664, 656129, 788482, 853760, 9724165),
    ("12m", "pendulum"): (133376, 5781760, 788739, 721664, 656129, 788482, 853760, 9723396),
    ("25m", "walker"): (306432, 12999936, 1781016, 1573888, 1475713, 1776396, 1870336, 21782947),
    ("50m", "walker"): (539648, 23100416, 3161112, 2753792, 2622977, 3154956, 3280128, 38612003),
    ("100m", "walker"): (1202688, 51952128, 7100952, 6096640, 5900545, 7091724, 7279360, 86622499),
    ("200m", "walker"): (
        *(2127872, 92338176, 12613656, 10750208, 10488833, 12601356, 12851456),
        153769507,
    ),
    ("400m", "walker"): (
        *(4764672, 207713280, 28357656, 23989504, 23597569, 28339212, 28714240),
        345473059,
    ),
}


def sizes_of(name):
    return TINY if name == "tiny" else MODEL_SIZES[name] | FULL


@pytest.mark.parametrize(("name", "task"), COUNTS)
def test_parameter_counts_are_those_of_the_original(name, task):
    config = make_config(**(sizes_of(name) | LAYERS | TASKS[task]))
    init = functools.partial(networks.init_params, config=config)
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert set(shapes) == set(MODULES)
    ours = {m: sum(x.size for x in jax.tree.leaves(shapes[m])) for m in MODULES}
    *theirs, total = COUNTS[name, task]
    padding = config.units + 1
    for module, count in zip(MODULES, theirs, strict=True):
        unread = padding if module in ("reward", "critic") else 0
        assert ours[module] == count - unread, module
    assert sum(ours.values()) == total
    slow = jax.eval_shape(functools.partial(networks.init_critic, config=config), jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, slow) == jax.tree.map(
        lambda x: x.shape, shapes["critic"]
    )


def test_every_size_of_the_table_is_counted():
    assert {name for name, _ in COUNTS} == set(MODEL_SIZES) | {"tiny"}


def test_eighty_one_tensors_and_two_less_with_discrete_actions():
    """The original's 85 for three observation keys are two less per key that ours merges."""
    for discrete, expected in ((False, 81), (True, 79)):
        config = make_config(**LAYERS, discrete=discrete)
        init = functools.partial(networks.init_params, config=config)
        assert len(jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))) == expected


# --- initial values -------------------------------------------------------------------------------


def test_initial_biases_are_zero_and_scales_one():
    def check(path, leaf):
        if path[-1].key != "kernel":
            np.testing.assert_array_equal(leaf, 1.0 if path[-1].key == "scale" else 0.0)
        assert leaf.dtype == np.float32

    jax.tree_util.tree_map_with_path(check, fresh_learner().params)


def test_initial_kernels_have_their_scales():
    """Standard deviation outscale / √(fan-in): 0.1 for the decoder's output, 0.01 for the actor's.

    A deviation estimated from n draws is off by 1 / √(2n), of which four are allowed.
    """
    outscales = {
        ("decoder", "out"): 0.1,
        ("actor", "mean"): 0.01,
        ("actor", "std"): 0.01,
        ("reward", "out"): 0.0,
        ("critic", "out"): 0.0,
    }

    def check(path, leaf):
        *place, kind = (k.key for k in path)
        if kind != "kernel":
            return
        fan_in = np.prod(leaf.shape[:-1])
        expected = outscales.get(tuple(place), 1.0) / np.sqrt(fan_in)
        measured = np.sqrt(np.mean(np.square(leaf, dtype=np.float64)))
        np.testing.assert_allclose(measured, expected, rtol=4 / np.sqrt(2 * leaf.size))
        # Truncated at two deviations of the untruncated normal, 2 · 1.1368 of the truncated one.
        assert np.abs(leaf).max() <= 2.2737 * expected

    jax.tree_util.tree_map_with_path(check, fresh_learner().params)


def test_modules_start_from_draws_of_their_own():
    params = fresh_learner().params
    kernels = [params[m]["linear_1"]["kernel"] for m in ("encoder", "critic")]
    kernels += [params["actor"]["trunk"]["linear_1"]["kernel"]]
    kernels += [fresh_learner().slow_critic["linear_1"]["kernel"]]
    for i, one in enumerate(kernels):
        for other in kernels[i + 1 :]:
            assert not np.any(np.asarray(one) == np.asarray(other))


def test_a_fresh_network_predicts_exactly_zero_rewards_and_values():
    params = fresh_learner().params
    x = jax.random.normal(jax.random.key(0), (50, CONFIG.feature_dim))

    @jax.jit
    def means(params):
        reward = networks.apply(networks.reward_head(CONFIG), params["reward"], x)
        value = networks.apply(networks.critic(CONFIG), params["critic"], x)
        return CONFIG.two_hot.mean(reward), CONFIG.two_hot.mean(value)

    for mean in means(params):
        np.testing.assert_array_equal(mean, 0)


# --- layers ---------------------------------------------------------------------------------------


def hidden_in_numpy(params, x, layers):
    for i in range(layers):
        linear, scale = params[f"linear_{i}"], params[f"norm_{i}"]["scale"]
        x = x @ linear["kernel"] + linear["bias"]
        x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-4) * scale
        x = x / (1 + np.exp(-x))
    return x


def linear_in_numpy(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def numpy_params(config=CONFIG):
    return jax.tree.map(np.float64, moved_learner(config).params)


def features(n=4, seed=0, config=CONFIG):
    return np.random.default_rng(seed).normal(size=(n, config.feature_dim)).astype(np.float32)


def near(ours, expected):
    largest = np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-6 * largest)


def test_the_encoder_is_hidden_layers_of_the_symlog():
    obs = np.array([[0.0, 1.0, -1.0, 1e6, -1e6, 1e-3, 20.0, -0.5, 3.0]], np.float32)
    symlog = np.sign(obs) * np.log1p(np.abs(np.float64(obs)))
    expected = hidden_in_numpy(numpy_params()["encoder"], symlog, CONFIG.enc_layers)
    near(networks.encode(moved_learner().params["encoder"], obs, config=CONFIG), expected)


@pytest.mark.parametrize(
    ("name", "head", "layers", "width"),
    [
        ("decoder", networks.decoder, CONFIG.dec_layers, CONFIG.obs_dim),
        ("reward", networks.reward_head, CONFIG.rew_layers, CONFIG.bins),
        ("continue", networks.continue_head, CONFIG.con_layers, 1),
        ("critic", networks.critic, CONFIG.critic_layers, CONFIG.bins),
    ],
)
def test_heads_are_hidden_layers_and_a_linear_one(name, head, layers, width):
    x, params = features(), numpy_params()[name]
    expected = linear_in_numpy(params["out"], hidden_in_numpy(params, np.float64(x), layers))
    assert expected.shape == (4, width)
    near(networks.apply(head(CONFIG), moved_learner().params[name], x), expected)


@pytest.mark.parametrize("config", [CONFIG, DISCRETE], ids=["continuous", "discrete"])
def test_the_actor_has_one_output_layer_or_two(config):
    x, params = features(config=config), numpy_params(config)["actor"]
    outputs = networks.apply(networks.Actor(config), moved_learner(config).params["actor"], x)
    assert set(outputs) == ({"logits"} if config.discrete else {"mean", "std"})
    hidden = hidden_in_numpy(params["trunk"], np.float64(x), config.actor_layers)
    for name, output in outputs.items():
        near(output, linear_in_numpy(params[name], hidden))


@pytest.mark.parametrize("name", ["actor", "reward", "continue", "critic"])
def test_a_head_can_be_finished_from_its_first_linear_layer(name):
    heads = {
        "actor": networks.Actor(CONFIG),
        "reward": networks.reward_head(CONFIG),
        "continue": networks.continue_head(CONFIG),
        "critic": networks.critic(CONFIG),
    }
    x, params = features(), moved_learner().params[name]
    first = networks.first_layer(name, params)
    finished = networks.finish(heads[name], params, x @ first["kernel"] + first["bias"][None])
    jax.tree.map(near, finished, networks.apply(heads[name], params, x))


def test_features_are_the_deterministic_state_first():
    """The rows of a first kernel: D for the deterministic state, then S·C for the latents."""
    kernel = networks.first_layer("critic", moved_learner().params["critic"])["kernel"]
    assert kernel.shape == (CONFIG.deter + CONFIG.stoch * CONFIG.classes, CONFIG.units)
    assert CONFIG.feature_dim == kernel.shape[0]
