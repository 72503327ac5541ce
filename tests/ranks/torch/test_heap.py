"""torch's tensors in the heap, which ``paddlempi.empty`` and its relatives make."""

from __future__ import annotations

import gc
import os
from types import ModuleType
from typing import Any

import numpy as np
import paddlempi
import pytest
import torch
from paddlempi import _native
from tensors import DTYPES, NUMBERS
from torch.utils.data import DataLoader, Dataset

EACH = 20_011


def took(group: Any = None) -> str:
    """Return the algorithm of the last collective of a group of torch."""
    pg: Any = group or torch.distributed.group.WORLD
    return str(_native.control("group_info", group=pg._core._id)["algorithm"])


def filled(dtype: str, elements: int, value: Any) -> torch.Tensor:
    tensor = paddlempi.empty(elements, dtype, "torch")
    return tensor.fill_(value)  # type: ignore[no-any-return]


def heap_used() -> int:
    return int(_native.control("info", sys_prefix="/usr")["heap"]["used"])


def test_what_is_made() -> None:
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        for name in (dtype, kind):
            tensor = paddlempi.zeros((2, 3), name, "torch")
            assert (tensor.shape, tensor.dtype, tensor.device.type) == ((2, 3), kind, "cpu")
            assert tensor.is_contiguous() and not tensor.requires_grad
            assert not tensor.view(torch.uint8).any()
        like = paddlempi.empty_like(tensor)
        assert (like.shape, like.dtype) == (tensor.shape, kind)
    assert paddlempi.empty((0, 3), "bfloat16", "torch").shape == (0, 3)
    assert paddlempi.zeros((), "int64", "torch").item() == 0
    parameter = torch.nn.Parameter(torch.ones(3))
    assert paddlempi.empty_like(parameter).shape == (3,)


def test_freed_with_the_last_reference(dist: ModuleType) -> None:
    gc.collect()  # tensors of earlier tests
    before = heap_used()
    tensor = paddlempi.zeros(1_000_000, "float32", "torch")
    assert heap_used() - before == 4_000_000
    view, numpy = tensor[5:10], tensor.numpy()
    del tensor
    assert heap_used() - before == 4_000_000
    del view
    assert heap_used() - before == 4_000_000
    assert numpy.sum() == 0
    del numpy
    assert heap_used() == before


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_reduce(dist: ModuleType, rank: int, size: int, asynchronous: bool) -> None:
    for dtype in NUMBERS:
        tensor = filled(dtype, EACH, 1)
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert (tensor == (True if dtype == "bool" else size)).all(), dtype
        assert took() == ("single" if size == 1 else "mapped")


def test_everything_else(dist: ModuleType, rank: int, size: int) -> None:
    for dtype in ("bfloat16", "float32", "int8"):
        whole, part = filled(dtype, EACH * size, -1), filled(dtype, EACH, rank)
        dist.all_gather_into_tensor(whole, part)
        wanted = torch.arange(size).repeat_interleave(EACH).to(whole.dtype)
        assert (whole == wanted).all()
        dist.all_gather(list(whole.chunk(size)), part)
        assert (whole == wanted).all()
        dist.reduce_scatter_tensor(part, whole)
        assert (part == rank * size).all()
        back = filled(dtype, EACH * size, 0)
        dist.all_to_all_single(back, whole)
        assert (back == rank).all()
        ways = {"single"} if size == 1 else {"mapped"}
        assert took() in ways
        dist.broadcast(part.fill_(rank), size - 1)
        assert (part == size - 1).all()
        assert took() in ways
        received = list(whole.chunk(size)) if rank == 0 else None
        dist.gather(part.fill_(rank), received, 0)
        assert rank != 0 or (whole == wanted).all()
        given = list(whole.copy_(wanted).chunk(size)) if rank == 0 else None
        dist.scatter(part, given, 0)
        assert (part == rank).all()
        dist.reduce(part.fill_(1), 0)
        assert (part == (size if rank == 0 else 1)).all()
        assert took() in ways


