"""Our code for the private functions of torch through which torch makes its groups.

:mod:`paddlempi_bootstrap.torch_stubs` has replaced these functions by stubs, which call the
functions of the same names here. The docstring of each says what torch's function does, as read in
torch 2.8 to 2.15.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed.distributed_c10d as c10d
from paddlempi_bootstrap import starters, torch_stubs

from .. import group
from .._pages import PAGES
from ..errors import AlreadyInitializedError, ArgumentError
from ..group_arguments import to_seconds
from . import dynamo, environment, errors, group_names, reducers, registered, stateless, world
from .issue import Issuer
from .mixed import MixedProcessGroup
from .process_group import ProcessGroupMPI
from .reconfigure import ReconfigurableMPI, shrink_members
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
    "shrink_group",
    "split_group",
]


def activate() -> None:
    """Install our exceptions and operators, and set variables if the user has imported us."""
    errors.install()
    registered.install()
    if not torch_stubs.lazily:
        environment.fill()


def init(timeout: timedelta | float) -> None:
    """Make torch's default group, for ``paddlempi.init_process_group(framework="torch")``.

    ``paddlempi.destroy_process_group()`` destroys it with the world.

    Args:
        timeout: the deadline of the group, a timedelta or seconds.
    """
    global _default_is_ours
    seconds = to_seconds(timeout, "init_process_group")
    torch.distributed.init_process_group("mpi", timeout=timedelta(seconds=seconds))
    if _default_is_ours is None:
        group.at_destroy(_leave)
    _default_is_ours = True


_default_is_ours: bool | None = None  # whether init() has made the default group; None: not called


def _leave() -> None:
    global _default_is_ours
    ours, _default_is_ours = _default_is_ours, False
    if ours and isinstance(c10d.GroupMember.WORLD, ProcessGroupMPI):
        torch.distributed.destroy_process_group()


def _original(name: str) -> Any:
    return torch_stubs.originals[name]


def _bound(name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Bind arguments to a function of torch, with its defaults filled in."""
    call = inspect.signature(_original(name)).bind(*arguments, **named)
    call.apply_defaults()
    return call


def _devices(backend: object) -> dict[str, str]:
    """Return the backend of each device: ``"cpu:mpi,cuda:nccl"`` gives a dictionary of two."""
    config = c10d.BackendConfig(c10d.Backend(str(backend)))
    return {device: str(name) for device, name in config.get_device_backend_map().items()}


def _is_ours(backend: object) -> bool:
    """Whether paddlempi serves some device of a backend string."""
    name = str(backend).lower()
    if "mpi" not in name and not (name == "undefined" and torch_stubs.defaults):
        return False
    return any(name in torch_stubs.entered for name in _devices(backend).values())


# How the default group begins

_asked: list[world.Asked] = []  # for the inits under way: what the caller has given


def init_process_group(*arguments: Any, **named: Any) -> Any:
    """Replace ``init_process_group``, which makes the default group.

    For plain "mpi" torch ignores ``rank``, ``world_size``, ``store`` and ``init_method``. Here they
    are not passed to torch, and :func:`new_process_group_helper` starts the world by them, or
    compares the first two with MPI's.
    """
    call = _bound("init_process_group", arguments, named)
    values = call.arguments
    asked = world.Asked()
    if values["backend"] is not None and str(values["backend"]).lower() == "mpi":
        asked = world.Asked(
            values["rank"], values["world_size"], values["init_method"], values["store"]
        )
        values["rank"] = values["world_size"] = -1
        if values["init_method"] is None:  # given both, torch shall raise its error
            values["store"] = None
    _asked.append(asked)
    try:
        return _original("init_process_group")(*call.args, **call.kwargs)
    finally:
        _asked.pop()


# How a group is made: torch's helper calls create(), as a registered backend or ProcessGroupMPI.


class _Making(NamedTuple):
    """The part of a call of the helper that torch does not pass to every creator."""

    timeout: timedelta
    ours: frozenset[str]  # the devices that MPI serves; empty if it serves all


_making: list[_Making] = []  # for the calls of the helper under way


