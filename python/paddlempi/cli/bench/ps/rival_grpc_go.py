"""The same over gRPC alone: ``benchmarks/psgrpc``, which has paddlempi's routes and tables.

The trainer's part finds the different ids, spreads rows and adds gradients by the package
``route``, and the server has the table of the package ``table``, as paddlempi's own. Between them
is a stream of grpc-go over a Unix socket, or between nodes over TCP, of messages with one field of
raw bytes. Both parts are processes of the
program, which tells how long a call took. So neither Python nor the way to the program counts.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .... import group
from ..collectives import WrongResultError, of_all_ranks
from .batches import Batches
from .measured import Call, Turn
from .rivals import Place, Rival, check, pull_and_push

__all__ = ["GrpcGo"]


class GrpcGo(Rival):
    """The program as a child of each rank.

    Args:
        program: its path. None: it was not built.
    """

    NAME = "gRPC"

    def __init__(self, program: str | None) -> None:
        if program is None:
            raise FileNotFoundError("give --grpc-program; make bench-ps builds it")
        self._program = str(Path(program).resolve(strict=True))
        self.version = self._run("version").stdout.strip()
        self._child: Any = None

    def _run(self, *words: str) -> Any:
        return subprocess.run(
            [self._program, *words], capture_output=True, text=True, check=True, timeout=20
        )

    def open(self, at: Place) -> None:
        self._folder = at.folder
        where, port = at.endpoint("psgrpc", 1)
        if port:
            where = f"{where}:{port}"
        for rank, what in ((1, "serve"), (0, "ask")):  # the server first
            if group.get_rank() == rank:
                self._child = subprocess.Popen(
                    [self._program, what, where],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
                self._answer()
            of_all_ranks("")

    def _answer(self) -> int:
        told = self._child.stdout.readline().strip()
        if not told.isdecimal():
            raise WrongResultError(f"bench: {self._program} has ended: {told}")
        return int(told)

    def _ask(self, *words: object) -> int:
        """Have the program do something; return how long it took, in ns."""
        print(*words, file=self._child.stdin)
        return self._answer()

    def table(self, batches: Batches) -> None:
        self._ask("table", batches.rows, batches.dim)

    def turns(self, batches: Batches) -> dict[str, Turn]:
        np, file = batches.np, self._folder / "batch"
        with file.open("wb") as to:
            for ids in batches.ids:
                to.write(ids.data)
            to.write(batches.gradient().data)
        self._ask("batches", len(batches.ids), batches.batch, file)

        def asks(what: str) -> Call:
            return lambda round_: self._ask(what, round_ % len(batches.ids))

        def rows() -> Any:
            self._ask("rows", file)
            return np.fromfile(file, np.float32).reshape(-1, batches.dim)

        turn = pull_and_push(asks("pull"), asks("push"), itself=True)
        check(self.NAME, turn, rows, batches)
        return {self.NAME: turn}

    def close(self) -> None:
        for rank in (0, 1):
            if group.get_rank() == rank and self._child is not None:
                self._child.stdin.close()
                self._child.wait()
                self._child.stdout.close()
            of_all_ranks("")
