"""Two tasks of different sizes whose environments are made on the spot, and data of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect import register_env, registered_envs
from wm_collect.testing import CounterEnv
from wm_multitask import Task, TaskEpisodes, pool_tasks

TINY = {
    "model_size": 1,
    "enc_dim": 16,
    "mlp_dim": 32,
    "latent_dim": 16,
    "batch_size": 32,
    "task_dim": 6,
    "num_samples": 24,
    "num_elites": 6,
    "num_pi_trajs": 4,
    "iterations": 3,
}
LENGTHS = {"narrow": 8, "wide": 12}
SIZES = {"narrow": (3, 1), "wide": (5, 2)}


def register():
    """Register the environments under their names."""
    for name, (obs_dim, action_dim) in SIZES.items():
        if name not in registered_envs():
            register_env(name, functools.partial(build, name, obs_dim, action_dim))


def build(name, obs_dim, action_dim):
    return CounterEnv(
        [LENGTHS[name]], obs_dim=obs_dim, action_dim=action_dim, declare_fixed_length=True
    )


def episodes(name, n=6):
    """Random actions in the task's own environment."""
    obs_dim, action_dim = SIZES[name]
    length = LENGTHS[name]
    task = Task(
        name=name, obs_dim=obs_dim, action_dim=action_dim, episode_length=length, env_id=name
    )
    env = task.make_env()

    def one(key):
        reset_key, key = jax.random.split(key)
        state, first = env.reset(reset_key)

        def step(state, key):
            action = jax.random.uniform(key, (action_dim,), minval=-1, maxval=1)
            moved = env.step(key, state, action)
            return moved.state, (moved.obs, action, moved.reward)

        _, (obs, action, reward) = jax.lax.scan(step, state, jax.random.split(key, length))
        pad = jnp.zeros((1, action_dim))
        return (
            jnp.concatenate([first[None], obs]),
            jnp.concatenate([action, pad]),
            jnp.concatenate([jnp.zeros(1), reward]),
        )

    obs, action, reward = jax.vmap(one)(jax.random.split(jax.random.key(0), n))
    return TaskEpisodes(
        task=task,
        obs=np.asarray(obs, np.float32),
        action=np.asarray(action, np.float32),
        reward=np.asarray(reward, np.float32),
    )


def make_dataset():
    register()
    return pool_tasks([episodes("narrow"), episodes("wide")])