def new_process_group_helper(*arguments: Any, **named: Any) -> Any:
    """Replace ``_new_process_group_helper``, which makes and registers a group and its backends.

    If the creator of a backend returns a ``ProcessGroup``, torch returns it instead of the group
    that it was making, and does not make the backends after it in a string such as
    ``"cpu:mpi,cuda:nccl"``. So our backend is moved to the end. Its creator gets torch's group,
    which has the other backends by then.
    """
    call = _bound("_new_process_group_helper", arguments, named)
    values = call.arguments
    asked = str(values["backend"])
    if not _is_ours(asked):
        return _original("_new_process_group_helper")(*arguments, **named)
    devices = _devices(asked)
    ours = [device for device, name in devices.items() if name in torch_stubs.entered]
    mixed = len(ours) < len(devices)
    if asked == "undefined":  # torch's default; torch up to 2.12 would not make ours for it
        asked = values["backend"] = ",".join(f"{device}:{devices[device]}" for device in devices)
    if mixed:
        order = sorted(devices, key=lambda device: device in ours)
        values["backend"] = ",".join(f"{device}:{devices[device]}" for device in order)
    if values.get("enable_reconfigure") and not values["global_ranks_in_group"]:
        _check_reconfigurable(asked)
        values["store"] = _asked[-1].store or c10d.HashStore()
    elif not values["global_ranks_in_group"]:
        rank, size = values["group_rank"], values["group_size"]
        if rank == -1:  # for plain "mpi" torch gives neither ranks nor a store
            given = _asked[-1] if _asked else world.Asked()
            world.start(values["timeout"], given)
            world.expect(given.rank, given.size)
            values["store"] = new_store(values["timeout"])
        else:
            world.start(values["timeout"], world.Asked(rank, size, None, values["store"]))
            world.agree(rank, size, "init_process_group")
    _making.append(_Making(values["timeout"], frozenset(ours if mixed else ())))
    torch_stubs.naming += 1
    try:
        made, store = _original("_new_process_group_helper")(*call.args, **call.kwargs)
    finally:
        torch_stubs.naming -= 1
        _making.pop()
    if torch_stubs.gloo_was_asked:
        _tell_of_gloo()
    if mixed and isinstance(made, ProcessGroupMPI):  # register the order that the caller gave
        state = c10d._world
        state.pg_map[made] = (c10d.Backend(asked), state.pg_map[made][1])
        state.pg_backend_config[made] = str(c10d.BackendConfig(c10d.Backend(asked)))
    return made, store


@functools.cache
def _tell_of_gloo() -> None:
    if group.get_rank() == 0:
        warnings.warn(
            f"{torch_stubs.GLOO}=mpi: this program asks for gloo, and gets mpi for the CPU: "
            f"{PAGES}/torch.md",
            RuntimeWarning,
            stacklevel=2,
        )


def create(ranks: Sequence[int], options: Any = None) -> Any:
    """Make the group of a call of torch's helper. Only members call it.

    This is the creator that is registered for both names of the backend. A program that calls it
    itself makes a group that torch does not know of.

    Args:
        ranks: the global ranks of the members; empty for the default group.
        options: what a registered creator gets of torch; None in torch up to 2.13.
    """
    reducers.watch(ProcessGroupMPI)
    _hide_from_dynamo()
    if not _making:
        return stateless.create(options)
    making = _making[-1]
    if getattr(options, "enable_reconfigure", False) and not ranks:
        return _reconfigurable(making.timeout)
    if ranks:
        core, is_world = group.new_group(list(ranks), making.timeout), False
    else:
        core, is_world = world.default_group(making.timeout)
    if not making.ours:
        return ProcessGroupMPI(core, making.timeout, is_world)
    others = _local("_new_process_group_helper", "pg", None)
    return MixedProcessGroup(core, making.timeout, is_world, others, making.ours)


def _check_reconfigurable(backend: str) -> None:
    if backend not in torch_stubs.NAMES:
        raise ArgumentError(
            f"init_process_group: enable_reconfigure=True with backend={backend!r}: it takes "
            '"mpi" for all devices'
        )
    if group.is_initialized():
        raise AlreadyInitializedError(
            "init_process_group: enable_reconfigure=True, but this process has a world: call "
            "paddlempi.destroy_process_group() first"
        )


