"""Single functions against danijar/dreamerv3@29eb964, dreamerv3/nets.py and jaxutils.py.

The recording `numerics.npz` holds awkward inputs (zero, tiny, saturated, exactly at a threshold)
with the original's outputs, made with its default configuration. Two-hot coding, symlog, return
normaliser and initialiser are compared in wm-numerics, the optimiser in test_optimizer_parity.py.

Elementwise formulas and short sums: tolerances are a few roundings, relative to the result or to
the terms of the sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_dreamer import latents, rssm
from wm_dreamer.action_distributions import action_distribution
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.losses import Sequences, WorldModelOutputs, world_model_terms
from wm_dreamer.rssm import Observed
from wm_dreamer.update import slow_update
from wm_numerics import symexp

from .comparison import EPS, assert_near, assert_near_largest
from .recordings import load

pytestmark = pytest.mark.recordings("dreamerv3/numerics*.npz")


def default_config(**sizes):
    """Return the original's defaults with sizes that fit the recorded arrays."""
    values = dict(units=4, deter=8, hidden=4, classes=3, stoch=2, blocks=2, obs_dim=3, action_dim=2)
    values |= dict(discrete=False, terminates=True, agent_episode_length=100)
    return DreamerV3Config(**(values | sizes))


def near(ours, theirs, terms=0.0):
    """Compare to four roundings of the result and of the terms that it sums up."""
    assert_near(ours, theirs, 4 * EPS * (np.abs(theirs) + terms))


def test_rms_norm_and_silu(recording):
    group = load(recording).group("rms")
    y = np.float64(group["y"])
    theirs = y / (1 + np.exp(-y))
    ours = jax.jit(rssm.rms_silu)(group["x"], group["scale"])
    # The mean square of a row is common to it, the sigmoid rounds relative to its result.
    assert_near(ours, theirs, 8 * EPS * np.abs(theirs))


def test_block_layout_is_that_of_a_block_linear_layer(recording):
    group = load(recording).group("block")
    blocks = rssm.to_blocks(group["x"], len(group["kernel"]))
    product = jnp.matmul(blocks, group["kernel"])
    terms = rssm.to_rows(jnp.matmul(jnp.abs(blocks), jnp.abs(group["kernel"])))
    ours = rssm.to_rows(product) + group["bias"][None]
    near(ours, group["y"], np.asarray(terms) + np.abs(group["bias"]))


def test_discrete_actor(recording):
    group = load(recording).group("onehot")
    config = default_config(discrete=True, action_dim=group["raw"].shape[-1])
    policy = action_distribution({"logits": group["raw"]}, config=config)
    # log p is off by the relative error of p.
    assert_near(policy.log_probs, group["logits"], 8 * EPS + 4 * EPS * np.abs(group["logits"]))
    log_prob = policy.log_prob(group["value"])
    assert_near(log_prob, group["log_prob"], 8 * EPS * (1 + np.abs(group["log_prob"])))
    assert_near(policy.entropy(), group["entropy"], 8 * EPS * (1 + np.abs(group["entropy"])))


def test_continuous_actor(recording):
    group = load(recording).group("normal")
    config = default_config(action_dim=group["raw_mean"].shape[-1])
    outputs = {"mean": group["raw_mean"], "std": group["raw_std"]}
    policy = action_distribution(outputs, config=config)
    near(policy.mean, group["loc"])
    near(policy.std, group["scale"])
    near(policy.entropy(), group["entropy"], np.abs(np.log(group["scale"])).sum(axis=-1) + 1)
    # z = (a − mean) / std is off by the roundings of a and the mean over std.
    scale = np.float64(group["scale"])
    z = np.abs(group["value"] - group["loc"]) / scale
    of_z = 4 * EPS * (z + (np.abs(group["value"]) + np.abs(group["loc"])) / scale)
    bound = np.sum(z * of_z + 4 * EPS * (2 + z**2), axis=-1)
    assert_near(policy.log_prob(group["value"]), group["log_prob"], bound)


def test_unimixed_latents(recording):
    group = load(recording).group("kl")
    mix = jax.jit(lambda raw: latents.mix_uniform(raw, default_config().unimix))
    for side in ("a", "b"):
        ours, theirs = mix(group[f"raw_{side}"]), group[f"logit_{side}"]
        assert_near(ours, theirs, 8 * EPS * (1 + np.abs(theirs)))
        entropy = jnp.sum(latents.entropy(ours), axis=-1)
        near(entropy, group[f"entropy_{side}"], np.abs(theirs).max())


def test_kl(recording):
    group = load(recording).group("kl")
    log_p, log_q = group["logit_a"], group["logit_b"]
    ours = jax.jit(latents.kl_divergence)(log_p, log_q)
    terms = np.sum(np.exp(log_p) * (np.abs(log_p) + np.abs(log_q)), axis=(-2, -1))
    near(ours, group["kl_a_b"], terms)


