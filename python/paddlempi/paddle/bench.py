"""What ``python -m paddlempi bench`` measures of Paddle: its functions, gloo, and training steps.

Only that command imports this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.base import core as paddle_core

from .. import collectives, memory
from .. import group as core_group
from .data_parallel import DataParallel
from .patches import original

__all__ = ["MODELS", "Steps", "address", "calls", "empty", "gloo", "new_group", "start", "stop"]

calls = SimpleNamespace(
    all_reduce=dist.all_reduce,
    reduce_scatter_tensor=dist.stream.reduce_scatter,
    all_gather_into_tensor=dist.stream.all_gather,
    broadcast=dist.broadcast,
    reduce=dist.reduce,
    gather=dist.gather,
    scatter=dist.scatter,
    all_to_all_single=dist.stream.alltoall_single,
    send=dist.send,
    recv=dist.recv,
    isend=dist.isend,
    irecv=dist.irecv,
    barrier=dist.barrier,
)
"""Functions of Paddle under the names of those of torch that take the same arguments."""

# Groups and tensors


def start() -> None:
    """Make Paddle's default group, unless there is one, on the world that runs. Collective."""
    if not dist.is_initialized():
        dist.init_parallel_env()


def stop() -> None:
    """Destroy Paddle's groups. The world stays. Collective."""
    if dist.is_initialized():
        dist.destroy_process_group()


def new_group() -> tuple[Any, int]:
    """Make a group of all ranks over MPI. Return it, and its number in the core. Collective."""
    made = dist.new_group()
    return made, made.process_group.core._id


_gloo: Any = None


def gloo() -> Any:
    """Return a group of all ranks over gloo. Collective."""
    global _gloo
    if _gloo is None:
        rank, size, number = core_group.get_rank(), core_group.get_world_size(), 1000
        store = paddle_core.create_or_get_global_tcp_store()
        group = paddle_core.ProcessGroupGloo.create(store, rank, size, number)
        _gloo = dist.communication.group.Group(rank, number, list(range(size)), group, "gloo")
    return _gloo


def empty(count: int, dtype: str) -> Any:
    return paddle.empty([count], dtype)


def address(tensor: Any) -> int:
    return int(tensor.data_ptr())


# Models: each function returns a model, and a function that makes a batch


def _mlp(width: int) -> tuple[Any, Callable[[], Any]]:
    layers = [paddle.nn.Linear(width, width) for _ in range(4)]
    model = paddle.nn.Sequential(*(m for layer in layers for m in (layer, paddle.nn.ReLU())))
    return model, lambda: paddle.randn([32, width])


def _resnet() -> tuple[Any, Callable[[], Any]]:
    return paddle.vision.models.resnet18(), lambda: paddle.randn([2, 3, 64, 64])


def _embedding(sparse: bool) -> tuple[Any, Callable[[], Any]]:
    """A table of 50,000 rows; a step uses a few hundred of them."""
    model = paddle.nn.Sequential(
        paddle.nn.Embedding(50_000, 64, sparse=sparse),
        paddle.nn.Flatten(),
        paddle.nn.Linear(8 * 64, 64),
    )
    return model, lambda: paddle.randint(0, 50_000, [32, 8])


MODELS: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "mlp-4M": lambda: _mlp(512),
    "mlp-16M": lambda: _mlp(1024),
    "resnet18-45M": _resnet,
    "embedding-12M": lambda: _embedding(False),
    "sparse-embedding": lambda: _embedding(True),
}
"""The number in a name is how many bytes of gradients the model has."""


# Training steps


