"""A configuration of pairwise distinct small sizes, learners, batches and compiled programs for it.

Programs are compiled once per process and configuration; most of these tests' time is compilation.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.replay import StreamBatch
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.losses import Terms, loss, scales, sequences
from wm_dreamer.noise import UpdateNoise
from wm_dreamer.optimizer import optimizer_of
from wm_dreamer.update import LearnerState, init_learner, update
from wm_numerics import ReturnNormalizerState

SIZES = dict(
    obs_dim=9,
    action_dim=3,
    discrete=False,
    terminates=True,
    agent_episode_length=50,
    units=14,
    deter=24,
    hidden=10,
    stoch=5,
    classes=6,
    blocks=4,
    enc_layers=2,
    dec_layers=1,
    actor_layers=2,
    critic_layers=2,
    batch_size=2,
    batch_length=8,
    imag_horizon=4,
    learning_rate=1e-3,
    warmup=2,
)


def make_config(**changes) -> DreamerV3Config:
    return DreamerV3Config(**(SIZES | changes))


CONFIG = make_config()
DISCRETE = make_config(discrete=True, action_dim=7)


@functools.cache
def fresh_learner(config=CONFIG) -> LearnerState:
    return jax.jit(functools.partial(init_learner, config=config))(jax.random.key(0))


def drawn(tree, seed=1):
    """Return a tree of the same shapes with every parameter off its initial value: none is zero.

    Drawn with NumPy, because compiling a draw per tensor would take longer than the tests.
    """
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        center = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(center + 0.3 * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, tree)


@functools.cache
def moved_learner(config=CONFIG, seed=1) -> LearnerState:
    """A learner some way off its start; the slow critic is not the critic.

    Rewards and values are of the size of 1: the far bins of the two-hot heads are unlikely, as in a
    trained agent. Equally likely ones would decode to millions, which round to tens.
    """
    shapes = jax.eval_shape(functools.partial(init_learner, config=config), jax.random.key(0))
    far = 1.5 * np.abs(np.linspace(-20, 20, config.bins, dtype=np.float32))

    def centred(head):
        return head | {"out": head["out"] | {"bias": head["out"]["bias"] - far}}

    params = drawn(shapes.params, seed)
    params |= {name: centred(params[name]) for name in ("reward", "critic")}
    return LearnerState(
        params=params,
        slow_critic=centred(drawn(shapes.slow_critic, seed + 1000)),
        opt_state=optimizer_of(config).init(params),
        retnorm=ReturnNormalizerState(low=jnp.float32(-0.5), high=jnp.float32(2.0)),
        updates=jnp.int32(0),
    )


def random_batch(seed=0, config=CONFIG) -> StreamBatch:
    """Windows with a reset inside, a terminal row, a cut-off one, and actions beyond ±1."""
    rng = np.random.default_rng(seed)
    b, n_rows = config.batch_size, config.batch_length + 1
    flags = {n: np.zeros((b, n_rows), bool) for n in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][:, 0] = True
    flags["is_first"][0, 4], flags["is_last"][0, 3], flags["is_terminal"][0, 3] = True, True, True
    flags["is_first"][1, 6], flags["is_last"][1, 5] = True, True
    if config.discrete:
        action = rng.integers(0, config.action_dim, (b, n_rows)).astype(np.int32)
    else:
        action = 1.5 * rng.standard_normal((b, n_rows, config.action_dim)).astype(np.float32)
    return StreamBatch(
        obs=(3 * rng.standard_normal((b, n_rows, config.obs_dim))).astype(np.float32),
        action=action,
        reward=(2 * rng.standard_normal((b, n_rows))).astype(np.float32),
        context_deter=rng.uniform(-1, 1, (b, config.deter)).astype(np.float32),
        context_stoch=rng.integers(0, config.classes, (b, config.stoch)).astype(np.int32),
        **flags,
    )


def random_noise(seed=0, config=CONFIG) -> UpdateNoise:
    """Draws like `draw_update_noise`'s, with NumPy for the same reason as the parameters."""
    rng = np.random.default_rng(seed)
    steps = (config.imag_horizon, config.batch_length * config.batch_size)
    if config.discrete:
        action = rng.random(steps)
    else:
        action = rng.standard_normal((*steps, config.action_dim))
    draws = UpdateNoise(
        posterior=rng.random((config.batch_length, config.batch_size, config.stoch)),
        action=action,
        prior=rng.random((*steps, config.stoch)),
    )
    return UpdateNoise(*(x.astype(np.float32) for x in draws))


@functools.cache
def update_program(config=CONFIG):
    """The compiled update: learner, batch and noise to learner, latents and metrics."""
    return jax.jit(functools.partial(update, config=config))


@functools.cache
def loss_program(config=CONFIG):
    """The compiled gradient of a weighted sum of the terms' means, and the loss's own outputs.

    With `scales(config)` as the weights it is the gradient of the loss; with one of them alone that
    of one term.
    """

    @jax.jit
    def run(learner, data, noise, weights):
        def weighted(params):
            total, outputs = loss(
                params, learner.slow_critic, learner.retnorm, data, noise, config=config
            )
            means = jax.tree.map(jnp.mean, outputs.terms)
            means = means._asdict()
            return sum(weights[name] * means[name] for name in weights), (total, outputs)

        gradients, (total, outputs) = jax.grad(weighted, has_aux=True)(learner.params)
        return total, outputs, gradients

    return run


def losses_and_gradients(learner=None, batch=None, noise=None, *, weights=None, config=CONFIG):
    """Return the total, the loss's outputs and the gradient of the weighted terms.

    Terms that `weights` leaves out have weight 0; without any, the weights are the loss's own.
    """
    weights = scales(config) if weights is None else weights
    return loss_program(config)(
        learner or moved_learner(config),
        sequences(batch or random_batch(config=config), config=config),
        noise or random_noise(config=config),
        {name: jnp.float32(weights.get(name, 0.0)) for name in Terms._fields},
    )


def leaves_by_path(tree):
    """Return `{"module/layer/leaf": array}`."""
    return {
        "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def assert_trees_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def assert_trees_close(left, right, relative):
    """Compare leaf by leaf, relative to the largest entry of each."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for path, value in leaves_by_path(left).items():
        other = np.asarray(leaves_by_path(right)[path])
        largest = np.abs(other).max(initial=0)
        np.testing.assert_allclose(value, other, rtol=0, atol=relative * largest, err_msg=path)
