"""Graphs: neighbor_all_gather and neighbor_all_to_all."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tensors import Kind, every, noise

# Not in the contract: on a node these make no calls of MPI.


def test_all_gather_on_a_ring(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    before, behind = (rank - 1) % size, (rank + 1) % size
    ring = dist.Graph([before, behind])
    assert ring.sources == ring.destinations == (before, behind)
    for dtype, layout in every(kind):
        given = kind.make(dtype, layout).fill(noise(dtype, layout.size, rank))
        outs = [kind.make(dtype, layout).fill(noise(dtype, layout.size, -1)) for _ in range(2)]
        run(ring.neighbor_all_gather, [out.given for out in outs], given.given)
        for source, out in zip((before, behind), outs, strict=True):
            assert out.bits() == noise(dtype, layout.size, source).tobytes()


def edges(size: int) -> list[tuple[int, int]]:
    """Return edges in an order of their own: some twice, some from a rank to itself."""
    found = []
    for a in range(size):
        for b in range(size):
            found += [(a, b)] * ((a * 2 + b) % 3)
    return sorted(found, key=lambda edge: (edge[0] * 7 + edge[1] * 5) % 11)


@pytest.mark.parametrize("length", [3, 5000, 70_000])
def test_all_to_all_on_any_graph(
    dist: ModuleType, rank: int, size: int, length: int, run: Any
) -> None:
    """Tensors of different lengths, with strides, for each edge of a graph."""

    def sent(number: int) -> np.ndarray[Any, Any]:
        return noise("int32", length // (1 + number % 3), "edge", number)

    numbered = list(enumerate(edges(size)))
    out = [(number, b) for number, (a, b) in numbered if a == rank]
    into = [(number, a) for number, (a, b) in numbered if b == rank]
    graph = dist.Graph([a for _, a in into], [b for _, b in out])
    for _ in range(3):
        inputs = [np.repeat(sent(number), 2)[::2] for number, _ in out]
        outputs = [np.zeros(2 * len(sent(number)), "int32")[::-2] for number, _ in into]
        run(graph.neighbor_all_to_all, outputs, inputs)
        for (number, _), got in zip(into, outputs, strict=True):
            np.testing.assert_array_equal(got, sent(number))


def test_ranks_without_neighbours(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Only the first two ranks have neighbours."""
    pair = size > 1 and rank < 2
    graph = dist.Graph([1 - rank] if pair else [])
    outputs = [np.zeros(4)] if pair else []
    run(graph.neighbor_all_gather, outputs, np.full(4, rank + 1.0))
    if pair:
        assert (outputs[0] == 2 - rank).all()


def test_a_group_in_another_order(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(reversed(range(size))))
    graph = dist.Graph([(rank + 1) % size], [(rank - 1) % size], group=group)
    out = [np.zeros(1)]
    graph.neighbor_all_to_all(out, [np.full(1, float(rank))])
    assert out[0][0] == (rank + 1) % size


# Wrong use


def test_graphs_that_do_not_fit(dist: ModuleType, rank: int, size: int) -> None:
    if size > 1:
        with pytest.raises(dist.errors.ArgumentError, match="lists rank 0 in its sources"):
            dist.Graph([0] if rank == 1 else [], [])
        with pytest.raises(dist.errors.ArgumentError, match="lists rank 0 in its sources"):
            dist.Graph([0] if rank == 1 else [], [1, 1] if rank == 0 else [])
        error = dist.errors.ArgumentError if rank == 0 else dist.errors.RefusedError
        with pytest.raises(error):
            dist.Graph([size] if rank == 0 else [])
    with pytest.raises((dist.errors.DtypeError, dist.errors.RefusedError)):
        dist.Graph(3)
    dist.barrier()


@pytest.mark.parametrize("length", [3, 70_000])
def test_tensors_that_do_not_fit(dist: ModuleType, rank: int, size: int, length: int) -> None:
    """The two ranks of a wrong pair raise, the others do not, and the group stays usable."""
    if size == 1:
        return
    graph = dist.Graph([(rank - 1) % size], [(rank + 1) % size])
    for dtype, longer, wrong in (("f8", 1, {0, 1}), ("i8", 0, {0, 1, size - 1})):
        kind = dtype if rank == 0 else "f8"
        given, out = np.zeros(length + longer * (rank == 0), kind), np.zeros(length, kind)
        if rank in wrong:
            with pytest.raises(dist.errors.MismatchError, match="expects") as caught:
                graph.neighbor_all_to_all([out], [given])
            assert rank in caught.value.ranks
        else:
            graph.neighbor_all_to_all([out], [given])
        dist.barrier()
    out = [np.zeros(1)]
    graph.neighbor_all_gather(out, np.full(1, float(rank)))
    assert out[0][0] == (rank - 1) % size


def test_wrong_arguments(dist: ModuleType, rank: int, size: int) -> None:
    errors = dist.errors
    graph = dist.Graph([rank])
    for outputs, inputs in (
        ([], [np.zeros(1)]),
        ([np.zeros(1)], []),
        (np.zeros(1), [np.zeros(1)]),
        ([np.zeros(1)], [np.zeros(2)]),
        ([np.zeros(1)], [np.zeros(1, "f4")]),
        ([np.zeros(1)], [None]),
    ):
        with pytest.raises((errors.ArgumentError, errors.DtypeError)):
            graph.neighbor_all_to_all(outputs, inputs)
