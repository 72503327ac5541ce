"""torch's tensors in host memory and in CUDA memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .. import _native
from ..errors import ArgumentError, DtypeError, UnsupportedError
from .kind import (
    CPU,
    CUDA,
    KNOWN_DTYPES,
    Description,
    Kind,
    codes_of,
    lossy,
    out_of_range,
    unlike,
    without_memory,
)

__all__ = [
    "KINDS",
    "adopt",
    "from_host",
    "joined",
    "new",
    "over",
    "promote",
    "rows_of",
    "shard_of",
    "spread",
    "to_host",
]

_CODES = codes_of(torch)
_STRIDED = torch.strided


def _describe(tensor: Any) -> Description | torch.Tensor:
    code, on_host = _CODES.get(tensor.dtype), tensor.is_cpu
    if code is None or not _is_dense(tensor) or (not on_host and tensor.is_meta):
        raise _not_dense(tensor)
    if tensor.is_conj() or tensor.is_neg():  # the memory has other values
        return tensor.detach().resolve_conj().resolve_neg()
    strides = None if tensor.is_contiguous() else tensor.stride()
    address = _address(tensor)
    if not address and tensor.numel():
        return _describe(_waited(tensor))
    if on_host:  # also if it is pinned
        return address, code, tensor.shape, strides, CPU, 0, False, 0
    index = _cuda_index(tensor)
    if index is None:
        raise UnsupportedError(
            f"a torch tensor on device '{tensor.device}': only host memory and CUDA's can be "
            "sent; move it with .cpu()"
        )
    stream = _current(index)
    return address, code, tensor.shape, strides, CUDA, index, False, stream


def _is_dense(tensor: Any) -> bool:
    return tensor.layout is _STRIDED and not tensor.is_nested


def _not_dense(tensor: Any) -> DtypeError:
    nested = " (nested)" * tensor.is_nested
    return DtypeError(
        f"a torch tensor of dtype {tensor.dtype}, layout {tensor.layout}{nested} on device "
        f"'{tensor.device}' cannot be sent: it must be dense, have memory, and {KNOWN_DTYPES}"
    )


def _address(tensor: Any) -> int:
    """Return where the elements are; 0 for a tensor without memory."""
    try:
        return int(tensor.data_ptr())
    except RuntimeError:  # of a wrapper of functorch, as under torch.func.grad
        return 0


def _waited(tensor: Any) -> Any:
    """Return the tensor that one without memory stands for: of torch's functional collectives.

    It lives as long as the given one.

    Raises:
        DtypeError: the tensor is another one.
    """
    kind = type(tensor)
    if kind.__name__ == "AsyncCollectiveTensor" and kind.__module__.startswith("torch."):
        return tensor.trigger_wait()
    raise without_memory(tensor)


def _bump(tensor: Any) -> None:
    if not tensor.is_inference():  # inference tensors have no version counter
        torch.autograd.graph.increment_version(tensor)


def over(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor over memory with the buffer protocol, which it keeps alive.

    Raises:
        DtypeError: this torch does not have the dtype.
    """
    kind = getattr(torch, dtype, None)
    if kind is None:
        raise DtypeError(f"torch {torch.__version__} has no dtype {dtype}")
    if len(memory) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind).reshape(shape)


