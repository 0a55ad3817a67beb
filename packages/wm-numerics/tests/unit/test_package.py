"""What the package exports, and what importing it costs."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import wm_numerics

PACKAGE = Path(__file__).parents[2]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_public_names():
    assert set(wm_numerics.__all__) == {
        "ReturnNormalizer",
        "ReturnNormalizerState",
        "RunningScale",
        "RunningScaleState",
        "TwoHot",
        "fan_in_truncated_normal",
        "normal",
        "percentile",
        "symexp",
        "symlog",
        "zeros",
    }
    assert all(hasattr(wm_numerics, name) for name in wm_numerics.__all__)


def test_importing_loads_no_other_library_and_starts_no_device():
    result = run_python(
        "import sys, wm_numerics, wm_numerics.dropout, jax\n"
        "ours = {m for m in sys.modules if m.startswith('wm_')}\n"
        "foreign = {m.split('.')[0] for m in sys.modules} & {'flax', 'optax', 'chex', 'gymnax'}\n"
        "other = {m for m in ours if m.split('.')[0] != 'wm_numerics'}\n"
        "assert not foreign, foreign\n"
        "assert not other, other\n"
        "assert 'wm_numerics.blocks' not in ours\n"
        "assert not jax._src.xla_bridge.backends_are_initialized()\n"
        "assert not jax.config.jax_enable_x64\n"
    )
    assert result.returncode == 0, result.stderr


def test_blocks_without_flax_says_what_to_install():
    result = run_python(
        "import sys\n"
        "sys.modules['flax'] = None  # makes `import flax` fail as if it were not installed\n"
        "import wm_numerics\n"
        "import wm_numerics.blocks\n"
    )
    assert result.returncode == 1
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: wm_numerics.blocks needs flax")
    assert 'pip install "wm-numerics[nn]"' in last_line


@pytest.mark.rank_promotion
def test_readme_examples_print_what_they_say():
    result = doctest.testfile(str(PACKAGE / "README.md"), module_relative=False)
    assert result.attempted > 10 and result.failed == 0
