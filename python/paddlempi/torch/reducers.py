"""What torch's C++ Reducer, the part of DistributedDataParallel that reduces gradients, needs.

* It keeps the C++ part of a Work, of which the Python part must live on.
* It calls the hooks of DDP, whose futures are to be completed in order (:mod:`.callback_order`).
* One of its own hooks in C++ reads a list of tensors from the future of a Work. A future that
  Python completes has an object of Python instead. Its twin in Python does the same arithmetic.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed
from torch._C import _distributed_c10d as c10d

from . import ddp_buckets
from .callback_order import in_order

__all__ = ["builtin_hook_of", "watch"]

_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The groups of the reducers over MPI."""

_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The last Work that every reducer was given."""

_builtin_hooks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Which of torch's own hooks a reducer has. DistributedDataParallel does not note it."""


def builtin_hook_of(reducer: Any) -> Any:
    """Return what ``_register_builtin_comm_hook`` was last called with; None: it was not."""
    return _builtin_hooks.get(reducer)


@functools.cache
def watch(group_type: type) -> None:
    """Change the Reducer, once in a process.

    Args:
        group_type: the type of our process groups.
    """
    reducer_type = torch.distributed.Reducer
    begin = reducer_type.__init__
    give = reducer_type._set_forward_pass_work_handle
    register, register_builtin = c10d._register_comm_hook, c10d._register_builtin_comm_hook

    @functools.wraps(begin)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        for argument in (*arguments, *named.values()):
            if isinstance(argument, group_type):
                _groups[self] = argument
                ddp_buckets.know(argument, named["params"] if "params" in named else arguments[0])

    @functools.wraps(give)
    def keep_and_give(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        # join(divide_by_initial_world_size=False) gives the Work of an all_reduce, and drops its
        # own reference. Without the Python part the work's wait never ends.
        _works[reducer] = work
        give(reducer, work, use_static_world_size)

    @functools.wraps(register)
    def register_hook(reducer: Any, state: Any, comm_hook: Callable[[Any, Any], Any]) -> None:
        register(reducer, state, in_order(comm_hook) if reducer in _groups else comm_hook)

    @functools.wraps(register_builtin)
    def register_builtin_hook(reducer: Any, comm_hook_type: Any) -> None:
        _builtin_hooks[reducer] = comm_hook_type
        if reducer in _groups and comm_hook_type == c10d.BuiltinCommHookType.FP16_COMPRESS:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            register_hook(reducer, _groups[reducer], fp16_compress_hook)
        else:
            register_builtin(reducer, comm_hook_type)

    reducer_type.__init__ = init
    reducer_type._set_forward_pass_work_handle = keep_and_give
    for module in (torch.distributed, c10d):
        module._register_comm_hook = register_hook
        module._register_builtin_comm_hook = register_builtin_hook
