"""What carries rows between two ranks without paddlempi: gRPC by itself, and torch's RPC.

Each has a side on every rank. ``open`` is collective. Rank 0 asks, rank 1 answers in threads.
"""

from __future__ import annotations

import importlib
import queue
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ... import group
from .collectives import of_all_ranks

__all__ = ["STREAM", "TORCH", "UNARY", "Grpc", "TorchRpc", "of_all"]

STREAM, UNARY, TORCH = "gRPC stream", "gRPC unary", "torch RPC"


def of_all(make: Callable[[], Any]) -> tuple[Any, str]:
    """Return what ``make()`` returns, or the reason why it failed on some rank. Collective."""
    made, reason = None, ""
    try:
        made = make()
    except Exception as error:  # a library that does not fit this Python or torch raises anything
        reason = f"rank {group.get_rank()}: {type(error).__name__}: {error}"
    reasons = [text for text in of_all_ranks(reason) if text]
    return made, (reasons or [""])[0]


# gRPC

_HEAD = struct.Struct("<qq")  # the bytes of the answer; 1: the answer is a checksum
_LIMITS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def content(n: int) -> bytes:
    """Return the ``n`` bytes with which the server answers: they differ from place to place."""
    return (bytes(range(251)) * (n // 251 + 1))[:n]


class _Answers:
    """The server's. An answer of a length is made once, so its time does not count."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}

    def one(self, request: bytes, context: object = None) -> bytes:
        wanted, checked = _HEAD.unpack_from(request)
        if checked:
            return zlib.crc32(request).to_bytes(4, "little")
        if wanted not in self._of:
            self._of[wanted] = content(wanted)
        return self._of[wanted]

    def stream(self, requests: Iterator[bytes], context: object = None) -> Iterator[bytes]:
        return map(self.one, requests)


class Grpc:
    """Messages of raw bytes, of any length: one stream, and calls of their own."""

    def __init__(self) -> None:
        self._grpc = importlib.import_module("grpc")
        self.version = self._grpc.__version__
        self._server = self._channel = None
        self._asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.ask: dict[str, Callable[[bytes], bytes]] = {}

    def open(self) -> None:
        """Start the server of rank 1, and connect rank 0 with it. Collective."""
        grpc, port = self._grpc, 0
        if group.get_rank() == 1:
            server_of = _Answers()
            methods = {
                "Stream": grpc.stream_stream_rpc_method_handler(server_of.stream),
                "Unary": grpc.unary_unary_rpc_method_handler(server_of.one),
            }
            self._server = server = grpc.server(ThreadPoolExecutor(4), options=_LIMITS)
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler("bench", methods)]
            )
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
        address = f"127.0.0.1:{of_all_ranks(str(port))[1]}"
        if group.get_rank() == 0:
            self._channel = channel = grpc.insecure_channel(address, options=_LIMITS)
            answers = channel.stream_stream("/bench/Stream")(iter(self._asked.get, None))
            unary = channel.unary_unary("/bench/Unary")

            def ask(request: bytes) -> bytes:
                self._asked.put(request)
                return bytes(next(answers))

            self.ask = {STREAM: ask, UNARY: unary}

    def close(self) -> None:
        """End the connection, and then the server. Collective."""
        if self._channel is not None:
            self._asked.put(None)
            self._channel.close()
        of_all_ranks("")
        if self._server is not None:
            self._server.stop(None).wait()


def request(*parts: Any, answer: int) -> bytes:
    """Return a request with the bytes of arrays, which has an answer of so many bytes."""
    return b"".join([_HEAD.pack(answer, 0), *(part.tobytes() for part in parts)])


def carries(ask: Callable[[bytes], bytes], message: bytes) -> bool:
    """Whether the server gets a request as it is, and its answer comes back as it is."""
    wanted, _ = _HEAD.unpack_from(message)
    checked = _HEAD.pack(4, 1) + message[_HEAD.size :]
    told = ask(checked) == zlib.crc32(checked).to_bytes(4, "little")
    return told and ask(message) == content(wanted)


# torch


class _Table:
    """The table of the server's process."""

    weight: Any = None


def _make(rows: int, dim: int) -> None:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dim)
    _Table.weight = torch.empty(rows, dim).uniform_(-0.05, 0.05, generator=generator)


def _pull(ids: Any) -> Any:
    return _Table.weight.index_select(0, ids)


def _push(ids: Any, gradients: Any, rate: float) -> None:
    _Table.weight.index_add_(0, ids, gradients, alpha=-rate)


class TorchRpc:
    """A tensor on rank 1, whose rows ``index_select`` reads and ``index_add_`` updates."""

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        self._rpc = importlib.import_module("torch.distributed.rpc")
        if not self._torch.distributed.rpc.is_available():
            raise ImportError("this torch has no torch.distributed.rpc")
        self.version = self._torch.__version__
        self._torch.set_num_threads(1)
        self._folder = tempfile.TemporaryDirectory(prefix="paddlempi-bench-")

    def open(self) -> None:
        """Connect the ranks. Collective."""
        options = self._rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{of_all_ranks(self._folder.name)[0]}/store"
        )
        name = f"bench{group.get_rank()}"
        self._rpc.init_rpc(name, rank=group.get_rank(), world_size=2, rpc_backend_options=options)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._rpc.rpc_sync("bench1", function, args=arguments)

    def make(self, rows: int, dim: int) -> None:
        """Make the table, in place of the one before."""
        self._ask(_make, rows, dim)

    def pull(self, ids: Any) -> Any:
        return self._ask(_pull, self._torch.from_numpy(ids)).numpy()

    def push(self, ids: Any, gradients: Any, rate: float) -> None:
        self._ask(_push, self._torch.from_numpy(ids), self._torch.from_numpy(gradients), rate)

    def close(self) -> None:
        """End the connection. Collective."""
        self._rpc.shutdown()
        of_all_ranks("")  # rank 1 still reads the store of rank 0
        self._folder.cleanup()
