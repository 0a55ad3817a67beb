"""Tasks of pairwise distinct small sizes, and episodes of them made of valid random numbers."""

import numpy as np

from wm_multitask.dataset import TaskEpisodes
from wm_multitask.tasks import Task


def make_task(name="reach", **changes):
    values = dict(name=name, obs_dim=3, action_dim=2, episode_length=5, env_id=f"{name}-env")
    return Task(**(values | changes))


REACH = make_task()
SWIM = make_task("swim", obs_dim=5, action_dim=1)
HOP = make_task("hop", obs_dim=2, action_dim=4, action_repeat=2, env_params={"mass": 2.0})


def make_episodes(task=REACH, n=4, seed=0):
    """Episodes without a zero where one need not be."""
    rng = np.random.default_rng(seed)
    rows = task.episode_length + 1
    obs = 1 + rng.random((n, rows, task.obs_dim), np.float32)
    action = np.float32(0.5) * (1 + rng.random((n, rows, task.action_dim), np.float32))
    reward = 1 + rng.random((n, rows), np.float32)
    action[:, -1] = 0
    reward[:, 0] = 0
    return TaskEpisodes(task=task, obs=obs, action=action, reward=reward)


def assert_same_content(one, other):
    """Compare two datasets, or two `TaskEpisodes`, bit for bit."""
    assert type(one) is type(other)
    assert one.content_hash == other.content_hash
    for (name, a), b in zip(one.arrays().items(), other.arrays().values(), strict=True):
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)
