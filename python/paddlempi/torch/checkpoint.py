"""Storage for ``torch.distributed.checkpoint``: safetensors that everybody reads.

::

    import torch.distributed.checkpoint as dcp
    from paddlempi.torch.checkpoint import StorageReader, StorageWriter

    dcp.save({"model": model, "optimizer": optimizer}, storage_writer=StorageWriter("out"))
    dcp.load(state, storage_reader=StorageReader("out"))

The ranks write ``out/model.safetensors`` together, which transformers and ``safe_open`` read: what
the state dict has under ``"model"``, or its own tensors if there is no such dict. All else goes
into a second file with a random tag in its name, which the first one names: tensors by torch's
flattened names, and what is no tensor as JSON. One rename commits both. ``docs/files.md`` has
examples.
"""

from __future__ import annotations

import dataclasses
import io as _io
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.futures import Future

from .._progress import Bytes
from ..errors import ArgumentError
from ..group_arguments import to_seconds
from ..io import layout, tiles
from ..io.commit import STATE, Names, Save
from ..io.dtypes import code_of
from ..io.elements import Elements
from ..io.layout import Whole
from ..io.opened import opened
from ..io.posix import PosixFile
from ..io.tiles import Box, Piece
from ..io.values import encoded
from ..io.writer import Swap, Target, exchange, exchanged, write_piece
from .checkpoint_reader import PREFIX, VALUES, StorageReader
from .snapshots import Snapshots

__all__ = ["StorageReader", "StorageWriter"]

_MODEL = "model"
_ROOM = 1 << 20


class _Planned(NamedTuple):
    """What the coordinator tells a rank.

    Attributes:
        folder: of the files.
        files: their names.
        targets: where each tensor of this rank's goes, by its name in the state dict.
        rank: of the one that is told, among those that save.
        shared: the tensors with many short runs, for which the ranks bring rows together: where
            each goes, and what each rank has of it.
    """

    folder: str
    files: list[str]
    targets: dict[str, Target]
    rank: int
    shared: dict[str, tuple[Target, list[tuple[int, Box]]]]


class _Second(NamedTuple):
    """The second file of a save, of which the header is written last."""

    file: Any
    tensors: dict[str, Whole]
    size: int
    paths: dict[str, Any]


