"""The functions of torch.distributed in docs/torch.md, as calls that table.py can try."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as autograd

DTYPES: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "integers": tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")),
    "16-bit floats": ("float16", "bfloat16"),
    "floats": ("float32", "float64"),
    "complex": ("complex64", "complex128"),
    "float8": tuple(
        f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
    ),
}
ALL = tuple(name for names in DTYPES.values() for name in names)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR", "PREMUL_SUM")
FACTOR = 0.5  # of PREMUL_SUM
LIMIT = timedelta(seconds=5)

# The dtypes of the two backends that are not tried, from torch's source.
NCCL = {*ALL} - {"int16", "uint16", "uint32", "uint64", "float8_e8m0fnu"}
NATIVE = {"int8", "uint8", "int16", "int32", "int64", "float32", "float64", "complex64"}
NATIVE |= {"complex128"}
FLOATING = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}


@dataclass
class Probe:
    """The arguments of one call: its group, dtype and reduce op, and the values of the ranks."""

    group: Any
    dtype: Any
    op: str
    rank: int
    size: int

    def values(self, rank: int, more: int = 0) -> list[Any]:
        """Return the elements of a rank's tensor: 1 and 2, which every dtype can represent."""
        numbers = [1 + (i + rank) % 2 for i in range(4 + more)]
        if self.dtype.is_complex:
            return [complex(x, 3 - x) for x in numbers]
        return [x == 2 for x in numbers] if self.dtype == torch.bool else numbers

    def tensor(self, values: Sequence[Any]) -> Any:
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        return torch.tensor(values, dtype=wide).to(self.dtype)

    def local(self, more: int = 0) -> Any:
        return self.tensor(self.values(self.rank, more))

    def of(self, rank: int, more: int = 0) -> Any:
        return self.tensor(self.values(rank, more))

    def zeros(self, more: int = 0) -> Any:
        return self.tensor([0] * (4 + more))

    def zeros_for_all(self) -> list[Any]:
        return [self.zeros() for _ in range(self.size)]

    def of_all(self) -> list[Any]:
        return [self.of(rank) for rank in range(self.size)]

    @property
    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(FACTOR)
        return getattr(dist.ReduceOp, self.op)

    def reduced(self) -> Any:
        """Return the reduction of all ranks' values."""
        columns = zip(*(self.values(rank) for rank in range(self.size)), strict=True)
        return self.tensor([_reduce(self.op, list(column), self.dtype) for column in columns])


def _reduce(op: str, column: list[Any], dtype: Any) -> Any:
    if "float8" in str(dtype):
        raise TypeError("a sum of float8 would be rounded at each step")
    if dtype == torch.bool:
        if op in ("SUM", "MAX", "BOR"):
            return any(column)
        if op in ("PRODUCT", "MIN", "BAND"):
            return all(column)
        if op == "BXOR":
            return sum(column) % 2 == 1
        raise TypeError(op)
    if op in ("BAND", "BOR", "BXOR"):
        if dtype.is_floating_point or dtype.is_complex:
            raise TypeError(op)
        bits, *rest = column
        for x in rest:
            bits = {"BAND": bits & x, "BOR": bits | x, "BXOR": bits ^ x}[op]
        return bits
    if op == "PREMUL_SUM" and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(op)
    if op in ("MIN", "MAX") and dtype.is_complex:
        raise TypeError(op)
    if op == "PRODUCT":
        product = 1
        for x in column:
            product *= x
        return product
    total = sum(column)
    average = total / len(column)
    if not (dtype.is_floating_point or dtype.is_complex):
        average = int(average)  # toward zero, as NCCL divides
    return {
        "SUM": total,
        "AVG": average,
        "PREMUL_SUM": FACTOR * total,
        "MIN": 0 if dtype.is_complex else min(column),
        "MAX": 0 if dtype.is_complex else max(column),
    }[op]


def is_defined(op: str, dtype: str) -> bool:
    """Return whether a reduction of a dtype is defined. Those that are not are not tried."""
    value = 1 + 1j if "complex" in dtype else dtype == "bool" or 1
    try:
        _reduce(op, [value, value], getattr(torch, dtype))
    except TypeError:
        return False
    return True


Result = Iterable[tuple[Any, Any]]
"""Pairs of a result and what it should be."""


