"""What the package exports."""

import subprocess
import sys
from importlib.metadata import version

import wm_tdmpc2


def test_public_names():
    assert set(wm_tdmpc2.__all__) == {
        "MODEL_SIZES",
        "TDMPC2",
        "Batch",
        "LearnerState",
        "ModelSettings",
        "PlanNoise",
        "PlanOutput",
        "RowSchedule",
        "Schedule",
        "TDMPC2Config",
        "TDMPC2Settings",
        "TDMPC2State",
        "TaskContext",
        "UpdateNoise",
        "default_seed_steps",
        "discount",
        "draw_plan_noise",
        "draw_update_noise",
        "init_learner",
        "plan",
        "planning_policy",
        "resolve_config",
        "schedule_of",
        "update",
    }
    assert all(hasattr(wm_tdmpc2, name) for name in wm_tdmpc2.__all__)


def test_the_version_is_the_one_of_the_installed_distribution():
    assert wm_tdmpc2.__version__ == version("wm-tdmpc2")


def test_importing_loads_no_environment_library_and_starts_no_device():
    code = (
        "import sys, wm_tdmpc2, jax\n"
        "loaded = {m.split('.')[0] for m in sys.modules}\n"
        "heavy = loaded & {'brax', 'mujoco', 'gymnax', 'orbax', 'matplotlib', 'torch'}\n"
        "assert not heavy, heavy\n"
        "assert not jax._src.xla_bridge.backends_are_initialized()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
