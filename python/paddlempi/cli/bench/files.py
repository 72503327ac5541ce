"""``bench io``: a model that is cut by rows, saved and loaded by all ranks, beside what others do.

Contenders take turns, so that what the machine does besides falls on all of them. All flush what
they have written to the disk. After each save the file is compared with the model.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from ... import collectives, group, objects
from ...errors import ArgumentError, Error
from ...together import flush, together
from .. import options
from . import tool
from .collectives import OURS, WrongResultError, of_all_ranks
from .report import Bar, environment, headline

__all__ = ["add_to"]

_COLUMNS, _ROWS = 1024, 4096  # of a tensor of float32: 16 MiB
_BYTES = 4 * _COLUMNS * _ROWS


class _Model:
    """Tensors of which every rank has some rows. Their values tell tensor, row and round."""

    def __init__(self, size: int) -> None:
        self.numpy: Any = import_module("numpy")
        self.rank, self.ranks = group.get_rank(), group.get_world_size()
        self.names = [f"layers.{n}.weight" for n in range(max(1, size // _BYTES))]
        self.first, self.end = (_ROWS * r // self.ranks for r in (self.rank, self.rank + 1))
        shape = (self.end - self.first, _COLUMNS)
        self.local = {name: self.numpy.empty(shape, "f4") for name in self.names}
        self.bytes = len(self.names) * _BYTES

    def fill(self, number: int) -> None:
        """Write the values of a round."""
        for n, array in enumerate(self.local.values()):
            array[:] = self.numpy.arange(self.first, self.end)[:, None] + (n + number)

    def shards(self) -> dict[str, Any]:
        """Return the tensors for ``io``."""
        from ... import io

        whole, offsets = (_ROWS, _COLUMNS), (self.first, 0)
        return {name: io.Shard(array, whole, offsets) for name, array in self.local.items()}

    def dtensors(self) -> dict[str, Any]:
        """Return the tensors for torch, in the same memory."""
        torch, tensor = import_module("torch"), import_module("torch.distributed.tensor")
        mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (self.ranks,))
        return {
            name: tensor.DTensor.from_local(
                torch.from_numpy(array),
                mesh,
                [tensor.Shard(0)],
                run_check=False,
                shape=(_ROWS, _COLUMNS),
                stride=(_COLUMNS, 1),
            )
            for name, array in self.local.items()
        }

    def check(self, number: int, what: str) -> None:
        """Compare what was loaded with the values of a round."""
        wanted = self.numpy.arange(self.first, self.end)[:, None] + number
        for n, (name, array) in enumerate(self.local.items()):
            if not (array == wanted + n).all():
                raise WrongResultError(f"bench: {what} has wrong values in {name}")

    def read(self, path: Path) -> None:
        """Read this rank's rows of a file."""
        from ... import io

        with io.open_file(path) as file:
            for name, array in self.local.items():
                file.read_into(name, array, (self.first, 0))

    def clear(self) -> None:
        """Write zeros, so that a load which does nothing is found."""
        for array in self.local.values():
            array[:] = 0


def add_to(tools: Any) -> None:
    """Add the tool to the parser of ``bench``."""
    parser = tools.add_parser(
        "io",
        help="files of all ranks",
        description="Measures how long it takes to save and load a model that is cut by rows, "
        "beside safetensors and torch's distributed checkpoints.",
    )
    parser.add_argument(
        "--bytes", type=options.nbytes, default=512 << 20, metavar="BYTES", help="the model; 512M"
    )
    parser.add_argument(
        "--folder", metavar="FOLDER", help="which all ranks see; that of temporary files"
    )
    parser.add_argument(
        "--iterations", type=tool.positive, default=5, metavar="N", help="of each kind; 5"
    )
    tool.complete(parser, _run)


def _run(chosen: Namespace) -> int:
    """Measure; rank 0 prints the figures. Return 0, or 1 after an error."""
    rank = 0
    try:
        torch = _torch()
        group.init_process_group(timeout=chosen.timeout, framework="torch" if torch else None)
        rank = group.get_rank()
        tool.check_folders(chosen)
        _measure(chosen, bool(torch))
    except ArgumentError as error:  # all ranks raise it alike
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except WrongResultError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _torch() -> Any:
    with suppress(ImportError):
        return import_module("torch")
    return None