def new(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a new tensor in ordinary host memory. Its elements are undefined."""
    return torch.empty(shape, dtype=getattr(torch, dtype))


def to_host(tensor: Any, index: tuple[slice, ...]) -> Any:
    """Return a contiguous copy of a part of a tensor in host memory."""
    return tensor.detach()[index].cpu().contiguous()


def from_host(tensor: Any, index: tuple[slice, ...], values: Any) -> None:
    """Write a tensor in host memory into a part of a tensor; returns when it is there."""
    tensor.detach()[index].copy_(values)


def shard_of(tensor: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """Return what this rank holds of a distributed tensor; None if the tensor is an ordinary one.

    Returns:
        The local tensor, the shape of the whole, and where in the whole the local one begins.

    Raises:
        ArgumentError: the ranks do not hold boxes of the whole.
    """
    kinds = {f"{base.__module__}.{base.__name__}": base for base in type(tensor).__mro__}
    if "torch.distributed.tensor.DTensor" in kinds:
        return _of_dtensor(tensor)
    if "torch.distributed._shard.sharded_tensor.api.ShardedTensor" in kinds:
        local = tensor.local_shards()
        if len(local) != 1:
            raise ArgumentError(
                f"this rank has {len(local)} shards of a ShardedTensor, it must have one"
            )
        size = tuple(tensor.metadata().size)
        return local[0].tensor, size, tuple(local[0].metadata.shard_offsets)
    return None


def _of_dtensor(tensor: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import _utils
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh, placements, shape = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    for number, place in enumerate(placements):
        if place.is_partial():
            raise ArgumentError(
                f"it is Partial on dimension {number} of its mesh: the ranks hold addends of it; "
                "redistribute() it first"
            )
        if isinstance(place, _StridedShard) and mesh.size(number) > 1:
            inner = 1
            for other, later in enumerate(placements[number + 1 :], number + 1):
                if later.is_shard(place.dim) and not isinstance(later, _StridedShard):
                    inner *= mesh.size(other)
            if inner != place.split_factor:
                raise ArgumentError(
                    f"its placements {tuple(placements)} have a _StridedShard without the Shard of "
                    f"dimension {place.dim} that cuts it into {place.split_factor}: a rank's rows "
                    "do not lie together; give the tensor with all of its mesh"
                )
    local = tensor._local_tensor
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    if mesh.get_coordinate() is None:  # this rank is not in the mesh
        if not shape:
            raise ArgumentError("it is a scalar, and this rank is not in its mesh")
        return local.new_empty((0,) * len(shape)), shape, (0,) * len(shape)
    lengths, offsets = _utils.compute_local_shape_and_global_offset(shape, mesh, placements)
    if tuple(lengths) != tuple(local.shape):
        raise ArgumentError(
            f"this rank holds a tensor of shape {tuple(local.shape)}, and by its placements "
            f"{tuple(placements)} it would be {tuple(lengths)}"
        )
    return local, shape, tuple(offsets)


def spread(values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor of some shape with values, broadcast as NumPy's assignment does.

    Args:
        values: a tensor of any dtype, of which the result is a view; or numbers, which are
            converted to ``dtype``.
        dtype: the name of a dtype.
        shape: the shape.

    Raises:
        ArgumentError: the shapes do not fit, or a number is out of the dtype's range.
        DtypeError: the values are no numbers, would lose a fraction or an imaginary part, or are a
            tensor that is not dense.
    """
    tensor = values if isinstance(values, torch.Tensor) else _numbers(values, dtype)
    if not _is_dense(tensor):
        raise _not_dense(tensor)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    extra = tensor.dim() - len(shape)
    if extra > 0 and tensor.shape[:extra] == (1,) * extra:
        tensor = tensor[(0,) * extra]
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise unlike(tensor.shape, shape) from None


def _numbers(values: Any, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):  # no numbers; lists of different lengths
        raise lossy(values, dtype) from None
    if not torch.can_cast(found.dtype, kind):
        raise lossy(values, dtype)
    converted = found.to(kind)
    if "int" in dtype and not torch.equal(converted.to(found.dtype), found):
        raise out_of_range(values, dtype)
    if bool((torch.isinf(converted) & ~torch.isinf(found)).any()):
        raise out_of_range(values, dtype)
    return converted


def promote(tensor: Any) -> None:
    """Move the storage of a tensor into shared memory that the heap adopts, in place.

    All tensors of torch with this storage follow. Whatever else knows the address would not, so
    the storage is moved only if nobody can know it: see :mod:`paddlempi.torch.ddp_buckets`. Nothing
    is done if the memory is in the heap already, or if there is none.

    Raises:
        UnsupportedError: somebody may know the address, or there is no shared memory.
        DtypeError: the tensor has no memory.
    """
    if tensor.layout is not _STRIDED or not tensor.is_cpu:
        raise _stays(f"it is on device '{tensor.device}', and not a dense tensor in host memory")
    _describe(tensor)
    if tensor.numel() and not _address(tensor):
        tensor = _waited(tensor)
    size = tensor.numel() * tensor.element_size()
    if not size or _native.control("heap_has", address=tensor.data_ptr(), bytes=size)["has"]:
        return
    storage = tensor.untyped_storage()
    if storage.is_shared():
        raise _stays("its storage is shared already, by torch")
    if not storage.resizable():
        raise _stays("its memory is not torch's, or .numpy() has exported it")
    # An export holds the tensor or the storage. So does a view: torch does not tell them apart.
    others = torch._C._storage_Use_Count(storage._cdata) - 2  # this tensor, and ``storage``
    if others > 0 or tensor._use_count() > 1:
        raise _stays("it has views, or an export by DLPack, or a graph of autograd has it")
    if not _native.control("info")["heap"]["opens"]:
        raise _stays("the ranks of this node cannot open each other's memory")
    try:
        adopt(storage)
    except RuntimeError as error:  # torch's, for a /dev/shm that is too small
        raise _stays(str(error)) from error


def _stays(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"a torch tensor in ordinary memory cannot be moved into shared memory: {why}; make it by "
        "paddlempi.empty(shape, dtype, 'torch')"
    )


def adopt(storage: Any) -> None:
    """Move a storage into a shared memory file, in place, and have the heap adopt the file.

    Raises:
        Error: the core refuses the file.
        RuntimeError: torch cannot make it.
    """
    descriptor, size = storage._share_fd_cpu_()
    answer = _native.control(
        "heap_adopt", descriptor=descriptor, address=storage.data_ptr(), bytes=size
    )
    weakref.finalize(storage, _disown, answer["generation"]).atexit = False


def _disown(generation: int) -> None:
    if not _native.load().forked():
        _native.control("heap_disown", generation=generation)


def joined(tensors: Sequence[Any]) -> Any:
    """Return a tensor with the rows of all tensors, in order."""
    return torch.cat(list(tensors))


def rows_of(gradient: Any) -> tuple[Any, Any]:
    """Return the row numbers and the rows of a sparse gradient, without a copy.

    A row number may occur several times.

    Raises:
        DtypeError: the gradient is no COO tensor with one sparse dimension.
    """
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        raise DtypeError(
            f"a torch tensor of layout {gradient.layout} is no gradient of rows: it must be "
            "torch.sparse_coo with one sparse dimension"
        )
    return gradient._indices()[0], gradient._values()


def _like(tensor: Any) -> Any:
    if not _is_dense(tensor):
        raise _not_dense(tensor)
    return torch.empty_like(tensor.detach())


def _cuda_index(tensor: Any) -> int | None:
    # torch for ROCm calls its devices cuda too.
    return tensor.get_device() if tensor.is_cuda and not torch.version.hip else None


def _current(index: int) -> int:
    # torch's compiler calls this too. It takes a tenth of the time of torch.cuda.current_stream.
    return int(torch._C._cuda_getCurrentRawStream(index))


def _stream(tensor: Any) -> Callable[[], int] | None:
    index = _cuda_index(tensor)
    return None if index is None else partial(_current, index)


def _record(tensor: Any) -> bool:
    index = _cuda_index(tensor)
    if index is None:
        return False
    tensor.record_stream(torch.cuda.current_stream(index))
    return True


class _InPlace(torch.autograd.Function):  # type: ignore[misc]
    """A function that writes to its tensor."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, run: Callable[[Any], None], turn: Callable[[Any], None]
    ) -> Any:
        run(tensor)
        ctx.mark_dirty(tensor)
        ctx.turn = turn
        return tensor

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        ctx.turn(gradient)
        return gradient, None, None


def _in_place(tensor: Any, forward: Callable[[Any], None], backward: Callable[[Any], None]) -> bool:
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return False
    if tensor.is_leaf:
        raise ArgumentError(
            "a tensor that needs a gradient and is a leaf must not be written to: pass a result, "
            "such as that of torch.nn.functional.pad, or call it under torch.no_grad()"
        )
    _InPlace.apply(tensor, forward, backward)
    return True


KINDS = {torch.Tensor: Kind(_describe, _bump, _like, _stream, _record, _in_place)}
