"""The private names of torch, all of them: how its groups come to be ours.

``paddlempi_autoload`` has put stubs in their places, which come here. Read on torch 2.8
to 2.15; what each does stands with it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import paddlempi_autoload
import torch
import torch.distributed.distributed_c10d as c10d

from .. import group
from ..errors import ArgumentError
from ..group import to_seconds
from . import environment, errors, world
from .issue import Issuer
from .mixed import MixedProcessGroup
from .process_group import ProcessGroupMPI
from .store import new_store
from .work import OperationWork, Work

__all__ = [
    "activate",
    "create",
    "env_rendezvous",
    "init",
    "init_process_group",
    "monitored_barrier",
    "new_group_with_tag",
    "new_process_group_helper",
    "split_group",
]


def activate() -> None:
    """What ``import paddlempi.torch`` does beside entering the names."""
    errors.install()
    if not paddlempi_autoload.lazily:
        environment.fill()


def init(timeout: timedelta | float) -> None:
    """Make torch's default group: what ``paddlempi.init_process_group(framework="torch")`` does.

    ``paddlempi.destroy_process_group()`` ends it with the world.
    """
    global _leading
    seconds = to_seconds(timeout, "init_process_group")
    torch.distributed.init_process_group("mpi", timeout=timedelta(seconds=seconds))
    if _leading is None:
        group.at_destroy(_leave)
    _leading = True


_leading: bool | None = None  # whether init() made the default group; None: it never did


def _leave() -> None:
    global _leading
    leading, _leading = _leading, False
    if leading and isinstance(c10d.GroupMember.WORLD, ProcessGroupMPI):
        torch.distributed.destroy_process_group()


def _original(name: str) -> Any:
    return paddlempi_autoload.originals[name]


def _bound(name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A call of a function of torch with its arguments by name, defaults filled in."""
    call = inspect.signature(_original(name)).bind(*arguments, **named)
    call.apply_defaults()
    return call


def _devices(backend: object) -> dict[str, str]:
    """``{"cpu": "mpi", "cuda": "nccl"}`` for ``"cpu:mpi,cuda:nccl"``."""
    config = c10d.BackendConfig(c10d.Backend(str(backend)))
    return {device: str(name) for device, name in config.get_device_backend_map().items()}


def _is_ours(backend: object) -> bool:
    """Whether some device of a backend string is served here."""
    if "mpi" not in str(backend).lower():
        return False
    return any(name in paddlempi_autoload.entered for name in _devices(backend).values())


# How the default group begins

_asked: list[tuple[int, int]] = []  # the rank and world_size that inits under way were given


def init_process_group(*arguments: Any, **named: Any) -> Any:
    """``init_process_group``: for plain "mpi" torch warns that it ignores rank and world_size.

    Here they are held against MPI instead (:func:`new_process_group_helper`), and kept from torch.
    """
    call = _bound("init_process_group", arguments, named)
    values = call.arguments
    asked = (-1, -1)
    if values["backend"] is not None and str(values["backend"]).lower() == "mpi":
        asked = values["rank"], values["world_size"]
        values["rank"] = values["world_size"] = -1
        if values["init_method"] is None:  # with both torch has something to say
            values["store"] = None
    _asked.append(asked)
    try:
        return _original("init_process_group")(*call.args, **call.kwargs)
    finally:
        _asked.pop()


# How a group is made: torch's helper comes to create(), through a plugin or ProcessGroupMPI.


class _Making(NamedTuple):
    """What the helper knows and does not hand on to every creator."""

    timeout: timedelta
    ours: frozenset[str]  # the devices that MPI serves; empty where it serves all


_making: list[_Making] = []


