"""What ``torch.distributed.checkpoint`` reads safetensors with."""

from __future__ import annotations

import io as _io
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

from .._progress import Bytes
from ..errors import ArgumentError, DtypeError
from ..io.commit import STATE, Names
from ..io.elements import Elements
from ..io.reader import OpenFile
from ..io.shards import Part
from ..io.tiles import Box
from ..io.values import decoded

__all__ = ["PREFIX", "VALUES", "StorageReader"]

PREFIX = "paddlempi.prefix"
"""In the metadata: what the names of the state dict have before those of the model's file."""
VALUES = "paddlempi.values"
"""In the metadata of the second file: what is no tensor, and where in the state dict all is."""


class StorageReader(storage.StorageReader):  # type: ignore[misc]
    """Reads what :class:`StorageWriter` has written, for ``dcp.load``; and any safetensors.

    Args:
        path: as for :func:`paddlempi.io.open_file`. None: ``checkpoint_id`` gives it.
        prefix: what the names of the state dict have before those of the model's file: ``"model."``
            for a state dict ``{"model": ...}`` from a file that another program has written. None:
            as the file says, else nothing.
        progress: the coordinator shows on stderr how many bytes it has read.

    Source: :class:`torch.distributed.checkpoint.FileSystemReader`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        prefix: str | None = None,
        progress: bool = False,
    ) -> None:
        self._path: Any = path
        self._prefix = prefix
        self._progress, self._leads = progress, False
        self._stack = ExitStack()
        self._found: dict[str, tuple[OpenFile, str]] = {}
        self._values: dict[str, Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Load ``checkpoint_id`` from now on."""
        if checkpoint_id is not None:
            self._path = checkpoint_id

    def read_metadata(self) -> kinds.Metadata:
        """Return which tensors and values there are.

        Raises:
            ArgumentError: a file is damaged.
            OSError: it cannot be read.
        """
        if self._path is None:
            raise ArgumentError("StorageReader: give a path, or a checkpoint_id")
        self._stack.close()
        self._found, self._values = {}, {}
        names = Names(self._path)
        model = self._stack.enter_context(OpenFile(names, "torch"))
        said = model.metadata() or {}
        prefix = said.get(PREFIX, "") if self._prefix is None else self._prefix
        self._found = {prefix + name: (model, name) for name in model}
        root = prefix.removesuffix(".")
        paths: dict[str, Any] = {prefix + n: (root, n) if root else (n,) for n in model}
        if STATE in said:
            path = names.one.parent / names.checked(said[STATE])
            rest = self._stack.enter_context(OpenFile(Names(path), "torch"))
            self._values, further = _parsed((rest.metadata() or {}).get(VALUES, "{}"))
            self._found |= {name: (rest, name) for name in rest}
            paths |= further
        stored: dict[str, Any] = {name: kinds.BytesStorageMetadata() for name in self._values}
        for name, (file, inner) in self._found.items():
            stored[name] = _stored(file, inner)
        return kinds.Metadata(stored, planner_data=paths)

    def set_up_storage_reader(
        self, metadata: kinds.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Note which rank shows the progress: ``read_metadata`` has opened the files."""
        self._leads = is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's parts."""
        tensors = [item for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        total = sum(math.prod(item.lengths) * self._itemsize(item) for item in tensors)
        with Bytes("StorageReader", total, self._progress and self._leads) as line:
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type is LoadItemType.BYTE_IO:
                    data = _io.BytesIO()
                    torch.save(self._values[name], data)
                    data.seek(0)
                    planner.load_bytes(item, data)
                    continue
                tensor = planner.resolve_tensor(item).detach()
                file, inner = self._found[name]
                _fill(file, inner, tensor, tuple(item.storage_offsets), line.add)
                planner.commit_tensor(item, tensor)
        self._stack.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _itemsize(self, item: Any) -> int:
        file, inner = self._found[item.storage_index.fqn]
        return file.entry(inner).dtype.bits // 8

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path."""
        return isinstance(checkpoint_id, (str, os.PathLike))


def _fill(
    file: OpenFile,
    name: str,
    tensor: Any,
    offsets: tuple[int, ...],
    told: Callable[[int], object],
) -> None:
    """Read a box into a tensor, which may be of another dtype; ``told`` gets the bytes."""
    entry = file.entry(name)
    target = tensor
    if str(tensor.dtype).removeprefix("torch.") != entry.dtype.name:
        target = file.new(name, tensor.shape)
    elements = Elements(target)
    file.fill(name, Part(elements, entry.shape, Box(offsets, elements.shape)), told)
    if target is not tensor:
        tensor.copy_(target)


def _stored(file: OpenFile, name: str) -> Any:
    entry = file.entry(name)
    if not entry.dtype.name:
        _unknown(name, entry.dtype.code)
    size = torch.Size(entry.shape)
    chunk = kinds.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    dtype = getattr(torch, entry.dtype.name, None)
    if dtype is None:
        _unknown(name, entry.dtype.code)
    return kinds.TensorStorageMetadata(kinds.TensorProperties(dtype=dtype), size, [chunk])


def _parsed(text: str) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Return the values, and the paths in the state dict, that StorageWriter has written."""
    said = decoded(text)
    values, paths = (
        said.get(key, {}) if isinstance(said, dict) else None for key in ("values", "paths")
    )
    if not isinstance(values, dict) or not isinstance(paths, dict):
        raise ArgumentError("StorageReader: the values in the metadata cannot be read")
    return values, {name: tuple(path) for name, path in paths.items()}


def _unknown(name: str, code: str) -> NoReturn:
    raise DtypeError(f"StorageReader: {name!r} is of {code}, which torch {torch.__version__} lacks")
