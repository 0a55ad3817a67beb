"""Extensions on DreamerV3: declared phases fire with the right arguments, others are refused."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.testing import CounterEnv
from wm_dreamer import DreamerV3, DreamerV3State
from wm_dreamer.update import METRIC_NAMES

from ..smoke.tiny import TINY

ROWS = 60
# The first update at 8 x 2 + 4 = 20 rows, then half an update per row.
N_UPDATES = 1 + (ROWS - 20) // 2


class Recorder:
    """Counts its own calls inside the compiled program, and changes the agent before it starts."""

    def init_state(self, agent, key):
        assert isinstance(agent, DreamerV3State)
        return {"updates": jnp.int32(0), "last_step": jnp.int32(-1), "scale": jnp.float32(0)}

    def pretrain(self, agent, carry, key):
        learner = dataclasses.replace(agent.learner, updates=agent.learner.updates + 100)
        return dataclasses.replace(agent, learner=learner), carry

    def post_update(self, agent, carry, key, step, metrics):
        assert set(metrics) == set(METRIC_NAMES)
        return agent, {
            "updates": carry["updates"] + 1,
            "last_step": step,
            "scale": metrics["Train/retnorm_scale"],
        }

    def eval_metrics(self, agent, carry, key):
        return {"recorded updates": carry["updates"]}


@pytest.fixture(scope="module")
def trained():
    agent = DreamerV3(CounterEnv([4]), extensions=(Recorder(),), **TINY)
    return agent.train(
        seed=0, n_timesteps=ROWS, num_episode_test=2, eval_frequency=30, progress=False
    )


def test_post_update_runs_once_per_update(trained):
    state, series = trained
    (carry,) = state.extensions
    assert int(carry["updates"]) == series["Train/n_updates"][-1] == N_UPDATES
    assert int(carry["last_step"]) == N_UPDATES - 1
    # The metrics are those of the last update, which left the normaliser behind.
    low, high = state.agent.learner.retnorm
    np.testing.assert_allclose(carry["scale"], max(1.0, high - low), rtol=1e-6)


def test_eval_metrics_are_logged_with_the_evaluation(trained):
    _, series = trained
    logged = series["Eval/recorded updates"]
    assert logged[-1] == N_UPDATES
    assert np.isfinite(logged).sum() == np.isfinite(series["Eval/episodic mean reward"]).sum() == 2


def test_pretrain_changed_the_state_that_training_began_with(trained):
    state, _ = trained
    assert int(state.agent.learner.updates) == 100 + N_UPDATES


@pytest.mark.parametrize(
    "phase", ["on_target", "critic_loss", "actor_loss", "action", "eval_action"]
)
def test_other_phases_are_rejected_at_construction(phase):
    extension = type("Foreign", (), {phase: lambda self, *args: args})()
    with pytest.raises(ValueError, match=phase):
        DreamerV3(CounterEnv([4]), extensions=(extension,), **TINY)
