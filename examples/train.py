"""Data-parallel training of a Paddle model over MPI, on real data.

    mpirun -np 2 python examples/train.py       # or: make train
    python examples/train.py                    # one rank

The data are scikit-learn's handwritten digits (1,797 images of 8 x 8), which are part
of its wheel. Every rank holds the whole model and takes its part of every global
batch. DataParallel averages the gradients while backward runs. So the losses are the
same on any number of ranks, except for rounding.

With --checkpoints the training goes on from its last checkpoint when it is started again:

    python -m paddlempi run --restarts 3 -- \\
        mpirun -np 2 python examples/train.py --checkpoints saved
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore", message="No ccache found")  # from Paddle; harmless here
import paddle  # noqa: E402
import paddlempi as dist  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402


def digits() -> tuple[np.ndarray, ...]:
    """Return training and test images (float32, 0 to 1) and labels, the same on every rank."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 16).astype("float32")
    labels = data.target[order].astype("int64")
    test_count = len(labels) // 5
    return images[test_count:], labels[test_count:], images[:test_count], labels[:test_count]


def build_model() -> paddle.nn.Layer:
    return paddle.nn.Sequential(
        paddle.nn.Linear(64, 256),
        paddle.nn.ReLU(),
        paddle.nn.Linear(256, 128),
        paddle.nn.ReLU(),
        paddle.nn.Linear(128, 10),
    )


def part_of(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return this rank's part of a global batch; the parts differ by one sample at most."""
    return batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]


class Progress:
    """Shows the progress on rank 0: the lines of ``line``, and on a terminal a bar too."""

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


class Checkpoints:
    """Saves the training and goes on from there. Without a directory it does neither."""

    def __init__(self, directory: str | None, net: paddle.nn.Layer, adam: paddle.optimizer.Adam):
        self.directory, self.net, self.adam = directory, net, adam

    def load(self) -> tuple[int, list[float], paddle.Tensor]:
        """Return how many steps are done, the losses, and this rank's part of the next loss."""
        total = paddle.zeros([1], dtype="float64")
        last = dist.latest_checkpoint(self.directory) if self.directory else None
        if last is None:
            return 0, [], total
        saved = paddle.load(str(last.path / "training"))
        self.net.set_state_dict(saved["model"])
        self.adam.set_state_dict(saved["optimizer"])
        return last.step, saved["curve"], saved["total"] if dist.get_rank() == 0 else total

    def save(self, done: int, curve: list[float], total: paddle.Tensor) -> None:
        total = total.clone()
        dist.all_reduce(total)
        with dist.checkpoint(self.directory, done, keep=2) as folder:
            if dist.get_rank() == 0:  # the ranks have the same model
                models = {"model": self.net.state_dict(), "optimizer": self.adam.state_dict()}
                paddle.save({**models, "curve": curve, "total": total}, str(folder / "training"))

    def note(self, done: int) -> None:
        """Note how many steps are done, so that a restart can tell what was lost."""
        Path(self.directory).mkdir(parents=True, exist_ok=True)
        Path(self.directory, "reached").write_text(str(done))

    def noted(self) -> int:
        return int(Path(self.directory, "reached").read_text() or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="samples a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--losses", metavar="FILE", help="write the loss of each epoch as JSON")
    parser.add_argument("--checkpoints", metavar="DIR", help="save there, and go on from there")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    options = parser.parse_args()

    dist.init_process_group("mpi", framework="paddle")
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels, test_images, test_labels = digits()

    paddle.seed(1)
    net = build_model()
    model = paddle.DataParallel(net)
    optimizer = paddle.optimizer.Adam(options.lr, parameters=model.parameters())
    loss_of = paddle.nn.CrossEntropyLoss(reduction="sum")

    steps = -(-len(labels) // options.batch)
    progress = Progress(rank == 0, steps)
    progress.line(f"{size} rank(s), {len(labels)} images, {steps} steps an epoch")
    checkpoints = Checkpoints(options.checkpoints, net, optimizer)
    first, curve, total = checkpoints.load()
    if first and rank == 0:
        lost = checkpoints.noted() - first
        progress.line(f"goes on after step {first}; {lost} step(s) are done again")
    done = first
    began = time.perf_counter()
    for epoch in range(first // steps, options.epochs):
        order = np.random.default_rng(1 + epoch).permutation(len(labels))
        for step in range(done % steps, steps):
            if options.checkpoints:
                preempted = dist.preempted()
                if preempted or (done % options.save_every == 0 and done > first):
                    checkpoints.save(done, curve, total)
                if preempted:
                    progress.line(f"asked to end: saved after step {done}")
                    sys.exit(dist.PREEMPTED)
            batch = order[step * options.batch : (step + 1) * options.batch]
            part = part_of(batch, rank, size)
            # With more ranks than samples a rank has no part, but it must take part in backward.
            weight = 1.0 if len(part) else 0.0
            part = part if len(part) else batch[:1]
            loss = loss_of(model(paddle.to_tensor(images[part])), paddle.to_tensor(labels[part]))
            # DataParallel divides by the number of ranks. The factor makes the gradients those of
            # the mean over the global batch.
            (loss * (weight * size / len(batch))).backward()
            total += weight * loss.detach().astype("float64")
            optimizer.step()
            optimizer.clear_grad()
            done += 1
            if options.checkpoints and rank == 0:
                checkpoints.note(done)
            progress.step(step + 1, f"epoch {epoch + 1}")
        dist.all_reduce(total)
        curve.append(total.item() / len(labels))
        total = paddle.zeros([1], dtype="float64")
        elapsed = time.perf_counter() - began
        progress.line(
            f"epoch {epoch + 1:3d}  loss {curve[-1]:.4f}  "
            f"{(done - first) * len(labels) / steps / elapsed:8.0f} images/s  "
            f"communicating {100 * model.seconds_waited / elapsed:4.1f} %"
        )

    with paddle.no_grad():
        part = part_of(np.arange(len(test_labels)), rank, size)
        guess = model(paddle.to_tensor(test_images[part])).numpy().argmax(axis=1)
    right = np.array([(guess == test_labels[part]).sum()])
    dist.all_reduce(right)
    accuracy = right[0] / len(test_labels)

    bits = hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest()
    hashes: list[str] = [""] * size
    dist.all_gather_object(hashes, bits)
    equal = len(set(hashes)) == 1
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
