"""A producer and its consumers: batches go into two buffers of each consumer, with signals.

    mpirun -np 3 python examples/window_stream.py

Rank 0 makes batches and puts them into the windows of the other ranks in turn. A window has two
buffers. While a consumer works on one, the producer fills the other. A signal of the producer says
that a buffer is full, and one of a consumer that a buffer is free. There are no other messages, and
no rank waits for more than the one signal that it needs.

The program compares the results with those of one process, and prints the seconds of both.
"""

import argparse
import sys
import time

import numpy as np
import paddlempi as dist

BUFFERS = 2
PRODUCER = 0


def make(number: int, rows: int) -> np.ndarray:
    """Return a batch."""
    return np.random.default_rng(number).standard_normal((rows, rows), np.float32)


def work_on(batch: np.ndarray) -> float:
    """Return what a consumer computes of a batch: its greatest amplitude."""
    return float(np.abs(np.fft.fft2(batch)).max())


def produce(window: dist.Window, batches: int, rows: int) -> None:
    consumers = dist.get_world_size() - 1
    for number in range(batches):
        consumer, turn = 1 + number % consumers, number // consumers
        batch = make(number, rows)
        if turn >= BUFFERS:
            window.wait_signal(consumer)  # the buffer of two turns ago is free
        window[consumer][turn % BUFFERS] = batch
        window.signal(consumer)


def consume(window: dist.Window, batches: int) -> dict[int, float]:
    consumers = dist.get_world_size() - 1
    results = {}
    for turn, number in enumerate(range(dist.get_rank() - 1, batches, consumers)):
        window.wait_signal(PRODUCER)
        results[number] = work_on(window.local[turn % BUFFERS])
        window.signal(PRODUCER)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rows", type=int, default=256)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        raise SystemExit("window_stream.py needs a producer and a consumer: mpirun -np 2")
    shape = (BUFFERS, options.rows, options.rows)
    window = dist.Window(0 if rank == PRODUCER else shape, "float32")
    began = time.perf_counter()
    results = {}
    if rank == PRODUCER:
        produce(window, options.batches, options.rows)
    else:
        results = consume(window, options.batches)
    everyone: list[dict[int, float]] = [{}] * size
    dist.all_gather_object(everyone, results)
    seconds = time.perf_counter() - began
    equal = True
    if rank == 0:
        began = time.perf_counter()
        alone = {i: work_on(make(i, options.rows)) for i in range(options.batches)}
        one = time.perf_counter() - began
        found = {number: value for some in everyone for number, value in some.items()}
        equal = found == alone
        ranks = f"{options.batches} batches, {size - 1} consumer(s)"
        print(f"{ranks}: {seconds:.2f} s; one process: {one:.2f} s")
        print(f"the results equal those of one process: {'yes' if equal else 'NO'}")
    window.free()
    dist.destroy_process_group()
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
