"""reduce: every dtype and reduce op, to every root; the tensors of other ranks do not change."""

from __future__ import annotations

import pytest
from tensors import (
    DEFINED,
    DTYPES,
    FLAT,
    LAYOUTS,
    STRIDED,
    Box,
    Layout,
    Team,
    noise,
    numbers,
    reduce_op,
    same_reduced,
    ways,
)


def check_reduce(
    team: Team, how: str, dtype: str, layout: Layout, op: str = "SUM", root: int = -1
) -> None:
    root %= team.size
    parts = [numbers(dtype, layout.shape, "reduce", op, rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    team.run(how, team.dist.reduce, box.tensor, team.ranks[root], op=reduce_op(team.dist, op))
    if team.rank == root:
        same_reduced(box.tensor, op, parts)
        box.untouched()
    else:
        box.holds(parts[team.rank])


@pytest.mark.parametrize("op", DEFINED)
def test_every_dtype(teams: list[Team], op: str) -> None:
    for team, how in ways(teams):
        for dtype in DEFINED[op]:
            check_reduce(team, how, dtype, FLAT, op)
            check_reduce(team, how, dtype, STRIDED, op, 0)


def test_every_layout_and_root(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for layout in LAYOUTS:
            for root in range(team.size):
                check_reduce(team, how, "float32", layout, "SUM", root)
                check_reduce(team, how, "float16", layout, "MAX", root)


def test_what_is_undefined(teams: list[Team]) -> None:
    for team in teams:
        for op, defined in DEFINED.items():
            for dtype in set(DTYPES) - set(defined):
                for how in ("sync", "async"):
                    box = Box(dtype, FLAT, noise(dtype, 7))
                    with pytest.raises(TypeError, match=op):
                        team.run(
                            how,
                            team.dist.reduce,
                            box.tensor,
                            team.ranks[0],
                            op=reduce_op(team.dist, op),
                        )
                    box.holds(noise(dtype, 7))
        check_reduce(team, "sync", "float32", FLAT)


def test_root_by_its_rank_in_the_group(teams: list[Team]) -> None:
    for team in teams:
        parts = [numbers("float32", 7, rank) for rank in team.ranks]
        box = Box("float32", FLAT, parts[team.rank])
        team.run("sync", team.dist.reduce, box.tensor, group_dst=team.size - 1)
        if team.rank == team.size - 1:
            same_reduced(box.tensor, "SUM", parts)
        else:
            box.holds(parts[team.rank])


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        parts = [numbers("complex128", 5, "lazy", rank) for rank in team.ranks]
        conjugate = parts[team.rank].clone().conj()
        team.run(how, team.dist.reduce, conjugate, team.ranks[0])
        wanted = [part.conj().resolve_conj() for part in parts]
        if team.rank == 0:
            same_reduced(conjugate.resolve_conj(), "SUM", wanted)
        else:
            same_reduced(conjugate.resolve_conj(), "SUM", wanted[team.rank : team.rank + 1])
