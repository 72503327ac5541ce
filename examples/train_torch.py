"""Data-parallel training of a PyTorch model over MPI, on real data.

    mpirun -np 2 python examples/train_torch.py     # or: make train FRAMEWORK=torch
    python examples/train_torch.py                  # one rank
    mpirun -np 2 python examples/train_torch.py --backend gloo      # for comparison

The data are scikit-learn's handwritten digits (1,797 images of 8 x 8), which are part
of its wheel. Every rank holds the whole model and takes its part of every global
batch. DistributedDataParallel averages the gradients over the ranks. So the losses are
the same on any number of ranks, except for rounding.
"""

import argparse
import hashlib
import json
import sys
import time

import numpy as np
import paddlempi.torch  # noqa: F401 (registers "mpi"; sets RANK and what else gloo needs)
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def digits() -> tuple[torch.Tensor, ...]:
    """Return training and test images (float32, 0 to 1) and labels, the same on every rank."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy((data.data[order] / 16).astype("float32"))
    labels = torch.from_numpy(data.target[order].astype("int64"))
    test_count = len(labels) // 5
    return images[test_count:], labels[test_count:], images[:test_count], labels[:test_count]


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )


def part_of(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return this rank's part of a global batch; the parts differ by one sample at most."""
    return batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]


class Clock:
    """Measures how long gradients are under way. The hook does what DDP does without one."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start = time.perf_counter()

        def completed(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self.seconds += time.perf_counter() - start
            return future.value()

        return allreduce_hook(None, bucket).then(completed)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["mpi", "gloo"], default="mpi")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="samples a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--losses", metavar="FILE", help="write the loss of each epoch as JSON")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # so small a model is not faster with more
    images, labels, test_images, test_labels = digits()

    torch.manual_seed(1)
    model = DistributedDataParallel(build_model())
    clock = Clock()
    model.register_comm_hook(clock, Clock.hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    loss_of = torch.nn.CrossEntropyLoss(reduction="sum")

    steps = -(-len(labels) // options.batch)
    progress = Progress(rank == 0, steps)
    progress.line(
        f"{size} rank(s) over {options.backend}, {len(labels)} images, {steps} steps an epoch"
    )
    curve: list[float] = []
    began = time.perf_counter()
    for epoch in range(options.epochs):
        order = np.random.default_rng(1 + epoch).permutation(len(labels))
        total = torch.zeros([], dtype=torch.float64)
        for step in range(steps):
            batch = order[step * options.batch : (step + 1) * options.batch]
            part = torch.from_numpy(part_of(batch, rank, size))
            loss = loss_of(model(images[part]), labels[part])
            # DDP divides by the number of ranks. The factor makes the gradients those of the mean
            # over the global batch.
            (loss * size / len(batch)).backward()
            total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            progress.step(step + 1, f"epoch {epoch + 1}")
        start = time.perf_counter()
        dist.all_reduce(total)
        clock.seconds += time.perf_counter() - start
        curve.append(float(total) / len(labels))
        elapsed = time.perf_counter() - began
        progress.line(
            f"epoch {epoch + 1:3d}  loss {curve[-1]:.4f}  "
            f"{(epoch + 1) * len(labels) / elapsed:8.0f} images/s  "
            f"communicating {100 * clock.seconds / elapsed:4.1f} %"
        )

    with torch.no_grad():
        part = torch.from_numpy(part_of(np.arange(len(test_labels)), rank, size))
        right = (model(test_images[part]).argmax(dim=1) == test_labels[part]).sum()
    dist.all_reduce(right)
    accuracy = int(right) / len(test_labels)

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    hashes: list[str] = [""] * size
    dist.all_gather_object(hashes, hashlib.sha256(weights).hexdigest())
    equal = len(set(hashes)) == 1
    progress.line(f"test accuracy {accuracy:.4f}")
    progress.line(f"parameters equal bit for bit on all {size} ranks: {'yes' if equal else 'NO'}")
    if rank == 0 and options.losses:
        with open(options.losses, "w") as file:
            json.dump(curve, file)
    dist.destroy_process_group()
    if options.backend == "gloo":
        # gloo's threads release the last tensors some time after wait() has returned. If the
        # interpreter is gone by then, torch 2.15 aborts. There is no event to wait for.
        time.sleep(0.3)
    if not equal or accuracy < 0.95:
        sys.exit(1)


if __name__ == "__main__":
    main()
