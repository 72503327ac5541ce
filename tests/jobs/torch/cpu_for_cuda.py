"""A CPU in the place of GPUs, for those of PyTorch's tests that ask for GPUs.

Most of PyTorch's tests of DistributedDataParallel ask for a GPU, but need only a device. Here their
``.cuda(rank)``, ``device="cuda"`` and ``device_ids=[rank]`` have no effect.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["enter"]

_CPU = torch.device("cpu")
_COUNT = 8


def _device(value: Any) -> Any:
    """Return the CPU if a keyword's value names a GPU, also by number. Else return the value."""
    return _CPU if type(value) is int else _moved(value)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _CPU
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return _CPU
    return value


class _OnCPU(TorchFunctionMode):  # type: ignore[misc]
    """Makes functions of torch use the CPU if they are told to use a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _device(kwargs["device"])
        name = getattr(func, "__name__", "")
        if name == "to" and len(args) > 1:
            args = (args[0], _device(args[1]), *args[2:])
        return func(*(_moved(value) for value in args), **kwargs)


def enter(suite: Any, stack: contextlib.ExitStack) -> None:
    """Make ``suite``, PyTorch's module of tests, find GPUs until ``stack`` is closed."""

    def replace(owner: object, name: str, value: Any) -> None:
        stack.enter_context(mock.patch.object(owner, name, value))

    def yes(*_: object, **__: object) -> bool:
        return True

    def count(*_: object, **__: object) -> int:
        return _COUNT

    def nothing(*_: object, **__: object) -> None:
        return None

    def same(self: Any, *_: object, **__: object) -> Any:
        return self

    def no_context(*_: object, **__: object) -> Any:
        return contextlib.nullcontext()

    replace(torch.accelerator, "is_available", yes)
    for owner in (torch.accelerator, torch.cuda):
        replace(owner, "device_count", count)
        replace(owner, "synchronize", nothing)
    replace(torch.accelerator, "set_device_index", nothing)
    replace(torch.cuda, "set_device", nothing)
    replace(torch.cuda, "device", no_context)
    replace(torch.Tensor, "cuda", same)
    replace(torch.nn.Module, "cuda", same)

    to = torch.nn.Module.to

    @functools.wraps(to)
    def to_cpu(self: Any, *args: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = _device(named["device"])
        return to(self, *(_device(value) for value in args), **named)

    replace(torch.nn.Module, "to", to_cpu)

    ddp = torch.nn.parallel.DistributedDataParallel
    init = ddp.__init__

    @functools.wraps(init)
    def init_on_cpu(
        self: Any, module: Any, device_ids: Any = None, *args: Any, **named: Any
    ) -> None:
        if device_ids is not None and len(device_ids) > 1:  # a test expects that torch refuses this
            init(self, module, device_ids, *args, **named)
        named.pop("output_device", None)
        init(self, module, None, *args, **named)

    replace(ddp, "__init__", init_on_cpu)
    replace(suite, "init_multigpu_helper", lambda world, _: {rank: [rank] for rank in range(world)})
    stack.enter_context(_OnCPU())
