"""A rank whose process is damaged: it writes rubbish into the memory that the ranks share."""

from __future__ import annotations

import job


def writes_rubbish() -> None:
    """Rank 2 spoils the memory of one group after another; the others get errors that name it."""
    import os
    from contextlib import suppress

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works
    from scribbling import Lines, areas, files, put

    rank = start(timeout=60.0)
    damaged = rank == 2
    soon = 20.0

    def begin() -> Lines:
        lines = Lines(dist.new_group)
        works(lines.group)  # number 1
        dist.barrier()
        return lines

    # The number of a collective that is to come, and bits that no slot has together.
    for number in ((1 << 40) + 2, 3, 1 << 63 | 1 << 61 | 2, (1 << 64) - 1):
        lines = begin()
        if damaged:
            lines.spoil_slots(2, number)
        dist.barrier()
        if not damaged:
            with raises(
                errors.GroupBrokenError, "the arrival slot of rank 2", ranks=[2], most=soon
            ):
                dist.all_reduce(np.ones(3), group=lines.group)
        dist.barrier()
    assert not damaged or len(areas("paddlempi-arrive")) > 4

    # It announces a collective, and its slot changes afterwards.
    words, flags, length = 8, 32, 36
    for offset, size, value, kind in (
        (words, 8, (1 << 64) - 1, errors.MismatchError),
        (words + 8, 8, 1 << 62, errors.MismatchError),
        (flags, 4, 0, errors.GroupBrokenError),
        (flags, 4, (1 << 32) - 1, errors.RefusedError),
        (length, 2, 0xFFFF, errors.GroupBrokenError),
        (length, 2, 8, errors.GroupBrokenError),
    ):
        lines, mapped = begin(), offset == length
        tensor = dist.zeros(30_000) if mapped else np.ones(3)
        if damaged:
            work = dist.all_reduce(tensor, group=lines.group, async_op=True)
            put(lines.slot(2, 2) + offset, value, size=size)
        dist.barrier()
        if not damaged:
            with raises(kind, "rank", ranks=[2], most=soon):
                dist.all_reduce(tensor, group=lines.group)
        else:
            with suppress(errors.Error):
                work.wait(soon)
        dist.barrier()

    # The words of the chunks. They are not of one rank, so the error names none.
    for value in ((1 << 64) - 1, 2 << 20 | 60_000 << 4 | 1, 2 << 20 | 7):
        lines = begin()
        tensor = dist.zeros(1 << 20)
        if damaged:
            lines.spoil_chunks(3, value)
        dist.barrier()
        with raises(errors.GroupBrokenError, most=soon):
            dist.all_reduce(tensor, group=lines.group)
        dist.barrier()

    # The directory of its heap: the others do not map what it names, and the result is right.
    lines = begin()
    if damaged:
        directory = min(areas("paddlempi-heap"), key=lambda area: area[1] - area[0])[0]
        for entry in range(1, 200):
            put(directory + 32 * entry, 1 << 62, 1 << 62, entry, 7)
    dist.barrier()
    tensor = dist.zeros(30_000)
    tensor += rank + 1
    dist.all_reduce(tensor, group=lines.group)
    assert (tensor == 6).all()

    # It cannot cut what the others map.
    for descriptor in files("paddlempi-heap"):
        try:
            os.ftruncate(descriptor, 0)
            raise AssertionError("the heap was cut")
        except PermissionError:
            pass
    works()
    done()


def test_a_rank_that_writes_rubbish() -> None:
    job.succeed(3, writes_rubbish, timeout=120.0)
