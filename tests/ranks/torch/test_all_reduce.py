"""all_reduce: every dtype, reduce op, layout, group and way to call it; coalesced."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from tensors import (
    COMPLEX,
    DEFINED,
    DTYPES,
    FACTOR,
    FLAT,
    LAYOUTS,
    NUMBERS,
    STRIDED,
    Box,
    Layout,
    Team,
    numbers,
    reduce_op,
    reduced,
    same,
    same_reduced,
    ways,
)

# torch's own wrapper refuses these for complex tensors, which it reduces as pairs of reals.
NOT_COMPLEX = ("PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def check_all_reduce(
    team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM", factor: Any = FACTOR
) -> None:
    parts = [numbers(dtype, layout.shape, "all_reduce", op, rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    result = team.run(how, team.dist.all_reduce, box.tensor, op=reduce_op(team.dist, op, factor))
    same_reduced(box.tensor, op, parts)
    box.untouched()
    if result is not None:
        assert len(result) == 1 and result[0].data_ptr() == box.tensor.data_ptr()


def check_coalesced(team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM") -> None:
    """Check the coalescing manager with tensors of two dtypes."""
    kinds = [(dtype, layout), (dtype, FLAT), ("int64", layout), (dtype, STRIDED)]
    parts = [
        [numbers(d, la.shape, i, rank) for rank in team.ranks] for i, (d, la) in enumerate(kinds)
    ]
    boxes = [Box(d, la, parts[i][team.rank]) for i, (d, la) in enumerate(kinds)]
    manager = team.dist.distributed_c10d._coalescing_manager
    with manager(team.group, async_ops=how != "sync") as works:
        for box in boxes:
            team.dist.all_reduce(box.tensor, op=reduce_op(team.dist, op), group=team.group)
    if how == "future":
        assert [work.get_future().wait() for work in works.works]
    else:
        works.wait()
    for part, box in zip(parts, boxes, strict=True):
        same_reduced(box.tensor, op, part)
        box.untouched()


def check_list(team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM") -> None:
    """Check all_reduce_coalesced. If it is asynchronous it returns a future."""
    parts = [[numbers(dtype, layout.shape, i, rank) for rank in team.ranks] for i in range(3)]
    boxes = [Box(dtype, layout, part[team.rank]) for part in parts]
    tensors = [box.tensor for box in boxes]
    if how == "sync":
        team.run(how, team.dist.all_reduce_coalesced, tensors, op=reduce_op(team.dist, op))
    else:
        result = team.run(
            "future", team.dist.all_reduce_coalesced, tensors, op=reduce_op(team.dist, op)
        )
        assert [t.data_ptr() for t in result] == [t.data_ptr() for t in tensors]
    for part, box in zip(parts, boxes, strict=True):
        same_reduced(box.tensor, op, part)
        box.untouched()


@pytest.mark.parametrize("op", DEFINED)
def test_every_dtype(teams: list[Team], op: str) -> None:
    for team, how in ways(teams):
        for dtype in DEFINED[op]:
            if dtype in COMPLEX and op in NOT_COMPLEX:
                continue
            check_all_reduce(team, how, dtype, FLAT, op)
            check_all_reduce(team, how, dtype, STRIDED, op)


def test_every_layout(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for layout in LAYOUTS:
            for dtype in NUMBERS:
                check_all_reduce(team, how, dtype, layout)


@pytest.mark.parametrize("op", DEFINED)
def test_what_is_undefined(teams: list[Team], op: str) -> None:
    for team in teams:
        for dtype in DTYPES:
            if dtype in DEFINED[op] and not (dtype in COMPLEX and op in NOT_COMPLEX):
                continue
            for how in ("sync", "async"):
                box = Box(dtype, FLAT, torch.zeros(7).to(getattr(torch, dtype)))
                with pytest.raises((TypeError, ValueError), match=op):
                    team.run(how, team.dist.all_reduce, box.tensor, op=reduce_op(team.dist, op))
                box.holds(torch.zeros(7).to(getattr(torch, dtype)))
        check_all_reduce(team, "sync", "float32", FLAT)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for layout in LAYOUTS:
            check_coalesced(team, how, "float32", layout)
            check_coalesced(team, how, "bfloat16", layout, "MAX")
            check_list(team, how, "float64", layout)
        for dtype in NUMBERS:
            check_list(team, how, dtype, FLAT)


def test_premul_sum_by_a_tensor(teams: list[Team]) -> None:
    for team in teams:
        for dtype in DEFINED["PREMUL_SUM"]:
            check_all_reduce(team, "sync", dtype, FLAT, "PREMUL_SUM", torch.tensor([FACTOR]))
            check_all_reduce(team, "async", dtype, FLAT, "PREMUL_SUM", torch.tensor(FACTOR))


@pytest.mark.mpi(min=2)
def test_premul_sum_of_other_factors(dist: ModuleType, rank: int) -> None:
    with pytest.raises(RuntimeError, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(3), op=dist._make_nccl_premul_sum(float(rank)))
    with pytest.raises(ValueError, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(3), op=dist._make_nccl_premul_sum(torch.tensor(1j)))
    dist.barrier()


def test_not_a_number_goes_through(dist: ModuleType, rank: int, size: int) -> None:
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            tensor = torch.tensor([1.0, float("nan") if rank == size - 1 else 1.0], dtype=dtype)
            dist.all_reduce(tensor, op=op)
            assert tensor.isnan().tolist() == [False, True]


def test_tensors_that_autograd_knows(dist: ModuleType, rank: int, size: int) -> None:
    wanted = torch.full((3,), size * (size + 1) / 2)
    leaf = torch.full((3,), rank + 1.0, requires_grad=True)
    dist.all_reduce(leaf)
    same(leaf.detach(), wanted)
    assert leaf.requires_grad and leaf.is_leaf
    with torch.no_grad():
        leaf.fill_(rank + 1.0)
        dist.all_reduce(leaf, async_op=True).wait()
    same(leaf.detach(), wanted)
    with torch.inference_mode():
        inferred = torch.full((3,), rank + 1.0)
        dist.all_reduce(inferred)
    same(inferred, wanted)
    with torch.inference_mode():
        inferred.fill_(rank + 1.0)
    dist.all_reduce(inferred, async_op=True).wait()
    same(inferred, wanted)


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        parts = [numbers("complex64", 5, "lazy", rank) for rank in team.ranks]
        negative = parts[team.rank].clone().conj().imag
        assert negative.is_neg()
        team.run(how, team.dist.all_reduce, negative)
        same_reduced(negative.resolve_neg(), "SUM", [-part.imag.clone() for part in parts])

        conjugate = parts[team.rank].clone().conj()
        pg = team.group or team.dist.group.WORLD
        pg.allreduce([conjugate]).wait()
        assert conjugate.is_conj()
        same_reduced(conjugate.resolve_conj(), "SUM", [p.conj().resolve_conj() for p in parts])


def test_integers_wrap(dist: ModuleType, size: int) -> None:
    for dtype in DEFINED["BAND"][1:]:
        kind = getattr(torch, dtype)
        most = torch.tensor([torch.iinfo(kind).max] * 3, dtype=kind)
        wanted = reduced("SUM", [most] * size)
        dist.all_reduce(most)
        same(most, wanted)


def test_a_big_one(dist: ModuleType, rank: int, size: int) -> None:
    parts = [numbers("float32", 300_001, "big", r) for r in range(size)]
    for async_op in (False, True):
        tensor = parts[rank].clone()
        work = dist.all_reduce(tensor, async_op=async_op)
        if async_op:
            work.wait()
        same_reduced(tensor, "SUM", parts)


def test_autograd_is_not_told_what_is_written(dist: ModuleType) -> None:
    """As over gloo. With PADDLEMPI_CHECK_AUTOGRAD=1 it is told: tests/jobs/torch."""
    factor = torch.ones(3)
    product = torch.ones(3, requires_grad=True) * factor
    dist.all_reduce(factor)
    product.sum().backward()
    assert factor._version == 0