@dataclass
class Row:
    """A function, a call that tries it, and what torch's source says of the other backends.

    ``needs`` is a module and a name that this torch must have; by default the name of the function
    in torch.distributed.
    """

    function: str
    call: Callable[[Probe], Result]
    nccl: str | set[str] = field(default_factory=lambda: NCCL)
    native: str | set[str] = field(default_factory=lambda: NATIVE)
    needs: tuple[Any, str] | None = None
    ops: tuple[str, ...] = OPS

    def is_available(self) -> bool:
        """Return whether this torch has the function."""
        module, name = self.needs or (dist, re.findall(r"\w+", self.function)[0])
        return hasattr(module, name)


# Functions that move


def broadcast(p: Probe) -> Result:
    x = p.local()
    dist.broadcast(x, 1, group=p.group)
    yield x, p.of(1)


def broadcast_strided(p: Probe) -> Result:
    x = torch.stack([p.local(), p.local()], dim=1)[:, 0]
    dist.broadcast(x, 1, group=p.group)
    yield x.contiguous(), p.of(1)


def all_gather(p: Probe) -> Result:
    out = p.zeros_for_all()
    dist.all_gather(out, p.local(), group=p.group)
    yield from zip(out, p.of_all(), strict=True)


def all_gather_uneven(p: Probe) -> Result:
    out = [p.zeros(rank) for rank in range(p.size)]
    dist.all_gather(out, p.local(p.rank), group=p.group)
    yield from zip(out, [p.of(rank, rank) for rank in range(p.size)], strict=True)


def into_tensor(function: str) -> Callable[[Probe], Result]:
    def call(p: Probe) -> Result:
        out = torch.cat(p.zeros_for_all())
        getattr(dist, function)(out, p.local(), group=p.group)
        yield out, torch.cat(p.of_all())

    return call


def all_gather_coalesced(p: Probe) -> Result:
    out = [[p.zeros(), p.zeros(1)] for _ in range(p.size)]
    dist.all_gather_coalesced(out, [p.local(), p.local(1)], group=p.group)
    for rank, (first, second) in enumerate(out):
        yield first, p.of(rank)
        yield second, p.of(rank, 1)


def gather(p: Probe) -> Result:
    out = p.zeros_for_all() if p.rank == 1 else None
    dist.gather(p.local(), out, dst=1, group=p.group)
    yield from zip(out or [], p.of_all() if out else [], strict=True)


def gather_single(function: str) -> Callable[[Probe], Result]:
    def call(p: Probe) -> Result:
        out = torch.cat(p.zeros_for_all()) if p.rank == 1 else None
        getattr(dist, function)(p.local(), out, dst=1, group=p.group)
        if out is not None:
            yield out, torch.cat(p.of_all())

    return call


def scatter(p: Probe) -> Result:
    x = p.zeros()
    dist.scatter(x, p.of_all() if p.rank == 1 else None, src=1, group=p.group)
    yield x, p.local()


def all_to_all(p: Probe) -> Result:
    out = p.zeros_for_all()
    dist.all_to_all(out, [p.local() for _ in range(p.size)], group=p.group)
    yield from zip(out, p.of_all(), strict=True)


def all_to_all_single(p: Probe) -> Result:
    out = torch.cat(p.zeros_for_all())
    dist.all_to_all_single(out, torch.cat([p.local()] * p.size), group=p.group)
    yield out, torch.cat(p.of_all())


def all_to_all_splits(p: Probe) -> Result:
    splits = [[1, 3], [2, 2]]  # of rank 0, of rank 1
    take = [row[p.rank] for row in splits]
    out = p.tensor([0] * sum(take))
    dist.all_to_all_single(out, p.local(), take, splits[p.rank], group=p.group)
    yield out, torch.cat([p.of(r).split(row)[p.rank] for r, row in enumerate(splits)])


def send_recv(p: Probe) -> Result:
    x = p.local()
    if p.rank == 0:
        dist.send(x, 1, group=p.group)
    else:
        dist.recv(x, 0, group=p.group)
    yield x, p.of(0)


def recv_any(p: Probe) -> Result:
    x = p.local()
    if p.rank == 0:
        dist.send(x, 1, group=p.group)
    else:
        assert dist.recv(x, group=p.group) == 0
    yield x, p.of(0)


def isend_irecv(p: Probe) -> Result:
    x, peer = p.zeros(), 1 - p.rank
    for work in [dist.isend(p.local(), peer, p.group), dist.irecv(x, peer, p.group)]:
        work.wait()
    yield x, p.of(peer)


