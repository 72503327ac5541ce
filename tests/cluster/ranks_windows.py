"""Windows over two hosts: values, a target that computes, signals, locks and a free that fails."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import paddlempi as dist
import ranks_report


def sums(rank: int, size: int) -> list[str]:
    """Ranks of both hosts add to the same elements. Returns what is wrong."""
    wrong = []
    for dtype in ("uint8", "int64", "float16", "float64", "complex128"):
        with dist.Window((3, 50_000), dtype=dtype) as window:
            one = np.ones((3, 25_000), dtype)
            for turn in range(2 * size):
                target, to = turn % size, turn // size
                # [:, to::2]
                window._accumulate_at(one, target, dist.ReduceOp.SUM, to, (3, 25_000), (50_000, 2))
            window.fence()
            if not (window.local == size).all():
                wrong.append(f"sum of {dtype}")
            out = np.zeros((3, 50_000), dtype)
            window.get(out, (rank + 1) % size)
            if not (out == size).all():
                wrong.append(f"get of {dtype}")
    return wrong


def computing(rank: int, size: int) -> float:
    """The last rank computes, without a call. Returns how long it took rank 0 to reach it."""
    seconds = 0.0
    with dist.Window(1 << 17) as window:
        x = np.arange(1 << 17, dtype="float32")
        window.fence()
        if rank == size - 1:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                pass
        elif rank == 0:
            time.sleep(0.2)
            began = time.monotonic()
            window.put(x, size - 1)
            window.flush(size - 1)
            window.fetch_and_op(1, size - 1)
            seconds = time.monotonic() - began
        window.fence()
        if rank == size - 1:
            x[0] += 1
            assert (window.local == x).all()
    return seconds


def interrupted(rank: int, size: int) -> str:
    """Ctrl-C while rank 0 waits for a lock of another host, which is free afterwards."""
    raised = ""
    with dist.Window(1) as window:
        if rank == size - 1:
            with window.lock(size - 1):
                window.fence()
                window.fence()
        else:
            window.fence()
            if rank == 0:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    with window.lock(size - 1):
                        raised = "it got the lock"
                except KeyboardInterrupt:
                    raised = "KeyboardInterrupt"
            window.fence()
        with window.lock(size - 1):
            window.fetch_and_op(1, size - 1)
        window.fence()
        assert window.fetch_and_op(0, size - 1, window.NO_OP) == size
    return raised


def left_alone(rank: int, size: int) -> ranks_report.Facts:
    """Rank 0 frees a window to which the others do not come, and they access it afterwards."""
    group = dist.new_group(timeout=2.0)
    window, other = dist.Window(1, group=group), dist.Window(1)
    if rank == 0:
        facts = ranks_report.error_of(lambda: window.free(timeout=0.5))
    else:
        other.wait_signal(0)

        def access() -> None:
            window.put(np.ones(1, "float32"), 0)
            window.flush(0)

        facts = ranks_report.error_of(access)
    for r in range(size) if rank == 0 else ():
        other.signal(r)
    other.fence()
    other.free()
    return facts


def main() -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks_report.write(
        {
            "rank": rank,
            "wrong": sums(rank, size),
            "seconds": computing(rank, size),
            "interrupted": interrupted(rank, size),
            "alone": left_alone(rank, size),
        }
    )


if __name__ == "__main__":
    main()
