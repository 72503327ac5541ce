"""What ``python -m paddlempi bench`` measures of torch: its functions, gloo, and training steps.

Only that command imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as calls
from paddlempi_bootstrap import torch_stubs
from torch._C._distributed_c10d import ProcessGroup
from torch._C._distributed_c10d import Work as TorchWork

from .. import _native, collectives, memory
from .. import group as core_group
from ..errors import ArgumentError

__all__ = [
    "MODELS",
    "Steps",
    "address",
    "by_node",
    "calls",
    "empty",
    "gloo",
    "mine",
    "new_group",
    "of_array",
    "start",
    "stop",
    "training_step",
]

# Groups and tensors


def start() -> None:
    """Make torch's default group, unless there is one, on the world that runs. Collective."""
    if not calls.is_initialized():
        calls.init_process_group("mpi")
        if "OMP_NUM_THREADS" not in os.environ:  # which torch follows
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // core_group.get_local_size()))


def stop() -> None:
    """Destroy torch's groups. The world stays. Collective."""
    if calls.is_initialized():
        calls.destroy_process_group()


def new_group() -> tuple[Any, int]:
    """Make a group of all ranks over MPI. Return it, and its number in the core. Collective."""
    made: Any = calls.new_group(backend="mpi")
    return made, made._core._id


_gloo: Any = None


def gloo() -> Any:
    """Return a group of all ranks over gloo, or why there is none, in words. Collective."""
    global _gloo
    if not calls.is_gloo_available():
        return "this torch has no gloo"
    if torch_stubs.gloo_is_ours:
        return f"{torch_stubs.GLOO} makes mpi of it"
    if _gloo is None:
        _gloo = calls.new_group(backend="gloo")
    return _gloo


def empty(count: int, dtype: str) -> torch.Tensor:
    return torch.empty(count, dtype=getattr(torch, dtype))


def address(tensor: torch.Tensor) -> int:
    return int(tensor.data_ptr())


def of_array(array: Any, dtype: str) -> torch.Tensor:
    """Return a tensor on the memory of an array of NumPy, which has the bits of ``dtype``."""
    if dtype == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


# Models: each function returns a model, and the shape of its input, which its output has too


def _mlp(width: int) -> tuple[torch.nn.Module, tuple[int, ...]]:
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    return torch.nn.Sequential(*(m for x in layers for m in (x, torch.nn.ReLU()))), (32, width)


def _transformer() -> tuple[torch.nn.Module, tuple[int, ...]]:
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (2, 16, 512)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[int, ...]]]] = {
    "mlp-1M": lambda: _mlp(256),
    "mlp-16M": lambda: _mlp(1024),
    "transformer-50M": _transformer,
}
"""The number in a name is how many bytes of gradients the model has."""


# A process group that communicates nothing


class _Over(TorchWork):  # type: ignore[misc]
    """A work that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True


# The methods that torch calls, and the functions whose calls become these.
_FUNCTIONS = {
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
}


class _Silent(ProcessGroup):  # type: ignore[misc]
    """A process group that moves nothing. It tells ``see`` the function and the elements."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = ""
        self.see: Callable[[str, int], object] = lambda function, count: None
        for method, function in _FUNCTIONS.items():
            setattr(self, method, partial(self._call, function, _Over()))

    def _call(self, function: str, work: _Over, *arguments: Any) -> _Over:
        lists = [x if isinstance(x, list) else [x] for x in arguments]
        tensors = [x for given in lists for x in given if isinstance(x, torch.Tensor)]
        self.see(function, max(x.numel() for x in tensors))
        return work

    def getBackendName(self) -> str:
        return "silent"

    def _get_backend(self, device: Any) -> _Silent:
        return self

    @property
    def _device_types(self) -> list[Any]:
        known = calls.distributed_c10d._world.pg_map
        return [torch.device("cpu")] if self in known else []

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        pass

    group_desc = "silent"
    bound_device_id = None


def _silent_group(see: Callable[[str, int], object], ranks: Sequence[int] | None = None) -> _Silent:
    if not hasattr(calls.Backend, "SILENT"):
        calls.Backend.register_backend(
            "silent",
            lambda options, more: _Silent(options.group_rank, options.group_size),
            extended_api=True,
            devices=["cpu"],
        )
    made: _Silent = calls.new_group(ranks, backend="silent")
    if isinstance(made, _Silent):  # else this rank is no member
        made.see = see
    return made


