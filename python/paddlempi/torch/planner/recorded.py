"""The collectives that a step calls, and what it computes, as torch's dispatcher sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as calls
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = ["Call", "Flops", "Recorder"]

_SPACES = ("c10d", "_c10d_functional")

# The operation of a name; the first that is a part of it counts. The three rooted ones move as much
# as a broadcast.
_OPERATIONS = (
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("reduce_scatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("scatter", "broadcast"),
    ("gather", "broadcast"),
    ("reduce", "broadcast"),
    ("send", "send"),
)
_SMALL = 64
"""A sum of so few bytes is a loss or a count, for which everybody waits."""


class Call(NamedTuple):
    """A collective of a step.

    Attributes:
        operation: as in :class:`~paddlempi.planner.machine.Collective`.
        bytes: of the larger side on one rank.
        nodes, ranks: the shape of its group.
        waits: whether the computation cannot go on before its result: of tensor parallelism.
    """

    operation: str
    bytes: int
    nodes: int
    ranks: int
    waits: bool


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes the collectives that this thread calls.

    Args:
        ranks: of a node; the ranks of a job lie on the nodes in their order.

    Attributes:
        calls: what was called, in order.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that what DTensor calls for it comes here, too
        if function.namespace in _SPACES:
            self._note(function, [*arguments, *(named or {}).values()])
        return function(*arguments, **(named or {}))

    def _note(self, function: Any, arguments: Sequence[Any]) -> None:
        name = str(function).split(".")[1]
        operation = next((of for part, of in _OPERATIONS if part in name), None)
        group = _group(arguments)
        if operation is None or group is None or name.startswith(("recv", "wait")):
            return
        functional = function.namespace == "_c10d_functional"
        nbytes = max(sum(x.nbytes for x in _tensors(argument)) for argument in arguments)
        if functional and operation == "all_gather":  # its result is no argument
            nbytes *= group.size()
        self._add(operation, nbytes, group, functional or nbytes <= _SMALL)

    def _add(self, operation: str, nbytes: int, group: ProcessGroup, waits: bool) -> None:
        members = calls.get_process_group_ranks(group)
        nodes = len({rank // self._ranks for rank in members})
        if len(members) > 1:
            ranks = -(-len(members) // nodes)
            self.calls.append(Call(operation, nbytes, nodes, ranks, waits))

    def hook(self, group: ProcessGroup) -> Callable[[Any, Any], Any]:
        """Return a hook for DDP that notes its buckets, and gives them back as they are.

        DDP waits for the future of a bucket, and a fake group has none.
        """

        def note(state: object, bucket: Any) -> Any:
            self._add("all_reduce", bucket.buffer().nbytes, group, waits=False)
            future: Any = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        return note


class Flops(TorchDispatchMode):  # type: ignore[misc]
    """Counts the floating point operations of products and convolutions on this rank.

    torch's ``FlopCounterMode`` counts those of a DTensor as if it were whole.

    Attributes:
        total: the number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        named = named or {}
        result = function(*arguments, **named)
        count = flop_registry.get(function._overloadpacket)
        if count is not None:
            self.total += int(count(*arguments, **named, out_val=result))
        return result


def _group(arguments: Sequence[Any]) -> ProcessGroup | None:
    """Find the group among the arguments: an object of TorchScript, or the last name."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            found: ProcessGroup = ProcessGroup.unbox(argument)
            return found
    names = [argument for argument in arguments if isinstance(argument, str)]
    return calls.distributed_c10d._resolve_process_group(names[-1]) if names else None


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for part in argument:
            yield from _tensors(part)
