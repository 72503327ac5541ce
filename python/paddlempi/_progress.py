"""How far something long has come: one line, which a terminal writes over.

Commands show it by themselves. The library shows nothing unless it is asked (``progress=True``), as
torch and Hugging Face do, and then on rank 0 only. Under mpirun stderr is a pipe, on which no line
can be written over: there, what was asked for is a new line every 10 seconds.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TextIO

from ._units import amount, duration

__all__ = ["Bytes", "Line"]

_UNTOLD = 3.0
"""For so many seconds nothing is said of the time that is left."""

_EVERY = 10.0
"""So many seconds are between two lines where no line can be written over."""

_REDRAWN = 0.1
"""So many seconds are between two texts on a terminal."""


class Line:
    """A line on a terminal that tells how far something has come.

    Args:
        shown: False: there is none.
        piped: write on other streams too, a new line now and then.
        stream: None: stderr.
    """

    def __init__(
        self, shown: bool = True, *, piped: bool = False, stream: TextIO | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.terminal = self._stream.isatty()
        self.shown = shown and (self.terminal or piped)
        self._text = ""
        self.began = time.monotonic()
        self._last = float("-inf") if self.terminal else self.began

    def due(self) -> bool:
        """Whether :meth:`show` would write now: it is not worth a text otherwise."""
        pause = _REDRAWN if self.terminal else _EVERY
        return self.shown and time.monotonic() - self._last >= pause

    def show(self, text: str, done: float, *, at_once: bool = False) -> None:
        """Show a text, and how long it still takes.

        Args:
            done: the part that is done, from 0 to 1.
            at_once: on a terminal also if the last text is a moment old.
        """
        if not self.due() and not (at_once and self.shown and self.terminal):
            return
        now = time.monotonic()
        took = now - self.began
        if took > _UNTOLD and 0 < done < 1:
            text += f", about {duration(took / done - took)} left"
        if not self.terminal:
            self._write(f"{text}\n")
        elif text != self._text:
            # A text that is wider than the terminal could not be written over.
            self._write(f"\r{text[: self._columns() - 1]}\x1b[K")
        self._text, self._last = text, now

    def clear(self) -> None:
        """Erase the line, so that another one can be printed in its place."""
        if self._text and self.terminal:
            self._write("\r\x1b[K")
        self._text = ""

    def end(self, text: str) -> None:
        """Put a last line in its place, which stays."""
        if self.shown:
            self._write(f"\r{text}\x1b[K\n" if self.terminal else f"{text}\n")
        self._text = ""

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Bytes:
    """How many bytes are done, at what rate, and how long it still takes; for ``with``.

    Args:
        what: stands before it.
        total: the bytes of all.
        shown: False: nothing is shown.
        piped: write where no line can be written over, too: who calls has asked for it.
    """

    def __init__(self, what: str, total: int, shown: bool = True, *, piped: bool = True) -> None:
        self._what, self._total, self._done = what, total, 0
        self._line = Line(shown, piped=piped)

    def add(self, done: int) -> None:
        """Tell that more bytes are done."""
        self._done += done
        if self._line.due():
            part = self._done / self._total if self._total else 1.0
            rate = amount(self._done / max(time.monotonic() - self._line.began, 1e-9))
            said = f"{amount(self._done)} of {amount(self._total)}, {rate}/s"
            self._line.show(f"{self._what}: {part:4.0%} {said}", part)

    def __enter__(self) -> Bytes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        took = time.monotonic() - self._line.began
        if error is None:
            rate = amount(self._done / max(took, 1e-9))
            self._line.end(f"{self._what}: {amount(self._done)} in {duration(took)}, {rate}/s")
        else:
            self._line.clear()
