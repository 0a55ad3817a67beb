"""A run killed at random moments and resumed equals one that was never interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from wm_collect.checkpoint import Checkpoints
from wm_collect.run_folder import RunFolder
from wm_dreamer.cli import COMMAND
from wm_dreamer.config import DreamerV3Settings

from ..smoke.tiny import TINY

SETTINGS = TINY | {"episode_length": 20, "replay_capacity": 160}
N_TIMESTEPS = 400
KILLS = 3


def _command(*args: str) -> list[str]:
    code = "import sys; from wm_dreamer.cli import run; sys.exit(run(sys.argv[1:]))"
    return [sys.executable, "-c", code, *args]


def _train(root: Path, name: str) -> list[str]:
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SETTINGS.items()]
    return _command(
        "train",
        "CartPole-v1",
        *options,
        f"--n-timesteps={N_TIMESTEPS}",
        "--num-episode-test=0",
        "--log-frequency=20",
        "--save-frequency=40",
        "--no-animation",
        f"--root={root}",
        f"--name={name}",
    )


def _final(folder: Path):
    run = RunFolder.open(folder)
    agent = COMMAND.agent("CartPole-v1", **vars(DreamerV3Settings(**run.settings["settings"])))
    state, metadata = Checkpoints(run.checkpoints).restore(agent.state_like(0, N_TIMESTEPS))
    return state, metadata["timestep"]


def _log(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("Time/")} for row in rows]


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    environment = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    subprocess.run(_train(tmp_path, "whole"), check=True, env=environment, capture_output=True)

    draw = random.Random(0)
    command = _train(tmp_path, "killed")
    kills = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        # Wait until this process has begun to train, then for a random moment of its work.
        for line in process.stdout:
            if line.startswith("step "):
                break
        time.sleep(draw.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        command = _command("resume", str(tmp_path / "killed"))
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    # A run that outran its last kill has nothing left to resume.
    assert finished.returncode == 0 or "complete" in finished.stderr, finished.stderr
    assert kills >= 2

    (expected, steps), (state, resumed_steps) = map(
        _final, (tmp_path / "whole", tmp_path / "killed")
    )
    assert steps == resumed_steps == N_TIMESTEPS
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(state), strict=True
    ):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
    assert _log(tmp_path / "whole") == _log(tmp_path / "killed")
