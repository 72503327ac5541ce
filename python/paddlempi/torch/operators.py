"""The operators of c10d, such as ``c10d::allreduce_``, for our groups.

torch's own groups send every call through an operator, whose kernels in C++ look for a backend that
C++ knows. Ours is none. So the operators get kernels in Python that call the methods of our group,
and pass on what belongs to others. They are registered under a dispatch key of which torch makes no
other use with these operators, and only when they are needed (:func:`serve`, :func:`serve_all`):

* ``FPGA``, which only the calls of :mod:`.dispatch` include. Other groups do not meet it.
* ``BackendSelect``, which every thread includes, for who calls an operator without the method: a
  graph of ``make_fx``, or ``torch.ops.c10d``. Both need the group as an object of TorchScript, so
  this waits for the first one. From then on calls of other groups pass through Python too, which
  takes up to 100 us of each.

Both keys are below that of dispatch modes and above those of the devices' kernels.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, ReduceOp
from torch.utils import _python_dispatch

from ..errors import UnsupportedError
from . import dynamo
from .issue import Issuer
from .work import DONE

__all__ = ["METHODS", "OPTIONS", "Shown", "flat", "local", "serve", "serve_all", "shown_key"]

METHODS = {
    "allreduce": ("allreduce_", 1),
    "allreduce_coalesced": ("allreduce_coalesced_", 1),
    "broadcast": ("broadcast_", 1),
    "reduce": ("reduce_", 1),
    "allgather": ("allgather_", 2),
    "allgather_coalesced": ("allgather_coalesced_", 2),
    "all_gather_single": ("_allgather_base_", 2),
    "_allgather_base": ("_allgather_base_", 2),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced_", 2),
    "allgather_into_tensor_coalesced": ("allgather_into_tensor_coalesced_", 2),
    "gather": ("gather_", 2),
    "gather_single": ("gather_into_tensor_", 2),
    "gather_into_tensor": ("gather_into_tensor_", 2),
    "scatter": ("scatter_", 2),
    "reduce_scatter": ("reduce_scatter_", 2),
    "reduce_scatter_single": ("_reduce_scatter_base_", 2),
    "_reduce_scatter_base": ("_reduce_scatter_base_", 2),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced_", 2),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced_", 2),
    "alltoall": ("alltoall_", 2),
    "all_to_all_single": ("alltoall_base_", 2),
    "alltoall_base": ("alltoall_base_", 2),
    "barrier": ("barrier", 0),
    "monitored_barrier": ("monitored_barrier_", 0),
    "send": ("send", 1),
    "recv": ("recv_", 1),
    "recv_anysource": ("recv_any_source_", 1),
}
"""The methods of a group, the operator of each, and how many arguments of both are tensors."""

OPTIONS = {
    "allreduce_": c10d.AllreduceOptions,
    "allreduce_coalesced_": c10d.AllreduceCoalescedOptions,
    "broadcast_": c10d.BroadcastOptions,
    "reduce_": c10d.ReduceOptions,
    "allgather_": c10d.AllgatherOptions,
    "allgather_coalesced_": c10d.AllgatherOptions,
    "_allgather_base_": c10d.AllgatherOptions,
    "allgather_into_tensor_coalesced_": c10d.AllgatherOptions,
    "gather_": c10d.GatherOptions,
    "gather_into_tensor_": c10d.GatherOptions,
    "scatter_": c10d.ScatterOptions,
    "reduce_scatter_": c10d.ReduceScatterOptions,
    "_reduce_scatter_base_": c10d.ReduceScatterOptions,
    "reduce_scatter_tensor_coalesced_": c10d.ReduceScatterOptions,
    "alltoall_": c10d.AllToAllOptions,
    "alltoall_base_": c10d.AllToAllOptions,
    "barrier": c10d.BarrierOptions,
}
"""The options that a method takes last. An operator has their fields as arguments."""

_FIELDS = {
    "reduce_op": "reduceOp",
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
    "async_op": "asyncOp",
    "timeout": "timeout",
    "device_ids": "device_ids",
}
"""The fields of options, by the names of an operator's arguments."""

_GROUP, _REDUCE_OP = "process_group", "reduce_op"
_ONLY_OF_OPERATORS = (_GROUP, "sparse_indices", "tensor", "device_ids")
"""What an operator takes and its method does not. The tensor of a barrier says which device."""

_SHOWN, _EVERY = "FPGA", "BackendSelect"
shown_key: Any = torch._C._dispatch_key_parse(_SHOWN)
_shown_keys = torch._C.DispatchKeySet(shown_key)


class Shown(NamedTuple):
    """A call of a method for which an operator is called, so that torch sees it."""

    operator: str
    group: Any
    run: Callable[[Sequence[Any]], Any]
    """Calls the method, with the tensors that a mode has put in the place of the given ones."""
    reduce_op: Callable[[], Any]
    """The reduce op of the call."""


class _Local(threading.local):
    shown: Sequence[Shown] = ()
    """The calls under way in this thread that an operator is to make, the innermost last."""
    inside = False
    """Whether an operator makes a call: the methods that it calls are parts of it."""


local = _Local()


def serve() -> None:
    """Have operators make the calls that are shown."""
    if _SHOWN not in _registered:
        _register(_SHOWN)


def serve_all() -> None:
    """Have operators take our groups, whoever calls them."""
    if _EVERY not in _registered:
        _register(_EVERY)


_registering = threading.Lock()
_registered: dict[str, list[Any]] = {}
"""The libraries of each key: what they have registered lasts as long as they do."""