class StorageWriter(storage.StorageWriter, AsyncStager):  # type: ignore[misc]
    """Writes a state dict as safetensors, for ``dcp.save`` and ``dcp.async_save``.

    The ranks agree by the process group of ``dcp.save``; this class calls no collective. An error
    of a rank is a ``CheckpointException`` on all, as of every storage of torch. The old checkpoint
    is untouched then, and the files of the attempt are removed by the next save, or with the
    writer.

    ``dcp.async_save`` copies the tensors into this rank's heap before it returns. There is one such
    copy: the bytes of the tensors and shards that this rank has, and no more. A further
    ``async_save`` waits until the files of the one before are written. It gives up if nothing is
    written for ``timeout``, however long the whole takes. Give ``process_group`` a group of its
    own, because collectives of one group are called in the same order on all ranks.

    A matrix that is cut by columns has many short runs in its file. With ``process_group`` the
    ranks bring rows together, as :func:`paddlempi.io.save_file` does, in 48 MiB a rank. Without it
    each rank writes run by run, which takes up to three times as long (measured).

    Args:
        path: a folder, which is made if needed, for ``model.safetensors`` in it; or the path of a
            file that ends with ``.safetensors``. None: ``checkpoint_id`` gives it.
        max_shard_size: as for :func:`paddlempi.io.save_file`; of the model.
        metadata: texts by key, for the header of the model.
        room: bytes of the second file's header for what is no tensor.
        timeout: how long a wait may see no progress; a timedelta or seconds.
        process_group: that of ``dcp.save`` or ``dcp.async_save``, over MPI or gloo:
            ``torch.distributed.group.WORLD`` if they are given none. The same on all ranks.
        progress: the first rank shows on stderr how many bytes it has written.

    Raises:
        ArgumentError: ``max_shard_size``, ``room`` or ``timeout`` is out of range.
        DtypeError: one of them is of a wrong type.

    Source: :class:`torch.distributed.checkpoint.FileSystemWriter`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_shard_size: int | str | None = None,
        metadata: Mapping[str, str] | None = None,
        room: int = _ROOM,
        timeout: timedelta | float = 300.0,
        process_group: Any = None,
        progress: bool = False,
    ) -> None:
        self._what = "StorageWriter"
        self._most = layout.bytes_of(self._what, max_shard_size)
        self._metadata = {"format": "pt", **(metadata or {})}
        self._room = room
        self._path: Any = path
        self._snapshots = Snapshots(to_seconds(timeout, self._what))
        self._group = process_group
        self._progress = progress
        self._save: Save | None = None
        self._abandon: Any = None
        self._second: _Second | None = None
        self._index: bytes | None = None
        self._files: list[str] = []

    # What torch calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Save to ``checkpoint_id`` from now on."""
        if checkpoint_id is not None:
            self._path = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save: every rank can be the coordinator."""
        if self._path is None:
            raise ArgumentError(f"{self._what}: give a path, or a checkpoint_id")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay the tensors out, make the files, and tell each rank where its parts go."""
        paths: dict[str, Any] = {}
        for plan in plans:
            paths |= plan.planner_data or {}
        wholes = self._wholes([item for plan in plans for item in plan.items])
        nested = any(len(path) > 1 and path[0] == _MODEL for path in paths.values())
        prefix = f"{_MODEL}." if nested else ""

        def is_model(name: str) -> bool:
            path = paths.get(name, (name,))
            return (len(path) > 1 and path[0] == _MODEL) if nested else len(path) == 1

        model = {name: whole for name, whole in wholes.items() if is_model(name)}
        rest = {name: whole for name, whole in wholes.items() if not is_model(name)}
        is_bytes = {i.index.fqn for p in plans for i in p.items if i.tensor_data is None}
        found = self._begin(
            {name.removeprefix(prefix): whole for name, whole in model.items()},
            prefix,
            rest,
            {name: path for name, path in paths.items() if name in rest or name in is_bytes}
            | {name: (name,) for name in is_bytes if name not in paths},
        )
        folder = str(Names(self._path).one.parent)
        targets = {
            name: Target(*found[name], whole.shape, whole.dtype.bits // 8)
            for name, whole in wholes.items()
        }
        shared = {} if self._group is None else _shared(plans, targets)
        new = []
        for rank, plan in enumerate(plans):
            mine = {i.index.fqn: targets[i.index.fqn] for i in plan.items if i.tensor_data}
            planned = _Planned(folder, self._files, mine, rank, shared)
            new.append(dataclasses.replace(plan, storage_data=planned))
        return new

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        """Write this rank's parts, and flush them."""
        done: Future[list[Any]] = Future()
        done.set_result(self._write(plan, planner))
        return done

    def finish(self, metadata: kinds.Metadata, results: list[list[Any]]) -> None:
        """Write what is no tensor, and commit."""
        save = self._save
        assert save is not None, "prepare_global_plan comes before finish"
        try:
            if self._second is not None:
                found = {r.index.fqn: r.storage_data for part in results for r in part}
                self._write_values({name: t for name, t in found.items() if t is not None})
            if self._index is not None:
                save.begin(save.partial, self._index, len(self._index))
            save.commit()
        finally:
            self._give_up()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path."""
        return isinstance(checkpoint_id, (str, os.PathLike))

    def storage_meta(self) -> kinds.StorageMeta:
        """Return the path, for planners. In a save torch calls it before all else."""
        self._snapshots.written_by(threading.current_thread())
        self._give_up()
        return kinds.StorageMeta(checkpoint_id=self._path)

    # What async_save calls

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the state dict, with tensors in this rank's heap.

        Raises:
            TimeoutError: the save before is still being written, without any progress.
        """
        return self._snapshots.take(state_dict)

    def synchronize_staging(self) -> None:
        """Do nothing: :meth:`stage` returns when the copy is there."""

    def close(self) -> None:
        """Give the memory of copies back, and remove files that were not committed."""
        self._snapshots.clear()
        self._give_up()

    # The steps

    def _wholes(self, items: list[WriteItem]) -> dict[str, Whole]:
        """Return the tensors as they are in a file, if the parts of all ranks tile them."""
        boxes: dict[str, list[Any]] = {}
        found: dict[str, Whole] = {}
        for item in items:
            data, name = item.tensor_data, item.index.fqn
            if data is None:
                continue
            dtype = str(data.properties.dtype).removeprefix("torch.")
            whole = Whole(code_of(self._what, name, dtype), tuple(data.size))
            if found.setdefault(name, whole) != whole:
                raise ArgumentError(
                    f"{self._what}: {name!r} is of {dtype} and shape {list(whole.shape)} on a "
                    f"rank, and of {found[name].dtype.name} and {list(found[name].shape)} on "
                    "another one"
                )
            boxes.setdefault(name, []).append((tuple(data.chunk.offsets), tuple(data.chunk.sizes)))
        for name, whole in found.items():
            held = np.array(boxes[name], np.int64).reshape(len(boxes[name]), 2, len(whole.shape))
            try:
                tiles.check(name, whole.shape, held)
            except ArgumentError as error:
                raise ArgumentError(f"{self._what}: {error}") from None
        return found

    def _begin(
        self,
        model: dict[str, Whole],
        prefix: str,
        rest: dict[str, Whole],
        paths: dict[str, Any],
    ) -> dict[str, tuple[int, int]]:
        """Lay the files out and make them. Return in which file each tensor begins where."""
        names = Names(self._path, folder=True)
        total = sum(one.nbytes for one in model.values())
        is_set = self._most is not None and total > self._most
        metadata = dict(self._metadata) | ({PREFIX: prefix} if prefix else {})
        names.one.parent.mkdir(parents=True, exist_ok=True)
        save = self._save = Save(self._what, names, is_set)
        self._abandon = weakref.finalize(self, save.abandon)
        second = save.beside("state") if rest or paths else None
        if second is not None:
            metadata[STATE] = second.name
        self._index = None
        if is_set:
            files = layout.numbered(model, self._most or 0, {"format": "pt"})
            made = [(save.beside(label), entries) for label, entries in files]
            said = [(path.name, list(entries.begins)) for path, entries in made]
            self._index = layout.index(said, total, metadata)
        else:
            made = [(save.partial, layout.laid_out(model, metadata))]
        for path, entries in made:
            save.begin(path, entries.head, entries.size)
        self._second = None
        if second is not None:
            padded = layout.laid_out(rest, None, self._room)
            save.begin(second, b"", padded.size)
            self._second = _Second(second, rest, len(padded.head), paths)
        found = {
            prefix + name: (number, begin)
            for number, (_, entries) in enumerate(made)
            for name, begin in entries.begins.items()
        }
        self._files = [path.name for path, _ in made]
        if second is not None:
            found |= {name: (len(made), begin) for name, begin in padded.begins.items()}
            self._files.append(second.name)
        return found

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[Any]:
        planned: _Planned = plan.storage_data
        results = []
        mine = sum(
            math.prod(item.tensor_data.chunk.sizes) * planned.targets[item.index.fqn].itemsize
            for item in plan.items
            if item.tensor_data is not None
        )
        with ExitStack() as stack:
            shown = self._progress and planned.rank == 0
            line = stack.enter_context(Bytes(self._what, mine, shown))

            def told(done: int) -> None:
                self._snapshots.progress(done)
                line.add(done)

            files: dict[int, PosixFile] = {}

            def opens(target: Target) -> None:
                if target.file not in files:
                    path = os.path.join(planned.folder, planned.files[target.file])
                    files[target.file] = opened(path, os.O_RDWR, stack, made=True, ahead=True)

            if planned.shared:
                self._exchange(plan, planner, files, opens, told)
            for item in plan.items:
                name = item.index.fqn
                if item.type is WriteItemType.BYTE_IO:
                    text = _json(name, planner.resolve_data(item))
                    results.append(storage.WriteResult(item.index, len(text), text))
                    continue
                elements, box = _part(item, planner)
                if name not in planned.shared:
                    target = planned.targets[name]
                    opens(target)
                    write_piece((elements, box), box, target, files, told)
                results.append(storage.WriteResult(item.index, elements.nbytes, None))
            for file in files.values():
                file.flush()
        return results

    def _exchange(
        self,
        plan: SavePlan,
        planner: SavePlanner,
        files: dict[int, PosixFile],
        opens: Callable[[Target], None],
        told: Callable[[int], None],
    ) -> None:
        """Write the tensors with many short runs. No error keeps this rank from the exchange."""
        planned: _Planned = plan.storage_data
        names = sorted(planned.shared)
        pieces = [
            Piece(number, rank, box)
            for number, name in enumerate(names)
            for rank, box in planned.shared[name][1]
        ]
        parts: dict[int, tuple[Elements, Box]] = {}
        failed: Exception | None = None
        try:
            for name in names:
                opens(planned.shared[name][0])
            for item in plan.items:
                if item.index.fqn in planned.shared:
                    parts[names.index(item.index.fqn)] = _part(item, planner)
        except Exception as error:
            failed = error
        targets = [planned.shared[name][0] for name in names]
        swap = _swap(planned.rank, self._group)
        exchange(parts, pieces, targets, files, swap, told, failed=failed)

    def _write_values(self, texts: dict[str, str]) -> None:
        assert self._save is not None and self._second is not None
        second = self._second
        metadata = {VALUES: _joined(texts, second.paths)}
        head = layout.laid_out(second.tensors, metadata).head
        if len(head) > second.size:
            name = max(texts, key=lambda one: len(texts[one]))
            raise ArgumentError(
                f"{self._what}: what is no tensor has {len(head)} bytes as JSON, the largest is "
                f"{name!r} with {len(texts[name])}, and the header has room for {second.size}: "
                "give a larger room="
            )
        padded = layout.laid_out(second.tensors, metadata, second.size - len(head)).head
        descriptor = os.open(second.file, os.O_RDWR | os.O_CLOEXEC)
        try:
            written = 0
            while written < len(padded):
                written += os.pwrite(descriptor, padded[written:], written)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _give_up(self) -> None:
        if self._abandon is not None:
            self._abandon()
        self._save = self._abandon = None


def _part(item: WriteItem, planner: SavePlanner) -> tuple[Elements, Box]:
    """Return what a rank holds of a tensor."""
    data = item.tensor_data
    box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
    return Elements(planner.resolve_data(item).detach()), box


def _shared(
    plans: list[SavePlan], targets: dict[str, Target]
) -> dict[str, tuple[Target, list[tuple[int, Box]]]]:
    """Return the tensors with many short runs of which each rank has one part at the most."""
    boxes: dict[str, list[tuple[int, Box]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if item.tensor_data is not None:
                chunk = item.tensor_data.chunk
                box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
                boxes.setdefault(item.index.fqn, []).append((rank, box))
    names = [name for name, held in boxes.items() if len(dict(held)) == len(held) > 1]
    pieces = [Piece(n, rank, box) for n, name in enumerate(names) for rank, box in boxes[name]]
    short = exchanged(pieces, [targets[name] for name in names])
    return {name: (targets[name], boxes[name]) for n, name in enumerate(names) if n in short}


def _swap(rank: int, group: Any) -> Swap:
    """Return how the ranks of a group of torch exchange bytes."""
    from torch import distributed as dist

    def move(taken: Any, lengths: Sequence[int], given: Any, given_lengths: Sequence[int]) -> None:
        out, parts = torch.from_numpy(taken), torch.from_numpy(given)
        dist.all_to_all_single(out, parts, list(lengths), list(given_lengths), group)

    return Swap(rank, dist.get_world_size(group), move)


def _json(name: str, data: Any) -> str:
    """Return the JSON of what torch's planner gives: a value, or torch's pickle of one."""
    if isinstance(data, _io.BytesIO):
        data.seek(0)
        data = torch.load(data, weights_only=False)  # this process has just pickled it
    return json.dumps(encoded("StorageWriter", data, (name,)))


def _joined(texts: Mapping[str, str], paths: Mapping[str, Any]) -> str:
    """Return the JSON of all values, with the path of each name in the state dict."""
    inner = ",".join(f"{json.dumps(name)}:{text}" for name, text in sorted(texts.items()))
    where = json.dumps({name: list(path) for name, path in sorted(paths.items())})
    return f'{{"values":{{{inner}}},"paths":{where}}}'
