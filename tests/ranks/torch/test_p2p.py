"""Messages: send, recv, isend, irecv, tags, any source, batches, a rank to itself."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from tensors import DTYPES, FLAT, LAYOUTS, STRIDED, Box, Layout, Team, flat, noise, same

pytestmark = pytest.mark.mpi(min=2)


def check_ring(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """Every member sends to the next: by send and recv if `how` is "sync", else isend, irecv."""
    if team.size == 1:
        return
    before, after = (team.rank - 1) % team.size, (team.rank + 1) % team.size
    sent = [noise(dtype, layout.shape, "ring", rank) for rank in team.ranks]
    box, out = Box(dtype, layout, sent[team.rank]), Box(dtype, layout)
    if how == "sync":

        def receive() -> None:
            source = team.dist.recv(out.tensor, team.ranks[before], group=team.group)
            assert source == team.ranks[before]

        if team.rank % 2:
            receive()
        team.dist.send(box.tensor, team.ranks[after], group=team.group)
        if not team.rank % 2:
            receive()
    else:
        coming = team.dist.irecv(out.tensor, team.ranks[before], group=team.group)
        going = team.dist.isend(box.tensor, team.ranks[after], group=team.group)
        if how == "future":
            result = coming.get_future().wait()
            assert going.get_future().wait() == []
        else:
            assert coming.wait() and going.wait()
            assert coming.is_completed() and coming.is_success()
            result = coming.result()
        assert [t.data_ptr() for t in result] == [out.tensor.data_ptr()]
        assert coming.source_rank() == coming._source_rank() == before
    out.holds(sent[before])
    box.holds(sent[team.rank])


def check_batch(team: Team, how: str, dtype: str, layout: Layout, count: int = 3) -> None:
    """Check batch_isend_irecv of several messages with every other member."""
    others = [peer for peer in range(team.size) if peer != team.rank]
    if not others:
        return

    def message(source: int, target: int, i: int) -> Any:
        return noise(dtype, layout.shape, "batch", source, target, i)

    outs = [(peer, i, Box(dtype, layout)) for peer in others for i in range(count)]
    ins = [Box(dtype, layout, message(team.rank, peer, i)) for peer in others for i in range(count)]
    op, dist = team.dist.P2POp, team.dist
    operations = [op(dist.irecv, out.tensor, team.ranks[p], team.group) for p, _, out in outs]
    operations += [
        op(dist.isend, box.tensor, team.ranks[peer], team.group)
        for (peer, _, _), box in zip(outs, ins, strict=True)
    ]
    works = dist.batch_isend_irecv(operations)
    for work in works:
        assert work.wait() if how != "future" else work.get_future().wait() is not None
    for peer, i, out in outs:
        out.holds(message(peer, team.rank, i))


def check_any_source(team: Team, how: str, dtype: str, layout: Layout) -> None:
    """The first member receives from all other members, in the order of arrival."""
    if team.rank:
        box = Box(dtype, layout, noise(dtype, layout.shape, "any", team.rank))
        team.dist.send(box.tensor, team.ranks[0], group=team.group)
    left = set() if team.rank else set(range(1, team.size))
    while left:
        out = Box(dtype, layout)
        if how == "sync":
            source = team.dist.recv(out.tensor, group=team.group)
        else:
            work = team.dist.irecv(out.tensor, group=team.group)
            work.wait()
            source = team.ranks[work._source_rank()]
        member = team.ranks.index(source)
        left.remove(member)
        out.holds(noise(dtype, layout.shape, "any", member))
    team.dist.barrier(group=team.group)  # so that no message of the next check arrives in this one


CHECKS = (check_ring, check_batch, check_any_source)


@pytest.mark.parametrize("check", CHECKS)
def test_every_dtype(teams: list[Team], check: Any) -> None:
    for team in teams:
        for dtype in DTYPES:
            check(team, "sync", dtype, FLAT)
            check(team, "async", dtype, STRIDED)


@pytest.mark.parametrize("check", CHECKS)
def test_every_layout(teams: list[Team], check: Any) -> None:
    for team in teams:
        for how in ("sync", "async", "future"):
            for layout in LAYOUTS:
                check(team, how, "float32", layout)


def test_many_in_one_batch(teams: list[Team]) -> None:
    for team in teams:
        check_batch(team, "async", "int32", FLAT, 40)


def test_tags(dist: ModuleType, rank: int, size: int) -> None:
    """A receive may take the message that was sent last, by its tag."""
    if rank == 0:
        works = [dist.isend(torch.full((4,), tag), 1, tag=tag) for tag in range(6)]
        dist.send(torch.full((4,), 77), 1, tag=1 << 20)
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (1 << 20, *range(5, -1, -1)):
            got = torch.zeros(4, dtype=torch.int64)
            assert dist.recv(got, None if tag % 2 else 0, tag=tag) == 0
            same(got, torch.full((4,), 77 if tag == 1 << 20 else tag))
    dist.barrier()


def test_to_oneself(teams: list[Team]) -> None:
    for team in teams:
        for first in ("send", "recv"):
            box, out = Box("float32", STRIDED, noise("float32", 6, "self")), Box("float32", STRIDED)
            calls = [
                lambda t=team, b=box: t.dist.isend(b.tensor, t.ranks[t.rank], group=t.group),
                lambda t=team, o=out: t.dist.irecv(o.tensor, t.ranks[t.rank], group=t.group),
            ]
            for work in [call() for call in (calls if first == "send" else calls[::-1])]:
                work.wait()
            out.holds(noise("float32", 6, "self"))
        with pytest.raises(ValueError):
            team.dist.send(torch.ones(2), team.ranks[team.rank], group=team.group)


def test_ranks_of_the_group(teams: list[Team]) -> None:
    for team in teams:
        if team.size == 1:
            continue
        out = Box("int64", FLAT)
        if team.rank == 0:
            team.dist.send(noise("int64", 7), group=team.group, group_dst=team.size - 1)
        elif team.rank == team.size - 1:
            team.dist.recv(out.tensor, group=team.group, group_src=0)
            out.holds(noise("int64", 7))


def test_a_message_of_another_length(dist: ModuleType, rank: int) -> None:
    if rank == 0:
        for count in (3, 5):
            dist.send(torch.ones(count), 1)
        dist.send(torch.full((4,), 2.0), 1)
    elif rank == 1:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="recv"):
                dist.recv(torch.zeros(4), 0)
        got = torch.zeros(4)
        dist.recv(got, 0)
        same(got, torch.full((4,), 2.0))
    dist.barrier()


def test_arguments(dist: ModuleType, rank: int, size: int) -> None:
    ones, pg = torch.ones(3), dist.group.WORLD
    with pytest.raises(ValueError, match="tag"):
        dist.isend(ones, 1 - rank if rank < 2 else 0, tag=-3)
    other = 1 - rank if rank < 2 else 0
    for receive in (dist.recv, dist.irecv):  # -1 would be any tag to the core
        with pytest.raises(ValueError, match="tag=-1"):
            receive(ones, other, tag=-1)
        with pytest.raises(ValueError, match="tag=-1"):
            receive(ones, tag=-1)
    for wrong in (size, -1):
        with pytest.raises((ValueError, RuntimeError)):
            pg.send([ones], wrong, 0)
        with pytest.raises((ValueError, RuntimeError)):
            pg.recv([ones], wrong, 0)
    with pytest.raises(ValueError, match="2 tensors"):
        pg.send([ones, ones], 0, 0)
    with pytest.raises(TypeError, match="meta"):
        pg.recv([ones.to("meta")], 0, 0)
    dist.barrier()


def test_lazy_views(teams: list[Team]) -> None:
    for team in teams:
        sent = torch.arange(4).to(torch.complex64) * 1j
        taken = torch.zeros(4, dtype=torch.complex64)
        place = taken.conj().imag
        works = [
            team.dist.irecv(place, team.ranks[team.rank], group=team.group),
            team.dist.isend(sent.conj().imag, team.ranks[team.rank], group=team.group),
        ]
        for work in works:
            work.wait()
        same(taken.imag.clone() + 0, torch.arange(4.0))
        assert place.is_neg() and works[0].result()[0] is place


def test_many_under_way(dist: ModuleType, rank: int, size: int) -> None:
    outs = [[Box("int32", flat(3)) for _ in range(20)] for _ in range(size)]
    works = [
        dist.irecv(out.tensor, peer, tag=i)
        for peer in range(size)
        for i, out in enumerate(outs[peer])
    ]
    works += [
        dist.isend(noise("int32", 3, rank, peer, i), peer, tag=i)
        for i in range(19, -1, -1)
        for peer in range(size)
    ]
    for work in reversed(works):
        work.wait()
    for peer, row in enumerate(outs):
        for i, out in enumerate(row):
            out.holds(noise("int32", 3, peer, rank, i))
