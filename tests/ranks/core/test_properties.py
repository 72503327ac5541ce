"""Every collective against NumPy: random shapes, strides, dtypes, splits and groups.

All ranks draw the same examples. A rank that is not in the example's group makes all draws of
the example before it leaves. Every run has the same examples, so a failure in CI can be
reproduced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddlempi import ReduceOp
from paddlempi.testing import World
from tensors import NAMES, Layout, NumpyKind, Tensor, assert_reduced, noise, numbers, reducible

Agree = Callable[[], AbstractContextManager[None]]

OPS = [
    ReduceOp.SUM,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.AVG,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
    ReduceOp.PREMUL_SUM(-2.0),
]

# `make soak` draws new examples each time. After a failure hypothesis would look for more bugs
# until a time limit. Ranks would then stop at different examples, because their clocks differ.
SOAK = "SOAK_EXAMPLES" in os.environ
examples = settings(
    max_examples=int(os.environ.get("SOAK_EXAMPLES", "20")),
    deadline=None,
    database=None,
    derandomize=not SOAK,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],  # by a clock, too
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def layout_of(draw: Any, shape: Sequence[int]) -> Layout:
    """Draw strides for a shape: any order of the axes, gaps, and axes that run backwards."""
    strides, offset, room = [0] * len(shape), 0, 1
    for axis in draw(st.permutations(range(len(shape)))):
        step = draw(st.sampled_from([1, 1, 2, -1, -3]))
        strides[axis] = room * step
        if step < 0:
            offset += room * -step * max(0, shape[axis] - 1)
        room *= max(1, shape[axis]) * abs(step)
    if not math.prod(shape):
        return Layout("", tuple(shape), tuple(strides), 0, 0)
    return Layout("", tuple(shape), tuple(strides), offset, room)


class Group(NamedTuple):
    """A drawn group as this rank sees it."""

    group: Any
    me: int  # rank in the group, -1 if this rank is no member
    size: int
    asynchronous: bool

    def run(self, function: Any, *arguments: Any, **named: Any) -> None:
        if not self.asynchronous:
            assert function(*arguments, group=self.group, **named) is None
            return
        assert function(*arguments, group=self.group, async_op=True, **named).wait()


class Plan:
    """What an example draws, the same on all ranks."""

    def __init__(self, data: st.DataObject, world: World) -> None:
        self.draw = data.draw
        self.world = world
        order = self.draw(st.permutations(range(world.size)))
        self.members: list[int] = order[: self.draw(st.integers(1, world.size))]
        self.size = len(self.members)
        self.whole = self.members == list(range(world.size)) and self.draw(st.booleans())
        self.asynchronous = self.draw(st.booleans())
        self.seed = self.draw(seeds)

    def dtype(self) -> str:
        return str(self.draw(st.sampled_from(NAMES)))

    def op(self) -> tuple[ReduceOp, str]:
        op = self.draw(st.sampled_from(OPS))
        return op, str(self.draw(st.sampled_from(reducible(op))))

    def root(self) -> int:
        return int(self.draw(st.integers(0, self.size - 1)))

    def shape(self) -> tuple[int, ...]:
        return tuple(self.draw(shapes))

    def layouts(self, shape: Sequence[int]) -> list[Layout]:
        """Draw a layout for every member. The members agree only on the number of elements."""
        return [layout_of(self.draw, shape) for _ in range(self.size)]

    def counts(self) -> list[int]:
        return list(self.draw(st.lists(st.integers(0, 5), min_size=self.size, max_size=self.size)))

    @contextmanager
    def group(self) -> Iterator[Group]:
        dist, members = self.world.dist, self.members
        group = None if self.whole else dist.new_group(members)
        me = members.index(self.world.rank) if self.world.rank in members else -1
        try:
            yield Group(group, me, self.size, self.asynchronous)
        finally:
            if group is not None and me >= 0:
                dist.destroy_process_group(group)


def make(dtype: str, layout: Layout, values: np.ndarray[Any, Any]) -> Tensor:
    return NumpyKind().make(dtype, layout).fill(values)


def blank(dtype: str, layout: Layout) -> Tensor:
    """A tensor for a result, filled with other values."""
    return make(dtype, layout, noise(dtype, layout.size, "blank"))


def flat(size: int) -> Layout:
    return Layout("", (size,), (1,), 0, size)


def check(test: Callable[[Plan], None]) -> Callable[..., None]:
    """Make a test of a property. If the body fails on one rank, the test fails on all."""

    @examples
    @given(data=st.data())
    def run(mpi_world: World, mpi_agree: Agree, data: st.DataObject) -> None:
        with mpi_agree():
            test(Plan(data, mpi_world))

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


@check
def test_broadcast(plan: Plan) -> None:
    dtype, root, shape = plan.dtype(), plan.root(), plan.shape()
    layouts = plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        values = [noise(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor = make(dtype, layouts[g.me], values[g.me])
        g.run(plan.world.dist.broadcast, tensor.given, group_src=root)
        assert tensor.bits() == values[root].tobytes()


@check
def test_all_reduce(plan: Plan) -> None:
    (op, dtype), shape = plan.op(), plan.shape()
    layouts = plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        parts = [numbers(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor = make(dtype, layouts[g.me], parts[g.me])
        g.run(plan.world.dist.all_reduce, tensor.given, op)
        assert_reduced(tensor.values(), op, parts)


@check
def test_all_reduce_coalesced(plan: Plan) -> None:
    (op, dtype), many = plan.op(), plan.draw(st.lists(shapes, min_size=1, max_size=4))
    layouts = [plan.layouts(shape) for shape in many]
    with plan.group() as g:
        if g.me < 0:
            return
        parts = [
            [numbers(dtype, math.prod(shape), plan.seed, r, i) for i, shape in enumerate(many)]
            for r in range(g.size)
        ]
        tensors = [
            make(dtype, of[g.me], part) for of, part in zip(layouts, parts[g.me], strict=True)
        ]
        g.run(plan.world.dist.all_reduce_coalesced, [tensor.given for tensor in tensors], op)
        for i, tensor in enumerate(tensors):
            assert_reduced(tensor.values(), op, [part[i] for part in parts])


@check
def test_reduce(plan: Plan) -> None:
    (op, dtype), root, shape = plan.op(), plan.root(), plan.shape()
    layouts = plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        parts = [numbers(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor = make(dtype, layouts[g.me], parts[g.me])
        g.run(plan.world.dist.reduce, tensor.given, op=op, group_dst=root)
        if g.me == root:
            assert_reduced(tensor.values(), op, parts)
        else:
            assert tensor.bits() == parts[g.me].tobytes()


@check
def test_scan_and_exscan(plan: Plan) -> None:
    (op, dtype), shape, exclusive = plan.op(), plan.shape(), plan.draw(st.booleans())
    layouts = plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0 or op is ReduceOp.AVG:  # AVG is refused, which test_scan.py tests
            return
        parts = [numbers(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor = make(dtype, layouts[g.me], parts[g.me])
        dist = plan.world.dist
        g.run(dist.exscan if exclusive else dist.scan, tensor.given, op)
        taken = parts[: g.me] if exclusive else parts[: g.me + 1]
        if taken:
            assert_reduced(tensor.values(), op, taken)
        else:
            assert tensor.bits() == parts[0].tobytes()


@check
def test_all_gather(plan: Plan) -> None:
    """Every member's tensor may have another size."""
    dtype = plan.dtype()
    shape_of = [plan.shape() for _ in range(plan.size)]
    ins = [layout_of(plan.draw, shape) for shape in shape_of]
    outs = [plan.layouts(shape) for shape in shape_of]
    with plan.group() as g:
        if g.me < 0:
            return
        values = [noise(dtype, math.prod(shape), plan.seed, r) for r, shape in enumerate(shape_of)]
        tensor = make(dtype, ins[g.me], values[g.me])
        results = [blank(dtype, of[g.me]) for of in outs]
        g.run(plan.world.dist.all_gather, [result.given for result in results], tensor.given)
        assert [result.bits() for result in results] == [value.tobytes() for value in values]
        assert tensor.bits() == values[g.me].tobytes()


