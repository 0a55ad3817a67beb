"""Forward a process's standard error without XLA's lines about tuning hints.

Runs as a script in a process of its own (see `wm_collect.quiet`), so that a fatal message still
comes through when the process that wrote it dies, and so that a writer never waits for another
thread's turn. It therefore imports only the standard library.

XLA compiles for the CPU with tuning hints (`+prefer-no-gather`) and complains, on loading a program
from the compilation cache, that the host does not list them as features. Only those lines are
dropped: a missing real feature can end in an illegal instruction.
"""

import os
import re
import sys

_NOISE = re.compile(rb"E\d{4} .*cpu_aot_loader\.cc:\d+\].* feature \+prefer-[a-z0-9-]+ is not ")
_MAY_BEGIN_LOG_LINE = re.compile(rb"\0.*|[EWIF](\d{0,3}|\d{4}( .*)?)", re.DOTALL)


def forward(source: int, target: int, marker: bytes, drained: int) -> None:
    """Copy from one file descriptor to another until the source ends, without the noise.

    Args:
        source: descriptor to read.
        target: descriptor to write.
        marker: text that begins with a zero byte and ends with a newline; not copied.
        drained: descriptor that is closed once the marker was read, when all before it was copied.
    """
    held = b""  # the end of the text so far, which may turn out to be noise
    while block := os.read(source, 1 << 16):
        *lines, held = (held + block).split(b"\n")
        for line in lines:
            line += b"\n"
            if line.endswith(marker):
                _write(target, line.removesuffix(marker))
                os.close(drained)
            elif not _NOISE.match(line):
                _write(target, line)
        # Text without a newline (a prompt) must not wait for one, unless it may begin a log line.
        if not _MAY_BEGIN_LOG_LINE.fullmatch(held):
            _write(target, held)
            held = b""
    _write(target, held)


def _write(target: int, text: bytes) -> None:
    while text:
        text = text[os.write(target, text) :]


if __name__ == "__main__":
    forward(0, 2, b"\0" + sys.argv[1].encode() + b"\n", 1)