def _measure(chosen: Namespace, torch: bool) -> None:
    model = _Model(chosen.bytes)
    first = model.rank == 0
    with together("bench"):
        made = [tempfile.mkdtemp(dir=chosen.folder) if first else ""]
    objects.broadcast_object_list(made, 0)
    folder = Path(made[0])
    found = environment()
    record: dict[str, Any] = {**found, "bytes": model.bytes, "load": [os.getloadavg()[0]]}
    try:
        savers, absent = _savers(model, folder, torch)
        if first:
            print(headline(found))
            print(f"# {model.bytes >> 20} MiB in {len(model.names)} tensors, cut by rows")
            for name, why in absent.items():
                print(f"not measured: {name}: {why}", flush=True)
        bar = Bar(2)
        record["save_s"] = _turns(chosen, model, "save", savers, folder, bar)
        loaders = _loaders(model, folder, torch)
        record["load_s"] = _turns(chosen, model, "load", loaders, folder, bar)
    finally:
        with suppress(Error):
            collectives.barrier()
        if first:
            shutil.rmtree(folder, ignore_errors=True)
    record["load"].append(os.getloadavg()[0])
    if first:
        print("# load of the machine: {:.1f} before, {:.1f} after".format(*record["load"]))
    tool.write(chosen, record)


_Contender = Callable[[], object]


def _turns(
    chosen: Namespace,
    model: _Model,
    what: str,
    contenders: dict[str, _Contender],
    folder: Path,
    bar: Bar,
) -> dict[str, list[float]]:
    """Let the contenders take turns, and print what they have taken. Return seconds.

    All write into ``folder``. Files of safetensors are compared with the model.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    rounds = chosen.iterations + 1  # the first one is not counted
    for number in range(rounds):
        for turn, (name, call) in enumerate(_rotated(contenders, number)):
            bar.show(f"{what} by {name}", (number + turn / len(contenders)) / rounds)
            if what == "save":
                model.fill(number)
            else:
                model.clear()
            collectives.barrier()  # all have read what rank 0 removes now
            if model.rank == 0:
                # All write new files. What the one before has left would count as time of this one.
                if what == "save":
                    for path in folder.iterdir():
                        _removed(path)
                os.sync()
            collectives.barrier()
            begin = time.perf_counter()
            call()
            mine = time.perf_counter() - begin
            slowest = max(map(float, of_all_ranks(repr(mine))))
            if what == "load":
                model.check(_SAVED, f"load by {name}")
            elif name in _FILES:
                model.clear()
                model.read(folder / _FILES[name])
                model.check(number, f"save by {name}")
            if number:
                seconds[name].append(slowest)
    bar.next()
    bar.clear()
    if model.rank == 0:
        print(f"\n{what:<36} {'GB/s':>8} {'median, s':>10} {'least':>8} {'most':>8} {': ours':>8}")
        ours = statistics.median(seconds[OURS])
        for name, times in seconds.items():
            middle = statistics.median(times)
            print(
                f"{name:<36} {model.bytes / middle / 1e9:8.2f} {middle:10.3f} {min(times):8.3f} "
                f"{max(times):8.3f} {middle / ours:8.2f}",
                flush=True,
            )
    return seconds


def _removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _rotated(contenders: dict[str, _Contender], number: int) -> list[tuple[str, _Contender]]:
    """Return the contenders in the order of a round: each of them comes first in turn."""
    first = number % len(contenders)
    items = list(contenders.items())
    return items[first:] + items[:first]


_SAVED = 7  # the round of the file that is loaded

_GATHER, _STORAGE = "gather, safetensors' save_file", "DCP, paddlempi's StorageWriter"
_HUGGING = "DCP, HuggingFaceStorageWriter"
_FILES = {
    OURS: "ours.safetensors",
    _GATHER: "gathered.safetensors",
    _STORAGE: "storage/model.safetensors",
    _HUGGING: "hf/model-00001-of-00001.safetensors",
}
"""What the contenders write; torch's FileSystemWriter has a format of its own."""


