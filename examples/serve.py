"""A job that trains a model and then serves it, and jobs that connect to it and leave.

    head -c 32 /dev/urandom | base64 > secret; chmod 600 secret
    mpirun -np 2 python examples/serve.py --at 127.0.0.1:5555 --secret secret --jobs 2
    mpirun -np 1 python examples/serve.py --ask 127.0.0.1:5555 --secret secret     # twice

All of them with MPICH; or with Intel MPI, whose mpirun needs ``-genv I_MPI_SPAWN 1``.

The model tells ten clouds of points apart (softmax regression). Every rank of the server trains on
its part of the points, and the gradients are averaged. Then the ranks serve together: a process of
a job sends its questions to one of them, which answers with a label for each point.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import paddlempi as dist

CLASSES, FEATURES = 10, 8
QUESTION, ANSWER = 1, 2  # tags


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--at", metavar="HOST:PORT", help="train, and serve there")
    what.add_argument("--ask", metavar="HOST:PORT", help="ask the server that is there")
    parser.add_argument("--secret", type=Path, required=True, help="a file of mode 0600")
    parser.add_argument("--jobs", type=int, default=2, help="serve as many, then end")
    return parser.parse_args()


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points and their labels. The clouds are the same for each seed."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 3
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    return centres[labels] + random.normal(size=(count, FEATURES)), labels


def train() -> np.ndarray:
    """Return the weights, the same on all ranks."""
    features, labels = points(4000, seed=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    features, labels = features[rank::size], labels[rank::size]
    weights = np.zeros((FEATURES, CLASSES))
    wanted = np.eye(CLASSES)[labels]
    for _ in range(200):
        scores = features @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        gradient = features.T @ (scores / scores.sum(axis=1, keepdims=True) - wanted) / len(labels)
        dist.all_reduce(gradient, dist.ReduceOp.AVG)
        weights -= 0.1 * gradient
    return weights


def serve(options: argparse.Namespace) -> None:
    weights = train()
    rank = dist.get_rank()
    for number in range(options.jobs):
        with dist.accept(options.at, secret=options.secret) as job:
            answered = 0
            try:
                # Process i of the job asks rank i % size of the server. Its last question is empty.
                asking = len(range(rank, job.remote_size(), job.size()))
                while asking:
                    found = job.probe(tag=QUESTION)
                    question = np.zeros((found.nbytes // (8 * FEATURES), FEATURES))
                    job.recv(question, found.source, tag=QUESTION)
                    if len(question) == 0:
                        asking -= 1
                        continue
                    job.send((question @ weights).argmax(axis=1), found.source, tag=ANSWER)
                    answered += len(question)
            except dist.errors.PeerLeftError as error:  # a job may die, and the server goes on
                print(f"rank {rank}: {error}", flush=True)
        print(f"rank {rank}: job {number} is gone; {answered} points", flush=True)


def ask(options: argparse.Namespace) -> None:
    with dist.connect(options.ask, secret=options.secret, timeout=60) as server:
        rank = dist.get_rank()
        asked = rank % server.remote_size()
        features, labels = points(1000, seed=100 + rank)
        right = 0
        for batch, wanted in zip(
            features.reshape(10, 100, -1), labels.reshape(10, 100), strict=True
        ):
            server.send(batch, asked, tag=QUESTION)
            answer = np.zeros(len(batch), dtype=np.int64)
            server.recv(answer, asked, tag=ANSWER)
            right += int((answer == wanted).sum())
        server.send(np.zeros((0, FEATURES)), asked, tag=QUESTION)
    print(f"process {rank}: {right / len(labels):.1%} of the answers are right", flush=True)
    assert right > 0.9 * len(labels)


def main() -> None:
    options = arguments()
    dist.init_process_group("mpi")
    if options.at:
        serve(options)
    else:
        ask(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
