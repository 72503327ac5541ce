"""Data-parallel training of a PyTorch model over MPI, on real data.

    mpirun -np 2 python examples/train_torch.py     # or: make train FRAMEWORK=torch
    python examples/train_torch.py                  # one rank
    mpirun -np 2 python examples/train_torch.py --backend gloo      # for comparison

The data are scikit-learn's handwritten digits (1,797 images of 8 x 8), which come
with its wheel. Every rank holds the whole model and takes its share of each global
batch; DistributedDataParallel averages the gradients over the ranks, so the curve of
the loss is the same on any number of ranks but for rounding.
"""

import argparse
import hashlib
import json
import sys
import time

import numpy as np
import paddlempi.torch  # noqa: F401 (enters "mpi"; sets RANK and what else gloo wants)
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def digits() -> tuple[torch.Tensor, ...]:
    """Training and test images (float32, 0 to 1) and labels, the same on every rank."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy((data.data[order] / 16).astype("float32"))
    labels = torch.from_numpy(data.target[order].astype("int64"))
    held = len(labels) // 5
    return images[held:], labels[held:], images[:held], labels[:held]


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )


def share(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """This rank's part of a global batch; the parts differ by one sample at most."""
    return batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]


class Clock:
    """How long gradients were under way: the state of a DDP hook that does what DDP does."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start = time.perf_counter()

        def arrived(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self.seconds += time.perf_counter() - start
            return future.value()

        return allreduce_hook(None, bucket).then(arrived)


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
    parser.add_argument("--backend", choices=["mpi", "gloo"], default="mpi")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="samples a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--losses", metavar="FILE", help="write the loss of each epoch as JSON")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # so small a model gains nothing by more
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
            mine = torch.from_numpy(share(batch, rank, size))
            loss = loss_of(model(images[mine]), labels[mine])
            # DDP divides by the number of ranks: this makes it the mean over the global batch.
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
        mine = torch.from_numpy(share(np.arange(len(test_labels)), rank, size))
        right = (model(test_images[mine]).argmax(dim=1) == test_labels[mine]).sum()
    dist.all_reduce(right)
    accuracy = int(right) / len(test_labels)

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone: list[str] = [""] * size
    dist.all_gather_object(everyone, hashlib.sha256(weights).hexdigest())
    equal = len(set(everyone)) == 1
    progress.line(f"test accuracy {accuracy:.4f}")
    progress.line(f"parameters equal bit for bit on all {size} ranks: {'yes' if equal else 'NO'}")
    if rank == 0 and options.losses:
        with open(options.losses, "w") as file:
            json.dump(curve, file)
    dist.destroy_process_group()
    if options.backend == "gloo":
        # gloo's threads let go of the last tensors some time after wait() has returned, and torch
        # 2.15 aborts when the interpreter is gone by then: nothing can be waited for.
        time.sleep(0.3)
    if not equal or accuracy < 0.95:
        sys.exit(1)


if __name__ == "__main__":
    main()