def _register(key: str) -> None:
    with _registering:
        if key in _registered:
            return  # another thread came first
        libraries = [torch.library.Library("c10d", "IMPL")]
        if key == _SHOWN:  # BackendSelect has a fallback of torch
            libraries.append(torch.library.Library("_", "IMPL"))
            libraries[-1].fallback(torch.library.fallthrough_kernel, key)
        behind = torch._C._dispatch_keyset_full_after(torch._C._dispatch_key_parse(key))
        for name, method in {operator: method for method, (operator, _) in METHODS.items()}.items():
            if hasattr(torch.ops.c10d, name):
                operator = getattr(torch.ops.c10d, name).default
                kernel = _kernel(name, operator, method, behind)
                dynamo.hide([kernel])
                libraries[0].impl(name, kernel, key, with_keyset=True)
        _registered[key] = libraries


def _kernel(name: str, operator: Any, method: str, behind: Any) -> Callable[..., Any]:
    """Return the kernel of an operator. ``behind``: the keys below the one that it is for."""
    names = [argument.name for argument in operator._schema.arguments]
    returns, place, count = len(operator._schema.returns), names.index(_GROUP), METHODS[method][1]

    def kernel(keys: Any, *arguments: Any) -> Any:
        group = ProcessGroup.unbox(arguments[place])
        shown = local.shown[-1] if local.shown else None
        if shown is not None and (shown.operator != name or shown.group is not group):
            shown = None  # a mode makes a call of its own
        if shown is not None and _REDUCE_OP in names:
            _note(arguments[names.index(_REDUCE_OP)], shown.reduce_op)
        ours = shown is not None or isinstance(group, Issuer)
        # With tensors of "meta" somebody wants to know only what would come out.
        if not ours or any(tensor.is_meta for tensor in flat(arguments[:count])):
            return operator.redispatch(keys & behind, *arguments)
        before, local.inside = local.inside, True
        try:
            with torch._C._ExcludeDispatchKeyGuard(_shown_keys):
                given = [_plain(tensors) for tensors in arguments[:count]]
                if shown is not None:
                    work = shown.run(given)
                else:
                    fields = dict(zip(names[count:], arguments[count:], strict=False))
                    work = getattr(group, method)(*given, *_behind_tensors(name, fields))
        finally:
            local.inside = before
        if returns == 0:
            return None
        boxed = work.boxed() if shown is not None else _kept(work).boxed()
        return boxed if returns == 1 else (arguments[0], boxed)

    return kernel


def _behind_tensors(operator: str, given: dict[str, Any]) -> list[Any]:
    """Return the arguments of a method behind its tensors, from those of its operator."""
    options = OPTIONS[operator]() if operator in OPTIONS else None
    arguments = []
    for name, value in given.items():
        if name == "sparse_indices" and value is not None:
            raise UnsupportedError(
                f"c10d.{operator}: sparse_indices belong to NCCL: give a sparse tensor without them"
            )
        if name == "timeout":
            value = None if value < 0 else timedelta(milliseconds=value)
        elif name == _REDUCE_OP:
            value = _reduce_op(value)
        if options is not None and name in _FIELDS:
            if value is not None:
                setattr(options, _FIELDS[name], value)
        elif name not in _ONLY_OF_OPERATORS:
            arguments.append(value)
    return arguments if options is None else [*arguments, options]


# torch 2.8 does not tell Python which reduce op an object of TorchScript is. It gives Python such
# objects by its dispatch modes only, and their hash is the address of the object in C++.
_noted: collections.OrderedDict[int, tuple[Any, Any]] = collections.OrderedDict()
_MOST_NOTED = 10_000


def _note(boxed: Any, reduce_op: Callable[[], Any]) -> None:
    if not hasattr(ReduceOp, "unbox"):
        _noted[hash(boxed)] = (boxed, reduce_op())  # the object keeps its address
        if len(_noted) > _MOST_NOTED:
            _noted.popitem(last=False)


def _reduce_op(boxed: Any) -> Any:
    if hasattr(ReduceOp, "unbox"):
        return ReduceOp.unbox(boxed)
    noted = _noted.get(hash(boxed))
    if noted is None:
        raise UnsupportedError(
            f"torch {torch.__version__} does not tell Python the reduce op of an operator that no "
            "dispatch mode has seen on this rank: call the group's method, or take a later torch"
        )
    return noted[1]


def _kept(work: Any) -> Any:
    """Return a Work that lives as long as C++ has it, although Python drops it.

    Only its ``wait()`` and ``get_future()`` are those of the given one.
    """
    return work if work is DONE else ProcessGroup.barrier(_Holder(work), c10d.BarrierOptions())


class _Holder(ProcessGroup):  # type: ignore[misc]
    """A group whose barrier returns a given Work: what C++ gets from it keeps Python's object."""

    def __init__(self, work: Any) -> None:
        super().__init__(0, 1)
        self._work = work

    def barrier(self, opts: Any = None) -> Any:
        return self._work


# Tensors


def flat(items: Any) -> Iterator[Any]:
    """Yield the tensors of nested lists."""
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from flat(item)
        elif isinstance(item, torch.Tensor):
            yield item


def _plain(given: Any) -> Any:
    """Return lists of lists of tensors without functorch's wrappers: torch takes off the others."""
    if not (isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple))):
        return given
    return [[_unwrapped(tensor) for tensor in tensors] for tensors in given]


def _unwrapped(tensor: Any) -> Any:
    while True:
        # A graph that is being made under torch 2.8 would not have what is written to these.
        if torch._is_functional_tensor(tensor) and not _python_dispatch._is_in_torch_dispatch_mode:
            torch._sync(tensor)
            tensor = torch._from_functional_tensor(tensor)
        elif torch._C._functorch.is_gradtrackingtensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        else:
            return tensor