def test_bits_are_the_same_on_all_ranks(dist: ModuleType, rank: int, size: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        tensor = paddlempi.empty(50_021, kind, "torch")
        values = torch.randn(50_021, generator=generator)
        tensor.copy_(values * 10.0 ** torch.randint(-3, 4, (50_021,), generator=generator))
        dist.all_reduce(tensor)
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, tensor.view(torch.int16).numpy().tobytes())
        assert all(bits == everyone[0] for bits in everyone)


def test_flushing_denormals_is_of_the_caller(dist: ModuleType, rank: int, size: int) -> None:
    """A rank that flushes denormals works on chunks of the others, too."""
    bits = paddlempi.empty(EACH, "int32", "torch")  # of a denormal; fill_ could flush it
    if not torch.set_flush_denormal(rank == 0):
        pytest.skip("this processor cannot flush denormals")
    try:
        for _ in range(5):
            dist.all_reduce(bits.fill_(512).view(torch.float32))
            assert (bits == 512 * size).all()
            flushed = torch.full((4,), 2.0**-130) * 0.5
            assert bool((flushed == 0).all()) == (rank == 0), (
                "the mode is not the caller's any more"
            )
    finally:
        torch.set_flush_denormal(False)


def test_autograd(dist: ModuleType, rank: int, size: int) -> None:
    """A tensor that backward needs and a collective has changed is an error.

    torch's own functions do not tell autograd by default; those of paddlempi do.
    """
    tensor = filled("float32", EACH, 2)
    weight = torch.ones((), requires_grad=True)
    loss = (weight * tensor).sum()
    version = tensor._version
    paddlempi.all_reduce(tensor)
    assert tensor._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    leaf = filled("float32", EACH, 3).requires_grad_()
    (leaf * 2).sum().backward()
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert leaf.grad is not None and (leaf.grad == 2).all() and (leaf == 3 * size).all()


def test_gradients_and_parameters(dist: ModuleType, rank: int, size: int) -> None:
    """Backward adds to a gradient in the heap, and collectives come between."""
    parameter = torch.nn.Parameter(filled("float32", EACH, 0))
    gradient = parameter.grad = paddlempi.zeros(EACH, "float32", "torch")
    for _ in range(3):
        gradient.zero_()
        (rank * parameter).sum().backward()
        assert parameter.grad is gradient
        dist.all_reduce(gradient)
        assert took() == ("single" if size == 1 else "mapped")
        parameter.data -= gradient
    assert (parameter == -3 * sum(range(size))).all()


class Shared(Dataset):  # type: ignore[type-arg]
    """Rows that lie in the heap. A worker spoils the row that it has given."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index].clone()
        self.rows[index] = -1
        return row

    def __len__(self) -> int:
        return len(self.rows)


@pytest.mark.mpi(timeout=120)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers(dist: ModuleType, rank: int, size: int) -> None:
    """They see the tensors of the heap, and what they write stays in them."""
    rows = paddlempi.empty((32, 3_000), "float32", "torch")
    gradient = filled("float32", EACH, rank)
    for epoch in range(2):
        rows[...] = torch.arange(32.0)[:, None]
        loader = DataLoader(Shared(rows), 4, num_workers=2, multiprocessing_context="fork")
        total = 0.0
        for batch in loader:
            dist.all_reduce(gradient.fill_(rank + epoch))
            assert (gradient == sum(range(size)) + size * epoch).all()
            total += float(batch.sum())
        assert total == 3_000 * sum(range(32))
        assert (rows[:, 0] == torch.arange(32.0)).all(), "a worker wrote into its parent's rows"


def test_other_ranks_do_not_see_a_child(dist: ModuleType, rank: int, size: int) -> None:
    """A child that writes into a tensor in the middle of a job changes no result."""
    tensor = filled("float32", EACH, rank)
    dist.all_reduce(tensor)  # all ranks have mapped it
    tensor.fill_(rank)
    child = os.fork()
    if child == 0:
        tensor.fill_(1e30)
        os._exit(0 if np.isclose(float(tensor[5]), 1e30) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.all_reduce(tensor)
    assert (tensor == sum(range(size))).all()