class Steps:
    """The training steps of one model in DataParallel. Making it is collective.

    A step is forward, backward and an SGD that changes nothing, so that every step is the same. The
    step without communication runs under ``no_sync``; that of a barrier too, with one behind the
    backward.

    Args:
        kind: "paddle".
        model: a name of ``MODELS``.
        against: other contenders: "gloo", in Paddle's own DataParallel.

    Attributes:
        calls: the step of each contender, by name. "no communication", "barrier" and "paddlempi"
            are among them, and "collectives alone", which makes the gradients' all_reduces and
            nothing else.
        checks: for the contenders that average gradients, a function that makes a step and returns
            what is wrong with its gradients, or "".
        absent: for contenders that cannot take part, the reason.
        what: the model and its collectives, in words.
    """

    def __init__(self, kind: str, model: str, against: Sequence[str]) -> None:
        self._model = model
        self._expected: list[Any] | None = None
        self.calls: dict[str, Callable[[], object]] = {}
        self.checks: dict[str, Callable[[], str]] = {}
        self.absent: dict[str, str] = {}
        for name in ("no communication", "barrier", "paddlempi", *against):
            if name == "gloo" and model == "sparse-embedding":
                self.absent[name] = "Paddle's DataParallel cannot send sparse gradients over gloo"
                continue
            self._add(name)
        buckets = _buckets(self._build()[0])
        self.calls["collectives alone"] = lambda: [dist.all_reduce(bucket) for bucket in buckets]
        nbytes = sum(4 * int(bucket.size) for bucket in buckets)
        self.what = f"{nbytes / 2**20:.1f} MiB of gradients, {len(buckets)} collectives a step"

    def _build(self) -> tuple[Any, Callable[[], Any]]:
        paddle.seed(0)
        return MODELS[self._model]()

    def _batch(self, make: Callable[[], Any], rank: int) -> Any:
        paddle.seed(1 + rank)
        return make()

    def _add(self, name: str) -> None:
        model, make = self._build()
        batch = self._batch(make, core_group.get_rank())
        if name == "gloo":
            model = original(paddle, "DataParallel")(model, group=gloo())
        else:
            model = DataParallel(model)
        optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())

        def silent() -> None:
            with model.no_sync():
                _backward(model, batch)

        def with_barrier() -> None:
            silent()
            collectives.barrier()

        backward = {"no communication": silent, "barrier": with_barrier}.get(
            name, partial(_backward, model, batch)
        )

        def step() -> None:
            backward()
            optimizer.step()
            optimizer.clear_grad()

        def wrong() -> str:
            for _ in range(2):  # the first backward shows the order for the buckets of the second
                backward()
                found = [_dense(p) for p in _trained(model)]
                optimizer.clear_grad()
            if self._expected is None:
                self._expected = self._mean()
            for gradient, expected in zip(found, self._expected, strict=True):
                most = 1e-4 * float(expected.abs().max()) + 1e-7
                if float((gradient - expected).abs().max()) > most:
                    return "its gradients are not the mean over the ranks"
            return ""

        self.calls[name] = step
        if name not in ("no communication", "barrier"):
            self.checks[name] = wrong

    def _mean(self) -> list[Any]:
        """Return the mean of all ranks' gradients, computed on this rank alone."""
        size, total = core_group.get_world_size(), []
        for rank in range(size):
            alone, make = self._build()
            _backward(alone, self._batch(make, rank))
            total.append([_dense(p) for p in _trained(alone)])
        return [sum(gradients[1:], gradients[0]) / size for gradients in zip(*total, strict=True)]


def _backward(model: Any, batch: Any) -> None:
    model(batch).square().mean().backward()


def _trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if not p.stop_gradient]


def _dense(parameter: Any) -> Any:
    """Return a copy of a gradient, as a tensor of the parameter's shape."""
    gradient = parameter.grad
    if gradient.is_selected_rows():
        rows = paddle.to_tensor(gradient.rows()).unsqueeze(1)
        values = paddle.to_tensor(gradient.get_selected_rows().get_tensor())
        return paddle.scatter_nd_add(paddle.zeros(parameter.shape), rows, values)
    return gradient.detach().clone()


def _buckets(model: Any) -> list[Any]:
    """Return tensors as long as the buckets of DataParallel, and where those lie."""
    count = sum(int(p.size) for p in _trained(model))
    limit = (25 << 20) // 4
    edges = [*range(0, count, limit), count]
    return [
        memory.zeros(after - before, framework="paddle")
        for before, after in itertools.pairwise(edges)
    ]
