"""``torch.distributed.nn.functional``: gradients flow back through collectives.

The results are compared with the same function of all ranks' tensors, by autograd in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.nn.functional as nn
from ranks_data import same, whole

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

Model = Callable[[list[Any]], Sequence[Any]]


def check(
    ranks: list[int], me: int, shape: Callable[[int], Any], run: Callable[[Any], Any], model: Model
) -> None:
    """Compare the values and gradients of a collective with those of its model.

    Args:
        ranks: the global ranks of the group.
        me: this rank's rank in the group.
        shape: returns the shape of member i's tensor.
        run: the collective, a function of this rank's tensor.
        model: returns what each member gets, from the tensors of all members. None means that
            the member's result is undefined.
    """
    every = [whole(r, *shape(i)).requires_grad_() for i, r in enumerate(ranks)]
    wanted = model(every)
    weights = [None if out is None else whole(i, *out.shape, key=1) for i, out in enumerate(wanted)]
    loss = sum((w * out).sum() for w, out in zip(weights, wanted, strict=True) if out is not None)
    loss.backward()

    mine = whole(ranks[me], *shape(me)).requires_grad_()
    got = run(mine)
    if wanted[me] is None:
        got.sum().backward()  # the other members' gradients pass through this backward
    else:
        same(got.detach(), wanted[me].detach())
        (weights[me] * got).sum().backward()
    same(mine.grad, every[me].grad)


@pytest.fixture(params=["world", "part"])
def group(
    request: pytest.FixtureRequest, dist: ModuleType, size: int
) -> Iterator[tuple[Any, list[int]]]:
    """A group, and its members' global ranks."""
    if request.param == "world":
        yield dist.group.WORLD, list(range(size))
        return
    members = list(range(1, size))
    made = dist.new_group(members)
    yield made, members
    if made is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(made)


def test_all_reduce(group: Any, rank: int) -> None:
    where, ranks = group
    if rank not in ranks:
        return
    check(
        ranks,
        ranks.index(rank),
        lambda i: (3, 2),
        lambda x: nn.all_reduce(x * x, group=where),
        lambda xs: [sum(x * x for x in xs)] * len(xs),
    )


def test_all_gather(group: Any, rank: int) -> None:
    where, ranks = group
    if rank not in ranks:
        return
    check(
        ranks,
        ranks.index(rank),
        lambda i: (2, 3),
        lambda x: torch.cat(nn.all_gather(x.t(), group=where)),
        lambda xs: [torch.cat([x.t() for x in xs])] * len(xs),
    )


def test_reduce_scatter(group: Any, rank: int) -> None:
    where, ranks = group
    if rank not in ranks:
        return
    count = len(ranks)
    check(
        ranks,
        ranks.index(rank),
        lambda i: (2 * count, 3),
        lambda x: nn.reduce_scatter(torch.empty(2, 3), list(x.chunk(count)), group=where),
        lambda xs: sum(xs).chunk(count),
    )


def test_all_to_all(group: Any, rank: int) -> None:
    """Part j of member i has i + j + 1 rows."""
    where, ranks = group
    if rank not in ranks:
        return
    count, me = len(ranks), ranks.index(rank)
    rows = [[i + j + 1 for j in range(count)] for i in range(count)]

    def run(x: Any) -> Any:
        out = [torch.empty(rows[i][me], 2) for i in range(count)]
        return torch.cat(nn.all_to_all(out, list(x.split(rows[me])), group=where))

    def single(x: Any) -> Any:
        out = torch.empty(sum(row[me] for row in rows), 2)
        return nn.all_to_all_single(out, x, [row[me] for row in rows], rows[me], group=where)

    def model(xs: list[Any]) -> list[Any]:
        parts = [x.split(row) for x, row in zip(xs, rows, strict=True)]
        return [torch.cat([part[j] for part in parts]) for j in range(count)]

    check(ranks, me, lambda i: (sum(rows[i]), 2), run, model)
    check(ranks, me, lambda i: (sum(rows[i]), 2), single, model)


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_rooted(dist: ModuleType, rank: int, size: int, root: int) -> None:
    root %= size
    ranks = list(range(size))

    def only_root(out: Any) -> list[Any]:
        return [out if r == root else None for r in ranks]

    check(
        ranks,
        rank,
        lambda i: (4,),
        lambda x: nn.broadcast(x * 2, root),
        lambda xs: [xs[root] * 2 + 0 * xs[r] for r in ranks],
    )
    check(
        ranks,
        rank,
        lambda i: (4,),
        lambda x: nn.reduce(x * x, root),
        lambda xs: only_root(sum(x * x for x in xs)),
    )
    check(
        ranks,
        rank,
        lambda i: (2, 3),
        lambda x: torch.stack(nn.gather(x * x, root)),
        lambda xs: only_root(torch.stack([x * x for x in xs])),
    )
    check(
        ranks,
        rank,
        lambda i: (size, 3),
        lambda x: nn.scatter(list((x * x).unbind()), root),
        lambda xs: [xs[root][r] ** 2 + 0 * xs[r].sum(0) for r in ranks],
    )


def test_all_gather_base(dist: ModuleType, rank: int, size: int) -> None:
    """torch has the gradient only for NCCL, and says so."""
    given = whole(rank, 2, 3).requires_grad_()
    out = nn._all_gather_base(torch.empty(2 * size, 3), given)
    same(out.detach(), torch.cat([whole(r, 2, 3) for r in range(size)]))
    with pytest.raises(RuntimeError, match="Backend not supported"):
        out.sum().backward()


def test_a_model_in_two_halves(dist: ModuleType, rank: int, size: int) -> None:
    """A rank has columns of the first layer and rows of the second; the outputs are summed."""
    width = 2 * size
    first, second = whole(0, 3, width), whole(0, width, 2, key=1)
    x = whole(0, 4, 3, key=2)
    for weight in (first, second):
        weight.requires_grad_()
    (((x @ first).relu() @ second) ** 2).sum().backward()

    mine = slice(2 * rank, 2 * rank + 2)
    columns = first.detach()[:, mine].clone().requires_grad_()
    rows = second.detach()[mine].clone().requires_grad_()
    out = nn.all_reduce((x @ columns).relu() @ rows)
    # All ranks compute the same loss, so the backward of the sum counts it `size` times.
    ((out**2).sum() / size).backward()
    same(columns.grad, first.grad[:, mine])
    same(rows.grad, second.grad[mine])
