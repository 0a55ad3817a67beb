"""Extensions on TD-MPC2: declared phases fire with the right arguments, others are refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.testing import ActionRewardEnv
from wm_tdmpc2 import TDMPC2
from wm_tdmpc2.update import METRIC_NAMES

from ..smoke.tiny import TINY


class Recorder:
    """Counts its own calls inside the compiled program, and changes the agent once."""

    def init_state(self, agent, key):
        return {"updates": jnp.int32(0), "last_step": jnp.int32(-1), "scale": jnp.float32(0)}

    def pretrain(self, agent, carry, key):
        learner = agent.learner.replace(pi_grad_norm_sq=jnp.float32(4.0))
        return agent.replace(learner=learner), carry

    def post_update(self, agent, carry, key, step, metrics):
        assert set(metrics) >= set(METRIC_NAMES)
        return agent, {
            "updates": carry["updates"] + 1,
            "last_step": step,
            "scale": metrics["pi_scale"],
        }

    def eval_metrics(self, agent, carry, key):
        return {"recorded updates": carry["updates"]}


@pytest.fixture(scope="module")
def trained():
    env = ActionRewardEnv(episode_length=8)
    agent = TDMPC2(env, seed_steps=20, extensions=(Recorder(),), **TINY)
    return agent.train(
        seed=0, n_timesteps=40, num_episode_test=2, eval_frequency=20, progress=False
    )


def test_post_update_runs_once_per_update(trained):
    state, series = trained
    (carry,) = state.extensions
    assert int(carry["updates"]) == series["Train/n_updates"][-1] == 39
    assert int(carry["last_step"]) == 38
    assert float(carry["scale"]) >= 1.0


def test_eval_metrics_are_logged_with_the_evaluation(trained):
    _, series = trained
    logged = series["Eval/recorded updates"]
    assert logged[-1] == 39
    assert np.isfinite(logged).sum() == np.isfinite(series["Eval/episodic mean reward"]).sum()


def test_pretrain_changed_the_state_that_training_began_with(trained):
    # The pretrain phase set the carried policy norm to 2; the first clip norm contains it.
    _, series = trained
    first = series["Loss/grad_norm"][np.isfinite(series["Loss/grad_norm"])][0]
    assert first > 0


@pytest.mark.parametrize(
    "phase", ["on_target", "critic_loss", "actor_loss", "action", "eval_action"]
)
def test_other_phases_are_rejected_at_construction(phase):
    extension = type("Foreign", (), {phase: lambda self, *args: args})()
    with pytest.raises(ValueError, match=phase):
        TDMPC2(ActionRewardEnv(), extensions=(extension,), **TINY)
