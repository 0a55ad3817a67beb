"""A configuration of pairwise distinct small sizes, and learners for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.environment import EnvSpec
from wm_numerics import RunningScale
from wm_tdmpc2 import Batch, TDMPC2Config, TDMPC2Settings, init_learner, resolve_config

SETTINGS = dict(
    enc_dim=10,
    mlp_dim=14,
    latent_dim=12,
    simnorm_dim=4,
    num_q=3,
    num_bins=9,
    dropout=0.0,
    batch_size=6,
    iterations=2,
    num_samples=24,
    num_elites=8,
    num_pi_trajs=7,
)


def make_spec(**changes):
    """A task of fixed length: 5 observations, 3 actions, 50 steps."""
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


def make_config(**changes) -> TDMPC2Config:
    return resolve_config(TDMPC2Settings(**(SETTINGS | changes)), make_spec())


CONFIG = make_config()


@functools.cache
def fresh_learner(config=CONFIG):
    return jax.jit(functools.partial(init_learner, config=config))(jax.random.key(0))


@functools.cache
def moved_learner(config=CONFIG):
    """A new learner with parameters off their initial values: nothing is zero, target Q is not Q.

    Drawn with NumPy, because compiling a draw per tensor would take longer than the tests.
    """
    rng = np.random.default_rng(1)
    template = jax.eval_shape(functools.partial(init_learner, config=config), jax.random.key(0))

    def draw(path, leaf):
        center = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(center + 0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

    def drawn(tree):
        return jax.tree_util.tree_map_with_path(draw, tree)

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)
    return zeros.replace(
        wm_params=drawn(template.wm_params),
        target_q_params=drawn(template.target_q_params),
        pi_params=drawn(template.pi_params),
        q_scale=RunningScale(tau=config.tau).init(),
    )


def random_batch(seed=0, config=CONFIG):
    h, b = config.horizon, config.batch_size
    keys = jax.random.split(jax.random.key(seed), 3)
    return Batch(
        obs=jax.random.normal(keys[0], (h + 1, b, config.obs_dim)),
        action=jax.random.uniform(keys[1], (h, b, config.action_dim), minval=-1.0),
        reward=5 * jax.random.normal(keys[2], (h, b)),
    )


def random_latents(shape, seed=0, config=CONFIG):
    """Latents as the encoder makes them: groups that sum to one."""
    groups = config.latent_dim // config.simnorm_dim
    x = jax.random.normal(jax.random.key(seed), (*shape, groups, config.simnorm_dim))
    return jax.nn.softmax(x, axis=-1).reshape(*shape, -1)


def random_actions(shape, seed=0, config=CONFIG):
    key = jax.random.key(seed)
    return jnp.tanh(jax.random.normal(key, (*shape, config.action_dim)))
