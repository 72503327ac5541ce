"""Work stealing: a rank that has finished its share takes work from the others' shares.

    mpirun -np 4 python examples/window_stealing.py

The work is a picture of the Mandelbrot set, whose rows differ much in what they cost. A rank has a
share of neighbouring rows. The window ``counters`` has the next row of every share. Whoever
takes a row adds 1 to the counter by ``fetch_and_op`` and gets the number before, so no row is taken
twice. A row is put into the window ``picture`` of rank 0. No rank waits for another until all rows
are done.

The program computes the picture without stealing, then with it, and prints how long each rank
computed. The balance is the mean of these times over their maximum.
"""

import argparse
import sys
import time

import numpy as np
import paddlempi as dist


def row_of(number: int, height: int, width: int, limit: int) -> np.ndarray:
    """Return for each point of a row how many steps it stays near 0, at most ``limit``."""
    points = np.linspace(-2.2, 0.8, width) + 1j * (1.4 * number / height - 1.3)
    steps, near = np.full(width, limit, np.int32), np.arange(width)
    values = points
    for step in range(limit):
        inside = values.real**2 + values.imag**2 <= 4
        steps[near[~inside]] = step
        near, points, values = near[inside], points[inside], values[inside]
        values = values * values + points
    return steps


def compute(
    counters: dist.Window,
    picture: dist.Window,
    rows: list[range],
    arguments: tuple[int, ...],
    steal: bool,
) -> tuple[float, int]:
    """Take and compute rows until there are none. Return this rank's seconds, and rows stolen."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counters.local[0] = rows[rank].start
    counters.fence()
    seconds, stolen = 0.0, 0
    for victim in [(rank + i) % size for i in range(size if steal else 1)]:
        while (row := counters.fetch_and_op(1, victim)) < rows[victim].stop:
            began = time.thread_time()
            picture[0][row] = row_of(row, *arguments)
            seconds += time.thread_time() - began
            stolen += victim != rank
    picture.fence()
    return seconds, stolen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=200)
    parser.add_argument("--width", type=int, default=1500)
    parser.add_argument("--limit", type=int, default=200, help="steps for each point")
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    arguments = (options.height, options.width, options.limit)
    first = [options.height * i // size for i in range(size + 1)]
    rows = [range(first[i], first[i + 1]) for i in range(size)]
    counters = dist.Window(1, "int64")
    picture = dist.Window(arguments[:2] if rank == 0 else 0, "int32")
    equal = True
    for steal in (False, True):
        if rank == 0:
            picture.local[...] = -1
        everyone: list[tuple[float, int]] = [(0.0, 0)] * size
        dist.all_gather_object(everyone, compute(counters, picture, rows, arguments, steal))
        seconds = [one for one, _ in everyone]
        balance = sum(seconds) / size / max(seconds)
        if rank == 0:
            each = " ".join(f"{one:.3f}" for one in seconds)
            stolen = sum(count for _, count in everyone)
            how = f"{stolen} rows stolen" if steal else "no stealing"
            print(f"{how}: {each} s a rank, balance {balance:.2f}", flush=True)
            alone = np.stack([row_of(row, *arguments) for row in range(options.height)])
            equal = equal and np.array_equal(alone, picture.local)
    if rank == 0:
        print(f"the picture equals that of one process: {'yes' if equal else 'NO'}")
    picture.free()
    counters.free()
    dist.destroy_process_group()
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
