"""all_to_all of lists, and of one tensor with and without split sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tensors import DTYPES, FLAT, STRIDED, Box, Layout, Team, every, noise, rows, same, ways

Sizes = Sequence[Sequence[int]]
"""How many rows member i sends to member j."""


def uneven(size: int) -> Sizes:
    """Return a different number of rows for every pair, for some pairs 0."""
    return [[(3 * i + 2 * j) % 5 for j in range(size)] for i in range(size)]


def check_list(team: Team, how: str, dtype: str, layout: Layout) -> None:
    sent = [
        [noise(dtype, layout.shape, i, j, team.ranks) for j in range(team.size)]
        for i in range(team.size)
    ]
    ins = [Box(dtype, layout, part) for part in sent[team.rank]]
    outs = [Box(dtype, layout) for _ in ins]
    result = team.run(
        how, team.dist.all_to_all, [out.tensor for out in outs], [box.tensor for box in ins]
    )
    for i, out in enumerate(outs):
        out.holds(sent[i][team.rank])
    for box, part in zip(ins, sent[team.rank], strict=True):
        box.holds(part)
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr() for out in outs]


def check_uneven_list(team: Team, how: str, dtype: str, layout: Layout) -> None:
    spread, sizes = layout is STRIDED, uneven(team.size)
    sent = [[noise(dtype, (n, 3), i, j) for j, n in enumerate(row)] for i, row in enumerate(sizes)]
    ins = [Box(dtype, rows(len(part), spread), part) for part in sent[team.rank]]
    outs = [Box(dtype, rows(row[team.rank], spread)) for row in sizes]
    team.run(how, team.dist.all_to_all, [out.tensor for out in outs], [box.tensor for box in ins])
    for i, out in enumerate(outs):
        out.holds(sent[i][team.rank])


def check_single(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """Without split sizes: two rows for every member."""
    spread = layout is STRIDED
    sent = [noise(dtype, (team.size, 2, 3), "single", i) for i in range(team.size)]
    box = Box(dtype, rows(2 * team.size, spread), sent[team.rank].reshape(-1, 3))
    out = Box(dtype, rows(2 * team.size, spread))
    result = team.run(how, team.dist.all_to_all_single, out.tensor, box.tensor)
    out.holds(torch.cat([part[team.rank] for part in sent]))
    box.holds(sent[team.rank])
    if result is not None:
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]


def check_splits(team: Team, how: str, dtype: str, layout: Layout, sizes: Sizes = ()) -> None:
    spread, sizes = layout is STRIDED, sizes or uneven(team.size)
    sent = [[noise(dtype, (n, 3), i, j) for j, n in enumerate(row)] for i, row in enumerate(sizes)]
    whole = torch.cat(sent[team.rank])
    taken = [row[team.rank] for row in sizes]
    box, out = Box(dtype, rows(len(whole), spread), whole), Box(dtype, rows(sum(taken), spread))
    team.run(
        how, team.dist.all_to_all_single, out.tensor, box.tensor, taken, list(sizes[team.rank])
    )
    out.holds(torch.cat([row[team.rank] for row in sent]))


def test_list(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype, layout in every():
            check_list(team, how, dtype, layout)


def test_with_and_without_splits(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for dtype in DTYPES:
            for layout in (FLAT, STRIDED):
                check_single(team, how, dtype, layout)
                check_splits(team, how, dtype, layout)
                check_uneven_list(team, how, dtype, layout)


def test_one_of_the_split_sizes(teams: list[Team]) -> None:
    for team in teams:
        sent = [noise("float32", (team.size, 3), "one", i) for i in range(team.size)]
        wanted = torch.stack([part[team.rank] for part in sent])
        even = [1] * team.size
        for splits in ((even, None), (None, even), ([], even), (even, [])):
            out = Box("float32", rows(team.size))
            team.run("sync", team.dist.all_to_all_single, out.tensor, sent[team.rank], *splits)
            out.holds(wanted)


def test_nothing_at_all(teams: list[Team]) -> None:
    for team in teams:
        nothing = [[0] * team.size] * team.size
        only = [[int(i == j) for j in range(team.size)] for i in range(team.size)]
        for how in ("sync", "async"):
            check_splits(team, how, "float32", FLAT, nothing)
            check_splits(team, how, "float32", FLAT, only)


def test_splits_that_do_not_fit(teams: list[Team]) -> None:
    for team in teams:
        ones, size = torch.ones(2 * team.size), team.size
        wrong = {
            "too long": [2] * (size + 1),
            "too many rows": [3] * size,
            "too few rows": [1] * size,
            "below zero": [2 * size + 1, -1, *[0] * (size - 2)] if size > 1 else [-1],
        }
        for splits in wrong.values():
            for how in ("sync", "async"):
                with pytest.raises(ValueError):
                    team.run(how, team.dist.all_to_all_single, ones.clone(), ones, splits, None)
                with pytest.raises(ValueError):
                    team.run(how, team.dist.all_to_all_single, ones.clone(), ones, None, splits)
        check_single(team, "sync", "float32", FLAT)


@pytest.mark.mpi(min=2)
def test_rows_that_cannot_be_shared_evenly(teams: list[Team]) -> None:
    for team in teams:
        if team.size == 1:
            continue
        odd = torch.ones(team.size + 1, team.size)
        with pytest.raises(ValueError, match="split_sizes"):
            team.run("sync", team.dist.all_to_all_single, odd.clone(), odd)
        check_single(team, "sync", "float32", FLAT)


def test_lazy_views(teams: list[Team]) -> None:
    for team, how in ways(teams):
        whole = torch.arange(2 * team.size).to(torch.complex64) * 1j
        sent, out = whole.conj().imag, torch.zeros_like(whole).conj().imag
        team.run(how, team.dist.all_to_all_single, out, sent)
        mine = -torch.arange(2.0 * team.rank, 2.0 * team.rank + 2)
        same(out.resolve_neg() + 0, mine.repeat(team.size) + 0)