def _reconfigurable(timeout: timedelta) -> ReconfigurableMPI:
    """Make the default group whose members come later. It meets nobody."""
    rank, size = _asked[-1][:2] if _asked else (-1, -1)
    given = (rank, size) if rank >= 0 else environment.place()
    if not 0 <= given[0] < given[1]:
        raise ArgumentError(
            f"init_process_group: enable_reconfigure=True, rank={rank}, world_size={size}: give "
            "both, or set RANK and WORLD_SIZE"
        )
    return ReconfigurableMPI(*given, timeout)


@functools.cache
def _hide_from_dynamo() -> None:
    for kind in (
        ProcessGroupMPI,
        ReconfigurableMPI,
        MixedProcessGroup,
        Issuer,
        Work,
        OperationWork,
    ):
        dynamo.hide(vars(kind).values())


def _local(function: str, name: str, absent: Any) -> Any:
    """Return a local variable of the innermost call of a function of torch, or ``absent``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return absent if frame is None else frame.f_locals.get(name, absent)


def env_rendezvous(
    url: str, backend: object, timeout: timedelta = c10d.default_pg_timeout, **options: Any
) -> Iterator[Any]:
    """Replace torch's handler of ``env://``: yield a store, the rank and the world size.

    In two cases they come from MPI, and no port has to be agreed on before: if ``MASTER_PORT`` was
    set by us and not by the user; and if the backend has a device of ours, such as ``"cpu:mpi"``,
    and the user has not set ``MASTER_PORT``, nor any launcher but ``run -np``. (For plain ``"mpi"``
    torch does not call the handler.)

    In other cases torch's handler runs, also if another backend is given only a part of the ranks.
    For RPC ``backend`` is None. Its ranks are not compared with MPI's.
    """
    ours = environment.is_ours("MASTER_PORT")
    rank, size = (-1, -1) if backend is None else _given(url)
    partial = not _is_ours(backend) and str(size) not in ("-1", os.environ.get("WORLD_SIZE"))
    users = environment.is_set("MASTER_PORT") and starters.MEET not in os.environ
    if partial or (not ours and (not _is_ours(backend) or users)):
        yield from _original("env")(url, timeout=timeout, **options)
        return
    world.start(timeout)
    world.expect(rank, size)
    yield new_store(timeout), group.get_rank(), group.get_world_size()
    raise RuntimeError("env:// cannot rendezvous a second time over the same MPI world")


def _given(url: str) -> tuple[int, int]:
    """Return the rank and world_size of an init, which torch writes into the URL; -1: not given."""
    query = parse_qs(urlsplit(url).query)
    return int(query.get("rank", ["-1"])[-1]), int(query.get("world_size", ["-1"])[-1])


# Groups


def new_group_with_tag(*arguments: Any, **named: Any) -> Any:
    """Replace ``_new_group_with_tag``, which ``new_group`` and the like call.

    If the default group has another backend, MPI is started here, because all ranks call this
    function and only members call the creator. torch refuses ``use_local_synchronization`` for a
    backend that is named "mpi", so such groups are made here.
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


_joined: list[Any] = []  # the default group of another backend whose ranks were compared with MPI's


def _join(default: Any, timeout: timedelta, members_only: bool) -> None:
    """Start MPI in a world of another backend, and compare its ranks with MPI's; only once."""
    if _joined and _joined[0] is default and world.joined():
        return
    if members_only:
        raise ArgumentError(
            "new_group: use_local_synchronization=True, but MPI does not run yet and all ranks "
            "must start it together: make a first group over MPI without it"
        )
    store = c10d._world.pg_map[default][1]
    world.start(timeout, world.Asked(default.rank(), default.size(), None, store))
    world.agree(default.rank(), default.size(), "new_group")
    _joined[:] = [default]