def terms_of(config, *, obs_mean, obs, cont, is_terminal):
    """Return the terms of the world model for predictions of N rows of one sequence."""
    n = len(cont)
    zeros = jnp.zeros((n, 1, config.stoch, config.classes))
    observed = Observed(
        jnp.zeros((n, 1, config.deter)),
        zeros.reshape(n, 1, -1),
        zeros,
        jnp.zeros((n, 1, config.stoch), jnp.int32),
    )
    rows, flags = jnp.zeros((n, 1)), jnp.zeros((n, 1), bool)
    model = WorldModelOutputs(
        observed=observed,
        features=jnp.zeros((n, config.feature_dim)),
        prior=zeros[:, 0],
        obs=jnp.asarray(obs_mean),
        reward=jnp.zeros((n, config.bins)),
        cont=jnp.asarray(cont),
    )
    data = Sequences(
        obs=jnp.asarray(obs)[:, None],
        prev_action=jnp.zeros((n, 1, config.action_dim)),
        reward=rows,
        is_first=flags,
        is_last=flags,
        is_terminal=jnp.asarray(is_terminal)[:, None],
        start=rssm.initial_state(config, 1),
    )
    return world_model_terms(model, data, config=config)


def test_continue_head(recording):
    """Its labels are 0 and γ; with a long horizon they are 0 and 1.

    The recorded labels are whole numbers: given as a NumPy array, a soft label is truncated by the
    library that the original uses. In training labels stay soft; test_train_parity compares them.
    """
    group = load(recording).group("binary")
    label, logits = np.trunc(group["value"]), group["logits"]
    zeros = np.zeros((len(logits), 3), np.float32)
    config = default_config(obs_dim=3, return_horizon=1e12)
    assert np.float32(config.gamma) == 1
    terms = terms_of(config, obs_mean=zeros, obs=zeros, cont=logits, is_terminal=label == 0)
    near(terms[2], -group["log_prob"], np.exp(-np.abs(logits)))
    near(jax.nn.sigmoid(logits), group["mean"])


def test_reconstruction_with_its_tolerance(recording):
    """No ½, summed over the dimensions, and squared errors below 1e-8 count as 0."""
    group = load(recording).group("symlog_mse")
    n, width = group["pred"].shape
    terms = terms_of(
        default_config(obs_dim=width),
        obs_mean=group["pred"],
        obs=group["target"],
        cont=np.zeros(n, np.float32),
        is_terminal=np.zeros(n, bool),
    )
    theirs = -group["log_prob"]
    assert np.any(theirs == 0) and np.any(theirs > 1)
    # A difference of symlog values of size m is off by some roundings of m.
    m = np.float64(np.abs(group["pred"]))
    error = np.abs(group["pred"] - np.sign(group["target"]) * np.log1p(np.abs(group["target"])))
    bound = np.sum(2 * error * 4 * EPS * m + 4 * EPS * error**2, axis=-1)
    assert_near(terms[0], theirs, bound)
    np.testing.assert_array_equal(np.asarray(terms[0]) == 0, theirs == 0)
    near(symexp(group["pred"]), group["mean"], EPS + m)


def test_slow_critic(recording):
    """A copy after the first update, a fiftieth of the way after the others."""
    group = load(recording).group("slow")
    calls = len([name for name in group if name.startswith("target/")])
    assert calls > 2
    slow = {"w": jnp.asarray(group["target/0"])}
    for n in range(1, calls):
        critic = {"w": jnp.asarray(group[f"source/{n}"])}
        slow = slow_update(slow, critic, jnp.int32(n - 1), config=default_config())
        theirs = group[f"target/{n}"]
        bound = 2 * n * EPS * (np.abs(theirs) + np.abs(group[f"source/{n}"]))
        assert_near(slow["w"], theirs, 0 if n == 1 else bound, f"after {n} updates")


def test_initial_kernels_have_the_recorded_spread(recording):
    """Deviation and largest value times √(fan-in), for a plain and a block-diagonal layer.

    The fan-in of a block-diagonal layer is its whole input. Draws differ; a deviation estimated
    from n draws is off by 1 / √(2n), relative, of which five are allowed.
    """
    group = load(recording).group("init")
    blocks, per_block, _ = (int(n) for n in group["block/shape"])
    fan_in = int(group["dense/shape"][0])
    config = default_config(blocks=blocks, deter=blocks * per_block, hidden=fan_in)
    params = jax.jit(rssm.init_rssm, static_argnums=1)(jax.random.key(0), config)
    for name, layer in (("dense", "prior_hidden_1"), ("block", "gates")):
        theirs_fan_in = np.prod(group[f"{name}/shape"][:-1])
        kernel = np.asarray(params[layer]["kernel"], np.float64)
        fan_in, draws = (
            np.prod(kernel.shape[:-1]),
            min(kernel.size, np.prod(group[f"{name}/shape"])),
        )
        ours = kernel.std() * np.sqrt(fan_in)
        theirs = group[f"{name}/std"] * np.sqrt(theirs_fan_in)
        np.testing.assert_allclose(ours, theirs, rtol=5 / np.sqrt(draws))
        largest = np.abs(kernel).max() * np.sqrt(fan_in)
        np.testing.assert_allclose(
            largest, group[f"{name}/max"] * np.sqrt(theirs_fan_in), rtol=1e-2
        )
    assert_near_largest(params["gates"]["bias"], np.zeros(3 * config.deter), 0)
