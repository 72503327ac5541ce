"""How far something long has come: on a terminal one line, elsewhere a new one now and then."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios

import pytest
from paddlempi import _progress


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(_progress.time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def copied(clock: Clock, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written while 100 MiB are done in 20 s."""
    monkeypatch.setattr(sys, "stderr", stream)
    with _progress.Bytes("save_file", 100 << 20) as line:
        for _ in range(20):
            clock.now += 1
            line.add(5 << 20)
    return stream.getvalue().replace("\x1b[K", "").replace("\r", "\n").splitlines()


def test_a_terminal_has_one_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = copied(clock, Terminal(), monkeypatch)
    assert lines[1] == "save_file:   5% 5.0 MiB of 100.0 MiB, 5.0 MiB/s"
    assert lines[5] == "save_file:  25% 25.0 MiB of 100.0 MiB, 5.0 MiB/s, about 15 s left"
    assert lines[-1] == "save_file: 100.0 MiB in 20 s, 5.0 MiB/s" and len(lines) == 22


def test_a_pipe_has_a_line_now_and_then(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert copied(clock, io.StringIO(), monkeypatch) == [
        "save_file:  50% 50.0 MiB of 100.0 MiB, 5.0 MiB/s, about 10 s left",
        "save_file: 100% 100.0 MiB of 100.0 MiB, 5.0 MiB/s",
        "save_file: 100.0 MiB in 20 s, 5.0 MiB/s",
    ]


def test_what_nobody_has_asked_for_is_only_on_a_terminal() -> None:
    for shown, piped, stream, expected in (
        (True, False, Terminal(), True),
        (True, False, io.StringIO(), False),
        (True, True, io.StringIO(), True),
        (False, True, Terminal(), False),
    ):
        line = _progress.Line(shown, piped=piped, stream=stream)
        line.show("x", 0.5)
        line.end("end")
        assert ("end" in stream.getvalue()) is expected


def test_an_error_leaves_no_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(OSError), _progress.Bytes("export", 10) as line:
        line.add(5)
        raise OSError
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_line_is_no_wider_than_the_terminal() -> None:
    """Else it could not be written over."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        line = _progress.Line(stream=stream)
        line.show("x" * 100, 0.5)
        assert os.read(ours, 1000).decode() == f"\r{'x' * 39}\x1b[K"
        line.clear()
        assert os.read(ours, 1000).decode() == "\r\x1b[K"
    os.close(ours)
