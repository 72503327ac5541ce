"""reduce_scatter: lists, even and uneven, from one tensor, coalesced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import (
    DEFINED,
    DTYPES,
    FLAT,
    LAYOUTS,
    STRIDED,
    Box,
    Layout,
    Team,
    flat,
    noise,
    numbers,
    reduce_op,
    rows,
    same_reduced,
    ways,
)


def check_list(team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM") -> None:
    parts = [
        [numbers(dtype, layout.shape, op, i, rank) for i in range(team.size)] for rank in team.ranks
    ]
    sent = [Box(dtype, layout, part) for part in parts[team.rank]]
    out = Box(dtype, layout)
    result = team.run(
        how,
        team.dist.reduce_scatter,
        out.tensor,
        [box.tensor for box in sent],
        op=reduce_op(team.dist, op),
    )
    same_reduced(out.tensor, op, [row[team.rank] for row in parts])
    out.untouched()
    for box, part in zip(sent, parts[team.rank], strict=True):
        box.holds(part)
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]


def check_uneven(team: Team, how: str, dtype: str, spread: Layout) -> None:
    """Member i gets 2 * i rows."""
    sizes = [rows(2 * i, spread is STRIDED) for i in range(team.size)]
    parts = [
        [numbers(dtype, size.shape, i, rank) for i, size in enumerate(sizes)] for rank in team.ranks
    ]
    sent = [Box(dtype, size, part) for size, part in zip(sizes, parts[team.rank], strict=True)]
    out = Box(dtype, sizes[team.rank])
    team.run(how, team.dist.reduce_scatter, out.tensor, [box.tensor for box in sent])
    same_reduced(out.tensor, "SUM", [row[team.rank] for row in parts])
    out.untouched()


def check_tensor(
    team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM", stacked: bool = False
) -> None:
    count = numbers(dtype, layout.shape).numel()
    parts = [numbers(dtype, (team.size, count), "tensor", op, rank) for rank in team.ranks]
    form = Layout("stacked", (team.size, count), (count + 2, 1), 1, team.size * (count + 2) + 9)
    whole = Box(dtype, form if stacked and count else flat(team.size * count), parts[team.rank])
    out = Box(dtype, layout)
    result = team.run(
        how,
        team.dist.reduce_scatter_tensor,
        out.tensor,
        whole.tensor,
        op=reduce_op(team.dist, op),
    )
    same_reduced(out.tensor.reshape(-1), op, [part[team.rank] for part in parts])
    out.untouched()
    whole.holds(parts[team.rank])
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]


def check_coalesced(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """Check reduce_scatter_tensor in the coalescing manager."""
    kinds = [(dtype, layout), ("int64", FLAT), (dtype, STRIDED)]
    counts = [noise(d, la.shape).numel() for d, la in kinds]
    sent = [
        [numbers(d, (team.size, count), i, rank) for rank in team.ranks]
        for i, ((d, _), count) in enumerate(zip(kinds, counts, strict=True))
    ]
    outs = [Box(d, la) for d, la in kinds]
    manager = team.dist.distributed_c10d._coalescing_manager
    with manager(team.group, async_ops=how != "sync") as works:
        for out, part in zip(outs, sent, strict=True):
            given = part[team.rank].reshape(-1)
            team.dist.reduce_scatter_tensor(out.tensor, given, group=team.group)
    if how == "future":
        for work in works.works:
            result = work.get_future().wait()
            assert [t.data_ptr() for t in result] == [out.tensor.data_ptr() for out in outs]
    else:
        works.wait()
    for out, part in zip(outs, sent, strict=True):
        same_reduced(out.tensor.reshape(-1), "SUM", [whole[team.rank] for whole in part])
        out.untouched()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("check", [check_list, check_tensor])
@pytest.mark.parametrize("op", DEFINED)
def test_every_dtype(teams: list[Team], op: str, check: Any) -> None:
    for team, how in ways(teams):
        for dtype in DEFINED[op]:
            check(team, how, dtype, FLAT, op)
            check(team, how, dtype, STRIDED, op)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_layout(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for layout in LAYOUTS:
            for dtype in ("float32", "bfloat16", "int8"):
                check_list(team, how, dtype, layout)
                check_tensor(team, how, dtype, layout)
                check_tensor(team, how, dtype, layout, stacked=True)
                check_coalesced(team, how, dtype, layout)


def test_uneven(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype in ("float32", "uint8", "float16", "complex128"):
            check_uneven(team, how, dtype, FLAT)
            check_uneven(team, how, dtype, STRIDED)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_undefined(teams: list[Team]) -> None:
    for team in teams:
        for op, defined in DEFINED.items():
            for dtype in set(DTYPES) - set(defined):
                out = Box(dtype, FLAT, noise(dtype, 7))
                whole = noise(dtype, 7 * team.size)
                for how in ("sync", "async"):
                    with pytest.raises(TypeError, match=op):
                        team.run(
                            how,
                            team.dist.reduce_scatter_tensor,
                            out.tensor,
                            whole,
                            op=reduce_op(team.dist, op),
                        )
                out.holds(noise(dtype, 7))
        check_tensor(team, "sync", "float32", FLAT)


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        parts = [
            [numbers("complex64", 3, i, rank).conj() for i in range(team.size)]
            for rank in team.ranks
        ]
        out = torch.zeros(3, dtype=torch.complex64).conj()
        team.run(how, team.dist.reduce_scatter, out, parts[team.rank])
        wanted = [row[team.rank].resolve_conj() for row in parts]
        same_reduced(out.resolve_conj(), "SUM", wanted)
