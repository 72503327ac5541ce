"""Halos over nodes: short blocks in the announcement, long ones in messages, and what differs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import paddlempi as dist
import ranks_report

WIDTHS = ((1, 2), (2, 1))
# Blocks of both kinds, on 2 ranks and on 4.
LENGTHS = [(9, 11), (300, 7), (37, 9000), (600, 40_000)]


def cuts(length: int, ranks: int) -> list[int]:
    return [length * i // ranks for i in range(ranks + 1)]


def exchanged(cart: Any, lengths: tuple[int, int], asynchronous: bool) -> bool:
    """Exchange a tensor whose cells tell their place. Return whether the result is right."""
    whole = np.arange(lengths[0] * lengths[1], dtype=np.int32).reshape(lengths)
    ranges = []
    for k, (before, behind) in enumerate(WIDTHS):
        ends = cuts(lengths[k], cart.dims[k])
        at = np.arange(ends[cart.coords[k]] - before, ends[cart.coords[k] + 1] + behind)
        ranges.append(at % lengths[k] if cart.periodic[k] else at)
    inside = [(at >= 0) & (at < n) for at, n in zip(ranges, lengths, strict=True)]
    wanted = np.full([len(at) for at in ranges], -1, np.int32)
    wanted[np.ix_(*inside)] = whole[np.ix_(*[a[i] for a, i in zip(ranges, inside, strict=True)])]
    inner = tuple(slice(b, len(at) - e) for (b, e), at in zip(WIDTHS, ranges, strict=True))
    tensor = np.full_like(wanted, -1)
    tensor[inner] = wanted[inner]
    work = cart.halo_exchange(tensor, WIDTHS, async_op=asynchronous)
    if asynchronous:
        work.wait()
    return np.array_equal(tensor, wanted)


def raised(error: type[BaseException], call: Any) -> str:
    """Call what must raise. Return what is wrong, or nothing."""
    try:
        call()
    except error:
        return ""
    except BaseException as other:
        return f"{type(other).__name__}: {other}"
    return f"no {error.__name__}"


def main() -> None:
    dist.init_process_group("mpi", timeout=60)
    rank, size = dist.get_rank(), dist.get_world_size()
    tried, wrong = 0, []
    for reorder, periodic, lengths, asynchronous in itertools.product(
        (False, True), (False, (True, False)), LENGTHS, (False, True)
    ):
        cart = dist.Cartesian([0, 0], periodic=periodic, reorder=reorder)
        for _ in range(3):
            tried += 1
            if not exchanged(cart, lengths, asynchronous):
                wrong.append([reorder, periodic, lengths, asynchronous])
    line = dist.Cartesian([size])
    last = rank == size - 1
    for columns in (4, 60_000):
        rows = np.zeros((columns + last, 9), np.float32)
        for call in (
            lambda rows=rows: line.halo_exchange(rows, 2 if last else 1),
            lambda rows=rows: line.halo_exchange(rows, 1),  # the lead is longer on one rank
        ):
            wrong += filter(None, [raised(dist.errors.MismatchError, call)])
    error = dist.errors.ArgumentError if last else dist.errors.RefusedError
    wrong += filter(
        None, [raised(error, lambda: line.halo_exchange(np.zeros(2 if last else 60_000), 1))]
    )
    if not exchanged(dist.Cartesian([0, 0]), LENGTHS[0], False):
        wrong.append("after the errors")
    ranks_report.write({"rank": rank, "tried": tried, "wrong": wrong})
    dist.destroy_process_group()


main()