def _savers(
    model: _Model, folder: Path, torch: bool
) -> tuple[dict[str, _Contender], dict[str, str]]:
    from ... import io

    contenders: dict[str, _Contender] = {
        OURS: lambda: io.save_file(model.shards(), folder / _FILES[OURS])
    }
    absent: dict[str, str] = {}
    with suppress(ImportError):
        package = import_module("safetensors.numpy")
        contenders[_GATHER] = lambda: _gathered(model, folder / _FILES[_GATHER], package)
    if not torch:
        absent["DCP"] = "torch is not installed"
        return contenders, absent
    dcp = import_module("torch.distributed.checkpoint")
    ours = import_module("paddlempi.torch.checkpoint")
    state = model.dtensors()
    contenders[_STORAGE] = lambda: dcp.save(
        state, storage_writer=ours.StorageWriter(folder / "storage")
    )
    contenders["DCP, FileSystemWriter"] = lambda: dcp.save(
        state, storage_writer=dcp.FileSystemWriter(folder / "dcp", sync_files=True)
    )
    hugging = getattr(dcp, "HuggingFaceStorageWriter", None)
    if hugging is None:
        absent[_HUGGING] = "this torch does not have it"
    else:
        contenders[_HUGGING] = lambda: _consolidated(model, folder / "hf", dcp, hugging, state)
    return contenders, absent


def _gathered(model: _Model, path: Path, package: Any) -> None:
    """Rank 0 gathers the tensors and saves them."""
    whole: dict[str, Any] = {}
    cuts = [_ROWS * r // model.ranks for r in range(model.ranks + 1)]
    for name, array in model.local.items():
        parts = None
        if model.rank == 0:
            whole[name] = model.numpy.empty((_ROWS, _COLUMNS), "f4")
            parts = [whole[name][a:b] for a, b in pairwise(cuts)]
        collectives.gather(array, parts, 0)
    if model.rank == 0:
        package.save_file(whole, path)
        flush(path)
    collectives.barrier()


def _consolidated(model: _Model, path: Path, dcp: Any, writer: Any, state: Any) -> None:
    """torch writes shards, and rank 0 makes one file of them."""
    options = {"save_distributed": True, "enable_consolidation": True}
    dcp.save(state, storage_writer=writer(str(path), **options))
    if model.rank == 0:
        for file in path.glob("*.safetensors"):
            flush(file)
    collectives.barrier()


def _loaders(model: _Model, folder: Path, torch: bool) -> dict[str, _Contender]:
    from ... import io

    path = folder / "loaded.safetensors"
    model.fill(_SAVED)
    io.save_file(model.shards(), path)
    contenders: dict[str, _Contender] = {OURS: lambda: io.load_file(path, model.shards())}
    with suppress(ImportError):
        package = import_module("safetensors")
        contenders["safe_open().get_slice, every rank"] = lambda: _sliced(model, path, package)
        contenders["rank 0 reads and scatters"] = lambda: _scattered(model, path, package)
    if torch:
        dcp, ours = import_module("torch.distributed.checkpoint"), "paddlempi.torch.checkpoint"
        reader, state = import_module(ours).StorageReader, model.dtensors()
        contenders["DCP, paddlempi's StorageReader"] = lambda: dcp.load(
            state, storage_reader=reader(path)
        )
    return contenders


def _sliced(model: _Model, path: Path, package: Any) -> None:
    with package.safe_open(path, "np") as file:
        for name, array in model.local.items():
            array[:] = file.get_slice(name)[model.first : model.end]


def _scattered(model: _Model, path: Path, package: Any) -> None:
    cuts = [_ROWS * r // model.ranks for r in range(model.ranks + 1)]
    whole = None
    if model.rank == 0:
        whole = import_module("safetensors.numpy").load_file(path)
    for name, array in model.local.items():
        parts = None
        if whole is not None:
            parts = [whole[name][a:b] for a, b in pairwise(cuts)]
        collectives.scatter(array, parts, 0)