def new_process_group_helper(*arguments: Any, **named: Any) -> Any:
    """``_new_process_group_helper``: a group's backends are made and the group registered.

    A ``ProcessGroup`` that comes from a creator replaces the group that torch was making, and
    those that stand after it in a mixed string are never made: here ours is made last, and gets
    that group with all the other backends in it.
    """
    call = _bound("_new_process_group_helper", arguments, named)
    values = call.arguments
    asked = str(values["backend"])
    if not _is_ours(asked):
        return _original("_new_process_group_helper")(*arguments, **named)
    devices = _devices(asked)
    ours = [device for device, name in devices.items() if name in paddlempi_autoload.entered]
    mixed = len(ours) < len(devices)
    if mixed:
        order = sorted(devices, key=lambda device: device in ours)
        values["backend"] = ",".join(f"{device}:{devices[device]}" for device in order)
    if not values["global_ranks_in_group"]:
        world.start(values["timeout"])
        if values["group_rank"] == -1:  # plain "mpi" knows neither ranks nor a store
            world.expect(*(_asked[-1] if _asked else (-1, -1)))
            values["store"] = new_store(values["timeout"])
        else:
            world.agree(values["group_rank"], values["group_size"], "init_process_group")
    _making.append(_Making(values["timeout"], frozenset(ours if mixed else ())))
    paddlempi_autoload.naming += 1
    try:
        made, store = _original("_new_process_group_helper")(*call.args, **call.kwargs)
    finally:
        paddlempi_autoload.naming -= 1
        _making.pop()
    if mixed and isinstance(made, ProcessGroupMPI):  # in the order that was asked for
        state = c10d._world
        state.pg_map[made] = (c10d.Backend(asked), state.pg_map[made][1])
        state.pg_backend_config[made] = str(c10d.BackendConfig(c10d.Backend(asked)))
    return made, store


def create(ranks: Sequence[int]) -> Any:
    """The creator of both names, called inside torch's helper by members only.

    Args:
        ranks: global ranks; none mean the default group.
    """
    making = _making[-1]
    _keep_works_of_reducers()
    _hide_from_dynamo()
    if ranks:
        core, is_world = group.new_group(list(ranks), making.timeout), False
    else:
        core, is_world = world.default_group(making.timeout)
    if not making.ours:
        return ProcessGroupMPI(core, making.timeout, is_world)
    others = _local("_new_process_group_helper", "pg", None)
    return MixedProcessGroup(core, making.timeout, is_world, others, making.ours)


_of_reducers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The last Work that each of DDP's reducers was given."""


