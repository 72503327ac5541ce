"""Python's grpcio: one stream of messages of raw bytes, of any length, over a Unix socket, or
between nodes over TCP.

* ``grpcio, nothing done``: the messages lie ready, with the bytes that paddlempi's requests carry,
  which are every id once, and its row. The server does nothing. So it is no parameter server, but
  the least that one over grpcio takes.
* ``grpcio, ids once``: the server has paddlempi's table of one process, and rank 0 finds the
  different ids, spreads rows and adds gradients with NumPy.
* ``grpcio, whole batch``: the same table, and every id of the batch travels.
"""

from __future__ import annotations

import importlib
import queue
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .... import group, ps
from ..collectives import WrongResultError, of_all_ranks
from .batches import RATE, Batches
from .measured import Turn
from .rivals import Place, Rival, check, pull_and_push

__all__ = ["Grpcio"]

BARE, ONCE, WHOLE = "grpcio, nothing done", "grpcio, ids once", "grpcio, whole batch"

_HEAD = struct.Struct("<qqq")  # what is asked, and two numbers
_MAKE, _PULL, _PUSH, _ANSWER, _CHECKSUM = range(5)
_LIMITS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def content(n: int) -> bytes:
    """Return the ``n`` bytes of an answer without a table: they differ from place to place."""
    return (bytes(range(251)) * (n // 251 + 1))[:n]


class Server:
    """The server's. An answer of a length is made once, so its time does not count."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}
        self._table: Any = None
        self._rows: Any = None

    def one(self, request: bytes) -> bytes:
        asked, a, b = _HEAD.unpack_from(request)
        if asked == _CHECKSUM:
            return zlib.crc32(request).to_bytes(4, "little")
        if asked == _ANSWER:
            if a not in self._of:
                self._of[a] = content(a)
            return self._of[a]
        return self._of_table(request, asked, a, b)

    def _of_table(self, request: bytes, asked: int, a: int, b: int) -> bytes:
        import numpy as np

        if asked == _MAKE:
            self._table = table = ps.Table(b, ps.SGD(RATE), ps.Uniform())
            for begin in range(0, a, 50_000):
                table.pull(np.arange(begin, min(begin + 50_000, a)))
            self._rows = np.empty((0, b), np.float32)
            return b""
        ids = np.frombuffer(request, np.int64, a, _HEAD.size)
        if asked == _PUSH:
            gradients = np.frombuffer(request, np.float32, offset=_HEAD.size + ids.nbytes)
            self._table.push(ids, gradients.reshape(a, b))
            return b""
        if len(self._rows) < a:
            self._rows = np.empty((a, b), np.float32)
        return bytes(self._table.pull(ids, self._rows[:a]).data)

    def stream(self, requests: Iterator[bytes], context: object = None) -> Iterator[bytes]:
        return map(self.one, requests)


class Grpcio(Rival):
    """grpcio, with and without a table."""

    NAME = "grpcio"

    def __init__(self) -> None:
        self._grpc = importlib.import_module("grpc")
        self.version = self._grpc.__version__
        self._server: Any = None
        self._channel: Any = None
        self._asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def open(self, at: Place) -> None:
        grpc = self._grpc
        where, port = at.endpoint("grpcio", 1)
        address = f"{where}:{port}" if port else f"unix:{where}"
        if group.get_rank() == 1:
            stream = grpc.stream_stream_rpc_method_handler(Server().stream)
            self._server = server = grpc.server(ThreadPoolExecutor(4), options=_LIMITS)
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler("bench", {"Stream": stream})]
            )
            server.add_insecure_port(address)
            server.start()
        of_all_ranks("")
        if group.get_rank() == 0:
            self._channel = channel = grpc.insecure_channel(address, options=_LIMITS)
            self._answers = channel.stream_stream("/bench/Stream")(iter(self._asked.get, None))

    def ask(self, request: bytes) -> bytes:
        self._asked.put(request)
        answer: bytes = next(self._answers)
        return answer

    def table(self, batches: Batches) -> None:
        self.ask(_HEAD.pack(_MAKE, batches.rows, batches.dim))

    def turns(self, batches: Batches) -> dict[str, Turn]:
        turns = {BARE: bare(self.ask, batches), WHOLE: _whole(self.ask, batches)}
        if len(batches.np.unique(batches.ids[0])) < batches.batch:  # else it is the whole batch
            turns[ONCE] = _once(self.ask, batches)
        return turns

    def close(self) -> None:
        if self._channel is not None:
            self._asked.put(None)
            self._channel.close()
        of_all_ranks("")
        if self._server is not None:
            self._server.stop(None).wait()


Ask = Callable[[bytes], bytes]


def carries(ask: Ask, message: bytes) -> bool:
    """Whether the server gets a request as it is, and its answer comes back as it is."""
    _, wanted, more = _HEAD.unpack_from(message)
    checked = _HEAD.pack(_CHECKSUM, wanted, more) + message[_HEAD.size :]
    told = ask(checked) == zlib.crc32(checked).to_bytes(4, "little")
    return told and ask(message) == content(wanted)


def bare(ask: Ask, batches: Batches) -> Turn:
    """Return the turn of nothing but messages, after every one has come through whole."""
    np, pulls, pushes = batches.np, [], []
    for ids in batches.ids:
        unique = np.unique(ids)
        gradients = batches.gradients[: len(unique)]
        row = 4 * batches.dim * len(unique)
        pulls.append(_HEAD.pack(_ANSWER, row, 0) + unique.tobytes())
        pushes.append(_HEAD.pack(_ANSWER, 0, 0) + unique.tobytes() + gradients.tobytes())
    if not all(carries(ask, message) for message in (*pulls, *pushes)):
        raise WrongResultError(f"bench: {BARE}: the bytes are wrong")
    return pull_and_push(
        lambda round_: ask(pulls[round_ % len(pulls)]),
        lambda round_: ask(pushes[round_ % len(pushes)]),
    )


def _request(asked: int, ids: Any, dim: int, *gradients: Any) -> bytes:
    return b"".join((_HEAD.pack(asked, len(ids), dim), ids.data, *(g.data for g in gradients)))


def summed(np: Any, place: Any, gradients: Any, unique: int) -> Any:
    """Return the sums of the gradients of equal ids, in the order of the different ids."""
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(unique))
    return np.add.reduceat(gradients[order], starts, axis=0)


def _once(ask: Ask, batches: Batches) -> Turn:
    np, dim = batches.np, batches.dim
    out = np.empty((batches.batch, dim), np.float32)

    def pull(round_: int) -> None:
        unique, place = np.unique(batches.ids_of(round_), return_inverse=True)
        rows = np.frombuffer(ask(_request(_PULL, unique, dim)), np.float32).reshape(-1, dim)
        np.take(rows, place, axis=0, out=out, mode="clip")  # without a mode, it copies out

    def push(round_: int) -> None:
        unique, place = np.unique(batches.ids_of(round_), return_inverse=True)
        ask(_request(_PUSH, unique, dim, summed(np, place, batches.gradient(), len(unique))))

    turn = pull_and_push(pull, push)
    check(ONCE, turn, lambda: out, batches)
    return turn


def _whole(ask: Ask, batches: Batches) -> Turn:
    np, dim = batches.np, batches.dim
    pulled: list[Any] = [None]

    def pull(round_: int) -> None:
        answer = ask(_request(_PULL, batches.ids_of(round_), dim))
        pulled[0] = np.frombuffer(answer, np.float32).reshape(-1, dim)

    def push(round_: int) -> None:
        ask(_request(_PUSH, batches.ids_of(round_), dim, batches.gradient()))

    turn = pull_and_push(pull, push)
    check(WHOLE, turn, lambda: pulled[0], batches)
    return turn
