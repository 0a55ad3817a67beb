"""The filter of standard error: XLA's tuning lines vanish, everything else comes through."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from wm_collect.quiet import quiet_xla
from wm_collect.stderr_filter import forward

NOISE = (
    b"E1129 23:29:00.966045    5382 cpu_aot_loader.cc:195] Loading XLA:CPU AOT result. Target "
    b"machine feature +prefer-no-gather is not  supported on the host machine. Machine type used "
    b"for XLA:CPU compilation doesn't match the machine type for execution. Compile machine "
    b"features: [+64bit,+prefer-no-gather] vs host machine features: [avx,aes]. This could lead to "
    b"execution errors such as SIGILL.\n"
)
REAL_MISMATCH = NOISE.replace(b"+prefer-no-gather", b"+avx512f")
OTHER_ERROR = b"E1129 23:29:00.966045    5382 cuda_driver.cc:10] out of memory\n"

CASES = {
    "plain lines": [b"hello\n", b"world\n"],
    "no newline at the end": [b"hello\n", b"half"],
    "a prompt": [b"> "],
    "a missing real feature": [REAL_MISMATCH],
    "another error of XLA": [OTHER_ERROR],
    "looks like a log line": [b"E1129 pending"],
    "empty lines": [b"\n\n"],
    "not text": [bytes(range(1, 256))],
}


def through_the_filter(blocks: list[bytes]) -> bytes:
    source, write_end = os.pipe()
    read_end, target = os.pipe()
    drained, drained_end = os.pipe()
    for block in blocks:
        os.write(write_end, block)
    os.write(write_end, b"\0marker\n")
    os.close(write_end)
    forward(source, target, b"\0marker\n", drained_end)
    os.close(target)
    assert os.read(drained, 1) == b""  # closed: everything before the marker was forwarded
    with os.fdopen(read_end, "rb") as file:
        result = file.read()
    os.close(source)
    os.close(drained)
    return result


@pytest.mark.parametrize("name", CASES)
def test_everything_else_comes_through_unchanged(name: str) -> None:
    text = b"".join(CASES[name])
    assert through_the_filter(CASES[name]) == text
    assert through_the_filter([NOISE, *CASES[name]]) == text
    assert through_the_filter(
        [NOISE + text + (b"" if text.endswith(b"\n") else b"\n") + NOISE]
    ) in (
        text,
        text + b"\n",
    )


def test_noise_cut_into_blocks_is_still_noise(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_xla():
        for place in range(0, len(NOISE), 40):
            os.write(2, NOISE[place : place + 40])
        os.write(2, b"kept\n")
    assert capfd.readouterr().err == "kept\n"


def test_text_of_python_and_of_children_comes_through_in_order(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print("before", file=sys.stderr)
    with quiet_xla(), quiet_xla():
        print("python", file=sys.stderr, flush=True)
        subprocess.run(["sh", "-c", "echo child >&2"], check=True)
        os.write(2, NOISE)
    print("after", file=sys.stderr)
    os.write(2, NOISE)
    out = capfd.readouterr().err
    assert out.startswith("before\npython\nchild\nafter\n")
    assert out.count("cpu_aot_loader") == 1  # outside the context nothing is filtered


def test_threads_share_one_filter(capfd: pytest.CaptureFixture[str]) -> None:
    def work(name: int) -> None:
        with quiet_xla():
            for _ in range(20):
                os.write(2, NOISE)
                os.write(2, b"thread %d\n" % name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == sorted(f"thread {i}" for i in range(4) for _ in range(20))


def test_an_exception_gives_standard_error_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), quiet_xla():
        raise KeyError
    os.write(2, NOISE)
    assert "cpu_aot_loader" in capfd.readouterr().err


def test_a_child_that_outlives_the_context_does_not_hold_it_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with quiet_xla():
        child = subprocess.Popen(["sh", "-c", "sleep 0.5; echo late >&2"])
    assert child.poll() is None
    child.wait()
    for _ in range(50):
        if (late := capfd.readouterr().err) or child.poll() is None:
            break
        threading.Event().wait(0.05)
    assert late == "late\n"


def test_without_standard_error_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)
    before = os.fstat(2)
    with quiet_xla():
        assert os.fstat(2) == before


DYING: dict[str, Callable[[], str]] = {
    "abort": lambda: "os.abort()",
    "kill": lambda: "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("name", DYING)
def test_last_words_of_a_dying_process_come_through(name: str) -> None:
    # The module alone, without the package around it: this is about processes, not about JAX.
    code = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("quiet", {sys.modules["wm_collect.quiet"].__file__!r})
quiet = importlib.util.module_from_spec(spec)
sys.modules["quiet"] = quiet
spec.loader.exec_module(quiet)
with quiet.quiet_xla():
    os.write(2, b"F1129 fatal: the reason\\n")
    {DYING[name]()}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode < 0
    assert b"fatal: the reason" in done.stderr
