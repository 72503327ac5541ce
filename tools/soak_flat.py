"""Checks that a long-running job holds no more memory, descriptors and mappings than at its start.

    python -m paddlempi.testing.launch -np 2 -- python tools/soak_flat.py SECONDS SEED

Every round does a mixture of work that all ranks draw alike, and then lets go of everything. Every
rank then looks at its own process. What it holds in the last third of the rounds may not be more
than in the second; the first is a warm-up. The figures of every rank are printed, and the job fails
if some rank holds more.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np
import paddlempi as dist
import paddlempi.torch  # makes the backend known
import torch
import torch.distributed
from paddlempi import ps
from torch.nn.parallel import DistributedDataParallel

SLACK = {
    # Allocators, Python's, Go's and that of C, do not give everything back.
    "ordinary memory": 12 << 20,
    # A rank lets go of a bucket that another rank has dropped at the next look.
    "memory files": 1 << 20,
    "descriptors": 2,
    # An allocator maps an arena, or the stack of a thread, at its first need.
    "mappings": 8,
    # Go starts another one where those that it has are held in system calls by a busy machine.
    "threads": 3,
}
"""What a process may hold more at the end: bytes, descriptors, mappings, threads."""

LEAST_ROUNDS = 18
"""Rounds that are worked even if the time is over, so that there is something to compare."""

LONGEST = 1 << 20
"""Elements of the longest tensor. All tensors of a round fit in one segment of the heap."""


def held() -> dict[str, int]:
    """Return what this process holds, as a number for every name of :data:`SLACK`."""
    files: dict[int, int] = {}
    descriptors = os.listdir("/proc/self/fd")
    for name in descriptors:
        try:
            status = os.stat(f"/proc/self/fd/{name}")
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the folder itself
        if target.startswith(("/memfd:", "/dev/shm/")):
            files[status.st_ino] = status.st_blocks * 512
    rollup = Path("/proc/self/smaps_rollup").read_text()
    anonymous = next(line for line in rollup.splitlines() if line.startswith("Anonymous:"))
    return {
        "ordinary memory": int(anonymous.split()[1]) << 10,
        "memory files": sum(files.values()),
        "descriptors": len(descriptors),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "threads": len(os.listdir("/proc/self/task")),
    }


class Soak:
    """A rank that works. ``draw`` gives the same numbers on all ranks."""

    def __init__(self, seed: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.draw = random.Random(seed)
        self.own = random.Random(1000 * seed + self.rank)
        self.work: tuple[Callable[[], None], ...] = (
            self.synchronous,
            self.asynchronous,
            self.dropped,
            self.messages,
            self.objects,
            self.groups,
            self.refused,
            self.interrupted,
            self.stopped,
            self.model,
            self.buckets,
            self.served,
        )

    def round(self) -> None:
        """Do each kind of work, in an order of its own."""
        for work in self.draw.sample(self.work, len(self.work)):
            work()

    def tensor(self, value: float, longest: int = LONGEST) -> Any:
        """Return a tensor of a random length, often in the heap."""
        length = int(longest ** self.draw.random())
        if self.draw.random() < 0.7:
            tensor = dist.empty(length, "float32", self.draw.choice(["numpy", "torch"]))
        else:
            tensor = np.empty(length, np.float32)
        tensor[:] = value
        return tensor

    def reduced(self, tensor: Any) -> None:
        """Check a sum over all ranks, each of which gave its rank + 1."""
        assert (tensor == self.size * (self.size + 1) / 2).all()

    def synchronous(self) -> None:
        kept = []
        for _ in range(20):
            tensor = self.tensor(self.rank + 1)
            dist.all_reduce(tensor)
            self.reduced(tensor)
            kept.append(tensor)
            if self.draw.random() < 0.5:
                kept.pop(self.draw.randrange(len(kept)))
            length = len(tensor)
            whole = dist.empty((self.size, length))
            dist.all_gather_into_tensor(whole, tensor)
            self.reduced(whole)
            dist.reduce_scatter_tensor(dist.empty(length), whole)
            dist.broadcast(tensor, self.draw.randrange(self.size))

    def asynchronous(self) -> None:
        tensors = [self.tensor(self.rank + 1, LONGEST // 8) for _ in range(50)]
        operations: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        self.own.shuffle(operations)
        for operation in operations:
            if self.own.random() < 0.1:
                time.sleep(0.001)
            operation.wait()
        for tensor in tensors:
            self.reduced(tensor)

    def dropped(self) -> None:
        """Nobody waits for these, and nobody keeps their tensors."""
        for _ in range(10):
            dist.all_reduce(self.tensor(1, LONGEST // 8), async_op=True)
        dist.barrier()

    def served(self) -> None:
        """Some steps with tables on servers, which begin and end."""
        roles = self.draw.choice(["trainer+pserver:*", "trainer:*,pserver:1"])
        ps.init(roles, mode=self.draw.choice(["sync", "async"]), timeout=60)
        lengths = [int(4096 ** self.draw.random()) for _ in range(10)]
        if ps.is_trainer():
            table = ps.RemoteTable("soak", 16, "adagrad")
            for length in lengths:
                ids = np.arange(length) * 7
                rows = table.pull(ids)
                table.push(ids, np.ones_like(rows))
        ps.shutdown()

    def messages(self) -> None:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for _ in range(5):
            tensor = self.tensor(7)
            got = np.zeros(len(tensor), np.float32)
            operations: list[Any] = [dist.irecv(got, before), dist.isend(tensor, after)]
            for operation in operations:
                operation.wait()
            assert (got == 7).all()

    def objects(self) -> None:
        root = self.draw.randrange(self.size)
        text = "x" * self.draw.randrange(100_000)
        listed = [text if self.rank == root else None]
        dist.broadcast_object_list(listed, root)
        assert listed == [text]

    def groups(self) -> None:
        groups = [dist.new_group(), dist.new_group(list(range(self.size))[::-1])]
        torch_group = torch.distributed.new_group()
        tensor = self.tensor(self.rank + 1)
        for group in groups:
            dist.all_reduce(tensor, group=group, async_op=self.draw.random() < 0.5)
        torch.distributed.all_reduce(torch.ones(10), group=torch_group)
        for group in groups:
            dist.destroy_process_group(group)
        torch.distributed.destroy_process_group(torch_group)

    def refused(self) -> None:
        try:
            dist.all_reduce(np.zeros(3 + self.rank))
        except dist.errors.MismatchError:
            return
        raise AssertionError("no MismatchError")

    def interrupted(self) -> None:
        """A rank gets a Ctrl-C while it waits for the others, and gives the group up for all."""
        group = dist.new_group()
        victim = self.draw.randrange(self.size)
        expected: type[BaseException] = dist.errors.GroupBrokenError
        if self.rank == victim:
            expected = KeyboardInterrupt
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            dist.barrier()
        try:
            dist.all_reduce(self.tensor(1), group=group)
        except expected:
            pass
        else:
            raise AssertionError(f"no {expected.__name__}")
        if self.rank == victim:
            dist.barrier()
        dist.destroy_process_group(group)

    def stopped(self) -> None:
        """A rank is stopped for a moment; the others wait for it."""
        if self.rank == self.draw.randrange(self.size):
            command = f"kill -STOP {os.getpid()}; sleep 0.2; kill -CONT {os.getpid()}"
            with subprocess.Popen(["sh", "-c", command]):
                for _ in range(20):
                    self.reduced_once()
        else:
            for _ in range(20):
                self.reduced_once()

    def reduced_once(self) -> None:
        tensor = self.tensor(self.rank + 1, LONGEST // 8)
        dist.all_reduce(tensor)
        self.reduced(tensor)

    def model(self) -> None:
        """A model in DDP, whose buckets move into shared memory, and a few steps."""
        width = self.draw.choice([16, 64, 256])
        layers = [torch.nn.Linear(width, width) for _ in range(4)]
        model = DistributedDataParallel(
            torch.nn.Sequential(*layers), gradient_as_bucket_view=self.draw.random() < 0.5
        )
        for _ in range(5):
            model.zero_grad()
            model(torch.randn(4, width)).pow(2).sum().backward()

    def buckets(self) -> None:
        """Buckets as a framework sends them, with futures."""
        tensors = [torch.full((10_000,), self.rank + 1.0) for _ in range(8)]
        futures = [
            torch.distributed.all_reduce(tensor, async_op=True).get_future() for tensor in tensors
        ]
        for future in futures:
            future.wait()
        for tensor in tensors:
            self.reduced(tensor)


def at_rest() -> dict[str, int]:
    """Let go of everything and return what this process holds."""
    gc.collect()
    dist.barrier()
    time.sleep(0.02)  # the threads that complete operations let go of them
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    dist.barrier()
    return held()


def main(seconds: float, seed: int) -> int:
    """Work for so many seconds. Return 1 if this or another rank holds more at the end, else 0."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("mpi")
    begun = time.monotonic()
    samples: list[dict[str, int]] = []
    soak = Soak(seed)
    over, rounds = np.zeros(1), 0
    while not over:
        soak.round()
        rounds += 1
        samples.append(at_rest())
        over[0] = time.monotonic() > begun + seconds and rounds >= LEAST_ROUNDS
        dist.broadcast(over, 0)
    third = len(samples) // 3
    warm, late = samples[third : 2 * third], samples[-third:]
    grown = False
    lines = [
        f"rank {soak.rank}, {rounds} rounds: first round, median of the second and the last third"
    ]
    for name, slack in SLACK.items():
        before, after = (median_high(seen[name] for seen in part) for part in (warm, late))
        more = after > before + slack
        grown = grown or more
        grows = "  GROWS" if more else ""
        lines.append(f"  {name:16}{samples[0][name]:>12}{before:>12}{after:>12}{grows}")
    told: list[Any] = [None] * soak.size
    dist.all_gather_object(told, ("\n".join(lines), grown))
    if soak.rank == 0:
        print("\n".join(text for text, _ in told))
    torch.distributed.destroy_process_group()
    return int(any(bad for _, bad in told))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