@functools.cache
def _keep_works_of_reducers() -> None:
    """Keep what DDP gives its reducer.

    ``join(divide_by_initial_world_size=False)`` gives it the Work of an all-reduce from Python
    and drops it there. C++ keeps its half alone, whose ``wait``, without the other, never ends.
    """
    give = torch.distributed.Reducer._set_forward_pass_work_handle

    def keep_and_give(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        _of_reducers[reducer] = work
        give(reducer, work, use_static_world_size)

    torch.distributed.Reducer._set_forward_pass_work_handle = keep_and_give


@functools.cache
def _hide_from_dynamo() -> None:
    """Let ``torch.compile`` leave alone what C++ calls here inside a compiled model.

    It would compile these methods like the model's own functions; since torch 2.15 it fails.
    """
    frames = torch._C._dynamo.eval_frame
    run = frames._FrameAction.SKIP  # as it stands, and what it calls
    for kind in (ProcessGroupMPI, MixedProcessGroup, Issuer, Work, OperationWork):
        for method in vars(kind).values():
            code = getattr(method, "__code__", None)
            if code is not None:
                frames.set_code_exec_strategy(code, frames._FrameExecStrategy(run, run))


def _local(function: str, name: str, absent: Any) -> Any:
    """A local variable of the innermost call of a function of torch, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return absent if frame is None else frame.f_locals.get(name, absent)


def env_rendezvous(
    url: str, backend: object, timeout: timedelta = c10d.default_pg_timeout, **options: Any
) -> Iterator[Any]:
    """``env://``, where MPI knows better than variables: no port need be agreed on.

    That is where a launcher is and the user set no ``MASTER_PORT``, and for our own names
    (such as ``"cpu:mpi"``; plain ``"mpi"`` never rendezvouses) also without a launcher. Other
    backends may be given a part of the ranks. RPC has no backend here, and ranks of its own.
    """
    ours = environment.is_ours("MASTER_PORT")
    rank, size = (-1, -1) if backend is None else _given(url)
    a_part = not _is_ours(backend) and str(size) not in ("-1", os.environ.get("WORLD_SIZE"))
    if a_part or (not ours and (not _is_ours(backend) or environment.is_set("MASTER_PORT"))):
        yield from _original("env")(url, timeout=timeout, **options)
        return
    world.start(timeout)
    world.expect(rank, size)
    yield new_store(timeout), group.get_rank(), group.get_world_size()
    raise RuntimeError("env:// cannot rendezvous a second time over the same MPI world")


def _given(url: str) -> tuple[int, int]:
    """The rank and world_size of an init, which torch writes into the URL; -1 where none is."""
    query = parse_qs(urlsplit(url).query)
    return int(query.get("rank", ["-1"])[-1]), int(query.get("world_size", ["-1"])[-1])


# Groups


def new_group_with_tag(*arguments: Any, **named: Any) -> Any:
    """``_new_group_with_tag``, which all of ``new_group`` and its like come to.

    In a world of another backend MPI is started here, on all ranks: only members come to the
    creator. ``use_local_synchronization`` torch refuses for MPI by name.
    """
    call = _bound("_new_group_with_tag", arguments, named)
    values = call.arguments
    default = c10d._get_default_group()
    backend = values["backend"] or c10d._world.pg_map[default][0]
    if not _is_ours(backend):
        return _original("_new_group_with_tag")(*arguments, **named)
    timeout = values["timeout"]
    if timeout is None:
        timeout = c10d._get_default_timeout(backend)
    c10d._check_valid_timeout(timeout)
    if not isinstance(default, ProcessGroupMPI):
        _join(default, timeout, values["use_local_synchronization"])
    if values["use_local_synchronization"]:
        return _new_local_group(values, c10d.Backend(backend), timeout)
    return _original("_new_group_with_tag")(*arguments, **named)


_joined: list[Any] = []  # the one default group of another backend that MPI was held against


def _join(default: Any, timeout: timedelta, members_only: bool) -> None:
    """Start MPI under a default group of another backend, once for all its groups."""
    if _joined and _joined[0] is default and world.joined():
        return
    if members_only:
        raise ArgumentError(
            "new_group: use_local_synchronization=True, but MPI does not run yet and all ranks "
            "must start it together: make a first group over MPI without it"
        )
    world.start(timeout)
    world.agree(default.rank(), default.size(), "new_group")
    _joined[:] = [default]


_made_locally: dict[tuple[int, ...], int] = {}  # how many groups members alone made, by ranks


def _new_local_group(values: Mapping[str, Any], backend: Any, timeout: timedelta) -> Any:
    """``new_group(use_local_synchronization=True)``: called by the members alone.

    torch salts the name with a number that differs between ranks which made different groups
    before; how often these very ranks made one is the same on all of them.
    """
    default = c10d._get_default_group()
    ranks = _checked_ranks(values["ranks"], default.size())
    if values.get("sort_ranks", True):
        ranks = sorted(ranks)
    if default.rank() not in ranks:
        return c10d.GroupMember.NON_GROUP_MEMBER
    count = _made_locally[tuple(ranks)] = _made_locally.get(tuple(ranks), 0) + 1
    made = _register(
        ranks,
        backend,
        timeout,
        name=_hashed("local", ranks, count),
        pg_tag=values["pg_tag"],
        device_id=values["device_id"] or default.bound_device_id,
        group_desc=values["group_desc"],
        backend_options=values["backend_options"],
    )
    if c10d._is_barrier_after_init() == 1:
        made.barrier().wait()
    return made


def _checked_ranks(ranks: Any, size: int) -> list[int]:
    if ranks is None:
        return list(range(size))
    chosen = [int(rank) for rank in ranks]
    for rank in chosen:
        if not 0 <= rank < size:
            raise ArgumentError(f"new_group: ranks={chosen}: {rank} is not one of 0 to {size - 1}")
    if len(set(chosen)) != len(chosen):
        raise ArgumentError(f"new_group: ranks={chosen}: a rank stands there twice")
    return chosen


def _hashed(*parts: Any) -> str:
    text = "|".join(map(str, parts))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _register(ranks: list[int], backend: Any, timeout: timedelta, name: str, **more: Any) -> Any:
    """Make and register a group of global ranks, of which this is one."""
    default = c10d._get_default_group()
    made, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(default.rank()),
        ranks,
        backend,
        c10d._world.pg_map[default][1],
        name,
        timeout=timeout,
        **more,
    )
    c10d._world.pg_group_ranks[made] = {rank: i for i, rank in enumerate(ranks)}
    return made


_splits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # made of each group


def split_group(*arguments: Any, **named: Any) -> Any:
    """``split_group``: torch's wants a backend that splits, and up to 2.12 or so a GPU.

    Ranks in ``split_ranks`` are those of the parent. As in the torch that runs: older ones
    sort them and give ``None`` to a rank in no split, newer ones keep their order and give
    ``NON_GROUP_MEMBER``.
    """
    call = _bound("split_group", arguments, named)
    values = call.arguments
    parent = values["parent_pg"] or c10d._get_default_group()
    if not isinstance(parent, ProcessGroupMPI):
        return _original("split_group")(*arguments, **named)
    if not values["split_ranks"]:
        raise ValueError("split_ranks cannot be None or empty")
    if parent not in c10d._world.pg_group_ranks:
        raise ValueError(f"Group {parent} is not registered")
    newer = "backend" in values
    backend = _retained(parent, values.get("backend"))
    timeout = values["timeout"]
    if timeout is None:
        timeout = c10d._get_default_timeout(backend)
    c10d._check_valid_timeout(timeout)
    mine = _split_of(parent, values["split_ranks"], in_order=newer)
    count = _splits[parent] = _splits.get(parent, 0) + 1
    if mine is None:
        return c10d.GroupMember.NON_GROUP_MEMBER if newer else None
    to_global = {i: rank for rank, i in c10d._world.pg_group_ranks[parent].items()}
    ranks = [to_global[rank] for rank in mine]
    desc = values["group_desc"] or f"{parent.group_desc}:split:{count - 1}"
    return _register(
        ranks,
        backend,
        timeout,
        name=_hashed("split", parent.group_name, count, ranks),
        group_desc=desc,
        device_id=parent.bound_device_id,
        backend_options=values["pg_options"],
    )


def _split_of(parent: Any, splits: Sequence[Sequence[int]], in_order: bool) -> list[int] | None:
    """The part of a split that this rank is in."""
    size, mine = parent.size(), None
    for part in splits:
        if len(part) == 0:
            raise ValueError("the split group cannot be empty")
        if len(part) != len(set(part)):
            raise ValueError(f"the split group cannot have duplicate ranks: {list(part)}")
        for rank in part:
            if not 0 <= rank < size:
                raise ValueError(f"rank {rank} of the split group is not one of 0 to {size - 1}")
        if mine is None and parent.rank() in part:
            mine = list(part) if in_order else sorted(part)
    return mine


def _retained(parent: Any, wanted: Any) -> Any:
    """The backend of a split: the parent's, or the part of it that ``backend=`` names.

    Raises:
        ValueError: the parent has not got it.
    """
    whole = c10d._world.pg_map[parent][0]
    if wanted is None:
        return c10d.Backend(whole)
    has, text = _devices(whole), str(wanted).lower()
    chosen = {device: name for device, name in has.items() if name == text}
    if ":" in text:
        chosen = _devices(text)
    if not chosen or any(has.get(device) != name for device, name in chosen.items()):
        raise ValueError(f"backend={wanted!r} is not part of the parent group's {has}")
    return c10d.Backend(text)


def monitored_barrier(*arguments: Any, **named: Any) -> Any:
    """``monitored_barrier``: torch's is for gloo alone, by name up to 2.12."""
    values = _bound("monitored_barrier", arguments, named).arguments
    asked = values["group"] or c10d.GroupMember.WORLD
    if not isinstance(asked, ProcessGroupMPI) or c10d._rank_not_in_group(asked):
        return _original("monitored_barrier")(*arguments, **named)
    timeout = values["timeout"]
    if timeout is None:
        timeout = c10d._get_default_timeout(c10d.get_backend(asked))
    elif isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    c10d._check_valid_timeout(timeout)
    return asked.monitored_barrier(timeout, wait_all_ranks=values["wait_all_ranks"])
