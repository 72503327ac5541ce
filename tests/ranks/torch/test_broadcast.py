"""broadcast: every dtype from every root."""

from __future__ import annotations

import torch
from tensors import DTYPES, FLAT, STRIDED, Box, Layout, Team, every, noise, same, ways


def check_broadcast(
    team: Team, how: str, dtype: str, layout: Layout, root: int = -1, by_group: bool = False
) -> None:
    root %= team.size
    parts = [noise(dtype, layout.shape, "broadcast", rank) for rank in team.ranks]
    box = Box(dtype, layout, parts[team.rank])
    place = {"group_src": root} if by_group else {"src": team.ranks[root]}
    result = team.run(how, team.dist.broadcast, box.tensor, **place)
    box.holds(parts[root])
    if result is not None:
        assert [tensor.data_ptr() for tensor in result] == [box.tensor.data_ptr()]


def test_every_dtype_and_layout(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype, layout in every():
            check_broadcast(team, how, dtype, layout)


def test_every_root(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for root in range(team.size):
            for dtype in DTYPES:
                check_broadcast(team, how, dtype, FLAT, root, by_group=True)
            check_broadcast(team, how, "float32", STRIDED, root)


def test_one_layout_into_another(teams: list[Team]) -> None:
    for team in teams:
        for root in range(team.size):
            sent = noise("int16", (4, 2), "other")
            layout = Layout("transposed", (4, 2), (1, 4), 0, 8)
            box = Box("int16", layout if team.rank == root else Layout("", (4, 2), (2, 1), 0, 8))
            if team.rank == root:
                box.tensor.copy_(sent)
            team.run("sync", team.dist.broadcast, box.tensor, team.ranks[root])
            box.holds(sent)


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        parts = [noise("int32", 6, rank).to(torch.complex64) * 1j for rank in team.ranks]
        negative = parts[team.rank].conj().imag
        assert negative.is_neg()
        team.run(how, team.dist.broadcast, negative, team.ranks[0])
        same(negative.resolve_neg(), -parts[0].imag.clone())
