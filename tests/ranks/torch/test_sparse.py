"""Sparse tensors in COO layout give the results that the dense tensors would have given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from tensors import DEFINED, Team, numbers, reduce_op, same, same_reduced, ways

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "bool")


class Form(NamedTuple):
    """A shape whose first ``sparse`` dimensions are sparse. Member i has counts[i] elements."""

    shape: tuple[int, ...]
    sparse: int
    counts: tuple[int, ...]


FORMS = (
    Form((11,), 1, (3, 3, 3, 3)),
    Form((4, 5), 2, (6, 0, 2, 9)),  # uneven, and one member has no elements
    Form((6, 3), 1, (2, 4, 1, 0)),  # a hybrid tensor
    Form((3, 2, 2, 3), 2, (1, 5, 2, 2)),
    Form((5, 4), 2, (0, 0, 0, 0)),
    Form((0, 4), 1, (0, 0, 0, 0)),
)
ROW, UNEVEN, HYBRID = FORMS[:3]


def make(form: Form, dtype: str, member: int, unique: bool = False) -> Any:
    """Return an uncoalesced tensor: its places repeat and are in no order."""
    count = form.counts[member % 4]
    extents = form.shape[: form.sparse]
    generator = torch.Generator().manual_seed(7 * member + len(form.shape))
    indices = torch.stack(
        [torch.randint(max(e, 1), (count,), generator=generator) for e in extents]
    )
    values = numbers(dtype, (count, *form.shape[form.sparse :]), "sparse", member)
    made = torch.sparse_coo_tensor(
        indices, values, form.shape, dtype=getattr(torch, dtype), check_invariants=True
    )
    return made.coalesce() if unique else made


def dense(tensor: Any) -> Any:
    """Return the dense tensor that torch makes."""
    return tensor.coalesce().to_dense()


def check_all_reduce(team: Team, how: str, dtype: str, form: Form = ROW, op: str = "SUM") -> None:
    parts = [make(form, dtype, member) for member in range(team.size)]
    tensor = make(form, dtype, team.rank)
    result = team.run(how, team.dist.all_reduce, tensor, op=reduce_op(team.dist, op))
    assert tensor.is_coalesced() and tensor.sparse_dim() == form.sparse
    same_reduced(dense(tensor), op, [dense(part) for part in parts])
    places = {tuple(place) for part in parts for place in part._indices().t().tolist()}
    assert [tuple(place) for place in tensor.indices().t().tolist()] == sorted(places)
    if result is not None:
        assert len(result) == 1 and (result[0] is tensor or result[0]._base is tensor)


def check_broadcast(team: Team, how: str, dtype: str, form: Form = ROW, root: int = -1) -> None:
    root %= team.size
    tensor = make(form, dtype, team.rank)
    team.run(how, team.dist.broadcast, tensor, team.ranks[root])
    same(dense(tensor), dense(make(form, dtype, root)))
    assert tensor.is_coalesced() or team.rank == root


def check_all_gather(team: Team, how: str, dtype: str, form: Form = ROW) -> None:
    outs = [make(form, dtype, 9) for _ in team.ranks]
    team.run(how, team.dist.all_gather, outs, make(form, dtype, team.rank))
    for member, out in enumerate(outs):
        same(dense(out), dense(make(form, dtype, member)))


@pytest.mark.parametrize("op", DEFINED)
def test_all_reduce(teams: list[Team], op: str) -> None:
    for team, how in ways(teams):
        for dtype in DTYPES:
            if dtype in DEFINED[op]:
                check_all_reduce(team, how, dtype, ROW, op)
                check_all_reduce(team, how, dtype, UNEVEN, op)
        for form in FORMS:
            if "float32" in DEFINED[op]:
                check_all_reduce(team, how, "float32", form, op)


def test_broadcast(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for form in FORMS:
            for root in range(team.size):
                check_broadcast(team, how, "float32", form, root)
        for dtype in DTYPES:
            check_broadcast(team, how, dtype)


def test_all_gather(teams: list[Team]) -> None:
    for team, how in ways(teams):
        for form in FORMS:
            check_all_gather(team, how, "float32", form)
        for dtype in DTYPES:
            check_all_gather(team, how, dtype)


def test_complex(teams: list[Team]) -> None:
    """torch's functions use the real view, which some versions lack for sparse tensors."""
    try:
        torch.view_as_real(make(ROW, "complex64", 0))
        viewed = True
    except NotImplementedError:
        viewed = False
    for team, how in ways(teams):
        parts = [make(ROW, "complex64", member) for member in range(team.size)]
        tensor = make(ROW, "complex64", team.rank)
        (team.group or team.dist.group.WORLD).allreduce([tensor]).wait()
        same_reduced(dense(tensor), "SUM", [dense(part) for part in parts])
        if viewed:
            check_all_reduce(team, how, "complex64", ROW)
            check_all_reduce(team, how, "complex128", HYBRID)
            check_broadcast(team, how, "complex64")
            check_all_gather(team, how, "complex64")
        else:
            with pytest.raises(NotImplementedError):
                team.run(how, team.dist.all_reduce, tensor)


def test_what_is_undefined(teams: list[Team]) -> None:
    for team in teams:
        for how in ("sync", "async"):
            for dtype, op in (("float32", "BAND"), ("bool", "AVG"), ("bool", "PREMUL_SUM")):
                tensor = make(ROW, dtype, team.rank)
                with pytest.raises(TypeError, match=op):
                    team.run(how, team.dist.all_reduce, tensor, op=reduce_op(team.dist, op))
                same(dense(tensor), dense(make(ROW, dtype, team.rank)))
            check_all_reduce(team, how, "float32")


