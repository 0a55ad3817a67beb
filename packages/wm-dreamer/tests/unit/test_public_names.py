"""What the package exports."""

import subprocess
import sys
from importlib.metadata import version

import wm_dreamer


def test_public_names():
    assert set(wm_dreamer.__all__) == {
        "MODEL_SIZES",
        "ActNoise",
        "Decision",
        "DreamerV3",
        "DreamerV3Config",
        "DreamerV3Settings",
        "DreamerV3State",
        "Imagined",
        "Latents",
        "LearnerState",
        "Observed",
        "PolicyCarry",
        "RSSMState",
        "Schedule",
        "Sequences",
        "UpdateNoise",
        "act",
        "adaptive_gradient_clip",
        "draw_act_noise",
        "draw_update_noise",
        "filtering_policy",
        "imagine",
        "imagine_step",
        "init_learner",
        "initial_carry",
        "initial_state",
        "lambda_return",
        "laprop",
        "loss",
        "observe",
        "observe_step",
        "replay_return",
        "resolve_config",
        "scale_by_laprop",
        "sequences",
        "update",
        "warmup_schedule",
    }
    assert all(hasattr(wm_dreamer, name) for name in wm_dreamer.__all__)


def test_the_version_is_the_one_of_the_installed_distribution():
    assert wm_dreamer.__version__ == version("wm-dreamer")


def test_importing_loads_no_environment_library_and_starts_no_device():
    code = (
        "import sys, wm_dreamer, jax\n"
        "loaded = {m.split('.')[0] for m in sys.modules}\n"
        "heavy = loaded & {'brax', 'mujoco', 'gymnax', 'orbax', 'matplotlib', 'torch'}\n"
        "assert not heavy, heavy\n"
        "assert not jax._src.xla_bridge.backends_are_initialized()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