# Nodes


def by_node() -> list[list[int]]:
    """Return the ranks of each node.

    Raises:
        ArgumentError: the nodes have different numbers of ranks; all ranks raise it alike.
    """
    node = _native.control("info")["node"]
    rows = [[r for r, of in enumerate(node) if of == number] for number in sorted(set(node))]
    if len({len(row) for row in rows}) > 1:
        raise ArgumentError(
            "bench: the nodes have different numbers of ranks, and a mesh has a row for each node: "
            "start as many on each"
        )
    return rows


def mine(lists: Sequence[Sequence[int]], make: Callable[[Sequence[int]], Any]) -> Any:
    """Make a group of each list of ranks, and return that of this rank. Collective."""
    made = [make(ranks) for ranks in lists]
    rank = core_group.get_rank()
    return next(group for group, ranks in zip(made, lists, strict=True) if rank in ranks)


# Training steps


class Steps:
    """The training steps of one model, as its kind wraps it. Making it is collective.

    A step is forward, backward and an SGD that changes nothing, so that every step is the same. The
    step without communication has DDP's hook return the bucket as it is. FSDP2 has no such hook:
    its step uses a process group that moves nothing, and computes with what memory holds.

    Args:
        kind: "ddp"; "fsdp2"; or "hsdp", FSDP2 on a mesh that shards on a node and replicates over
            the nodes.
        model: a name of ``MODELS``.
        against: other contenders: "gloo", "mpi".
        mpi: the group of the contender "mpi".

    Attributes:
        calls: the step of each contender, by name. "no communication", "barrier" and "paddlempi"
            are among them, and "collectives alone", which makes a step's collectives and nothing
            else.
        checks: for the contenders that average gradients, a function that makes a step and returns
            what is wrong with its gradients, or "".
        absent: for contenders that cannot take part, the reason.
        what: the model and its collectives, in words.
    """

    def __init__(self, kind: str, model: str, against: Sequence[str], mpi: Any = None) -> None:
        self._make: Callable[[str, Any], torch.nn.Module] = getattr(self, f"_{kind}")
        self._model = model
        self._expected: list[torch.Tensor] | None = None
        self._sent: list[tuple[str, int, Any]] = []  # function, elements, group
        rank = core_group.get_rank()
        everyone = range(core_group.get_world_size())
        self._shards = next(row for row in by_node() if rank in row) if kind == "hsdp" else everyone
        self.calls: dict[str, Callable[[], object]] = {}
        self.checks: dict[str, Callable[[], str]] = {}
        self.absent: dict[str, str] = {}
        for name in ("no communication", "barrier", "paddlempi", *against):
            group = gloo() if name == "gloo" else mpi if name == "mpi" else calls.group.WORLD
            if isinstance(group, str):
                self.absent[name] = group
                continue
            try:
                self._add(name, group)
            except RuntimeError as error:
                if name != "gloo":
                    raise
                self.absent[name] = str(error).splitlines()[0]
        for _ in range(3):  # DDP makes its buckets anew after the first step
            self._sent.clear()
            self.calls["no communication"]()
        self.calls["collectives alone"] = self._alone(list(self._sent))
        nbytes = sum(4 * p.numel() for p in self._build().parameters())
        self.what = f"{nbytes / 2**20:.1f} MiB of gradients, {len(self._sent)} collectives a step"

    def _build(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return MODELS[self._model]()[0]

    def _batch(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = MODELS[self._model]()[1]
        torch.manual_seed(1 + rank)
        return torch.randn(shape), torch.randn(shape)

    def _add(self, name: str, group: Any) -> None:
        model = self._make(name, group)
        step = training_step(model, self._batch(core_group.get_rank()))

        def wrong() -> str:
            step()
            if self._expected is None:
                self._expected = self._mean()
            for parameter, expected in zip(model.parameters(), self._expected, strict=True):
                found: Any = parameter.grad
                if hasattr(found, "to_local"):  # this rank's shard, by FSDP2
                    found, expected = found.to_local(), self._shard(expected)
                if not torch.allclose(found, expected, rtol=1e-4, atol=1e-6):
                    return "its gradients are not the mean over the ranks"
            return ""

        self.calls[name] = step
        if name not in ("no communication", "barrier"):
            self.checks[name] = wrong

    def _mean(self) -> list[torch.Tensor]:
        """Return the mean of all ranks' gradients, computed on this rank alone."""
        alone, size = self._build(), core_group.get_world_size()
        for rank in range(size):
            _backward(alone, self._batch(rank))
        return [p.grad / size for p in alone.parameters() if p.grad is not None]

    def _shard(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a gradient, as FSDP2 cuts it."""
        shards = whole.chunk(len(self._shards))
        place = self._shards.index(core_group.get_rank())
        return shards[place] if place < len(shards) else whole[:0]

    def _ddp(self, name: str, group: Any) -> torch.nn.Module:
        model = torch.nn.parallel.DistributedDataParallel(self._build(), process_group=group)
        if name in ("no communication", "barrier"):

            def hook(state: object, bucket: Any) -> Any:
                if name == "barrier":
                    collectives.barrier()
                else:
                    self._sent.append(("all_reduce", bucket.buffer().numel(), None))
                future: Any = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future

            hook.__annotations__.clear()  # torch compares them with types, and these are strings
            model.register_comm_hook(None, hook)
        return model

    def _see(self, name: str, group: Any = None) -> Callable[[str, int], object]:
        """Return what a group that moves nothing does in a call, in place of ``group``."""
        if name == "barrier":
            return lambda function, count: collectives.barrier()
        return lambda function, count: self._sent.append((function, count, group))

    def _fsdp2(self, name: str, group: Any) -> torch.nn.Module:
        from torch.distributed.device_mesh import DeviceMesh

        if name in ("barrier", "no communication"):
            group = _silent_group(self._see(name))
        return self._sharded(DeviceMesh.from_group(group, "cpu"))

    def _hsdp(self, name: str, group: Any) -> torch.nn.Module:
        from torch.distributed.device_mesh import DeviceMesh

        rows = by_node()
        columns = [list(column) for column in zip(*rows, strict=True)]
        sides = [self._side(name, lists) for lists in (columns, rows)]
        names = ("replicate", "shard")
        return self._sharded(DeviceMesh.from_group(sides, "cpu", rows, mesh_dim_names=names))

    def _side(self, name: str, lists: Sequence[Sequence[int]]) -> Any:
        """Make the groups of one side of a mesh, and return that of this rank."""
        backend = "gloo" if name == "gloo" else "mpi"
        side = mine(lists, lambda ranks: calls.new_group(ranks, backend=backend))
        if name not in ("barrier", "no communication"):
            return side
        see = self._see(name, side)
        return mine(lists, lambda ranks: _silent_group(see, ranks))

    def _sharded(self, mesh: Any) -> torch.nn.Module:
        from torch.distributed.fsdp import fully_shard

        model = self._build()
        kind = torch.nn.TransformerEncoderLayer
        parts = [m for m in model.modules() if isinstance(m, kind)]
        for part in parts or [m for m in model.modules() if isinstance(m, torch.nn.Linear)]:
            fully_shard(part, mesh=mesh)
        sharded: torch.nn.Module = fully_shard(model, mesh=mesh)
        return sharded

    def _zeros(self, count: int) -> Any:
        """Make a tensor that lies where those of a step do: in memory that a node's ranks map."""
        return memory.zeros(count, framework="torch")

    def _alone(self, sent: list[tuple[str, int, Any]]) -> Callable[[], object]:
        """Return a function that makes the collectives of a step, one after the other."""
        made = []
        for function, count, group in sent:
            whole = self._zeros(count)
            share = self._zeros(count // calls.get_world_size(group))
            sides = {"all_reduce": (whole,), "all_gather_into_tensor": (whole, share)}
            sides_of = sides.get(function, (share, whole))
            made.append(partial(getattr(calls, function), *sides_of, group=group))
        return lambda: [call() for call in made]


def training_step(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], None]:
    """Return the step of a model: forward, backward and an SGD that changes nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        _backward(model, batch)
        optimizer.step()

    return step


def _backward(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