def test_others_submitted_behind_it(dist: ModuleType, teams: list[Team]) -> None:
    """All parts of a sparse collective come before every collective that is submitted later."""
    for team in teams:
        sparse = [make(UNEVEN, "float32", team.rank) for _ in range(4)]
        rows = [torch.full((5,), float(team.rank)) for _ in range(4)]
        works = []
        for tensor, row in zip(sparse, rows, strict=True):
            works.append(dist.all_reduce(tensor, group=team.group, async_op=True))
            works.append(dist.all_reduce(row, group=team.group, async_op=True))
        dist.barrier(group=team.group)
        for work in reversed(works):
            work.wait()
        wanted = torch.full((5,), float(sum(range(team.size))))
        for tensor, row in zip(sparse, rows, strict=True):
            same(row, wanted)
            parts = [dense(make(UNEVEN, "float32", member)) for member in range(team.size)]
            same_reduced(dense(tensor), "SUM", parts)


def test_completed_without_a_wait(teams: list[Team]) -> None:
    for team in teams:
        told = threading.Event()
        tensor = make(HYBRID, "float64", team.rank)
        work = team.dist.all_reduce(tensor, group=team.group, async_op=True)
        then = work.get_future().then(lambda done, told=told: (told.set(), done.value())[1])
        assert told.wait(30)
        assert work.is_completed() and work.is_success() and then.wait()[0] is tensor
        parts = [dense(make(HYBRID, "float64", member)) for member in range(team.size)]
        same_reduced(dense(tensor), "SUM", parts)
        assert work.wait() and work.result()[0] is tensor
        assert (team.group or team.dist.group.WORLD)._steps is None  # nothing of it is kept


def test_tensors_that_autograd_knows(dist: ModuleType, rank: int, size: int) -> None:
    wanted = [dense(make(ROW, "float32", member)) for member in range(size)]
    leaf = make(ROW, "float32", rank).requires_grad_()
    dist.all_reduce(leaf)
    same_reduced(dense(leaf.detach()), "SUM", wanted)
    with torch.inference_mode():
        inferred = make(ROW, "float32", rank)
    dist.all_reduce(inferred)
    same_reduced(dense(inferred), "SUM", wanted)


@pytest.mark.mpi(min=2)
def test_members_that_do_not_agree(dist: ModuleType, rank: int) -> None:
    calls: Sequence[tuple[type[Exception], str, Any]] = (
        (RuntimeError, "shapes", make(Form((11 + rank,), 1, (3,) * 4), "float32", rank)),
        (RuntimeError, "shapes", make(Form((6, 3), 1 + rank % 2, (2,) * 4), "float32", rank)),
        (RuntimeError, "same thing", make(ROW, ("float32", "float64")[rank % 2], 0)),
        (RuntimeError, "same thing", torch.ones(11) if rank else make(ROW, "float32", 0)),
    )
    for async_op in (False, True):
        for error, text, tensor in calls:
            with pytest.raises(error, match=text):
                work = dist.all_reduce(tensor, async_op=async_op)
                if async_op:
                    work.wait()
        dist.barrier()


def test_what_is_not_for_sparse_tensors(teams: list[Team]) -> None:
    for team in teams:
        tensor, row = make(ROW, "float32", 0), torch.zeros(11)
        csr = torch.eye(3).to_sparse_csr()
        outs = [torch.zeros(11) for _ in team.ranks]
        calls: Sequence[tuple[Any, ...]] = (
            (team.dist.reduce, tensor, team.ranks[0]),
            (team.dist.gather, tensor, outs if team.rank == 0 else None, team.ranks[0]),
            (team.dist.scatter, tensor, outs if team.rank == 0 else None, team.ranks[0]),
            (team.dist.reduce_scatter, row, [tensor] * team.size),
            (team.dist.all_to_all, outs, [tensor] * team.size),
            (team.dist.all_gather, outs, tensor),
            (team.dist.all_gather, [tensor] * team.size, row),
            (team.dist.all_reduce, csr),
            (team.dist.broadcast, csr, team.ranks[0]),
            (team.dist.all_gather, [csr] * team.size, csr),
        )
        for function, *arguments in calls:
            for how in ("sync", "async"):
                with pytest.raises((TypeError, ValueError), match="sparse"):
                    team.run(how, function, *arguments)
        with pytest.raises(TypeError, match="sparse"):
            team.dist.isend(tensor, team.ranks[0], group=team.group)
        with pytest.raises(TypeError, match="sparse"):
            team.dist.irecv(tensor, team.ranks[0], group=team.group)
        check_all_reduce(team, "sync", "float32")


def test_a_wait_that_is_too_short_while_another_thread_waits(dist: ModuleType, rank: int) -> None:
    """Rank 0 has the lock before another member submits: the work cannot be over by then."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.all_reduce(make(ROW, "float32", rank), async_op=True)
        with work._driving:
            store.set("rank 0 drives", "")
            with pytest.raises(dist.DistBackendError, match="still under way"):
                work.wait(timedelta(milliseconds=1))
    else:
        store.wait(["rank 0 drives"])
        work = dist.all_reduce(make(ROW, "float32", rank), async_op=True)
    assert work.wait()
