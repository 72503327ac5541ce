"""gather, gather_single and scatter: from and to every root."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import LAYOUTS, Box, Layout, Team, every, flat, noise, same, ways


def check_gather(team: Team, how: str, dtype: str, layout: Layout, root: int = -1) -> None:
    root %= team.size
    parts = [noise(dtype, layout.shape, "gather", rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    outs = [Box(dtype, layout) for _ in parts] if team.rank == root else []
    result = team.run(
        how, team.dist.gather, box.tensor, [out.tensor for out in outs] or None, team.ranks[root]
    )
    for out, part in zip(outs, parts, strict=bool(outs)):
        out.holds(part)
    box.holds(parts[team.rank])
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr() for out in outs]


def check_scatter(team: Team, how: str, dtype: str, layout: Layout, root: int = -1) -> None:
    root %= team.size
    parts = [noise(dtype, layout.shape, "scatter", rank) for rank in team.ranks]
    sent = [Box(dtype, layout, part) for part in parts] if team.rank == root else []
    out = Box(dtype, layout)
    result = team.run(
        how, team.dist.scatter, out.tensor, [box.tensor for box in sent] or None, team.ranks[root]
    )
    out.holds(parts[team.rank])
    for box, part in zip(sent, parts, strict=bool(sent)):
        box.holds(part)
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]


def check_gather_single(team: Team, how: str, dtype: str, layout: Layout, root: int = -1) -> None:
    """Check gather_single of torch.distributed, or of the group if torch has no such function."""
    root %= team.size
    parts = [noise(dtype, layout.shape, "single", rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    whole = torch.stack([part.reshape(-1) for part in parts])
    out = Box(dtype, flat(whole.numel()))
    if hasattr(team.dist, "gather_single"):
        given = out.tensor if team.rank == root else None
        team.run(how, team.dist.gather_single, box.tensor, given, team.ranks[root])
    else:
        opts = team.dist.GatherOptions()
        opts.rootRank, opts.asyncOp = root, how != "sync"
        pg = team.group or team.dist.group.WORLD
        work = pg.gather_single(out.tensor, box.tensor, opts)
        if how == "future":
            work.get_future().wait()
        else:
            work.wait()
    if team.rank == root:
        out.holds(whole)
    else:
        out.untouched()


CHECKS = (check_gather, check_scatter, check_gather_single)


@pytest.mark.parametrize("check", CHECKS)
def test_every_dtype_and_layout(teams: list[Team], check: Any) -> None:
    for team, how in ways(teams):
        for dtype, layout in every():
            check(team, how, dtype, layout)


@pytest.mark.parametrize("check", CHECKS)
def test_every_root(teams: list[Team], check: Any) -> None:
    for team, how in ways(teams):
        for root in range(team.size):
            for layout in LAYOUTS:
                check(team, how, "float32", layout, root)


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        parts = [noise("int16", 3, rank).to(torch.complex64) for rank in team.ranks]
        given = (parts[team.rank] * 1j).conj()
        mine = team.rank == 0
        outs = [torch.zeros(3, dtype=torch.complex64).conj() for _ in parts] if mine else None
        team.run(how, team.dist.gather, given, outs, team.ranks[0])
        for out, part in zip(outs or [], parts, strict=mine):
            same(out.resolve_conj(), (part * 1j).conj().resolve_conj())

        negatives = [(part * 1j).conj().imag for part in parts]
        taken = torch.zeros(3, dtype=torch.complex64).conj().imag
        team.run(how, team.dist.scatter, taken, negatives if mine else None, team.ranks[0])
        same(taken.resolve_neg(), negatives[team.rank].resolve_neg())
