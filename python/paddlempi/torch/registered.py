"""The operators of this package, ``torch.ops.paddlempi``: docs/torch.md lists them.

Each has a kernel in Python, here, which calls the method of the group that ``torch.distributed``
calls. Where torch has the functions that capi/torch_ops.c needs, tensors in host memory go to a
kernel in C, and no Python runs in a usual call. That kernel comes here with what it leaves out.

A group is named as in ``torch.ops._c10d_functional``. So a compiled program that is kept on disk
has no number of a group in it, and no size but the one that is an argument.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ReduceOp

from .. import _native
from .._ops import Op
from ..errors import ArgumentError, UnsupportedError
from . import dynamo, group_names
from .issue import Issuer, tell_autograd
from .operators import local

__all__ = ["install"]

_SCHEMAS = {
    "all_reduce_": '(Tensor(a!) tensor, str group, str op="sum") -> ()',
    "all_reduce": '(Tensor tensor, str group, str op="sum") -> Tensor',
    "all_gather_into": "(Tensor(a!) output, Tensor tensor, str group) -> ()",
    "all_gather": "(Tensor tensor, str group, int size) -> Tensor",
    "reduce_scatter_into": '(Tensor(a!) output, Tensor tensor, str group, str op="sum") -> ()',
    "reduce_scatter": '(Tensor tensor, str group, int size, str op="sum") -> Tensor',
    "broadcast_": "(Tensor(a!) tensor, str group, int root) -> ()",
    "broadcast": "(Tensor tensor, str group, int root) -> Tensor",
    "broadcast_backward": "(Tensor grad, str group, int root) -> Tensor",
}
"""The operators. capi/torch_ops.c has the same, but for the last."""

_REDUCE_OPS = {
    name: ReduceOp(getattr(ReduceOp, name.upper()))
    for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
}
_CPU = torch.device("cpu")


# The kernels in Python


def _found(name: str, operator: str) -> Any:
    """Return the group of a name. If its calls need no more than its number, let C know it."""
    try:
        group = c10d._resolve_process_group(name)
    except (RuntimeError, ValueError):
        group = None
    if not isinstance(group, Issuer):
        what = "no group of this process" if group is None else f"a group over {group.name()}"
        raise ArgumentError(
            f"{operator}: group={name!r} is {what}: give the group_name of a group over mpi of "
            "which this rank is a member"
        )
    usual = group._steps is None and not group._extension.seconds
    if usual and group._get_backend(_CPU) is group:
        group_names.enter(name, group._gid, group.size())
    return group


def _options(kind: Any, **fields: Any) -> Any:
    """Return the options of a synchronous call, for which gloo returns a Work all the same."""
    options = kind()
    options.asyncOp = False
    for name, value in fields.items():
        setattr(options, name, value)
    return options


class _Kernels:
    """A kernel of each operator. The group's methods find the errors, and tell the others."""

    @staticmethod
    def all_reduce_(tensor: Any, group: str, op: str = "sum") -> None:
        _reduce(_found(group, "all_reduce_"), tensor, op)

    @staticmethod
    def all_reduce(tensor: Any, group: str, op: str = "sum") -> Any:
        found = _found(group, "all_reduce")
        output = tensor.clone(memory_format=torch.contiguous_format)
        _reduce(found, output, op)
        return output

    @staticmethod
    def all_gather_into(output: Any, tensor: Any, group: str) -> None:
        _gather(_found(group, "all_gather_into"), output, tensor)

    @staticmethod
    def all_gather(tensor: Any, group: str, size: int) -> Any:
        found = _found(group, "all_gather")
        _check_size(found, Op.ALL_GATHER, size)
        output = _gathered(tensor, size)
        _gather(found, output, tensor)
        return output

    @staticmethod
    def reduce_scatter_into(output: Any, tensor: Any, group: str, op: str = "sum") -> None:
        _scatter(_found(group, "reduce_scatter_into"), output, tensor, op)

    @staticmethod
    def reduce_scatter(tensor: Any, group: str, size: int, op: str = "sum") -> Any:
        found = _found(group, "reduce_scatter")
        _check_size(found, Op.REDUCE_SCATTER, size)
        try:
            output = _part(tensor, size)
        except ArgumentError as error:
            found._refuse(Op.REDUCE_SCATTER, error)
        _scatter(found, output, tensor, op)
        return output

    @staticmethod
    def broadcast_(tensor: Any, group: str, root: int) -> None:
        _send(_found(group, "broadcast_"), tensor, root)

    @staticmethod
    def broadcast(tensor: Any, group: str, root: int) -> Any:
        found = _found(group, "broadcast")
        output = tensor.clone(memory_format=torch.contiguous_format)
        _send(found, output, root)
        return output

    @staticmethod
    def broadcast_backward(grad: Any, group: str, root: int) -> Any:
        """Sum the gradients up for the root; those of other ranks are zero."""
        found = _found(group, "broadcast_backward")
        output = grad.clone(memory_format=torch.contiguous_format)
        found.reduce([output], _options(c10d.ReduceOptions, rootRank=root)).wait()
        return output if found.rank() == root else output.zero_()


def _reduce_op(found: Any, code: Op, name: str) -> Any:
    op = _REDUCE_OPS.get(name)
    if op is None:
        known = ", ".join(_REDUCE_OPS)
        found._refuse(code, ArgumentError(f"{code.label}: op={name!r} is none of {known}"))
    return op


