"""``save_file``: one safetensors file, or a set with an index, written by all ranks."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy as np

from .._progress import Bytes
from ..errors import ArgumentError, DtypeError, Error, MismatchError
from ..group import ProcessGroup, is_initialized, warn_nonmember
from ..together import leads, size_of, together, world_rank
from . import layout, shards, tiles
from .commit import Names, Save
from .dtypes import code_of
from .elements import Elements
from .layout import Whole
from .opened import opened
from .posix import PosixFile
from .tiles import Box
from .writer import Target, write

__all__ = ["Content", "agreed", "save_file", "saved"]


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    max_shard_size: int | str | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    group: ProcessGroup | None = None,
    progress: bool = False,
) -> None:
    """Write tensors into one safetensors file, or into a set of files, by all ranks at once.

    All members of ``group`` call it, with the same names, dtypes and whole shapes. The file has the
    bytes that ``safetensors.torch.save_file`` would write of the whole tensors. It has its name
    when it is whole and on the disk; before that the file that was there stays as it is. Before
    init and after destroy the process is alone.

    Args:
        tensors: the tensors by name: a :class:`Shard`, which is a part of one; a distributed tensor
            of torch (DTensor) or Paddle, of which this rank has a part; or any tensor, which all
            ranks have alike. Any strides; in host memory, or those of torch and Paddle in device
            memory. The parts of all ranks tile each tensor. A part that several ranks hold is
            written by one of them; copies are not compared. Tensors must not change meanwhile.
        path: of the file. An existing folder means ``model.safetensors`` in it.
        max_shard_size: bytes, or a text such as ``"5GB"``. If the tensors have more, they are
            written as ``model-TAG-00001-of-00003.safetensors`` and so on, in the order of
            ``tensors``, with an index ``model.safetensors.index.json``. None: one file.
        metadata: texts by key, for the header.
        group: the ranks; None: the world.
        progress: rank 0 shows on stderr how many bytes it has written.

    Raises:
        ArgumentError: the parts do not tile a tensor; two tensors share memory; a distributed
            tensor is not held in boxes; or the folder has a set where one file shall be written, or
            the other way round. The text names the tensor.
        DtypeError: something is no tensor, or of a dtype that files do not have.
        MismatchError: the ranks have not given the same arguments. Nothing was written.
        OSError: this rank cannot write; the text has the path, the rank and the offset.
        RefusedError: ``ranks`` raise an error of their own.

    Memory: 8 MiB for tensors that are not contiguous or on a device; 48 MiB for tensors that are
    cut by columns.

    Source: ``safetensors.torch.save_file``.
    """
    what = "save_file"
    if group is not None and is_initialized() and warn_nonmember(group, what):
        return
    with together(what, group) as step:
        most = layout.bytes_of(what, max_shard_size)
        content = Content.of(what, tensors, metadata)
        call = {"path": os.fsdecode(path), "max_shard_size": most}
        step.tell = content.told(call, ordered=most is not None)
    held = agreed(what, content, step.told, call, most is not None, group)
    saved(what, Names(path), content, held, most, group, progress)


class Content:
    """What one rank gives to a save.

    Attributes:
        parts: what it holds of each tensor, by name.
        wholes: the tensors as they are in a file, in the order given.
        metadata: of the file.
        names: those of the tensors, sorted.
    """

    def __init__(
        self,
        parts: dict[str, shards.Part],
        wholes: dict[str, Whole],
        metadata: dict[str, str] | None,
    ) -> None:
        self.parts, self.wholes, self.metadata = parts, wholes, metadata
        self.names = sorted(parts)

    @classmethod
    def of(cls, what: str, tensors: Any, metadata: Any) -> Content:
        """Check arguments.

        Raises:
            ArgumentError, DtypeError: see :func:`save_file`.
        """
        if metadata is not None and not (
            isinstance(metadata, Mapping)
            and all(isinstance(text, str) for pair in metadata.items() for text in pair)
        ):
            raise DtypeError(f"{what}: metadata={metadata!r:.200} is no map of texts to texts")
        parts = shards.parts_of(what, tensors)
        wholes = {
            name: Whole(code_of(what, name, part.elements.dtype), part.shape)
            for name, part in parts.items()
        }
        shards.refuse_shared(what, parts)
        return cls(parts, wholes, None if metadata is None else dict(metadata))

    def held(self) -> list[tuple[Elements, Box]]:
        """Return what this rank holds of each tensor, in the order of the names."""
        return [(self.parts[name].elements, self.parts[name].box) for name in self.names]

    def told(self, call: Mapping[str, Any], ordered: bool) -> tuple[bytes, bytes]:
        """Return what this rank tells the others: a digest of its arguments, and its boxes.

        Args:
            call: further arguments that must be the same on all ranks.
            ordered: whether the order of the tensors counts.
        """
        digest = hashlib.sha256()
        for key, value in self._facts(call, ordered).items():
            digest.update(f"{key!r}={value!r};".encode("utf-8", "surrogatepass"))
        boxes = [self.parts[name].box for name in self.names]
        flat = [n for box in boxes for numbers in box for n in numbers]
        return digest.digest(), np.array(flat, "<i8").tobytes()

    def _facts(self, call: Mapping[str, Any], ordered: bool) -> dict[str, Any]:
        names = list(self.wholes) if ordered else self.names
        facts: dict[str, Any] = dict(call)
        facts["metadata"] = None if self.metadata is None else sorted(self.metadata.items())
        facts |= {
            f"tensor {name!r}": (one.dtype.code, list(one.shape))
            for name in names
            for one in [self.wholes[name]]
        }
        return facts

    def facts(self, call: Mapping[str, Any], ordered: bool) -> dict[str, str]:
        """Return the arguments that must be the same, as texts."""
        found = {key: repr(value) for key, value in self._facts(call, ordered).items()}
        if ordered:
            found["the order of the tensors"] = repr(list(self.wholes))
        return found


def agreed(
    what: str,
    content: Content,
    told: Sequence[tuple[bytes, bytes]],
    call: Mapping[str, Any],
    ordered: bool,
    group: ProcessGroup | None,
) -> list[dict[Box, list[int]]]:
    """Return the boxes of each tensor with the ranks that hold each, in the order of the names.

    Args:
        content: this rank's.
        told: what ``Content.told`` has returned on each rank.

    Raises:
        MismatchError: the ranks have not given the same arguments.
        ArgumentError: the boxes do not tile a tensor. All ranks raise it.
    """
    if len({digest for digest, _ in told}) > 1:
        _raise_mismatch(what, content.facts(call, ordered), group)
    boxes = np.stack([np.frombuffer(data, "<i8") for _, data in told])
    held = []
    at = 0
    for name in content.names:
        shape = content.wholes[name].shape
        mine = boxes[:, at : at + 2 * len(shape)].reshape(len(told), 2, len(shape))
        try:
            held.append(tiles.check(name, shape, mine))
        except ArgumentError as error:
            raise ArgumentError(f"{what}: {error}") from None
        at += 2 * len(shape)
    return held


def _raise_mismatch(what: str, facts: dict[str, str], group: ProcessGroup | None) -> None:
    with together(what, group) as step:
        step.tell = facts
    everyone: list[dict[str, str]] = step.told
    for key in dict.fromkeys(key for one in everyone for key in one):
        values = [one.get(key) for one in everyone]
        if len(set(values)) > 1:
            counts = Counter(values).most_common()
            usual = counts[0][0] if len(counts) < 2 or counts[0][1] > counts[1][1] else object()
            wrong = [rank for rank, value in enumerate(values) if value != usual]
            ranks = [world_rank(rank, group) for rank in wrong]
            texts = [
                f"rank {world_rank(rank, group)} has {_short(value)}"
                for value, rank in {value: values.index(value) for value in values}.items()
            ]
            error = MismatchError(
                f"{what}: the ranks have not given the same: {key}: {', '.join(texts[:4])}; "
                "nothing was written"
            )
            error.ranks = tuple(ranks)[:32]
            raise error
    raise AssertionError("digests differ, and no argument does")


def _short(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= 120 else f"{value[:117]}..."


class _File(NamedTuple):
    """One file of a save.

    Attributes:
        label: in its name; "" for the file that is renamed.
        layout: what is where.
    """

    label: str
    layout: layout.FileLayout


def saved(
    what: str,
    names: Names,
    content: Content,
    held: Sequence[dict[Box, list[int]]],
    most: int | None,
    group: ProcessGroup | None,
    progress: bool,
) -> None:
    """Write what the ranks have agreed on, and commit it.

    Raises:
        ArgumentError, OSError, RefusedError: see :func:`save_file`.
    """
    total = sum(one.nbytes for one in content.wholes.values())
    is_set = most is not None and total > most
    files = _files(content, most if is_set else None)  # the same on all ranks, as its error
    numbers = {name: number for number, file in enumerate(files) for name in file.layout.begins}
    targets = [
        Target(
            numbers[name],
            files[numbers[name]].layout.begins[name],
            content.wholes[name].shape,
            content.parts[name].elements.itemsize,
        )
        for name in content.names
    ]
    pieces = tiles.shared_out(held, [one.itemsize for one in targets], size_of(group))
    save: Save | None = None
    try:
        with ExitStack() as stack:
            with together(what, group) as step:
                mine = _bytes_of_lead(pieces, targets)
                bar = stack.enter_context(Bytes(what, mine, progress and leads(group)))
                if leads(group):
                    save = Save(what, names, is_set)
                    made = [save.beside(one.label) if one.label else save.partial for one in files]
                    for path, file in zip(made, files, strict=True):
                        save.begin(path, file.layout.head, file.layout.size)
                    step.tell = [path.name for path in made]
            there: list[str] = step.told[0]

            def opens() -> list[PosixFile]:
                paths = [str(names.one.parent / name) for name in there]
                return [opened(path, os.O_RDWR, stack, made=True, ahead=True) for path in paths]

            held_here = content.held()
            write(what, held_here, pieces, targets, opens, group, bar.add, flushes=True)
        with together(what, group):
            if save is not None:
                if is_set:
                    said = [
                        (name, list(file.layout.begins))
                        for name, file in zip(there, files, strict=True)
                    ]
                    text = layout.index(said, total, content.metadata)
                    save.begin(save.partial, text, len(text))
                save.commit()
    except Exception:
        if save is not None:
            save.abandon()
        with suppress(Error), together(what, group):
            pass  # when a rank raises, the files are gone
        raise
    finally:
        if save is not None:
            save.abandon()


def _files(content: Content, most: int | None) -> list[_File]:
    if most is None:
        return [_File("", layout.laid_out(content.wholes, content.metadata))]
    return [_File(*one) for one in layout.numbered(content.wholes, most, content.metadata)]


def _bytes_of_lead(pieces: Sequence[tiles.Piece], targets: Sequence[Target]) -> int:
    """Return the bytes that rank 0 writes."""
    return sum(
        int(np.prod(piece.box.lengths, dtype=np.int64)) * targets[piece.tensor].itemsize
        for piece in pieces
        if piece.rank == 0
    )
