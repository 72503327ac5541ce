"""What a level has found: rank 0 prints it, and writes it to a file."""

from __future__ import annotations

import json
import os
import platform
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .... import __version__, _native, group
from ...._progress import Line
from ..collectives import OURS
from ..report import environment, headline
from .measured import Row, head, line

__all__ = ["Findings"]

OPTIONS = ("level", "dims", "batches", "rows", "rounds", "sizes")


class Findings:
    """Figures, and why others are missing.

    Attributes:
        about: what the figures depend on. Levels add the versions of what they measure.
        more: what a level has found besides rows, for the record.
    """

    def __init__(self, chosen: Namespace) -> None:
        self._chosen = chosen
        self._shown = True
        self._line = Line(False)
        if group.is_initialized():
            self._shown = group.get_rank() == 0
            self.about = environment()
            self.say(headline(self.about))
        else:
            core = _native.control("info")
            self.about = {
                "paddlempi": __version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "cpus": core["cpus"],
                "kernels": core["kernels"],
            }
            self.say(f"# paddlempi {__version__}, {core['kernels']}, without a launcher")
        self.about["load"] = [os.getloadavg()[0]]
        self.more: dict[str, Any] = {}
        self._rows: list[Row] = []
        self._absent: dict[str, str] = {}
        self._headed: tuple[object, ...] = ()

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        self._line.clear()
        if self._shown:
            print(text, flush=True)

    def watch(self, case: dict[str, int], *what: str) -> Callable[[float], None]:
        """Return what shows, on a line of rank 0, which part of a case is done."""
        self._line = Line(self._shown, piped=True)
        said = ", ".join([*what, *(f"{key} {value}" for key, value in case.items())])
        return partial(self._line.show, f"measuring {said}")

    def absent(self, name: str, reason: str) -> None:
        """Note that a contender is not measured."""
        self._absent[name] = reason
        self.say(f"not measured: {name}: {reason}")

    def add(self, rows: Iterable[Row], base: str = OURS) -> None:
        """Note and print rows."""
        for row in rows:
            if self._headed != (base, *row.case):
                self._headed = (base, *row.case)
                self.say(head(row, base))
            self._rows.append(row)
            self.say(line(row))

    def end(self) -> None:
        """Print the load of the machine, and write the record."""
        before, after = self.about["load"][0], os.getloadavg()[0]
        self.about["load"].append(after)
        self.say(f"# load of the machine: {before:.1f} before, {after:.1f} after")
        if self._shown and self._chosen.json:
            options = {name: getattr(self._chosen, name) for name in OPTIONS}
            record = {**self.about, **self.more, "options": options}
            record |= {"rows": [row.record() for row in self._rows], "not_measured": self._absent}
            Path(self._chosen.json).write_text(json.dumps(record, indent=1))
