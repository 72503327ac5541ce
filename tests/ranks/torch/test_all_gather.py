"""all_gather: lists, even and uneven, into one tensor, coalesced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import (
    EXPANDED,
    FLAT,
    LAYOUTS,
    MATRIX,
    STRIDED,
    TRANSPOSED,
    Box,
    Layout,
    Team,
    every,
    flat,
    noise,
    rows,
    same,
    ways,
)


def check_all_gather(team: Team, how: str, dtype: str, layout: Layout) -> None:
    parts = [noise(dtype, layout.shape, "all_gather", rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    outs = [Box(dtype, layout) for _ in parts]
    result = team.run(how, team.dist.all_gather, [out.tensor for out in outs], box.tensor)
    for out, part in zip(outs, parts, strict=True):
        out.holds(part)
    box.holds(parts[team.rank])
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr() for out in outs]


def check_uneven(team: Team, how: str, dtype: str, spread: Layout) -> None:
    """Member i has 2 * i rows. gloo refuses such lists."""
    sizes = [rows(2 * i, spread is STRIDED) for i in range(team.size)]
    parts = [noise(dtype, size.shape, "uneven", i) for i, size in enumerate(sizes)]
    outs = [Box(dtype, size) for size in sizes]
    box = Box(dtype, sizes[team.rank], parts[team.rank])
    team.run(how, team.dist.all_gather, [out.tensor for out in outs], box.tensor)
    for out, part in zip(outs, parts, strict=True):
        out.holds(part)


def check_into_tensor(
    team: Team, how: str, dtype: str, layout: Layout, stacked: bool = False
) -> None:
    parts = [noise(dtype, layout.shape, "into", rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    whole = torch.stack([part.reshape(-1) for part in parts])
    form = Layout("stacked", tuple(whole.shape), (whole.shape[1] + 2, 1), 1, whole.numel() + 99)
    out = Box(dtype, form if stacked and whole.numel() else flat(whole.numel()))
    result = team.run(how, team.dist.all_gather_into_tensor, out.tensor, box.tensor)
    out.holds(whole)
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]


def check_coalesced(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """Check all_gather_into_tensor in the coalescing manager."""
    kinds = [(dtype, layout), ("int64", FLAT), (dtype, STRIDED)]
    sent = [[noise(d, la.shape, i, rank) for rank in team.ranks] for i, (d, la) in enumerate(kinds)]
    boxes = [Box(d, la, sent[i][team.rank]) for i, (d, la) in enumerate(kinds)]
    outs = [
        Box(d, flat(part[0].numel() * team.size)) for (d, _), part in zip(kinds, sent, strict=True)
    ]
    manager = team.dist.distributed_c10d._coalescing_manager
    with manager(team.group, async_ops=how != "sync") as works:
        for out, box in zip(outs, boxes, strict=True):
            team.dist.all_gather_into_tensor(out.tensor, box.tensor, group=team.group)
    if how == "future":
        for work in works.works:
            result = work.get_future().wait()
            assert [t.data_ptr() for t in result] == [out.tensor.data_ptr() for out in outs]
    else:
        works.wait()
    for out, part in zip(outs, sent, strict=True):
        out.holds(torch.stack(part))


def check_lists(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """Check all_gather_coalesced, which gathers every member's list."""
    sent = [[noise(dtype, layout.shape, i, rank) for i in range(2)] for rank in team.ranks]
    boxes = [Box(dtype, layout, part) for part in sent[team.rank]]
    outs = [[Box(dtype, layout) for _ in row] for row in sent]
    team.run(
        how if how == "sync" else "future",
        team.dist.all_gather_coalesced,
        [[out.tensor for out in row] for row in outs],
        [box.tensor for box in boxes],
    )
    for row, parts in zip(outs, sent, strict=True):
        for out, part in zip(row, parts, strict=True):
            out.holds(part)


def test_all_gather(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype, layout in every():
            check_all_gather(team, how, dtype, layout)


def test_uneven(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype in ("float32", "uint8", "bfloat16", "complex128", "bool"):
            check_uneven(team, how, dtype, FLAT)
            check_uneven(team, how, dtype, STRIDED)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_into_tensor(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype, layout in every():
            check_into_tensor(team, how, dtype, layout)
        for layout in LAYOUTS:
            check_into_tensor(team, how, "float32", layout, stacked=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for layout in LAYOUTS:
            for dtype in ("float32", "bool", "float16"):
                check_coalesced(team, how, dtype, layout)
                check_lists(team, how, dtype, layout)


def test_expanded_input(teams: list[Team]) -> None:
    for team in teams:
        sent = [noise("float64", 2, rank).expand(4, 2) for rank in team.ranks]
        outs = [Box("float64", rows_of(4, 2)) for _ in sent]
        given = sent[team.rank]
        assert given.stride() == EXPANDED.strides
        team.run("sync", team.dist.all_gather, [out.tensor for out in outs], given)
        for out, part in zip(outs, sent, strict=True):
            out.holds(part.contiguous())


def rows_of(count: int, width: int) -> Layout:
    return Layout("", (count, width), (width, 1), 0, count * width)


def test_outputs_that_share_their_elements(teams: list[Team]) -> None:
    for team in teams:
        outs = [torch.zeros(2).expand(4, 2) for _ in team.ranks]
        for how in ("sync", "async"):
            with pytest.raises(ValueError, match="share memory"):
                team.run(how, team.dist.all_gather, outs, torch.ones(4, 2))
        check_all_gather(team, "sync", "float32", FLAT)


def test_one_layout_into_another(teams: list[Team]) -> None:
    for team, how in ways(teams):
        sent = noise("complex64", 6, "other")
        for out_layout in (MATRIX, STRIDED, TRANSPOSED):
            outs = [Box("complex64", out_layout) for _ in team.ranks]
            box = Box("complex64", STRIDED, sent)
            team.run(how, team.dist.all_gather, [out.tensor for out in outs], box.tensor)
            for out in outs:
                out.holds(sent)


def test_lazy_views(teams: list[Team]) -> None:
    def negative(rank: int) -> Any:
        return (torch.arange(3) + rank + 1j * torch.arange(3)).to(torch.complex64).conj().imag

    for team, how in ways(teams):
        outs = [negative(9) for _ in team.ranks]
        team.run(how, team.dist.all_gather, outs, negative(team.rank))
        for out in outs:
            same(out.resolve_neg(), -torch.arange(3).float())
