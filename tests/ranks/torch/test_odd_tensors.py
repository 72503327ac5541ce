"""torch's odd tensors in every function that takes a tensor: right values, or an error.

Those of paddlempi, and the methods of torch's group, which take more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddlempi
import pytest
import torch
import torch.distributed._functional_collectives as functional
from every_function import TABLES, Table, Ways
from every_tensor import Kind, tried
from paddlempi.errors import ArgumentError, DtypeError
from paddlempi.torch.operators import METHODS
from test_stand_ins import Wrapped
from torch._subclasses import FakeTensorMode

pytestmark = [
    pytest.mark.mpi(ranks=[2]),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

VALUES = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
ROWS = np.tile(VALUES[0], (2, 1))
"""Equal rows, which a tensor can have in one memory."""
SHIFTED = np.array([[1, 2, 3, 4], [2, 3, 4, 5]], np.float32)
"""Rows that a tensor can have in five elements."""


def plain(values: Any) -> torch.Tensor:
    return torch.tensor(values)


def numbers(tensor: Any) -> Any:
    if isinstance(tensor, Wrapped):
        tensor = tensor.held
    elif isinstance(tensor, functional.AsyncCollectiveTensor):
        tensor = tensor.elem
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.detach().resolve_conj().resolve_neg().numpy()


def fake(values: Any) -> Any:
    with FakeTensorMode():
        return torch.zeros(values.shape)


def inference(values: Any) -> Any:
    with torch.inference_mode():
        return plain(values)


def nested(values: Any, layout: Any) -> Any:
    return torch.nested.nested_tensor(list(plain(values)), layout=layout)


def kind(name: str, make: Any, *errors: Any, values: Any = VALUES) -> Kind:
    return Kind(name, values, make, numbers, *errors)


DENSE = [
    kind("plain", plain),
    kind("AsyncCollectiveTensor", lambda v: functional.AsyncCollectiveTensor(plain(v))),
    kind("0-d", plain, values=np.array(3, np.float32)),
    kind("empty", plain, values=VALUES[:0]),
    kind("transposed", lambda v: plain(v.T.copy()).T),
    kind("gaps", lambda v: plain(np.repeat(v, 2, 1))[:, ::2]),
    kind("requires_grad", lambda v: torch.tensor(v, requires_grad=True)),
    kind("parameter", lambda v: torch.nn.Parameter(plain(v))),
    kind("no leaf", lambda v: torch.tensor(v, requires_grad=True) * 1),
    kind("inference", inference),
    kind("expanded", lambda v: plain(v[0]).expand(2, 4), None, ArgumentError, values=ROWS),
    kind(
        "overlapping",
        lambda v: plain(np.append(v[0], v[1][-1:])).as_strided((2, 4), (1, 1)),
        None,
        ArgumentError,
        values=SHIFTED,
    ),
]
LAZY = [
    # torch's dispatcher does not look into lists of lists. Elsewhere: test_stand_ins.py.
    kind("wrapper", lambda v: Wrapped(plain(v)), DtypeError, DtypeError),
    kind("neg", lambda v: torch._neg_view(plain(-v))),
    kind("imaginary part", lambda v: plain(-1j * v).to(torch.complex64).conj().imag),
    kind("conj", lambda v: plain(v.conj()).conj(), values=(VALUES * (1 + 1j)).astype("c8")),
]
"""torch's operators take these. paddlempi's functions send the last three, and write to none."""
OTHER = [
    kind(name, make, DtypeError, DtypeError)
    for name, make in {
        "meta": lambda v: torch.zeros(v.shape, device="meta"),
        "COO": lambda v: plain(v).to_sparse(),
        "CSR": lambda v: plain(v).to_sparse_csr(),
        "mkldnn": lambda v: plain(v).to_mkldnn(),
        "quantized": lambda v: torch.quantize_per_tensor(plain(v), 1.0, 0, torch.qint8),
        "nested": lambda v: nested(v, torch.strided),
        "jagged": lambda v: nested(v, torch.jagged),
    }.items()
]


def test_functions_of_paddlempi(dist: ModuleType, here: Path) -> None:
    refused = [one._replace(written=DtypeError) for one in LAZY]
    without = [
        kind("fake", fake, DtypeError, DtypeError),
        kind("zeros", lambda v: torch._efficientzerotensor(v.shape), DtypeError, DtypeError),
    ]
    wrong = tried([*DENSE, *refused, *OTHER, *without], paddlempi, here, TABLES)
    assert not wrong, "\n".join(wrong)


# The methods of torch's group.

READ, WRITE, BOTH = Table("read"), Table("write"), Table("both")


def group() -> Any:
    return torch.distributed.group.WORLD


def like(v: Any, *more: int) -> Any:
    return torch.zeros((*more, *v.shape), dtype=plain(v).dtype)


def each(w: Ways, v: Any) -> list[Any]:
    return [like(v) for _ in range(w.size)]


def mine(w: Ways, x: Any, v: Any) -> list[Any]:
    """Return outputs for each rank, of which one is x."""
    return [x if rank == w.next else like(v) for rank in range(w.size)]


@READ.of("torch.allgather", "torch.allgather_coalesced")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    one, other = each(w, v), each(w, v)
    group().allgather([one], [x]).wait()
    group().allgather_coalesced([[out] for out in other], [x]).wait()
    return [*one, *other]


@READ.of("torch.all_gather_single", "torch._allgather_base")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v, w.size)
    group()._allgather_base(out, x).wait()
    return list(out)


@READ.of("torch.all_gather_single_coalesced", "torch.allgather_into_tensor_coalesced")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v, w.size)
    group().allgather_into_tensor_coalesced([out], [x]).wait()
    return list(out)


@READ.of("torch.gather", "torch.gather_single", "torch.gather_into_tensor")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    one, other = each(w, v), like(v, w.size)
    group().gather([one] if w.rank == 0 else [], [x]).wait()
    group().gather_single(other, x).wait()
    return [*one, *other] if w.rank == 0 else []


@READ.of("torch.scatter")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v)
    group().scatter([out], [[x] * w.size] if w.rank == 0 else []).wait()
    return [out]


@READ.of("torch.reduce_scatter")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v)
    group().reduce_scatter([out], [[x] * w.size]).wait()
    return [out / w.size]


@READ.of(
    "torch.reduce_scatter_single",
    "torch._reduce_scatter_base",
    "torch.reduce_scatter_single_coalesced",
    "torch.reduce_scatter_tensor_coalesced",
)
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    wholes = []
    for call in (
        lambda out: group()._reduce_scatter_base(out, x),
        lambda out: group().reduce_scatter_tensor_coalesced([out], [x]),
    ):
        whole = v.copy()
        part = plain(w.cut(whole)[w.rank]) * 0
        call(part).wait()
        w.cut(whole)[w.rank] = part.numpy() / w.size
        wholes.append(whole)
    return wholes


@READ.of("torch.alltoall")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    outs = each(w, v)
    group().alltoall(outs, [x] * w.size).wait()
    return outs


@READ.of("torch.all_to_all_single", "torch.alltoall_base")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v)
    group().alltoall_base(out, x, [], []).wait()
    wholes = [v.copy() for _ in range(w.size)]
    for whole, part in zip(wholes, w.cut(out.numpy()), strict=True):
        w.cut(whole)[w.rank] = part
    return wholes


@READ.of("torch.send")
def _(w: Ways, x: Any, v: Any) -> Sequence[Any]:
    out = like(v)
    sent = group().send([x], w.next, 0)
    group().recv([out], w.before, 0).wait()
    sent.wait()
    return [out]


@WRITE.of("torch.recv", "torch.recv_anysource")
def _(w: Ways, x: Any, v: Any) -> None:
    for receive in (
        lambda: group().recv([x], w.before, 0),
        lambda: group().recv_anysource([x], 0),
    ):
        sent = group().send([plain(v)], w.next, 0)
        try:
            receive().wait()
        except paddlempi.Error:
            group().recv([like(v)], w.before, 0).wait()
            raise
        finally:
            sent.wait()


@WRITE.of("torch.broadcast")
def _(w: Ways, x: Any, v: Any) -> None:
    if x.is_sparse:
        raise DtypeError("the other rank has to give a sparse tensor too: see test_sparse.py")
    group().broadcast([x if w.rank else plain(v)]).wait()


@WRITE.of("torch.allgather", "torch.allgather_coalesced")
def _(w: Ways, x: Any, v: Any) -> None:
    group().allgather([mine(w, x, v)], [plain(v)]).wait()


@WRITE.of("torch.all_gather_single")
def _(w: Ways, x: Any, v: Any) -> None:
    group()._allgather_base(x, plain(w.cut(v)[w.rank])).wait()


@WRITE.of("torch.scatter")
def _(w: Ways, x: Any, v: Any) -> None:
    group().scatter([x], [[plain(v)] * w.size] if w.rank == 0 else []).wait()


@WRITE.of("torch.reduce_scatter")
def _(w: Ways, x: Any, v: Any) -> None:
    group().reduce_scatter([x], [[plain(v / w.size)] * w.size]).wait()


@WRITE.of("torch.alltoall")
def _(w: Ways, x: Any, v: Any) -> None:
    group().alltoall(mine(w, x, v), [plain(v)] * w.size).wait()


@WRITE.of("torch.alltoall_base")
def _(w: Ways, x: Any, v: Any) -> None:
    group().alltoall_base(x, plain(np.stack([w.cut(v)[w.rank]] * w.size)), [], []).wait()


@BOTH.of("torch.allreduce", "torch.allreduce_coalesced")
def _(w: Ways, x: Any, v: Any) -> Any:
    group().allreduce([x]).wait()
    group().allreduce_coalesced([x]).wait()
    return v * w.size**2


@BOTH.of("torch.reduce")
def _(w: Ways, x: Any, v: Any) -> Any:
    group().reduce([x]).wait()
    return v if w.rank else v * w.size


def test_methods_of_torch_s_group(dist: ModuleType, here: Path) -> None:
    wrong = tried([*DENSE, *LAZY, *OTHER], dist, here, [READ, WRITE, BOTH])
    assert not wrong, "\n".join(wrong)


def test_no_method_is_left_out() -> None:
    rows = {name.partition(".")[2] for name in (*READ, *WRITE, *BOTH)}
    assert set(METHODS) - {"barrier", "monitored_barrier"} == rows