def _reduce(found: Any, tensor: Any, name: str) -> None:
    op = _reduce_op(found, Op.ALL_REDUCE, name)
    found.allreduce([tensor], _options(c10d.AllreduceOptions, reduceOp=op)).wait()


def _gather(found: Any, output: Any, tensor: Any) -> None:
    # By the name that torch 2.8 has, too: gloo may serve the CPU in a mixed group.
    found._allgather_base(output, tensor, _options(c10d.AllgatherOptions)).wait()


def _send(found: Any, tensor: Any, root: int) -> None:
    found.broadcast([tensor], _options(c10d.BroadcastOptions, rootRank=root)).wait()


def _scatter(found: Any, output: Any, tensor: Any, name: str) -> None:
    op = _reduce_op(found, Op.REDUCE_SCATTER, name)
    options = _options(c10d.ReduceScatterOptions, reduceOp=op)
    found._reduce_scatter_base(output, tensor, options).wait()


def _check_size(found: Any, code: Op, size: int) -> None:
    if size != found.size():
        text = f"{code.label}: size={size}, and the group has {found.size()} ranks"
        found._refuse(code, ArgumentError(text))


def _gathered(tensor: Any, size: int) -> Any:
    """Return the output of an all_gather."""
    shape = tensor.shape or (1,)
    return tensor.new_empty((shape[0] * size, *shape[1:]))


def _part(tensor: Any, size: int) -> Any:
    """Return the output of a reduce_scatter."""
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise ArgumentError(
            f"reduce_scatter: a tensor of shape {tuple(tensor.shape)} cannot be cut into {size} "
            "equal parts along its first dimension"
        )
    return tensor.new_empty((tensor.shape[0] // size, *tensor.shape[1:]))


def _inside(kernel: Any) -> Any:
    """Return a kernel whose calls of methods are parts of the operator, and not shown to torch."""

    def call(*arguments: Any) -> Any:
        before, local.inside = local.inside, True
        try:
            return kernel(*arguments)
        finally:
            local.inside = before

    return call


# What torch asks while it compiles, and in a backward


def _nothing(*arguments: Any, **named: Any) -> None:
    """Return what an operator does that writes to its tensors."""


def _alike(tensor: Any, *arguments: Any, **named: Any) -> Any:
    return tensor.new_empty(tensor.shape)


def _all_gather_fake(tensor: Any, group: str, size: int) -> Any:
    return _gathered(tensor, size)


def _reduce_scatter_fake(tensor: Any, group: str, size: int, op: str = "sum") -> Any:
    return _part(tensor, size)


_FAKES: dict[str, Any] = {
    "all_reduce": _alike,
    "all_gather": _all_gather_fake,
    "reduce_scatter": _reduce_scatter_fake,
    "broadcast": _alike,
    "broadcast_backward": _alike,
}


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.rest = inputs[1:]


def _all_reduce_backward(context: Any, grad: Any) -> Any:
    group, op = context.rest
    _check_gradient("all_reduce", op)
    return torch.ops.paddlempi.all_reduce(grad.contiguous(), group, op), None, None


def _all_gather_backward(context: Any, grad: Any) -> Any:
    group, size = context.rest
    return torch.ops.paddlempi.reduce_scatter(grad.contiguous(), group, size), None, None


def _reduce_scatter_backward(context: Any, grad: Any) -> Any:
    group, size, op = context.rest
    _check_gradient("reduce_scatter", op)
    gathered = torch.ops.paddlempi.all_gather(grad.contiguous(), group, size)
    return gathered if op == "sum" else gathered / size, None, None, None


def _broadcast_backward(context: Any, grad: Any) -> Any:
    group, root = context.rest
    return torch.ops.paddlempi.broadcast_backward(grad.contiguous(), group, root), None, None


def _check_gradient(operator: str, op: str) -> None:
    if op not in ("sum", "avg"):
        raise UnsupportedError(f"{operator}: op={op!r} has no gradient, which sum and avg have")


_BACKWARDS = {
    "all_reduce": _all_reduce_backward,
    "all_gather": _all_gather_backward,
    "reduce_scatter": _reduce_scatter_backward,
    "broadcast": _broadcast_backward,
}


# Registration

_libraries: list[Any] = []  # what they have registered lasts as long as they do


def install() -> None:
    """Register the operators. Those in C come when the core is loaded."""
    if _libraries:
        return
    library = torch.library.Library("paddlempi", "DEF")
    _libraries.append(library)
    for name, schema in _SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        kernel = _inside(getattr(_Kernels, name))
        dynamo.hide([kernel])
        library.impl(name, kernel, "CompositeExplicitAutograd")
        fake = _FAKES.get(name, _nothing)
        torch.library.register_fake(f"paddlempi::{name}", fake, lib=library)
        if name in _BACKWARDS:
            torch.library.register_autograd(
                f"paddlempi::{name}", _BACKWARDS[name], setup_context=_keep, lib=library
            )
        else:  # autograd does not see it, as it does not see torch.distributed's
            library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    _native.on_load(_install_kernels)


def _install_kernels(core: ModuleType) -> None:
    # Kernels in C cannot tell autograd that a tensor was written to.
    if tell_autograd:
        return
    inductors = getattr(torch._C, "_aoti", None)
    from_handle = getattr(inductors, "alloc_tensor_by_stealing_from_void_ptr", None)
    to_handle = getattr(inductors, "unsafe_alloc_void_ptr_from_tensor", None)
    if not from_handle or not to_handle:  # a private module
        return
    if core.torch_kernels(_Kernels, from_handle, to_handle):
        group_names.serve(core)