@check
def test_all_gather_into_tensor(plan: Plan) -> None:
    dtype, shape = plan.dtype(), plan.shape()
    ins, outs = plan.layouts(shape), plan.layouts((plan.size, *shape))
    with plan.group() as g:
        if g.me < 0:
            return
        values = [noise(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor, out = make(dtype, ins[g.me], values[g.me]), blank(dtype, outs[g.me])
        g.run(plan.world.dist.all_gather_into_tensor, out.given, tensor.given)
        assert out.bits() == b"".join(value.tobytes() for value in values)


@check
def test_gather(plan: Plan) -> None:
    dtype, root, shape = plan.dtype(), plan.root(), plan.shape()
    ins, outs = plan.layouts(shape), plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        values = [noise(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        tensor = make(dtype, ins[g.me], values[g.me])
        results = [blank(dtype, layout) for layout in outs] if g.me == root else None
        given = None if results is None else [result.given for result in results]
        g.run(plan.world.dist.gather, tensor.given, given, group_dst=root)
        for result, value in zip(results or [], values, strict=results is not None):
            assert result.bits() == value.tobytes()


@check
def test_scatter(plan: Plan) -> None:
    dtype, root, shape = plan.dtype(), plan.root(), plan.shape()
    ins, outs = plan.layouts(shape), plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        values = [noise(dtype, math.prod(shape), plan.seed, r) for r in range(g.size)]
        given = None
        if g.me == root:
            given = [make(dtype, of, v).given for of, v in zip(ins, values, strict=True)]
        out = blank(dtype, outs[g.me])
        g.run(plan.world.dist.scatter, out.given, given, group_src=root)
        assert out.bits() == values[g.me].tobytes()


@check
def test_reduce_scatter(plan: Plan) -> None:
    """Every member's part may have another size."""
    (op, dtype), counts = plan.op(), plan.counts()
    ins = [plan.layouts((n,)) for n in counts]
    outs = [layout_of(plan.draw, (n,)) for n in counts]
    with plan.group() as g:
        if g.me < 0:
            return
        # parts[r][i] is the part that member r contributes to member i's result.
        parts = [
            [numbers(dtype, n, plan.seed, r, i) for i, n in enumerate(counts)]
            for r in range(g.size)
        ]
        given = [make(dtype, of[g.me], v) for of, v in zip(ins, parts[g.me], strict=True)]
        out = blank(dtype, outs[g.me])
        g.run(plan.world.dist.reduce_scatter, out.given, [tensor.given for tensor in given], op)
        assert_reduced(out.values(), op, [part[g.me] for part in parts])


@check
def test_reduce_scatter_tensor(plan: Plan) -> None:
    (op, dtype), shape = plan.op(), plan.shape()
    ins, outs = plan.layouts((plan.size, *shape)), plan.layouts(shape)
    with plan.group() as g:
        if g.me < 0:
            return
        each = math.prod(shape)
        parts = [numbers(dtype, g.size * each, plan.seed, r) for r in range(g.size)]
        tensor, out = make(dtype, ins[g.me], parts[g.me]), blank(dtype, outs[g.me])
        g.run(plan.world.dist.reduce_scatter_tensor, out.given, tensor.given, op)
        assert_reduced(out.values(), op, [part[g.me * each :][:each] for part in parts])


@check
def test_all_to_all(plan: Plan) -> None:
    dtype, table = plan.dtype(), [plan.counts() for _ in range(plan.size)]
    ins = [[layout_of(plan.draw, (n,)) for n in row] for row in table]
    outs = [[layout_of(plan.draw, (n,)) for n in row] for row in table]
    with plan.group() as g:
        if g.me < 0:
            return

        def sent(source: int, to: int) -> np.ndarray[Any, Any]:
            return noise(dtype, table[source][to], plan.seed, source, to)

        given = [make(dtype, ins[g.me][to], sent(g.me, to)).given for to in range(g.size)]
        results = [blank(dtype, outs[source][g.me]) for source in range(g.size)]
        g.run(plan.world.dist.all_to_all, [result.given for result in results], given)
        for source, result in enumerate(results):
            assert result.bits() == sent(source, g.me).tobytes()


@check
def test_all_to_all_single(plan: Plan) -> None:
    """Rows are split unevenly. If the example draws ``even``, no splits are given."""
    dtype, width, even = plan.dtype(), plan.draw(st.integers(1, 3)), plan.draw(st.booleans())
    table = [[2] * plan.size if even else plan.counts() for _ in range(plan.size)]
    columns = [[row[to] for row in table] for to in range(plan.size)]
    ins = [layout_of(plan.draw, (sum(row), width)) for row in table]
    outs = [layout_of(plan.draw, (sum(column), width)) for column in columns]
    with plan.group() as g:
        if g.me < 0:
            return

        def sent(source: int, to: int) -> np.ndarray[Any, Any]:
            return noise(dtype, table[source][to] * width, plan.seed, source, to)

        rows = np.concatenate([sent(g.me, to) for to in range(g.size)])
        tensor, out = make(dtype, ins[g.me], rows), blank(dtype, outs[g.me])
        splits = [] if even else [columns[g.me], table[g.me]]
        g.run(plan.world.dist.all_to_all_single, out.given, tensor.given, *splits)
        assert out.bits() == b"".join(sent(source, g.me).tobytes() for source in range(g.size))


@check
def test_messages(plan: Plan) -> None:
    """Any set of messages, one batch a rank. Messages with the same address keep their order."""
    ranks = st.integers(0, plan.size - 1)
    letters = plan.draw(st.lists(st.tuples(ranks, ranks, st.integers(0, 2), shapes), max_size=8))
    dtype = plan.dtype()
    layouts = [(layout_of(plan.draw, shape), layout_of(plan.draw, shape)) for *_, shape in letters]
    with plan.group() as g:
        if g.me < 0:
            return
        dist, begun, results = plan.world.dist, [], []
        for i, (source, to, tag, shape) in enumerate(letters):
            value = noise(dtype, math.prod(shape), plan.seed, i)
            if g.me == source:
                given = make(dtype, layouts[i][0], value).given
                begun.append(dist.P2POp(dist.isend, given, None, g.group, tag, to))
            if g.me == to:
                result = blank(dtype, layouts[i][1])
                begun.append(dist.P2POp(dist.irecv, result.given, None, g.group, tag, source))
                results.append((result, value))
        for work in dist.batch_isend_irecv(begun):
            assert work.wait()
        for result, value in results:
            assert result.bits() == value.tobytes()


@check
def test_many_under_way_on_groups_that_overlap(plan: Plan) -> None:
    """Works of the world and of a group, submitted in one order and waited for in another."""
    kinds = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 40)), max_size=8)
    calls, shuffle = plan.draw(kinds), plan.draw(st.randoms(use_true_random=False))
    order = list(range(len(calls)))
    shuffle.shuffle(order)
    with plan.group() as g:
        dist, world = plan.world.dist, plan.world
        works: dict[int, Any] = {}
        tensors: dict[int, tuple[np.ndarray[Any, Any], int]] = {}
        for i, (everyone, summing, size) in enumerate(calls):
            if not everyone and g.me < 0:
                continue
            group = None if everyone else g.group
            me, members = (world.rank, world.size) if everyone else (g.me, g.size)
            tensor = np.full(size, me + i + 1, np.int32)
            if summing:
                works[i] = dist.all_reduce(tensor, group=group, async_op=True)
                tensors[i] = tensor, sum(range(members)) + members * (i + 1)
            else:
                root = i % members
                works[i] = dist.broadcast(tensor, group=group, group_src=root, async_op=True)
                tensors[i] = tensor, root + i + 1
        for i in order:
            if i in works:
                assert works[i].wait()
                tensor, want = tensors[i]
                assert (tensor == want).all()


def test_the_layouts_are_of_every_sort() -> None:
    """layout_of draws contiguous, gapped, transposed, backward, empty and scalar layouts."""
    seen: set[str] = set()

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(data=st.data(), shape=shapes)
    def draw(data: st.DataObject, shape: tuple[int, ...]) -> None:
        layout = layout_of(data.draw, shape)
        positive = [abs(step) for step in layout.strides]
        seen.add("contiguous" if layout.contiguous else "gapped")
        seen.add("backward" if min(layout.strides, default=0) < 0 else "forward")
        seen.add("rows" if positive == sorted(positive, reverse=True) else "transposed")
        seen.add("scalar" if not shape else "empty" if not layout.size else "some")
        tensor = make("int16", layout, np.arange(layout.size, dtype=np.int16))
        assert tensor.values().ravel().tolist() == list(range(layout.size))

    draw()
    wanted = {"contiguous", "gapped", "backward", "forward", "rows", "transposed"}
    assert seen >= wanted | {"scalar", "empty", "some"}
