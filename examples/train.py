"""Data-parallel training of a Paddle model over MPI, on real data.

    mpirun -np 2 python examples/train.py       # or: make train
    python examples/train.py                    # one rank

The data are scikit-learn's handwritten digits (1,797 images of 8 x 8), which come
with its wheel. Every rank holds the whole model and takes its share of each global
batch; DataParallel averages the gradients while backward runs, so the curve of the loss
is the same on any number of ranks but for rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore", message="No ccache found")  # Paddle's, of no concern here
import paddle  # noqa: E402
import paddlempi as dist  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402


def digits() -> tuple[np.ndarray, ...]:
    """Training and test images (float32, 0 to 1) and labels, the same on every rank."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 16).astype("float32")
    labels = data.target[order].astype("int64")
    held = len(labels) // 5
    return images[held:], labels[held:], images[:held], labels[:held]


def build_model() -> paddle.nn.Layer:
    return paddle.nn.Sequential(
        paddle.nn.Linear(64, 256),
        paddle.nn.ReLU(),
        paddle.nn.Linear(256, 128),
        paddle.nn.ReLU(),
        paddle.nn.Linear(128, 10),
    )


def share(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """This rank's part of a global batch; the parts differ by one sample at most."""
    return batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]


class Progress:
    """A bar on a terminal, on rank 0; elsewhere only what ``line`` prints."""

    def __init__(self, shown: bool, total: int) -> None:
        self.shown = shown
        self.bar = shown and sys.stderr.isatty()
        self.total = total

    def step(self, done: int, text: str) -> None:
        if self.bar:
            filled = 30 * done // self.total
            print(f"\r[{'#' * filled:<30}] {text}", end="", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        if self.bar:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if self.shown:
            print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="samples a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--losses", metavar="FILE", help="write the loss of each epoch as JSON")
    options = parser.parse_args()

    dist.init_process_group("mpi", framework="paddle")
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels, test_images, test_labels = digits()

    paddle.seed(1)
    model = paddle.DataParallel(build_model())
    optimizer = paddle.optimizer.Adam(options.lr, parameters=model.parameters())
    loss_of = paddle.nn.CrossEntropyLoss(reduction="sum")

    steps = -(-len(labels) // options.batch)
    progress = Progress(rank == 0, steps)
    progress.line(f"{size} rank(s), {len(labels)} images, {steps} steps an epoch")
    curve: list[float] = []
    began = time.perf_counter()
    for epoch in range(options.epochs):
        order = np.random.default_rng(1 + epoch).permutation(len(labels))
        total = paddle.zeros([1], dtype="float64")
        for step in range(steps):
            batch = order[step * options.batch : (step + 1) * options.batch]
            mine = share(batch, rank, size)
            weight = 1.0 if len(mine) else 0.0  # more ranks than samples: all take part in backward
            mine = mine if len(mine) else batch[:1]
            loss = loss_of(model(paddle.to_tensor(images[mine])), paddle.to_tensor(labels[mine]))
            # Gradients are averaged over the ranks: the factor makes them the global batch's mean.
            (loss * (weight * size / len(batch))).backward()
            total += weight * loss.detach().astype("float64")
            optimizer.step()
            optimizer.clear_grad()
            progress.step(step + 1, f"epoch {epoch + 1}")
        dist.all_reduce(total)
        curve.append(float(total) / len(labels))
        elapsed = time.perf_counter() - began
        progress.line(
            f"epoch {epoch + 1:3d}  loss {curve[-1]:.4f}  "
            f"{(epoch + 1) * len(labels) / elapsed:8.0f} images/s  "
            f"communicating {100 * model.seconds_waited / elapsed:4.1f} %"
        )

    with paddle.no_grad():
        mine = share(np.arange(len(test_labels)), rank, size)
        guess = model(paddle.to_tensor(test_images[mine])).numpy().argmax(axis=1)
    right = np.array([(guess == test_labels[mine]).sum()])
    dist.all_reduce(right)
    accuracy = right[0] / len(test_labels)

    bits = hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest()
    everyone: list[str] = [""] * size
    dist.all_gather_object(everyone, bits)
    equal = len(set(everyone)) == 1
    progress.line(f"test accuracy {accuracy:.4f}")
    progress.line(f"parameters equal bit for bit on all {size} ranks: {'yes' if equal else 'NO'}")
    if rank == 0 and options.losses:
        with open(options.losses, "w") as file:
            json.dump(curve, file)
    dist.destroy_process_group()
    if not equal or accuracy < 0.95:
        sys.exit(1)


if __name__ == "__main__":
    main()
