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


def expected(cart: Any, lengths: tuple[int, int]) -> Any:
    """What this rank has after an exchange: cells that tell their place, and -1 outside."""
    ranges = []
    for k, (before, behind) in enumerate(WIDTHS):
        ends = cuts(lengths[k], cart.dims[k])
        at = np.arange(ends[cart.coords[k]] - before, ends[cart.coords[k] + 1] + behind)
        ranges.append(at % lengths[k] if cart.periodic[k] else at)
    rows, columns = (at.astype(np.int32) for at in ranges)
    wanted = rows[:, None] * np.int32(lengths[1]) + columns
    wanted[(rows < 0) | (rows >= lengths[0])] = -1
    wanted[:, (columns < 0) | (columns >= lengths[1])] = -1
    return wanted


def exchanged(cart: Any, wanted: Any, asynchronous: bool) -> bool:
    """Exchange a tensor. Return whether the result is right."""
    shape = zip(WIDTHS, wanted.shape, strict=True)
    inner = tuple(slice(before, n - behind) for (before, behind), n in shape)
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
        wanted = expected(cart, lengths)
        for _ in range(3):
            tried += 1
            if not exchanged(cart, wanted, asynchronous):
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
    cart = dist.Cartesian([0, 0])
    if not exchanged(cart, expected(cart, LENGTHS[0]), False):
        wrong.append("after the errors")
    ranks_report.write({"rank": rank, "tried": tried, "wrong": wrong})
    dist.destroy_process_group()


main()
