"""The classes of operations of the matrix, as every rank calls them.

A ``round`` is one operation of the class, with a check of its values. ``done`` travels with the
data: the round returns True on all ranks if one rank gave True. So a series of rounds ends on all
ranks at once. Only the victim, the last rank, calls with ``done=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import paddlempi as dist
import ranks_tools

Call = Callable[[], object]

FEW, MANY = 8, 2 << 20


class WrongValuesError(Exception):
    """An operation succeeded with wrong values."""


def check(right: object, what: object) -> None:
    if not right:
        raise WrongValuesError(str(what)[:200])


class Operation:
    """A class of operations, on a group of its own. ``middle`` is called inside a round."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.victim = self.size - 1
        self.middle: Call = lambda: None
        self.group = self.new_group()

    def new_group(self) -> Any:
        return dist.new_group(timeout=self.limit)

    def round(self, done: bool = False) -> bool:
        raise NotImplementedError

    def differing(self, how: str) -> tuple[Call, Call]:
        """Return what the others call and what the victim calls, which do not fit."""
        raise KeyError(how)

    def works(self) -> None:
        """Check that the group carries an all_reduce."""
        ranks_tools.works(self.group)

    def end(self) -> None:
        dist.destroy_process_group(self.group)

    def sum_of(self, tensor: Any, done: bool) -> Callable[[], bool]:
        """Fill a tensor for a sum over the ranks; return the check of that sum."""
        tensor[:] = self.rank + 1
        tensor[0] = done

        def checked() -> bool:
            check((tensor[1:] == self.size * (self.size + 1) / 2).all(), tensor[:9])
            return bool(tensor[0])

        return checked

    def reduces(self, tensor: Any, op: Any = dist.ReduceOp.SUM) -> Call:
        return lambda: dist.all_reduce(tensor, op, self.group)


class Small(Operation):
    """8 numbers, which travel in the announcement."""

    def round(self, done: bool = False) -> bool:
        tensor = np.empty(FEW)
        checked = self.sum_of(tensor, done)
        self.middle()
        dist.all_reduce(tensor, group=self.group)
        return checked()

    def differing(self, how: str) -> tuple[Call, Call]:
        def sends(root: int) -> Call:
            return lambda: dist.broadcast(np.ones(FEW), group=self.group, group_src=root)

        right = self.reduces(np.ones(FEW))
        return {
            "shape": (right, self.reduces(np.ones(FEW + 1))),
            "dtype": (right, self.reduces(np.ones(FEW, np.int64))),
            "op": (right, self.reduces(np.ones(FEW), dist.ReduceOp.MAX)),
            "root": (sends(0), sends(1)),
            "argument": (right, self.reduces(object())),
        }[how]


class Large(Operation):
    """8 MiB in memory that the ranks of a node map."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.tensor = self.make(MANY)

    def make(self, count: int) -> Any:
        return dist.zeros(count)

    def round(self, done: bool = False) -> bool:
        checked = self.sum_of(self.tensor, done)
        self.middle()
        dist.all_reduce(self.tensor, group=self.group)
        return checked()

    def differing(self, how: str) -> tuple[Call, Call]:
        tensor = self.make(MANY)
        other = {
            "shape": self.reduces(tensor[:-1]),
            "dtype": self.reduces(tensor.view(np.int32)),
            "op": self.reduces(tensor, dist.ReduceOp.MAX),
            "argument": self.reduces(np.ones(4).view("M8[s]")),
        }
        return self.reduces(tensor), other[how]


class LargeByMPI(Large):
    """8 MiB in ordinary memory, which MPI reduces."""

    def make(self, count: int) -> Any:
        return np.zeros(count, np.float32)


class Message(Operation):
    """The victim and every other rank exchange a message."""

    TAG = 3

    def round(self, done: bool = False) -> bool:
        if self.rank == self.victim:
            for other in range(self.victim):
                dist.send(np.array([done, 5.0]), other, self.group, self.TAG)
            self.middle()
            for other in range(self.victim):
                got = np.zeros(100)
                dist.recv(got, other, self.group, self.TAG)
                check((got == other).all(), got[:9])
            return done
        got = np.zeros(2)
        dist.recv(got, self.victim, self.group, self.TAG)
        check(got[1] == 5, got)
        dist.send(np.full(100, float(self.rank)), self.victim, self.group, self.TAG)
        return bool(got[0])

    def differing(self, how: str) -> tuple[Call, Call]:
        count = {"shape": 5}[how]

        def victim() -> None:
            for other in range(self.victim):
                dist.send(np.ones(count), other, self.group, self.TAG)

        return lambda: dist.recv(np.ones(FEW), self.victim, self.group, self.TAG), victim


class Object(Operation):
    """Python objects of all ranks to all ranks."""

    def round(self, done: bool = False) -> bool:
        found: list[Any] = [None] * self.size
        self.middle()
        dist.all_gather_object(
            found, {"rank": self.rank, "done": done, "long": "x" * 9999}, self.group
        )
        check([f["rank"] for f in found] == list(range(self.size)), found)
        return any(f["done"] for f in found)

    def differing(self, how: str) -> tuple[Call, Call]:
        found: list[Any] = [None] * self.size

        def objects(root: int) -> Call:
            return lambda: dist.broadcast_object_list(["a"], group=self.group, group_src=root)

        def gathers(thing: object) -> Call:
            return lambda: dist.all_gather_object(found, thing, self.group)

        return {
            "op": (gathers(1), objects(0)),
            "root": (objects(0), objects(1)),
            "argument": (gathers(1), gathers(lambda: 0)),  # pickle refuses it
        }[how]


class NewGroup(Operation):
    """A new group of all ranks, and one operation in it."""

    def round(self, done: bool = False) -> bool:
        self.middle()
        group = dist.new_group(timeout=self.limit)
        tensor = np.array([done, 1.0])
        dist.all_reduce(tensor, group=group)
        check(tensor[1] == self.size, tensor)
        dist.destroy_process_group(group)
        return bool(tensor[0])

    def differing(self, how: str) -> tuple[Call, Call]:
        ranks = list(range(self.size))

        def makes(members: list[int]) -> Call:
            return lambda: dist.new_group(members, timeout=self.limit)

        return {
            "order": (makes(ranks), makes(ranks[::-1])),
            "group": (makes(ranks), makes(ranks[1:])),
            "argument": (makes(ranks), makes([*ranks, 77])),
        }[how]


class Asynchronous(Operation):
    """Several operations that are announced ahead, short and long ones, mapped and by MPI."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.tensors = [np.empty(FEW), dist.empty(1 << 18), np.empty(30_000), dist.empty(1 << 20)]

    def round(self, done: bool = False) -> bool:
        checks = [self.sum_of(tensor, done) for tensor in self.tensors]
        works = [dist.all_reduce(t, group=self.group, async_op=True) for t in self.tensors]
        self.middle()
        for work in works:
            work.wait()
        flags = [checked() for checked in checks]  # all are checked
        return any(flags)

    def differing(self, how: str) -> tuple[Call, Call]:
        def begins(*tensors: Any) -> Call:
            def call() -> None:
                works = [dist.all_reduce(t, group=self.group, async_op=True) for t in tensors]
                failures = []
                for work in works:
                    try:
                        work.wait()
                    except dist.Error as error:
                        failures.append(error)
                if failures:
                    raise failures[0]

            return call

        few, many = np.ones(FEW), dist.zeros(1 << 18)
        other = {
            "shape": (few, many[:-1]),
            "order": (many, few),
            "argument": (few, object()),
        }[how]
        return begins(few, many), begins(*other)