def _new_local_group(values: Mapping[str, Any], backend: Any, timeout: timedelta) -> Any:
    """Make the group of ``new_group(use_local_synchronization=True)``, which only members call."""
    default = c10d._get_default_group()
    ranks = _checked_ranks(values["ranks"], default.size())
    if values.get("sort_ranks", True):
        ranks = sorted(ranks)
    if default.rank() not in ranks:
        # torch returns at once, for backends that it does not refuse: None in older versions, in
        # newer ones NON_GROUP_MEMBER.
        return _original("_new_group_with_tag")(**{**values, "backend": c10d.Backend.GLOO})
    made = _register(
        ranks,
        backend,
        timeout,
        name=group_names.new("local", ranks),
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
        raise ArgumentError(f"new_group: ranks={chosen}: a rank is given twice")
    return chosen


def _register(ranks: list[int], backend: Any, timeout: timedelta, name: str, **more: Any) -> Any:
    """Make and register a group of global ranks. This rank is a member."""
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


_splits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # splits of a group


def split_group(*arguments: Any, **named: Any) -> Any:
    """Replace ``split_group``, which needs a backend that splits, and up to torch 2.12 or so a GPU.

    Ranks in ``split_ranks`` are those of the parent. The result is as in the torch that runs. Older
    versions sort the ranks, and return ``None`` to a rank that is in no split. Newer ones keep the
    order of the ranks, and return ``NON_GROUP_MEMBER``.
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
    split = _split_of(parent, values["split_ranks"], in_order=newer)
    count = _splits[parent] = _splits.get(parent, 0) + 1
    if split is None:
        return c10d.GroupMember.NON_GROUP_MEMBER if newer else None
    to_global = {i: rank for rank, i in c10d._world.pg_group_ranks[parent].items()}
    ranks = [to_global[rank] for rank in split]
    desc = values["group_desc"] or f"{parent.group_desc}:split:{count - 1}"
    return _register(
        ranks,
        backend,
        timeout,
        name=group_names.hashed("split", parent.group_name, count, ranks),
        group_desc=desc,
        device_id=parent.bound_device_id,
        backend_options=values["pg_options"],
    )


def _split_of(parent: Any, splits: Sequence[Sequence[int]], in_order: bool) -> list[int] | None:
    """Return the ranks of the split that has this rank; None if there is none.

    Raises:
        ValueError: a split is empty, or a rank is out of range or twice in a split.
    """
    size, found = parent.size(), None
    for part in splits:
        if len(part) == 0:
            raise ValueError("the split group cannot be empty")
        if len(part) != len(set(part)):
            raise ValueError(f"the split group cannot have duplicate ranks: {list(part)}")
        for rank in part:
            if not 0 <= rank < size:
                raise ValueError(f"rank {rank} of the split group is not one of 0 to {size - 1}")
        if found is None and parent.rank() in part:
            found = list(part) if in_order else sorted(part)
    return found


def _retained(parent: Any, wanted: Any) -> Any:
    """Return the backend of a split: the parent's, or the part of it that ``backend=`` names.

    Raises:
        ValueError: the parent does not have this backend.
    """
    whole = c10d._world.pg_map[parent][0]
    if wanted is None:
        return c10d.Backend(whole)
    has, text = _devices(whole), torch_stubs.without_gloo(wanted)
    chosen = {device: name for device, name in has.items() if name == text}
    if ":" in text:
        chosen = _devices(text)
    if not chosen or any(has.get(device) != name for device, name in chosen.items()):
        raise ValueError(f"backend={wanted!r} is not part of the parent group's {has}")
    return c10d.Backend(text)


def monitored_barrier(*arguments: Any, **named: Any) -> Any:
    """Replace ``monitored_barrier``, which works for gloo only.

    torch up to 2.12 checks the name of the backend.
    """
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


def shrink_group(*arguments: Any, **named: Any) -> Any:
    """Replace ``shrink_group``, which registers what a backend returns as a part of another group.

    Here a default group that was made with ``enable_reconfigure=True`` goes on with fewer members.
    """
    values = _bound("shrink_group", arguments, named).arguments
    asked = values["group"] or c10d._get_default_group()
    if not isinstance(asked, ReconfigurableMPI):
        return _original("shrink_group")(*arguments, **named)
    return shrink_members(asked, values["ranks_to_exclude"])
