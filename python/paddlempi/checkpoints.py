"""Checkpoints that are there as a whole or not at all, for any framework.

::

    with dist.checkpoint("saved", step, keep=2) as folder:  # all ranks
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), folder / "model.pt")

    last = dist.latest_checkpoint("saved")                  # None if there is none
    if last:
        model.load_state_dict(torch.load(last.path / "model.pt"))

The ranks write into ``step-00000042.partial``. When all of them have written and the files are on
the disk, rank 0 renames the folder to ``step-00000042``. So a folder without ``.partial`` is
complete, whenever a rank or the machine fails. All ranks must see the same directory: one host, or
a file system that the hosts share.

A checkpoint that replaces one of the same step exchanges names with it, in one call of the kernel
(renameat2). A file system that cannot do this, such as NFS, has both for a moment: the new one is
``step-00000042.new`` then, and it counts.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .errors import ArgumentError, RefusedError
from .group import get_local_rank, get_world_size, is_initialized
from .objects import all_gather_object
from .together import flush, leads, together

__all__ = ["Checkpoint", "checkpoint", "latest_checkpoint"]

_PARTIAL = ".partial"
_NEW = ".new"
_REPLACED = ".replaced"


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    step: int
    path: Path


@contextmanager
def checkpoint(
    directory: str | os.PathLike[str], step: int, *, keep: int | None = None
) -> Iterator[Path]:
    """Give a folder in which every rank writes its part of a checkpoint.

    All ranks of the world enter and leave the ``with`` block. The ranks choose the names of their
    files, for example with their rank in it; rank 0 alone may write what all ranks have alike. When
    the block has ended, the checkpoint is complete and on the disk. Before init and after destroy
    the process is alone.

    A checkpoint of the same step is replaced. Folders of unfinished checkpoints, which a failed job
    left, are removed.

    Args:
        directory: the directory of all checkpoints, the same on all ranks. It is made if needed.
        step: the number of the checkpoint, the same on all ranks.
        keep: how many complete checkpoints stay: this one, and the newest of the others. None:
            all.

    Raises:
        ArgumentError: ``step`` is below 0, or ``keep`` below 1, or not a number.
        OSError: this rank cannot write.
        RefusedError: ``ranks`` raise an error of their own, here or in their block; or the ranks
            do not call it alike. The checkpoint does not exist, and the group is usable.

    An exception of the block is raised on its rank.
    """
    call = f"step={step!r}, keep={keep!r}"
    root = Path(directory)
    with _step(call):
        name = f"step-{_number('step', step, 0):08d}"
        if keep is not None:
            keep = _number("keep", keep, 1)
    partial = root / (name + _PARTIAL)
    with _step(call):
        if leads():
            root.mkdir(parents=True, exist_ok=True)
            for new in root.glob("step-*" + _NEW):
                _take_place(new)
            for stale in (*root.glob("step-*" + _PARTIAL), *root.glob("step-*" + _REPLACED)):
                shutil.rmtree(stale)
            partial.mkdir()
    with _step(call):
        if not partial.is_dir():
            raise FileNotFoundError(
                f"checkpoint: this rank does not see {partial}, which rank 0 has made; give a "
                "directory on a file system that all hosts share"
            )
    with _step(call):
        yield partial
    with _step(call):
        # A rank does not know its own files. The first one of a node flushes what its node wrote.
        if not is_initialized() or get_local_rank() == 0:
            for path in (*partial.rglob("*"), partial):
                flush(path)
    with _step(call):
        if leads():
            _publish(partial, root / name)
            if keep is not None:
                others = [found for found in _complete(root) if found.step != step]
                for old in others[: max(0, len(others) - (keep - 1))]:
                    # Rename first: a folder that is half removed must not look complete.
                    gone = old.path.rename(old.path.with_name(old.path.name + _REPLACED))
                    shutil.rmtree(gone)


def latest_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the newest complete checkpoint in ``directory``, the same on all ranks.

    All ranks of the world call it; before init and after destroy the process is alone. Checkpoints
    that some rank does not see are left out. Folders of unfinished checkpoints do not count.

    Args:
        directory: the ``directory`` of :func:`checkpoint`. It need not exist.

    Returns:
        The checkpoint with the greatest step; None if there is none.
    """
    root = Path(directory)
    found = {one.step: one for one in _complete(root)}
    steps = set(found)
    if is_initialized():
        everyone: list[set[int]] = [set()] * get_world_size()
        all_gather_object(everyone, steps)
        steps = set.intersection(*everyone)
    return found[max(steps)] if steps else None


def _number(name: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise ArgumentError(f"checkpoint: {name}={value!r}: it must be a number from {least} up")
    return number


@contextmanager
def _step(call: str) -> Iterator[None]:
    """End with success only if the block succeeds on all ranks, which have made the same call."""
    with together("checkpoint: the checkpoint is not complete") as step:
        yield
        step.tell = call
    for rank, other in enumerate(step.told):
        if other != step.told[0]:
            refused = RefusedError(
                f"checkpoint: the checkpoint is not complete: rank {rank}: it has called "
                f"checkpoint with {other}, and rank 0 with {step.told[0]}"
            )
            refused.ranks = tuple(
                rank for rank, told in enumerate(step.told) if told != step.told[0]
            )[:32]
            raise refused


def _publish(partial: Path, final: Path) -> None:
    """Give the folder its name, which makes the checkpoint complete.

    Whenever this ends early, ``final``, or the folder that takes its place, is complete.
    """
    if not final.exists():
        partial.rename(final)
    elif _exchange(partial, final):
        flush(final.parent)
        shutil.rmtree(partial)  # the old one
        return
    else:
        new = final.with_name(final.name + _NEW)
        partial.rename(new)
        flush(final.parent)
        _take_place(new)
    flush(final.parent)


def _take_place(new: Path) -> None:
    """Give a complete checkpoint the name of the one that it replaces, if that is there."""
    final = new.with_suffix("")
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        final.rename(replaced)
    new.rename(final)
    if replaced.exists():
        shutil.rmtree(replaced)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; False if the system cannot."""
    import ctypes  # not at import

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # glibc before 2.28
        return False
    at_cwd, exchange = -100, 2
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return True
    number = ctypes.get_errno()
    # A file system without it: EINVAL. A kernel, or a filter of system calls: ENOSYS, EPERM.
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _complete(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, the oldest first; of one step, that which counts is last."""
    found = []
    with suppress(FileNotFoundError):
        for path in root.iterdir():
            name = re.fullmatch(rf"step-(\d+)({re.escape(_NEW)})?", path.name)
            if name and path.is_dir():
                found.append(Checkpoint(int(name[1]), path))
    return sorted(found)
