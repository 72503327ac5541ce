"""Redis: rows are strings of raw bytes, by the bytes of their ids, over a Unix socket, or
between nodes over TCP.

Rank 0 finds the different ids. A pull is a pipeline of MGETs, and spreads the rows with NumPy.
Redis has no optimizer, so a push computes the new rows from those of the last pull, with the
gradients of equal ids added up, and sets them by a pipeline of MSETs. That is right for one trainer
only.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .... import group
from ..collectives import of_all_ranks
from .batches import RATE, Batches
from .measured import Turn
from .rival_grpcio import summed
from .rivals import Place, Rival, check, pull_and_push

__all__ = ["Redis"]

_KEYS = 1024  # of one MGET or MSET in a pipeline
_STARTS_WITHIN = 20.0  # seconds


class Redis(Rival):
    """``redis-server`` as a child of rank 1, without files."""

    NAME = "Redis"

    def __init__(self) -> None:
        self._redis = importlib.import_module("redis")
        importlib.import_module("hiredis")  # the parser in C; redis finds it by itself
        # In the environment of this Python, where the Makefile puts it, or on the path.
        beside = str(Path(sys.executable).parent)
        found = shutil.which("redis-server", path=beside) or shutil.which("redis-server")
        if found is None:
            raise FileNotFoundError("redis-server is not installed")
        self._program = found
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        self.version = told.stdout.partition("v=")[2].partition(" ")[0]
        self._server: Any = None
        self._client: Any = None

    def open(self, at: Place) -> None:
        where, port = at.endpoint("redis", 1)
        reached: dict[str, Any] = (
            {"host": where, "port": port} if port else {"unix_socket_path": where}
        )
        client = self._redis.Redis(**reached)
        if group.get_rank() == 1:
            words = ["--port", str(port), "--save", "", "--appendonly", "no"]
            words += (
                ["--bind", where, "--protected-mode", "no"] if port else ["--unixsocket", where]
            )
            self._server = subprocess.Popen(
                [self._program, *words], stdout=subprocess.DEVNULL, cwd=at.folder
            )
            self._await(client)
        of_all_ranks("")
        if group.get_rank() == 0:
            self._client = client
            self._client.ping()

    def _await(self, client: Any) -> None:
        """Wait until the server answers, or has ended, or is late."""
        give_up = time.monotonic() + _STARTS_WITHIN
        while self._server.poll() is None and time.monotonic() < give_up:
            try:
                client.ping()
                return
            except self._redis.exceptions.ConnectionError:
                time.sleep(0.01)

    def _get(self, unique: Any) -> bytes:
        with self._client.pipeline(transaction=False) as pipeline:
            for begin in range(0, len(unique), _KEYS):
                pipeline.mget(_keys(unique[begin : begin + _KEYS]))
            return b"".join(row for rows in pipeline.execute() for row in rows)

    def _set(self, unique: Any, rows: Any) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for begin in range(0, len(unique), _KEYS):
                part = slice(begin, begin + _KEYS)
                values = [row.tobytes() for row in rows[part]]
                pipeline.mset(dict(zip(_keys(unique[part]), values, strict=True)))
            pipeline.execute()

    def table(self, batches: Batches) -> None:
        np = batches.np
        self._client.flushall()
        generator = np.random.default_rng(batches.dim)
        for begin in range(0, batches.rows, 50_000):
            ids = np.arange(begin, min(begin + 50_000, batches.rows))
            self._set(ids, generator.uniform(-0.05, 0.05, (len(ids), batches.dim)).astype("f4"))

    def turns(self, batches: Batches) -> dict[str, Turn]:
        np, dim = batches.np, batches.dim
        out = np.empty((batches.batch, dim), np.float32)
        pulled: list[Any] = [None]

        def pull(round_: int) -> None:
            unique, place = np.unique(batches.ids_of(round_), return_inverse=True)
            rows = np.frombuffer(self._get(unique), np.float32).reshape(-1, dim)
            np.take(rows, place, axis=0, out=out, mode="clip")
            pulled[0] = rows

        def push(round_: int) -> None:
            unique, place = np.unique(batches.ids_of(round_), return_inverse=True)
            sums = summed(np, place, batches.gradient(), len(unique))
            self._set(unique, pulled[0] - np.float32(RATE) * sums)

        turn = pull_and_push(pull, push)
        check(self.NAME, turn, lambda: out, batches)
        return {self.NAME: turn}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        of_all_ranks("")
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


def _keys(ids: Any) -> list[bytes]:
    together = ids.tobytes()
    return [together[at : at + 8] for at in range(0, len(together), 8)]
