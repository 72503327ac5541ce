"""Functions of a server's program, which answer the calls of :class:`paddlempi.ps.KV`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import _daemons, _native, memory
from .._ops import DTYPE_BY_NAME, KVCall
from ..errors import DtypeError, Error

__all__ = ["KVRequest", "answer_calls", "names", "server_function"]


@dataclass(frozen=True, eq=False)
class KVRequest:
    """What one trainer asks of one server.

    Attributes:
        keys: NumPy array of int64, [n]: the keys that this server owns, each once.
        values: NumPy array of the KV's dtype, [n, dim]: what the trainer pushes; None if it only
            pulls. The array is the function's own.
        push: there are ``values``.
        pull: the function returns rows.
        command: the number that the trainer gave.
        sender: the rank of the trainer.
    """

    keys: Any
    values: Any
    push: bool
    pull: bool
    command: int
    sender: int


Function = Callable[[KVRequest], Any]
_F = TypeVar("_F", bound=Function)
_functions: dict[str, Function] = {}


def server_function(name: str) -> Callable[[_F], _F]:
    """Decorate the function of the servers that answers the calls of the KV of a name.

    It is decorated on every rank that serves before :func:`paddlempi.ps.init`. Ranks that only
    train do not use it. A second function of a name takes the place of the first.

    The function gets a :class:`KVRequest`. If ``request.pull`` is set, it returns the rows of the
    keys: a tensor [n, dim], or what NumPy makes one of. Else what it returns does not count.

    All functions of a process are called in one thread, one call after another: those of a trainer
    in the order in which it made them. What the function keeps is the program's own, and neither
    :func:`paddlempi.ps.save` nor :func:`paddlempi.ps.stats` knows of it. An exception is raised in
    :meth:`KV.wait <paddlempi.ps.KV.wait>` of the trainer that has asked, and the server goes on.

    Args:
        name: a text.

    Raises:
        DtypeError: ``name`` is no text.
    """
    if not isinstance(name, str):
        raise DtypeError(
            f"ps.server_function: name={name!r} is no text; write @ps.server_function('name')"
        )

    def register(function: _F) -> _F:
        _functions[name] = function
        return function

    return register


def names() -> list[str]:
    """Return the names of the functions of this process."""
    return sorted(_functions)


def answer_calls() -> None:
    """Start the thread that answers calls until the session ends."""
    _daemons.Daemon(_answer_all, "paddlempi-kv", (dict(_functions),)).start()


def _answer_all(functions: dict[str, Function]) -> None:
    while True:
        try:
            call = _daemons.idle(lambda: _native.control("ps_kv_next"))
            if not call:
                return
            _answer(functions[call["kv"]], call)
        except Error:  # the session has ended, or failed: its trainers get the reason
            return


def _answer(function: Function, call: dict[str, Any]) -> None:
    core, number, rows = _native.load(), call["call"], None
    try:
        keys, values = _taken(core, call)
        returned = function(
            KVRequest(keys, values, call["push"], call["pull"], call["command"], call["sender"])
        )
        if call["pull"]:
            rows = _rows(returned, call)
        core.table(KVCall.REPLY, 0, keys if call["pull"] else None, rows, None, None, number)
    except BaseException as error:
        text = f"KV {call['kv']!r}: the function of the server raised {type(error).__qualname__}"
        _native.control(
            "ps_kv_fail", call=number, message=f"{text}: {error}\n{traceback.format_exc()}"
        )


def _taken(core: Any, call: dict[str, Any]) -> tuple[Any, Any]:
    """Return copies of the keys and values of a call."""
    from ..tensors.numpy import over  # trainers need not have NumPy

    count, dim, dtype = call["keys"], call["dim"], call["dtype"]
    keys, values = over(bytearray(8 * count), "int64", (count,)), None
    if call["push"]:
        room = bytearray(count * dim * DTYPE_BY_NAME[dtype].itemsize)
        values = over(room, dtype, (count, dim))
    core.table(KVCall.TAKE, 0, keys, values, None, None, call["call"])
    return keys, values


def _rows(returned: Any, call: dict[str, Any]) -> Any:
    """Return what a function has returned as rows.

    Raises:
        ValueError: it has another shape.
    """
    from ..tensors.numpy import contiguous

    shape = call["keys"], call["dim"]
    if memory.framework_of(returned) == "numpy":
        if returned is None:
            raise ValueError(f"it returned None for a pull; it must return rows of shape {shape}")
        returned = contiguous(returned, call["dtype"])
    if tuple(returned.shape) != shape:
        raise ValueError(f"it returned rows of shape {tuple(returned.shape)} instead of {shape}")
    return returned
