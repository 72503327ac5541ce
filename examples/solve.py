"""A linear system that all ranks solve by conjugate gradients, with prepared calls.

    mpirun -np 4 python examples/solve.py       # any number of ranks, also one

The matrix has 2.1 on its diagonal and -1 for the two neighbours of each row, on a ring. Every rank
has some rows. A step exchanges one number with each neighbour and adds up two numbers over all
ranks: many short calls with the same arguments, which are prepared once. At the end every rank
solves the whole system by itself, and compares its rows.
"""

from __future__ import annotations

import argparse

import numpy as np
import paddlempi as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100, help="of each rank")
    parser.add_argument("--tolerance", type=float, default=1e-10)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    n = options.rows
    b = np.random.default_rng(3).standard_normal(n * size)
    mine = slice(n * rank, n * (rank + 1))

    p = np.zeros(n + 2)  # the search direction, and one number of each neighbour around it
    total = np.zeros(1)
    left, right = (rank - 1) % size, (rank + 1) % size
    to_right = dist.prepare("sendrecv", p[n : n + 1], right, p[:1], left)
    to_left = dist.prepare("sendrecv", p[1:2], left, p[n + 1 :], right)
    add_up = dist.prepare("all_reduce", total)

    def dot(x: np.ndarray, y: np.ndarray) -> float:
        total[0] = x @ y
        add_up()
        return float(total[0])

    x, residual = np.zeros(n), b[mine].copy()
    p[1:-1] = residual
    square = dot(residual, residual)
    steps = 0
    while square > options.tolerance**2:
        to_right()
        to_left()
        ap = 2.1 * p[1:-1] - p[:-2] - p[2:]
        step = square / dot(p[1:-1], ap)
        x += step * p[1:-1]
        residual -= step * ap
        before, square = square, dot(residual, residual)
        p[1:-1] = residual + square / before * p[1:-1]
        steps += 1

    one = np.eye(n * size)
    matrix = 2.1 * one - np.roll(one, 1, axis=0) - np.roll(one, -1, axis=0)
    same = np.array([np.allclose(x, np.linalg.solve(matrix, b)[mine], atol=1e-8)])
    dist.all_reduce(same, dist.ReduceOp.MIN)
    if rank == 0:
        print(f"{n * size} rows on {size} ranks, {steps} steps")
        print(f"equal to one process: {'yes' if same[0] else 'no'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
