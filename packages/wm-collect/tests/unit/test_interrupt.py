"""Ctrl-C and SIGTERM, sent as signals to a training process, and the state they leave."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from wm_collect.checkpoint import Checkpoints
from wm_collect.driver import train
from wm_collect.interrupt import StopRequest
from wm_collect.loop import init_run
from wm_collect.metrics import ELAPSED
from wm_collect.sinks import JsonlSink, read_rows

from .counting_agent import CLOCK, counting_agent

RUN = {"seeds": 0, "clock": CLOCK, "log_every": 600}

PROGRAM = """
import sys
from counting_agent import CLOCK, counting_agent
from wm_collect.checkpoint import Checkpoints
from wm_collect.driver import train
from wm_collect.failures import TrainingInterrupted
from wm_collect.progress import RunProgress
from wm_collect.sinks import JsonlSink

folder, n_updates = sys.argv[1], int(sys.argv[2])
changed = {"updates_before": lambda tick: n_updates * (tick > 9)} if n_updates else {}
with RunProgress(10**9) as progress:
    try:
        train(
            counting_agent(**changed), seeds=0, clock=CLOCK, log_every=600, stop_tick=10**9,
            checkpoints=Checkpoints(folder + "/checkpoints"), progress=progress,
            sinks=[JsonlSink(folder + "/log.jsonl")], resume_hint="resume FOLDER",
            chunk_seconds=0.05,
        )
    except TrainingInterrupted as stop:
        print("CAUGHT", stop, flush=True)
        sys.exit(128 + stop.signal)
"""


def start(folder, n_updates=0):
    """Start a training run that does not end by itself; `n_updates` all at once, if given."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, str(folder), str(n_updates)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )


def read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the process ended without {text!r}: {''.join(lines)}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_and_the_run_can_go_on(tmp_path, number):
    process = start(tmp_path)
    read_until(process, "step 1,200/")
    process.send_signal(number)
    shown, _ = process.communicate(timeout=60)
    # As `cli_runs.exit_status` does: 130 for Ctrl-C, 143 for SIGTERM.
    assert process.returncode == 128 + number, shown
    assert "Stopping after the running chunk" in shown
    assert "CAUGHT Stopped at " in shown and shown.strip().endswith("Continue with: resume FOLDER")

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    tick = checkpoints.latest_tick()
    stop_tick = tick + 2_000
    template = jax.eval_shape(lambda: init_run(counting_agent(), (), jax.random.key(0)))
    initial, metadata = checkpoints.restore(template)
    resumed, _ = train(
        counting_agent(),
        **RUN,
        stop_tick=stop_tick,
        initial=initial,
        start_tick=tick,
        log_state=metadata["log_state"],
        sinks=[JsonlSink(tmp_path / "log.jsonl")],
    )
    whole, _ = train(
        counting_agent(), **RUN, stop_tick=stop_tick, sinks=[JsonlSink(tmp_path / "whole.jsonl")]
    )
    for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)
    one, other = read_rows(tmp_path / "log.jsonl"), read_rows(tmp_path / "whole.jsonl")
    assert [r | {ELAPSED: 0} for r in one] == [r | {ELAPSED: 0} for r in other]


def test_the_second_ctrl_c_aborts_at_once(tmp_path):
    # A single tick of two billion updates takes an hour.
    process = start(tmp_path, n_updates=2_000_000_000)
    read_until(process, "2,000,000,000 updates in one tick")
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    read_until(process, "Stopping after the running chunk")
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in shown


@pytest.fixture
def python_handler():
    """Python's own Ctrl-C, which a test runner's worker may have switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_works_as_before_afterwards(python_handler):
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    assert request.requested
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)


def test_outside_the_main_thread_signals_are_left_alone():
    handlers = []

    def use():
        with StopRequest() as request:
            handlers.append(signal.getsignal(signal.SIGINT))
            assert not request.requested

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert handlers == [before] == [signal.getsignal(signal.SIGINT)]
