"""A run of either agent, killed at random moments and resumed, equals one never interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import wm_dreamer.cli
import wm_tdmpc2.cli
from wm_collect.checkpoint import Checkpoints
from wm_collect.cli import open_run
from wm_collect.cli_options import AgentCommand
from wm_collect.testing import check_same_state

from . import workspace

N_TIMESTEPS = 400
KILLS = 3


@dataclasses.dataclass(frozen=True)
class Trained:
    """One agent's command, and the smallest run that exercises everything."""

    command: AgentCommand
    env_id: str
    settings: dict[str, Any]


def tiny(package: str) -> dict[str, Any]:
    """Return the settings of a package's own smoke tests."""
    return workspace.load_file(f"packages/{package}/tests/smoke/tiny.py").TINY


AGENTS = {
    "dreamerv3": Trained(
        wm_dreamer.cli.COMMAND,
        "CartPole-v1",
        # The replay is overwritten twice in the run.
        tiny("wm-dreamer") | {"episode_length": 20, "replay_capacity": 160},
    ),
    "tdmpc2": Trained(
        wm_tdmpc2.cli.COMMAND,
        "Pendulum-v1",
        tiny("wm-tdmpc2") | {"episode_length": 20, "seed_steps": 60},
    ),
}


def program(trained: Trained, *args: str) -> list[str]:
    module = trained.command.agent.__module__.partition(".")[0]
    code = f"import sys; from {module}.cli import run; sys.exit(run(sys.argv[1:]))"
    return [sys.executable, "-c", code, *args]


def train(trained: Trained, folder: Path) -> list[str]:
    options = [f"--{k.replace('_', '-')}={v}" for k, v in trained.settings.items()]
    return program(
        trained,
        "train",
        trained.env_id,
        *options,
        f"--n-timesteps={N_TIMESTEPS}",
        "--num-episode-test=0",
        "--log-frequency=20",
        "--save-frequency=40",
        "--no-animation",
        f"--root={folder.parent}",
        f"--name={folder.name}",
    )


def final(trained: Trained, folder: Path) -> tuple[Any, int]:
    run, agent = open_run(trained.command, folder)
    state, metadata = Checkpoints(run.checkpoints).restore(agent.state_like(0, N_TIMESTEPS))
    return state, metadata["timestep"]


def logged(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("Time/")} for row in rows]


@pytest.mark.parametrize("name", AGENTS)
def test_killed_and_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    trained, whole, killed = AGENTS[name], tmp_path / "whole", tmp_path / "killed"
    environment = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    subprocess.run(train(trained, whole), check=True, env=environment, capture_output=True)

    draw = random.Random(0)
    command, kills = train(trained, killed), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        # Wait until this process has begun to train, then for a random moment of its work.
        for line in process.stdout:
            if line.startswith("step "):
                break
        time.sleep(draw.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        command = program(trained, "resume", str(killed))
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    # A run that outran its last kill has nothing left to resume.
    assert finished.returncode == 0 or "complete" in finished.stderr, finished.stderr
    assert kills >= 2

    expected, got = final(trained, whole), final(trained, killed)
    assert expected[1] == got[1] == N_TIMESTEPS
    check_same_state(expected[0], got[0])
    assert logged(whole) == logged(killed)
