"""Collectives and messages of Python objects, which are sent as pickles.

Unpickling runs code that the sender chose. Use these functions only among processes that trust
each other, as the ranks of a job do. A pickle has at most 16 GiB; a length that another rank
announces is checked before memory is allocated for it. A rank that finds it wrong, or has not the
memory, raises an error that names the sender, and the others raise ``RefusedError``. An error that
unpickling raises says in a note (``add_note``, Python 3.11) which rank has sent the object.

All members of the group call the same function, except for :func:`send_object_list` and
:func:`recv_object_list`, which are called by two ranks. ``group``, deadlines, threads and other
errors are described in :mod:`paddlempi.collectives`. If pickle cannot pickle an object of a
collective, its rank raises what pickle raised, and the others raise ``RefusedError``.

Source: :mod:`torch.distributed`.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from typing import Any, NoReturn

from . import _native
from ._ops import Op
from .arguments import chosen_root, is_nonmember, refuse
from .collectives import all_gather, all_to_all, broadcast
from .errors import ArgumentError, DtypeError, Error, OutOfMemoryError
from .group import ProcessGroup, members
from .p2p import recv, send

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]

_Group = ProcessGroup | None

MAX_BYTES = 1 << 34
"""The longest pickle that is sent or received, in bytes: 16 GiB."""

# "pmpiobj1": the first number of every list of lengths. A message without it has no objects.
_MAGIC = 0x706D7069_6F626A31


def all_gather_object(object_list: list[Any], obj: Any, group: _Group = None) -> None:
    """Give every member the objects of all members.

    Args:
        object_list: output; a list with one item for each member, which is replaced.
        obj: this member's object; any object that can be pickled.
        group: the members; None is the world.

    Raises:
        ArgumentError: the length of ``object_list`` is not the number of members.
        DtypeError: ``object_list`` is no list.
    """
    if is_nonmember(group, Op.ALL_GATHER):
        return
    size = members(group).size()
    _check_output(Op.ALL_GATHER, group, "all_gather_object", "object_list", object_list, size)
    data = _dump(Op.ALL_GATHER, group, obj)
    lengths = _lengths(size)
    _native.submit(Op.ALL_GATHER, members(group)._id, array("q", [len(data)]), lengths)
    ranks = members(group)._ranks
    parts = [_room(Op.ALL_GATHER, group, lengths[i : i + 1], ranks[i]) for i in range(size)]
    all_gather(parts, data, group)
    object_list[:] = [_loads(part, rank) for part, rank in zip(parts, ranks, strict=True)]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: _Group = None,
    group_dst: int | None = None,
) -> None:
    """Give ``dst`` the objects of all members.

    Args:
        obj: this member's object; any object that can be pickled.
        object_gather_list: output on ``dst``: a list with one item for each member, which is
            replaced. Ignored on the other members.
        dst: the global rank of the root, by default 0; or give ``group_dst``, its rank in the
            group.
        group: the members; None is the world.
    """
    if is_nonmember(group, Op.GATHER):
        return
    root, is_root = chosen_root(Op.GATHER, group, "dst", dst, group_dst, 0)
    size = members(group).size()
    if is_root:
        _check_output(
            Op.GATHER, group, "gather_object", "object_gather_list", object_gather_list, size
        )
    data = _dump(Op.GATHER, group, obj)
    lengths = _lengths(size)
    _native.submit(Op.ALL_GATHER, members(group)._id, array("q", [len(data)]), lengths)
    # all_to_all takes parts of different lengths. For gather, every part would have to be padded
    # to the length of the longest.
    sent = [data if rank == root else bytearray() for rank in range(size)]
    parts = [bytearray() for _ in range(size)]
    ranks = members(group)._ranks
    if is_root:
        parts = [_room(Op.ALL_TO_ALL, group, lengths[i : i + 1], ranks[i]) for i in range(size)]
    all_to_all(parts, sent, group)
    if is_root and object_gather_list is not None:
        object_gather_list[:] = [
            _loads(part, rank) for part, rank in zip(parts, ranks, strict=True)
        ]


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: _Group = None,
    device: object = None,
    group_src: int | None = None,
) -> None:
    """Replace every member's objects by the objects of ``src``.

    Args:
        object_list: input on ``src``, output elsewhere; a list of the same length on all members.
        src: the global rank of the root, by default 0; or give ``group_src``, its rank in the
            group.
        group: the members; None is the world.
        device: ignored; pickles are sent from host memory.
    """
    if is_nonmember(group, Op.BROADCAST):
        return
    root, is_root = chosen_root(Op.BROADCAST, group, "src", src, group_src, 0)
    if not isinstance(object_list, list):
        _refuse_type(Op.BROADCAST, group, "broadcast_object_list", "object_list", object_list)
    lengths = _lengths(len(object_list))
    data = bytearray()
    if is_root:
        data = _dump_all(Op.BROADCAST, group, object_list, lengths)
    broadcast(lengths, group=group, group_src=root)
    sender = members(group)._ranks[root]
    if not is_root:
        data = _room(Op.BROADCAST, group, lengths, sender)
    broadcast(data, group=group, group_src=root)
    if not is_root:
        object_list[:] = _load_all(data, lengths, sender)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: _Group = None,
    group_src: int | None = None,
) -> None:
    """Give member i object i of the list on ``src``.

    Args:
        scatter_object_output_list: output; a list, whose first item is replaced by the object.
        scatter_object_input_list: input on ``src``: one object for each member. Ignored on the
            other members.
        src: the global rank of the root, by default 0; or give ``group_src``, its rank in the
            group.
        group: the members; None is the world.
    """
    if is_nonmember(group, Op.SCATTER):
        return
    root, is_root = chosen_root(Op.SCATTER, group, "src", src, group_src, 0)
    size = members(group).size()
    out = scatter_object_output_list
    if not isinstance(out, list) or not out:
        _refuse_type(Op.BROADCAST, group, "scatter_object_list", "scatter_object_output_list", out)
    parts: list[bytearray] | None = None
    lengths = _lengths(size)
    if is_root:
        _check_output(
            Op.BROADCAST,
            group,
            "scatter_object_list",
            "scatter_object_input_list",
            scatter_object_input_list,
            size,
        )
        parts = [_dump(Op.BROADCAST, group, obj) for obj in scatter_object_input_list or ()]
        lengths = array("q", [len(part) for part in parts])
    broadcast(lengths, group=group, group_src=root)
    # all_to_all takes parts of different lengths. For scatter, every part would have to be padded
    # to the length of the longest.
    received = [bytearray() for _ in range(size)]
    mine, sender = members(group)._rank, members(group)._ranks[root]
    received[root] = _room(Op.ALL_TO_ALL, group, lengths[mine : mine + 1], sender)
    all_to_all(received, parts if parts is not None else [bytearray() for _ in range(size)], group)
    out[0] = _loads(received[root], sender)


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: _Group = None,
    device: object = None,
    group_dst: int | None = None,
) -> None:
    """Send objects to ``dst``, which calls :func:`recv_object_list` with a list of the same length.

    Args:
        object_list: any objects that can be pickled.
        dst: the global rank of the receiver; or give ``group_dst``, its rank in the group.
        group: the group of both ranks; None is the world.
        device: ignored.
    """
    if is_nonmember(group, Op.SEND):
        return
    parts = [_pickled(obj) for obj in object_list]
    lengths = array("q", [_MAGIC, *(len(part) for part in parts)])
    send(lengths, dst, group, 0, group_dst)
    send(bytearray().join(parts), dst, group, 0, group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: _Group = None,
    device: object = None,
    group_src: int | None = None,
) -> int:
    """Receive objects that another rank sent by :func:`send_object_list`.

    Args:
        object_list: output; a list as long as the sender's, whose items are replaced.
        src: the global rank of the sender; or give ``group_src``, its rank in the group. If
            both are None, objects from any rank are received.
        group: the group of both ranks; None is the world.
        device: ignored.

    Returns:
        The global rank of the sender; -1 if this rank is no member of ``group``.

    Raises:
        ArgumentError: the message was not sent by :func:`send_object_list`.
        TruncateError: the sender's list has another length.
    """
    if is_nonmember(group, Op.RECV):
        return -1
    lengths = array("q", bytes(8 * (len(object_list) + 1)))
    source = recv(lengths, src, group, 0, group_src)
    if lengths[0] != _MAGIC:
        raise ArgumentError(
            f"recv_object_list: the message from rank {source} was not sent by send_object_list"
        )
    lengths = lengths[1:]
    data = _memory(lengths, source)
    recv(data, source, group)
    object_list[:] = _load_all(data, lengths, source)
    return source


def _check_output(code: Op, group: _Group, what: str, name: str, output: Any, size: int) -> None:
    if not isinstance(output, list):
        _refuse_type(code, group, what, name, output)
    if len(output) != size:
        refuse(
            code,
            group,
            ArgumentError(
                f"{what}: {name} has {len(output)} items, it needs {size}, one for each rank"
            ),
        )


def _refuse_type(code: Op, group: _Group, what: str, name: str, value: object) -> NoReturn:
    found = "an empty list" if isinstance(value, list) else f"a {type(value).__name__}"
    message = f"{what}: {name} is {found}, it must be a list with at least one item"
    refuse(code, group, DtypeError(message))


def _lengths(count: int) -> array[int]:
    return array("q", bytes(8 * count))


def _pickled(obj: Any) -> bytearray:
    data = bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))
    if len(data) > MAX_BYTES:
        raise ArgumentError(
            f"an object of {len(data)} bytes: a pickle may have up to {MAX_BYTES} bytes"
        )
    return data


def _dump(code: Op, group: _Group, obj: Any) -> bytearray:
    try:
        return _pickled(obj)
    except Exception as error:  # an object's __reduce__ may raise anything; others must not wait
        refuse(code, group, error)


def _dump_all(code: Op, group: _Group, objects: Sequence[Any], lengths: array[int]) -> bytearray:
    joined = bytearray()
    for index, obj in enumerate(objects):
        data = _dump(code, group, obj)
        lengths[index] = len(data)
        joined += data
    return joined


def _load_all(data: bytearray, lengths: array[int], rank: int) -> list[Any]:
    objects, start = [], 0
    view = memoryview(data)
    for length in lengths:
        objects.append(_loads(view[start : start + length], rank))
        start += length
    return objects


def _loads(data: bytearray | memoryview, rank: int) -> Any:
    """Return the object of a pickle that ``rank`` has sent."""
    try:
        return pickle.loads(data)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"paddlempi: while unpickling an object of rank {rank}")
        raise


def _memory(lengths: array[int], rank: int) -> bytearray:
    """Return memory for pickles of these lengths, in bytes, which ``rank`` has told."""
    for length in [*lengths, sum(lengths)]:
        if not 0 <= length <= MAX_BYTES:
            raise ArgumentError(
                f"rank {rank} announced an object of {length} bytes: a pickle may have up to "
                f"{MAX_BYTES} bytes"
            )
    try:
        return bytearray(sum(lengths))
    except MemoryError:
        raise OutOfMemoryError(
            f"no memory for the {sum(lengths)} bytes of objects that rank {rank} announced"
        ) from None


def _room(code: Op, group: _Group, lengths: array[int], rank: int) -> bytearray:
    """Return :func:`_memory`. If there is none, refuse the operation that fills it, and raise."""
    try:
        return _memory(lengths, rank)
    except Error as error:  # the others must not wait
        refuse(code, group, error)
