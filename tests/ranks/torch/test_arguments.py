"""Wrong arguments: every rank raises a class that torch's users know; the group stays usable."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from tensors import HOWS, Team

pytestmark = pytest.mark.mpi(min=2)

KNOWN = (TypeError, ValueError, RuntimeError)


@pytest.fixture(params=HOWS[:2])
def how(request: pytest.FixtureRequest) -> Any:
    return request.param


def usable(team: Team) -> None:
    tensor = torch.ones(3)
    team.dist.all_reduce(tensor, group=team.group)
    assert tensor.tolist() == [team.size] * 3


Call = tuple[str, Callable[[Team], tuple[Any, ...]]]


def odd(team: Team, usual: int, other: int) -> int:
    """Return `other` on the last member and `usual` on all other members."""
    return other if team.rank == team.size - 1 else usual


UNEQUAL: list[Call] = [
    ("all_reduce", lambda t: (torch.ones(odd(t, 3, 4)),)),
    ("all_reduce", lambda t: (torch.ones(odd(t, 3, 0)),)),
    ("reduce", lambda t: (torch.ones(odd(t, 3, 4)), t.ranks[0])),
    ("broadcast", lambda t: (torch.ones(odd(t, 3, 4)), t.ranks[0])),
    (
        "all_gather",
        lambda t: ([torch.ones(3) for _ in t.ranks], torch.ones(odd(t, 3, 4))),
    ),
    (
        "all_gather_into_tensor",
        lambda t: (torch.ones(3 * t.size), torch.ones(odd(t, 3, 4))),
    ),
    (
        "gather",
        lambda t: (
            torch.ones(odd(t, 3, 4)),
            [torch.ones(3) for _ in t.ranks] if t.rank == 0 else None,
            t.ranks[0],
        ),
    ),
    (
        "scatter",
        lambda t: (
            torch.ones(odd(t, 3, 4)),
            [torch.ones(3) for _ in t.ranks] if t.rank == 0 else None,
            t.ranks[0],
        ),
    ),
    (
        "reduce_scatter",
        lambda t: (torch.ones(odd(t, 3, 4)), [torch.ones(3) for _ in t.ranks]),
    ),
    (
        "reduce_scatter_tensor",
        lambda t: (torch.ones(odd(t, 3, 4)), torch.ones(3 * t.size)),
    ),
    (
        "all_to_all",
        lambda t: ([torch.ones(odd(t, 3, 4)) for _ in t.ranks], [torch.ones(3) for _ in t.ranks]),
    ),
    (
        "all_to_all_single",
        lambda t: (torch.ones(odd(t, 3, 4) * t.size), torch.ones(3 * t.size)),
    ),
]
"""The last member's shapes do not go with the others'."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name,make", UNEQUAL, ids=[name for name, _ in UNEQUAL])
def test_shapes_that_differ(
    teams: list[Team], how: str, name: str, make: Callable[[Team], tuple[Any, ...]]
) -> None:
    for team in teams:
        if team.size > 1:
            with pytest.raises(KNOWN):
                team.run(how, getattr(team.dist, name), *make(team))
        usable(team)


def kind(team: Team, count: int) -> Any:
    """Return a tensor of float64 on the last member, of float32 on all others."""
    return torch.ones(count, dtype=torch.float64 if team.rank == team.size - 1 else torch.float32)


