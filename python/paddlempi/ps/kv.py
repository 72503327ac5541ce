"""Keys and values for functions of the servers' program, as in ps-lite."""

from __future__ import annotations

from typing import Any

from .. import _native, memory
from .._ops import KVCall
from ..errors import DtypeError
from . import session
from .config import length_of, whole

__all__ = ["KV"]


class KV:
    """Rows by int64 key, which a function of the servers' program takes and gives.

    Where a :class:`paddlempi.ps.RemoteTable` has optimizers of this package, here the program says
    what a push means::

        store = {}

        @ps.server_function("counts")
        def counts(request):
            for i, key in enumerate(request.keys.tolist()):
                if request.push:
                    store[key] = store.get(key, 0) + request.values[i]
            if request.pull:
                return [store[key] for key in request.keys.tolist()]

        ps.init()
        if ps.is_trainer():
            counts = ps.KV("counts", dim=2)
            counts.wait(counts.push(keys, values))
            ps.barrier()  # the others have pushed, too
            rows = counts.wait(counts.pull(keys))

    Every trainer that uses it makes it, with the same arguments, after :func:`paddlempi.ps.init`.
    Which server has a key follows from a hash of it. A server that owns none of a call's keys is
    not asked. Calls do not wait for other trainers, whatever the mode.
    :func:`paddlempi.ps.complete` waits for the calls that this trainer has made.

    Args:
        name: that of the servers' function (:func:`paddlempi.ps.server_function`).
        dim: elements of a row, 1 to 2**24.
        dtype: of the rows: any that can be sent, such as "float32" or "int64".

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train; ``dim`` is out of range; or a server has no
            function of the name.
        DtypeError: an argument is of a wrong type.
        MismatchError: another trainer has made it with another ``dim`` or ``dtype``.

    Thread-safety: all methods may be called from any thread, and release the GIL.
    """

    def __init__(self, name: str, dim: int = 1, dtype: Any = "float32") -> None:
        session.as_trainer("ps.KV")
        if not isinstance(name, str):
            raise DtypeError(f"ps.KV: name={name!r} is no text")
        self._name, self._dim = name, whole("ps.KV", "dim", dim)
        self._dtype = memory.name_of_dtype("ps.KV", dtype)
        self._core = _native.load()
        self._number: int = _native.control(
            "ps_kv_declare", name=name, dim=self._dim, dtype=self._dtype
        )["table"]
        # Of each pull that nobody has waited for: where its rows go, and what to make for them.
        self._pulls: dict[int, tuple[Any, int, str]] = {}

    @property
    def name(self) -> str:
        """The name of the servers' function."""
        return self._name

    @property
    def dim(self) -> int:
        """The number of elements of a row."""
        return self._dim

    @property
    def dtype(self) -> str:
        """The dtype of the rows."""
        return self._dtype

    def push(self, keys: Any, values: Any, command: int = 0) -> int:
        """Send rows to the servers, and do not wait for them.

        Args:
            keys: a tensor of int64 or int32, [n], in which no key appears twice.
            values: a tensor of the KV's dtype, [n, dim]. Both tensors are contiguous and in host
                memory, and may be written to as soon as this returns.
            command: a number for the function.

        Returns:
            The timestamp of the call, for :meth:`wait`.

        Raises:
            ArgumentError: a shape is wrong, or a key appears twice.
            DtypeError: a dtype is wrong, or something is no tensor.
            TimeoutError: a server has answered to none of 16 calls.
            PeerDiedError: a server has died.
        """
        return self._start(KVCall.PUSH, keys, values, None, command)

    def pull(self, keys: Any, out: Any = None, command: int = 0) -> int:
        """Ask for rows. :meth:`wait` gives them.

        Args:
            keys: as for :meth:`push`; here keys may appear several times. Each server is asked once
                for each.
            out: where the rows go, [n, dim]. None: a new tensor of the framework of ``keys``.
            command: a number for the function.

        Returns:
            The timestamp of the call, for :meth:`wait`.

        Raises:
            Error: as :meth:`push`.
        """
        return self._start(KVCall.PULL, keys, None, out, command)

    def push_pull(self, keys: Any, values: Any, out: Any = None, command: int = 0) -> int:
        """Send rows, and ask for what the function then returns, in one call of it.

        Args, Returns, Raises: as for :meth:`push` and :meth:`pull`.
        """
        return self._start(KVCall.PUSH_PULL, keys, values, out, command)

    def wait(self, timestamp: int) -> Any:
        """Wait until all servers have answered to a call.

        Args:
            timestamp: what the call has returned.

        Returns:
            The rows of a pull: ``out``, or a new tensor, [n, dim]. None for a push, and for a call
            that was waited for before.

        Raises:
            RefusedError: the function of a server has raised an exception; the text has its
                traceback, and ``ranks`` the server. Other servers may have done their part.
            ArgumentError: there is no such call.
            TimeoutError: a server did not answer in time.
            PeerDiedError: a server has died.
        """
        timestamp = whole("wait", "timestamp", timestamp)
        out, count, framework = self._pulls.pop(timestamp, (None, -1, ""))
        try:
            if out is None and count >= 0:
                out = memory.empty((count, self._dim), self._dtype, framework)
            self._core.table(KVCall.WAIT, self._number, None, out, None, None, timestamp)
        except KeyboardInterrupt:
            if count >= 0:
                self._pulls[timestamp] = out, count, framework
            raise
        return out

    def _start(self, code: KVCall, keys: Any, values: Any, out: Any, command: int) -> int:
        what = code.name.lower()
        count = length_of(what, keys, "keys")
        number = whole(what, "command", command)
        timestamp = int(self._core.table(code, self._number, keys, values, out, None, number))
        if code != KVCall.PUSH:
            self._pulls[timestamp] = out, count, memory.framework_of(keys)
        return timestamp

    def __repr__(self) -> str:
        return f"KV({self._name!r}, dim={self._dim}, dtype={self._dtype!r})"