class DDP(Operation):
    """A backward of torch's DistributedDataParallel."""

    def __init__(self, limit: float) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(limit)
        self.model = DistributedDataParallel(
            torch_parts(), process_group=self.group, bucket_cap_mb=1
        )

    def new_group(self) -> Any:
        import torch.distributed

        return torch.distributed.new_group(timeout=timedelta(seconds=self.limit))

    def round(self, done: bool = False) -> bool:
        import torch

        self.model.zero_grad()
        x = torch.tensor([float(done), self.rank + 1.0])
        hook = self.model.module.last.register_hook(lambda _: self.middle())
        try:
            self.model(x).backward()
        finally:
            hook.remove()
        grads = [p.grad for p in self.model.parameters()]
        mean = (self.size + 1) / 2
        check(all(bool((g == mean).all()) for g in grads[1:]), [g.ravel()[:3] for g in grads])
        return bool(grads[0].item())

    def works(self) -> None:
        import torch
        import torch.distributed

        x = torch.ones(3)
        torch.distributed.all_reduce(x, group=self.group)
        check(bool((x == self.size).all()), x)

    def end(self) -> None:
        import torch.distributed

        del self.model
        torch.distributed.destroy_process_group(self.group)


def torch_parts() -> Any:
    import torch

    class Parts(torch.nn.Module):
        """A flag and two weights, whose gradients are the input."""

        def __init__(self) -> None:
            super().__init__()
            self.flag = torch.nn.Parameter(torch.zeros(()))
            self.first = torch.nn.Parameter(torch.zeros(1 << 18))
            self.last = torch.nn.Parameter(torch.zeros(1 << 18))

        def forward(self, x: Any) -> Any:
            total = self.flag * x[0]
            for weight in (self.first, self.last):
                total = total + (weight * x[1]).sum()
            return total

    return Parts()


class PaddleStep(Operation):
    """A backward of paddlempi's DataParallel for Paddle."""

    def __init__(self, limit: float) -> None:
        from paddlempi.paddle import DataParallel

        super().__init__(limit)
        self.model = DataParallel(
            paddle_parts(), comm_buffer_size=1, last_comm_buffer_size=1, group=self.group
        )

    def round(self, done: bool = False) -> bool:
        import paddle

        self.model.clear_gradients()
        hook = self.model._layers.last.register_hook(lambda _: self.middle())
        try:
            self.model(paddle.to_tensor([float(done), self.rank + 1.0])).backward()
        finally:
            hook.remove()
        grads = [p.grad.numpy() for p in self.model.parameters()]
        mean = (self.size + 1) / 2
        check(all((g == mean).all() for g in grads[1:]), [g.ravel()[:3] for g in grads])
        return bool(grads[0].any())

    def end(self) -> None:
        del self.model
        super().end()


def paddle_parts() -> Any:
    import paddle

    class Parts(paddle.nn.Layer):
        """A flag and two weights, whose gradients are the input."""

        def __init__(self) -> None:
            super().__init__()
            self.flag = self.create_parameter([1])
            self.first = self.create_parameter([1 << 18])
            self.last = self.create_parameter([1 << 18])

        def forward(self, x: Any) -> Any:
            total = (self.flag * x[0]).sum()
            for weight in (self.first, self.last):
                total = total + (weight * x[1]).sum()
            return total

    return Parts()


CLASSES: dict[str, type[Operation]] = {
    "arrival": Small,
    "small": Small,
    "large": Large,
    "large by MPI": LargeByMPI,
    "message": Message,
    "object": Object,
    "new group": NewGroup,
    "asynchronous": Asynchronous,
    "DDP step": DDP,
    "Paddle step": PaddleStep,
}