OTHER_DTYPES: list[Call] = [
    ("all_reduce", lambda t: (kind(t, 3),)),
    ("reduce", lambda t: (kind(t, 3), t.ranks[0])),
    ("broadcast", lambda t: (kind(t, 3), t.ranks[0])),
    ("all_gather", lambda t: ([kind(t, 3) for _ in t.ranks], kind(t, 3))),
    ("all_gather_into_tensor", lambda t: (kind(t, 3 * t.size), kind(t, 3))),
    (
        "gather",
        lambda t: (kind(t, 3), [kind(t, 3) for _ in t.ranks] if t.rank == 0 else None, t.ranks[0]),
    ),
    (
        "scatter",
        lambda t: (kind(t, 3), [kind(t, 3) for _ in t.ranks] if t.rank == 0 else None, t.ranks[0]),
    ),
    ("reduce_scatter", lambda t: (kind(t, 3), [kind(t, 3) for _ in t.ranks])),
    ("reduce_scatter_tensor", lambda t: (kind(t, 3), kind(t, 3 * t.size))),
    ("all_to_all", lambda t: ([kind(t, 3) for _ in t.ranks], [kind(t, 3) for _ in t.ranks])),
    ("all_to_all_single", lambda t: (kind(t, 3 * t.size), kind(t, 3 * t.size))),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name,make", OTHER_DTYPES, ids=[name for name, _ in OTHER_DTYPES])
def test_dtypes_that_differ(
    teams: list[Team], how: str, name: str, make: Callable[[Team], tuple[Any, ...]]
) -> None:
    for team in teams:
        if team.size > 1:
            with pytest.raises(RuntimeError, match="float64"):
                team.run(how, getattr(team.dist, name), *make(team))
        usable(team)


def wrong(team: Team, tensor: Any) -> list[Call]:
    """Return every collective, with this tensor on the last member and good ones elsewhere."""
    last, good = team.rank == team.size - 1, torch.ones(4)
    mine = tensor if last else good
    goods = [torch.ones(4) for _ in team.ranks]
    whole = torch.ones(4 * team.size)
    root = team.ranks[-1]
    return [
        ("all_reduce", lambda _: (mine,)),
        ("reduce", lambda _: (mine, root)),
        ("broadcast", lambda _: (mine, root)),
        ("all_gather", lambda _: (goods, mine)),
        ("all_gather", lambda _: ([*goods[1:], mine], good)),
        ("all_gather_into_tensor", lambda _: (whole, mine)),
        ("gather", lambda _: (mine, goods if last else None, root)),
        ("scatter", lambda _: (mine, goods if last else None, root)),
        ("reduce_scatter", lambda _: (mine, goods)),
        ("reduce_scatter_tensor", lambda _: (mine, whole)),
        ("all_to_all", lambda _: (goods, [*goods[1:], mine])),
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Sparse", "ignore:.*quantize")
@pytest.mark.parametrize(
    "what", ["meta", "sparse_csr", "quantized", "expanded"], ids=lambda what: str(what)
)
def test_a_tensor_that_cannot_be_used_on_one_rank(teams: list[Team], how: str, what: str) -> None:
    tensor = {
        "meta": lambda: torch.ones(4, device="meta"),
        "sparse_csr": lambda: torch.ones(2, 2).to_sparse_csr(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
        "expanded": lambda: torch.ones(1).expand(4),
    }[what]()
    for team in teams:
        calls = wrong(team, tensor)
        if what == "quantized":  # in other calls torch checks the dtypes first
            calls = calls[:3]
        elif what == "expanded":  # an input may be expanded
            calls = [calls[i] for i in (0, 1, 4, 7, 8, 9)]
        for name, make in calls:
            with pytest.raises(KNOWN):
                team.run(how, getattr(team.dist, name), *make(team))
            usable(team)


def test_what_one_rank_is_told_and_what_the_others(dist: ModuleType, rank: int, size: int) -> None:
    error: type[Exception] = TypeError if rank == 0 else RuntimeError
    text = "BAND is not defined for float32" if rank == 0 else r"rank\(s\) \[0\]"
    tensor = torch.ones(3)
    with pytest.raises(error, match=text):
        op = dist.ReduceOp.BAND if rank == 0 else dist.ReduceOp.SUM
        dist.all_reduce(tensor, op=op)
    assert tensor.tolist() == [1.0] * 3
    dist.barrier()


def test_different_calls(teams: list[Team], how: str) -> None:
    for team in teams:
        if team.size == 1:
            continue
        calls: list[tuple[Any, Any]] = [
            ((team.dist.all_reduce,), (team.dist.broadcast, team.ranks[0])),
            ((team.dist.broadcast, team.ranks[0]), (team.dist.broadcast, team.ranks[1])),
            ((team.dist.reduce, team.ranks[0]), (team.dist.reduce, team.ranks[1])),
            ((team.dist.all_reduce,), (team.dist.all_reduce, team.dist.ReduceOp.MAX)),
        ]
        for first, other in calls:
            function, *arguments = other if team.rank else first
            with pytest.raises(RuntimeError, match="do not call the same thing"):
                team.run(how, function, torch.ones(3), *arguments)
            usable(team)
