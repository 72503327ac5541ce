"""A simulation that spawns processes which analyse its states while it goes on.

    mpirun -np 2 python examples/simulate.py --analysers 2

The simulation is heat on a ring: every rank has a piece of it, and exchanges the ends of the piece
with its neighbours in each step. Every 100 steps it sends its piece to an analyser, in turn, and
does not wait for it. The analysers, which the simulation has started, gather the pieces of a state
and find out how much of each wave is left. At the end they tell rank 0, which compares that with
what is known: the wave with k hills decays by the same factor in each step.

Under Intel MPI, mpirun needs ``-genv I_MPI_SPAWN 1``.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import paddlempi as dist

POINTS = 2400  # on the ring
RATE = 0.4  # of the heat that flows between two neighbours in a step
WAVES = (1, 2, 5)
EVERY = 100  # steps between two states that are analysed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--analysers", type=int, default=2, help="processes to spawn")
    parser.add_argument("--steps", type=int, default=2000, help=f"a multiple of {EVERY}")
    return parser.parse_args()


def piece_of(rank: int, size: int) -> slice:
    """Return the points of a rank."""
    return slice(POINTS * rank // size, POINTS * (rank + 1) // size)


def simulate(options: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    again = [sys.executable, __file__, f"--steps={options.steps}"]
    with dist.spawn(again, options.analysers, timeout=60) as analysers:
        angle = 2 * np.pi * np.arange(POINTS) / POINTS
        heat = sum(np.cos(k * angle) for k in WAVES)[piece_of(rank, size)]
        left, right = np.zeros(1), np.zeros(1)
        under_way = []  # a piece must not change until it is sent, so each send has a copy
        for step in range(options.steps + 1):
            if step % EVERY == 0:
                piece = heat.copy()
                to = step // EVERY % options.analysers
                under_way.append((analysers.isend(piece, to, tag=step // EVERY), piece))
            dist.sendrecv(heat[-1:].copy(), (rank + 1) % size, left, (rank - 1) % size)
            dist.sendrecv(heat[:1].copy(), (rank - 1) % size, right, (rank + 1) % size)
            around = np.concatenate([left, heat, right])
            heat = heat + RATE * (around[:-2] - 2 * heat + around[2:])
        for work, _ in under_way:
            work.wait()
        if rank == 0:
            report(analysers, options)


def report(analysers: dist.Intercommunicator, options: argparse.Namespace) -> None:
    """Show what the analysers have found, beside what is known."""
    worst = 0.0
    for number in range(options.steps // EVERY + 1):
        found = np.zeros(len(WAVES))
        analysers.recv(found, number % options.analysers, tag=number)
        decay = 1 - 2 * RATE * (1 - np.cos(2 * np.pi * np.array(WAVES) / POINTS))
        known = decay ** (number * EVERY)
        worst = max(worst, float(np.abs(found - known).max()))
        if number % 5 == 0:
            shown = ", ".join(f"wave {k}: {x:.4f}" for k, x in zip(WAVES, found, strict=True))
            print(f"step {number * EVERY:5d}: {shown}", flush=True)
    print(f"{number + 1} states, farthest from what is known: {worst:.1e}", flush=True)
    assert worst < 1e-9


def analyse(simulation: dist.Intercommunicator, steps: int) -> None:
    rank, size, pieces = simulation.rank(), simulation.size(), simulation.remote_size()
    with simulation:
        results = []
        for number in range(rank, steps // EVERY + 1, size):
            heat = np.zeros(POINTS)
            for source in range(pieces):
                simulation.recv(heat[piece_of(source, pieces)], source, tag=number)
            amplitudes = 2 / POINTS * np.abs(np.fft.rfft(heat))[list(WAVES)]
            results.append((simulation.isend(amplitudes, 0, tag=number), amplitudes))
        for work, _ in results:
            work.wait()


def main() -> None:
    options = arguments()
    dist.init_process_group("mpi")
    simulation = dist.get_parent()
    if simulation is None:
        simulate(options)
    else:
        analyse(simulation, options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
