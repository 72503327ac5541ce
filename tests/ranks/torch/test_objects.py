"""Collectives and messages of Python objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import Team


def thing(member: int) -> dict[str, Any]:
    """Return an object of a different size for each member."""
    return {
        "text": f"member {member}: " + "of many words " * (4 + 30 * member),
        "tensor": torch.arange(3 * member),
        "none": None,
        "nested": [(member, {member: [1.5] * member})],
    }


def equal(got: Any, wanted: Any) -> None:
    got, wanted = dict(got), dict(wanted)
    assert torch.equal(got.pop("tensor"), wanted.pop("tensor"))
    assert got == wanted


def check_all_gather_object(team: Team) -> None:
    outs: list[Any] = [None] * team.size
    team.dist.all_gather_object(outs, thing(team.rank), group=team.group)
    for member, out in enumerate(outs):
        equal(out, thing(member))


def check_gather_object(team: Team, root: int = -1) -> None:
    root %= team.size
    outs: list[Any] | None = [None] * team.size if team.rank == root else None
    team.dist.gather_object(thing(team.rank), outs, team.ranks[root], group=team.group)
    for member, out in enumerate(outs or ()):
        equal(out, thing(member))


def check_broadcast_object_list(team: Team, root: int = -1) -> None:
    root %= team.size
    outs = [thing(7), "x", 3.5] if team.rank == root else [None, None, None]
    team.dist.broadcast_object_list(outs, team.ranks[root], group=team.group)
    equal(outs[0], thing(7))
    assert outs[1:] == ["x", 3.5]


def check_scatter_object_list(team: Team, root: int = -1) -> None:
    root %= team.size
    sent = [thing(member) for member in range(team.size)] if team.rank == root else None
    out: list[Any] = [None]
    team.dist.scatter_object_list(out, sent, team.ranks[root], group=team.group)
    equal(out[0], thing(team.rank))


def check_object_messages(team: Team) -> None:
    if team.rank == 0:
        for member in range(1, team.size):
            sent = [thing(member), member, [None]]
            team.dist.send_object_list(sent, team.ranks[member], group=team.group)
    else:
        got: list[Any] = [None, None, None]
        team.dist.recv_object_list(got, team.ranks[0], group=team.group)
        equal(got[0], thing(team.rank))
        assert got[1:] == [team.rank, [None]]


CHECKS = (
    check_all_gather_object,
    check_gather_object,
    check_broadcast_object_list,
    check_scatter_object_list,
    check_object_messages,
)


@pytest.mark.parametrize("check", CHECKS)
def test_objects(teams: list[Team], check: Any) -> None:
    for team in teams:
        check(team)


@pytest.mark.parametrize("check", CHECKS[1:4])
def test_every_root(teams: list[Team], check: Any) -> None:
    for team in teams:
        for root in range(team.size):
            check(team, root)
