"""A child of rank 0 that outlives it for a moment, to say which test the job died in.

When a rank dies, its launcher kills the others, Hydra within a millisecond and with SIGKILL:
rank 0 may have no time for a single line. The witness reads the names of the tests from a
pipe; when the pipe ends without a farewell it says which was the last. Hydra forwards that, for it
waits for the end of its ranks' output; Open MPI's mpirun does not, so there the witness writes to
mpirun's own stderr where it can.
"""

from __future__ import annotations

import contextlib
import os
import signal

from .place import launcher_stderr

_FAREWELL = b"\0"
_LAST_WORDS = b"\1"


class Witness:
    """The pipe to the witness process. Start it before MPI and before any thread."""

    def __init__(self, stderr: int) -> None:
        loud = launcher_stderr()
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._child = os.fork()
        if self._child == 0:
            try:
                _watch(reading, stderr if loud is None else loud)
            finally:
                os._exit(0)
        os.close(reading)
        if loud is not None:
            os.close(loud)

    def note(self, test: str | None) -> None:
        """Remember the test that runs from now on; None between tests."""
        line = (test or "").replace("\n", " ").encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._pipe, line)

    def say(self, text: str) -> None:
        """Have the witness write a line now, as its last."""
        line = _LAST_WORDS + text.replace("\n", " ").encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._pipe, line)

    def dismiss(self) -> None:
        """Let the witness go: everything has been said, or will be."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, _FAREWELL + b"\n")

    def close(self) -> None:
        self.dismiss()
        self.forget()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child, 0)

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._pipe)


def _watch(pipe: int, stderr: int) -> None:
    """The child's life: no thread, no import, no descriptor but these two."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor not in (pipe, stderr):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    rest, last = b"", b""
    while chunk := os.read(pipe, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == _FAREWELL:
                return
            if line.startswith(_LAST_WORDS):
                os.write(stderr, b"\npaddlempi: " + line[1:] + b"\n")
                return
            last = line
    where = b"while " + last + b" ran" if last else b"between tests"
    os.write(stderr, b"\npaddlempi: rank 0 ended " + where + b", and the report with it\n")