def batch_isend_irecv(p: Probe) -> Result:
    x, peer = p.zeros(), 1 - p.rank
    ops = [
        dist.P2POp(dist.isend, p.local(), peer, p.group),
        dist.P2POp(dist.irecv, x, peer, p.group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    yield x, p.of(peer)


# Functions that reduce


def all_reduce(p: Probe) -> Result:
    x = p.local()
    dist.all_reduce(x, p.reduce_op, group=p.group)
    yield x, p.reduced()


def all_reduce_strided(p: Probe) -> Result:
    x = torch.stack([p.local(), p.local()], dim=1)[:, 0]
    dist.all_reduce(x, p.reduce_op, group=p.group)
    yield x.contiguous(), p.reduced()


def all_reduce_sparse(p: Probe) -> Result:
    x = p.local().to_sparse()
    dist.all_reduce(x, p.reduce_op, group=p.group)
    yield x.coalesce().to_dense(), p.reduced()


def all_reduce_coalesced(p: Probe) -> Result:
    x, y = p.local(), p.local()
    dist.all_reduce_coalesced([x, y], p.reduce_op, group=p.group)
    yield x, p.reduced()
    yield y, p.reduced()


def reduce(p: Probe) -> Result:
    x = p.local()
    dist.reduce(x, 1, p.reduce_op, group=p.group)
    if p.rank == 1:
        yield x, p.reduced()


def reduce_scatter(p: Probe) -> Result:
    x = p.zeros()
    dist.reduce_scatter(x, [p.local() for _ in range(p.size)], p.reduce_op, group=p.group)
    yield x, p.reduced()


def reduce_scatter_tensor(function: str) -> Callable[[Probe], Result]:
    def call(p: Probe) -> Result:
        x = p.zeros()
        inputs = torch.cat([p.local()] * p.size)
        getattr(dist, function)(x, inputs, p.reduce_op, group=p.group)
        yield x, p.reduced()

    return call


# torch.distributed._functional_collectives and torch.distributed.nn


def f_all_gather(p: Probe) -> Result:
    yield functional.all_gather_tensor(p.local(), 0, p.group), torch.cat(p.of_all())


def f_broadcast(p: Probe) -> Result:
    yield functional.broadcast(p.local(), 1, p.group), p.of(1)


def f_all_to_all(p: Probe) -> Result:
    inputs = torch.cat([p.local()] * p.size)
    yield functional.all_to_all_single(inputs, None, None, p.group), torch.cat(p.of_all())


def f_all_reduce(p: Probe) -> Result:
    yield functional.all_reduce(p.local(), p.op.lower(), p.group), p.reduced()


def f_reduce_scatter(p: Probe) -> Result:
    inputs = torch.cat([p.local()] * p.size)
    yield functional.reduce_scatter_tensor(inputs, p.op.lower(), 0, p.group), p.reduced()


def nn_all_gather(p: Probe) -> Result:
    yield from zip(autograd.all_gather(p.local(), p.group), p.of_all(), strict=True)


def nn_broadcast(p: Probe) -> Result:
    yield autograd.broadcast(p.local(), 1, p.group), p.of(1)


def nn_all_to_all(p: Probe) -> Result:
    outs = autograd.all_to_all(p.zeros_for_all(), [p.local() for _ in range(p.size)], p.group)
    yield from zip(outs, p.of_all(), strict=True)


def nn_all_reduce(p: Probe) -> Result:
    yield autograd.all_reduce(p.local(), p.reduce_op, p.group), p.reduced()


def nn_reduce_scatter(p: Probe) -> Result:
    inputs = [p.local() for _ in range(p.size)]
    yield autograd.reduce_scatter(p.zeros(), inputs, p.reduce_op, p.group), p.reduced()


# Functions without a tensor


def barrier(p: Probe) -> Result:
    dist.barrier(group=p.group)
    return ()


def monitored_barrier(p: Probe) -> Result:
    dist.monitored_barrier(group=p.group, timeout=LIMIT, wait_all_ranks=True)
    return ()


def all_gather_object(p: Probe) -> Result:
    out: list[Any] = [None] * p.size
    dist.all_gather_object(out, {"rank": p.rank}, group=p.group)
    yield out, [{"rank": rank} for rank in range(p.size)]


def gather_object(p: Probe) -> Result:
    out: list[Any] | None = [None] * p.size if p.rank == 1 else None
    dist.gather_object({"rank": p.rank}, out, dst=1, group=p.group)
    yield out, [{"rank": rank} for rank in range(p.size)] if p.rank == 1 else None


def broadcast_object_list(p: Probe) -> Result:
    out = [p.rank, "x" * p.rank]
    dist.broadcast_object_list(out, 1, group=p.group)
    yield out, [1, "x"]


def scatter_object_list(p: Probe) -> Result:
    out = [None]
    given = [f"for {rank}" for rank in range(p.size)] if p.rank == 1 else None
    dist.scatter_object_list(out, given, 1, group=p.group)
    yield out, [f"for {p.rank}"]


def object_messages(p: Probe) -> Result:
    out = ["one", 2] if p.rank == 0 else [None, None]
    if p.rank == 0:
        dist.send_object_list(out, 1, group=p.group)
    else:
        dist.recv_object_list(out, 0, group=p.group)
    yield out, ["one", 2]


def coalesced(p: Probe) -> Result:
    x, y = p.local(), p.local()
    with dist._coalescing_manager(group=p.group, async_ops=True) as works:
        dist.all_reduce(x, group=p.group)
        dist.all_reduce(y, group=p.group)
    works.wait()
    yield x, p.reduced()
    yield y, p.reduced()


def works_in(p: Probe, group: Any) -> Result:
    """Return the result of an all_reduce in a group that this rank is a member of."""
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    yield x, torch.full((3,), float(dist.get_world_size(group)))


def new_group(p: Probe) -> Result:
    yield from works_in(p, dist.new_group([0, 1], backend=dist.get_backend(p.group)))


def new_group_locally(p: Probe) -> Result:
    backend = dist.get_backend(p.group)
    group = dist.new_group([p.rank], backend=backend, use_local_synchronization=True)
    yield from works_in(p, group)


def new_subgroups(p: Probe) -> Result:
    group, _ = dist.new_subgroups(1, group=p.group)
    yield from works_in(p, group)


def new_subgroups_by_enumeration(p: Probe) -> Result:
    backend = dist.get_backend(p.group)
    group, _ = dist.new_subgroups_by_enumeration([[1], [0]], backend=backend)
    yield from works_in(p, group)


def split_group(p: Probe) -> Result:
    yield from works_in(p, dist.split_group(p.group, [[0], [1]]))


def shrink_group(p: Probe) -> Result:
    yield dist.shrink_group([1], group=p.group).size(), 1


def set_timeout(p: Probe) -> Result:
    dist.set_timeout(timedelta(seconds=50), group=p.group)
    yield from works_in(p, p.group)


MOVE = (
    Row("`broadcast`", broadcast),
    Row("`all_gather`", all_gather),
    Row("`all_gather`, sizes differ", all_gather_uneven, native="no"),
    Row("`all_gather_into_tensor`", into_tensor("all_gather_into_tensor")),
    Row("`all_gather_single`", into_tensor("all_gather_single")),
    Row("`all_gather_coalesced`", all_gather_coalesced, nccl="no", native="no"),
    Row("`gather`", gather),
    Row("`gather_single`", gather_single("gather_single"), native="no"),
    Row("`gather_into_tensor`", gather_single("gather_into_tensor"), native="no"),
    Row("`scatter`", scatter),
    Row("`all_to_all`", all_to_all),
    Row("`all_to_all_single`", all_to_all_single),
    Row("`all_to_all_single`, with splits", all_to_all_splits),
    Row("`send`, `recv`", send_recv),
    Row("`recv(src=None)`", recv_any, nccl="no"),
    Row("`isend`, `irecv`", isend_irecv),
    Row("`batch_isend_irecv`", batch_isend_irecv),
    Row("`broadcast`, strided tensor", broadcast_strided, nccl="no", native="no"),
    Row(
        "`functional.all_gather_tensor`",
        f_all_gather,
        native="no",
        needs=(functional, "all_reduce"),
    ),
    Row("`functional.broadcast`", f_broadcast, needs=(functional, "broadcast")),
    Row("`functional.all_to_all_single`", f_all_to_all, needs=(functional, "all_to_all_single")),
    Row("`nn.functional.all_gather`", nn_all_gather, needs=(autograd, "all_gather")),
    Row("`nn.functional.broadcast`", nn_broadcast, needs=(autograd, "broadcast")),
    Row("`nn.functional.all_to_all`", nn_all_to_all, needs=(autograd, "all_to_all")),
)
REDUCE = (
    Row("`all_reduce`", all_reduce),
    Row("`all_reduce`, strided tensor", all_reduce_strided, "no", "no", ops=("SUM",)),
    Row("`all_reduce`, sparse tensor (COO)", all_reduce_sparse, nccl="no", native="no"),
    Row("`all_reduce_coalesced`", all_reduce_coalesced, native="no"),
    Row("`reduce`", reduce),
    Row("`reduce_scatter`", reduce_scatter),
    Row("`reduce_scatter_tensor`", reduce_scatter_tensor("reduce_scatter_tensor")),
    Row("`reduce_scatter_single`", reduce_scatter_tensor("reduce_scatter_single")),
    Row("`functional.all_reduce`", f_all_reduce, needs=(functional, "all_reduce"), ops=OPS[:-1]),
    Row(
        "`functional.reduce_scatter_tensor`",
        f_reduce_scatter,
        native="no",
        needs=(functional, "wait_tensor"),
        ops=OPS[:-1],
    ),
    Row("`nn.functional.all_reduce`", nn_all_reduce, needs=(autograd, "all_reduce")),
    Row("`nn.functional.reduce_scatter`", nn_reduce_scatter, needs=(autograd, "reduce_scatter")),
)
OTHER = (
    Row("`barrier`", barrier, nccl="yes", native="yes"),
    Row("`monitored_barrier`", monitored_barrier, nccl="no", native="no"),
    Row("`all_gather_object`", all_gather_object, nccl="yes", native="yes"),
    Row("`gather_object`", gather_object, nccl="yes", native="yes"),
    Row("`broadcast_object_list`", broadcast_object_list, nccl="yes", native="yes"),
    Row("`scatter_object_list`", scatter_object_list, nccl="yes", native="yes"),
    Row("`send_object_list`, `recv_object_list`", object_messages, nccl="yes", native="yes"),
    Row("`_coalescing_manager`", coalesced, nccl="yes", native="no"),
    Row("`new_group`", new_group, nccl="yes", native="hangs unless all ranks call it"),
    Row("`new_group(use_local_synchronization=True)`", new_group_locally, nccl="yes", native="no"),
    Row("`new_subgroups`", new_subgroups, nccl="yes", native="yes"),
    Row("`new_subgroups_by_enumeration`", new_subgroups_by_enumeration, nccl="yes", native="yes"),
    Row("`split_group`", split_group, nccl="yes", native="no"),
    Row("`shrink_group`", shrink_group, nccl="yes", native="no"),
    Row("`set_timeout`", set_timeout, nccl="yes", native="no"),
)
# Public functions that need no row: they send nothing, or this program could not run without them.
LOCAL = re.compile(
    r"(get|is)_\w+|GroupName|breakpoint|(init|destroy)_process_group|init_device_mesh"
    r"|record_comm|register_rendezvous_handler|rendezvous|supports_complex"
)


def without_row() -> set[str]:
    """Return the public functions of this torch that no row tries."""
    rows = " ".join(row.function for row in (*MOVE, *REDUCE, *OTHER))
    public = {
        name
        for name in {*dist.distributed_c10d.__all__, *vars(dist)}
        if not name.startswith("_")
        and callable(getattr(dist, name, None))
        and not inspect.isclass(getattr(dist, name))
        and getattr(getattr(dist, name), "__module__", "").startswith("torch.distributed")
    }
    return {
        name for name in public if not LOCAL.fullmatch(name) and not re.search(rf"\b{name}\b", rows)
    }


def from_source(row: Row, op: str, backend: str) -> str | set[str]:
    """Return the dtypes, or a text, of a backend that is not tried, from torch's source."""
    what: str | set[str] = row.nccl if backend == "nccl" else row.native
    if isinstance(what, str) or not op:
        return what
    what = {name for name in what if not name.startswith("float8")}
    if op in ("MIN", "MAX", "PRODUCT"):
        return {name for name in what if not name.startswith("complex")}
    if op == "AVG":
        return what - {"bool"} if backend == "nccl" else set()
    if op == "PREMUL_SUM":
        return what & FLOATING if backend == "nccl" else set()
    return what if op == "SUM" else set()
