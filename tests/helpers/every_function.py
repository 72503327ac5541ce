"""Every public function that takes a tensor, as functions of one tensor.

:mod:`every_tensor` gives each of them tensors of many kinds. All ranks of a world call the same
function with the same kind of tensor.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddlempi
from paddlempi import errors, io, ps

__all__ = [
    "IN_PLACE",
    "OPERATIONS",
    "SENT",
    "SERVED",
    "SERVED_WRITTEN",
    "TABLES",
    "WRITTEN",
    "Array",
    "Table",
    "Ways",
    "parameters",
]

Array = np.ndarray[Any, Any]


class Table(dict[str, Callable[["Ways", Any, Array], Any]]):
    """Functions of a tensor x with the values v, by the names of those that they call.

    ``what`` they do with it: "read": they return what has arrived, which has to be v each time.
    "write": x has the values v afterwards; before, it is 0. "both": they return what x has to be
    afterwards.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def of(self, *names: str) -> Callable[[Any], Any]:
        """Add a function."""

        def add(way: Any) -> Any:
            self.update(dict.fromkeys(names, way))
            return way

        return add


class Ways:
    """What the functions below need: the ranks, a folder, and how operations are called."""

    def __init__(self, dist: ModuleType, folder: Path, how: str) -> None:
        self.dist, self.folder, self.how = dist, folder, how
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.next, self.before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self._files = 0

    def do(self, name: str, *arguments: Any, **named: Any) -> None:
        """Call a function plainly, with a Work, or prepared."""
        if self.how == "prepared":
            self.dist.prepare(name, *arguments, **named)()
        elif self.how == "async" and "async_op" in parameters(getattr(self.dist, name)):
            getattr(self.dist, name)(*arguments, **named, async_op=True).wait()
        else:
            getattr(self.dist, name)(*arguments, **named)

    def all(self, v: Array) -> list[Array]:
        return [np.zeros_like(v) for _ in range(self.size)]

    def file(self) -> Path:
        """Return a new name, the same on all ranks."""
        self._files += 1
        return self.folder / f"{self.how}-{self._files}.safetensors"

    def cut(self, v: Array) -> Array:
        """Return the equal parts of an array, one for each rank."""
        if v.size % self.size:
            raise errors.ArgumentError("the test cannot cut it")
        return v.reshape(self.size, v.size // self.size)

    @contextlib.contextmanager
    def window(self, v: Array) -> Iterator[tuple[Any, int]]:
        """A window with room for v, in which each rank works in the memory of the next one."""
        window = paddlempi.Window(v.shape, v.dtype.name)
        try:
            yield window, self.next
        finally:
            window.free()

    def saved(self, v: Array) -> Path:
        path = self.file()
        io.save_file({"x": v}, path)
        return path

    @contextlib.contextmanager
    def raw(self, v: Array) -> Iterator[tuple[Any, Any]]:
        """A file with the bytes of v and nothing else, and the view of a rank on it."""
        path = self.file()
        with io.File(path, "w") as file:
            file.write_at_all(0, v)
        with io.File(path) as file:
            yield file, file.view(v.dtype.name, v.shape)


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by their names."""
    return dict(inspect.signature(function).parameters)


SENT, SERVED = Table("read"), Table("read")
WRITTEN, SERVED_WRITTEN = Table("write"), Table("write")
IN_PLACE = Table("both")
TABLES = (SENT, WRITTEN, IN_PLACE)
"""SERVED and SERVED_WRITTEN are for a program that has parameter servers."""

OPERATIONS = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "exscan",
        "gather",
        "irecv",
        "isend",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scan",
        "scatter",
        "send",
        "sendrecv",
    }
)
"""They can be prepared, and most of them be asynchronous."""

sent, served, written = SENT.of, SERVED.of, WRITTEN.of
served_written, in_place = SERVED_WRITTEN.of, IN_PLACE.of


@sent("all_gather")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    outs = w.all(v)
    w.do("all_gather", outs, x)
    return outs


@sent("all_gather_into_tensor")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros((w.size, *v.shape), v.dtype)
    w.do("all_gather_into_tensor", out, x)
    return list(out)


@sent("allreduce")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    return [np.asarray(w.dist.allreduce(x)) / w.size]


@sent("broadcast")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("broadcast", x if w.rank == 0 else out, 0)
    return [out] if w.rank else []


@sent("reduce")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("reduce", x if w.rank else out, 0)
    return [] if w.rank or w.size == 1 else [out / (w.size - 1)]


@sent("reduce_scatter")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("reduce_scatter", out, [x] * w.size)
    return [out / w.size]


@sent("reduce_scatter_tensor")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros(v.size // w.size, v.dtype)
    w.do("reduce_scatter_tensor", out, x)
    whole = v.copy()
    w.cut(whole)[w.rank] = out / w.size
    return [whole]


@sent("gather")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    outs = w.all(v)
    w.do("gather", x, outs if w.rank == 0 else None, 0)
    return outs if w.rank == 0 else []


@sent("scatter")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("scatter", out, [x] * w.size if w.rank == 0 else None, 0)
    return [out]


@sent("all_to_all")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    outs = w.all(v)
    w.do("all_to_all", outs, [x] * w.size)
    return outs


@sent("all_to_all_single")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("all_to_all_single", out, x)
    wholes = [v.copy() for _ in range(w.size)]
    for whole, part in zip(wholes, w.cut(out), strict=True):
        w.cut(whole)[w.rank] = part
    return wholes


@sent("send", "isend")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    outs = []
    for name in ("send", "isend"):
        work = _message(w, name, x, w.next)
        outs.append(np.zeros_like(v))
        w.dist.recv(outs[-1], w.before)
        if work is not None:
            work.wait()
    return outs


def _message(w: Ways, name: str, tensor: Any, rank: int) -> Any:
    if w.how == "prepared":
        w.dist.prepare(name, tensor, rank)()
        return None
    return getattr(w.dist, name)(tensor, rank)


@sent("sendrecv")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    w.do("sendrecv", x, w.next, out, w.before)
    return [out]


@sent("batch_isend_irecv", "P2POp")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out, op = np.zeros_like(v), w.dist.P2POp
    for work in w.dist.batch_isend_irecv(
        [op(w.dist.isend, x, w.next), op(w.dist.irecv, out, w.before)]
    ):
        work.wait()
    return [out]


@sent("Graph.neighbor_all_gather", "Graph.neighbor_all_to_all")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    graph = w.dist.Graph([w.before], [w.next])
    outs = [np.zeros_like(v), np.zeros_like(v)]
    graph.neighbor_all_gather([outs[0]], x)
    graph.neighbor_all_to_all([outs[1]], [x])
    return outs


@sent("Window.put", "Window.accumulate", "Window.get_accumulate", "Window")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    found = []
    with w.window(v) as (window, rank):
        for put in (
            lambda: window.put(x, rank),
            lambda: window.accumulate(x, rank, window.REPLACE),
            lambda: window.get_accumulate(x, np.zeros_like(v), rank, window.REPLACE),
        ):
            put()
            window.fence()
            found.append(window.local.copy())
            window.local[...] = 0
            window.fence()
    return found


@sent("Window[...]")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    found = []
    with w.window(v) as (window, rank):
        window[rank][...] = x
        window.fence()
        found.append(window.local.copy())
        window.fence()
        window[rank][...] += x
        window.fence()
        found.append(window.local - v)
    return found


@sent("Window(tensor)")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    out = np.zeros_like(v)
    window = paddlempi.Window(x)
    window.get(out, w.next)
    window.free()
    return [out]


@sent("io.save_file", "io.save_state", "io.Shard")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    found = []
    state = {"x": x}
    whole = {"x": io.Shard(x, v.shape, (0,) * v.ndim)}
    for save, what in ((io.save_file, state), (io.save_state, state), (io.save_file, whole)):
        path = w.file()
        save(what, path)
        found.append(io.load_file(path)["x"])
    return found


@sent("io.File.write_at", "io.File.write_at_all", "io.File.write_ordered")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    outs = []
    for name in ("write_at", "write_at_all", "write_ordered"):
        outs.append(np.zeros_like(v))
        path = w.file()
        with io.File(path, "w") as file:
            if name == "write_ordered":
                file.write_ordered(x)
            else:
                getattr(file, name)(w.rank * v.nbytes, x)
        with io.File(path) as file:
            file.read_at(w.next * v.nbytes, outs[-1])
    return outs


@sent("io.View.write", "io.View.write_all")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    found = []
    for name in ("write", "write_all"):
        path = w.file()
        with io.File(path, "w") as file:
            getattr(file.view(v.dtype.name, v.shape), name)(x)
        with io.File(path) as file:
            found.append(file.view(v.dtype.name, v.shape).read())
    return found


def _table(v: Array) -> tuple[Any, Any]:
    if 0 in v.shape or v.ndim != 2:
        raise errors.ArgumentError("the test has no table of such rows")
    return ps.Table(v.shape[1], ps.SGD(1.0), ps.Zeros()), np.arange(len(v))


@sent("ps.Table.push")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    table, ids = _table(v)
    before = table.pull(ids)
    table.push(ids, x)
    return [before - table.pull(ids)]


def _remote(w: Ways, v: Array) -> tuple[Any, Any]:
    if 0 in v.shape or v.ndim != 2:
        raise errors.ArgumentError("the test has no table of such rows")
    name = w.file().stem
    return ps.RemoteTable(name, v.shape[1], ps.SGD(1.0), ps.Zeros()), np.arange(len(v))


@served("ps.RemoteTable.push", "ps.RemoteTable.write", "ps.push")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    (one, ids), (other, _), (third, _) = (_remote(w, v) for _ in range(3))
    one.push(ids, x)
    ps.push([(other, ids, x)])
    third.write(ids, x)
    return [-one.pull(ids), -other.pull(ids), third.pull(ids)]


@served("ps.RemoteTable.write_states")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    _, ids = _remote(w, v)
    table = ps.RemoteTable(w.file().stem, v.shape[1], ps.Momentum(), ps.Zeros())
    table.write_states(ids, x, 1)
    return [table.read_states(ids)[0]]


@served("ps.KV.push", "ps.KV.push_pull")
def _(w: Ways, x: Any, v: Array) -> list[Any]:
    _, keys = _remote(w, v)
    kv, out = ps.KV("kept", v.shape[1], v.dtype.name), np.zeros_like(v)
    kv.wait(kv.push(keys, x))
    kv.wait(kv.pull(keys, out))
    return [out, kv.wait(kv.push_pull(keys, x))]


@served_written("ps.RemoteTable.pull", "ps.KV.pull")
def _(w: Ways, x: Any, v: Array) -> None:
    table, ids = _remote(w, v)
    table.write(ids, v)
    table.pull(ids, x)
    kv = ps.KV("kept", v.shape[1], v.dtype.name)
    kv.wait(kv.push(ids, v))
    kv.wait(kv.pull(ids, x))


def _mine(w: Ways, x: Any, v: Array) -> list[Any]:
    """Return outputs for each rank, of which one is x."""
    outs: list[Any] = w.all(v)
    outs[w.next] = x
    return outs


written("all_gather")(lambda w, x, v: w.do("all_gather", _mine(w, x, v), v))
written("all_gather_into_tensor")(
    lambda w, x, v: w.do("all_gather_into_tensor", x, w.cut(v)[w.rank].copy())
)
written("reduce_scatter")(lambda w, x, v: w.do("reduce_scatter", x, [v / w.size] * w.size))
written("gather")(lambda w, x, v: w.do("gather", v, _mine(w, x, v) if w.rank == 0 else None, 0))
written("scatter")(lambda w, x, v: w.do("scatter", x, [v] * w.size if w.rank == 0 else None, 0))
written("all_to_all")(lambda w, x, v: w.do("all_to_all", _mine(w, x, v), [v] * w.size))
written("sendrecv")(lambda w, x, v: w.do("sendrecv", v, w.next, x, w.before))


@written("broadcast")
def _(w: Ways, x: Any, v: Array) -> None:
    w.do("broadcast", x if w.rank else v.copy(), 0)


@written("reduce_scatter_tensor")
def _(w: Ways, x: Any, v: Array) -> None:
    w.do("reduce_scatter_tensor", x, np.stack([v / w.size] * w.size))


@written("all_to_all_single")
def _(w: Ways, x: Any, v: Array) -> None:
    parts = w.cut(v)[w.rank]  # to each rank
    w.do("all_to_all_single", x, np.stack([parts] * w.size))


@written("recv", "irecv")
def _(w: Ways, x: Any, v: Array) -> None:
    for name in ("recv", "irecv"):
        sent = w.dist.isend(v, w.next)
        try:
            work = _message(w, name, x, w.before)
            if name == "irecv" and work is not None:
                work.wait()
        except errors.Error:
            w.dist.recv(np.zeros_like(v), w.before)
            raise
        finally:
            sent.wait()


@written("batch_isend_irecv", "P2POp")
def _(w: Ways, x: Any, v: Array) -> None:
    op = w.dist.P2POp
    for work in w.dist.batch_isend_irecv(
        [op(w.dist.irecv, x, w.before), op(w.dist.isend, v, w.next)]
    ):
        work.wait()


@written("Graph.neighbor_all_gather", "Graph.neighbor_all_to_all")
def _(w: Ways, x: Any, v: Array) -> None:
    graph = w.dist.Graph([w.before], [w.next])
    graph.neighbor_all_gather([x], v)
    graph.neighbor_all_to_all([x], [v])


@written("Window.get", "Window.get_accumulate")
def _(w: Ways, x: Any, v: Array) -> None:
    with w.window(v) as (window, rank):
        window.local[...] = v
        window.fence()
        window.get(x, rank)
        window.get_accumulate(v, x, rank, window.NO_OP)
        window.fence()


@written("io.load_file", "io.load_state", "io.Shard", "io.OpenFile.read_into")
def _(w: Ways, x: Any, v: Array) -> None:
    path = w.saved(v)
    io.load_file(path, {"x": x})
    io.load_state(path, {"x": x})
    io.load_file(path, {"x": io.Shard(x, v.shape, (0,) * v.ndim)})
    with io.open_file(path) as opened:
        opened.read_into("x", x)


@written("io.File.read_at", "io.File.read_at_all", "io.View.read", "io.View.read_all")
def _(w: Ways, x: Any, v: Array) -> None:
    with w.raw(v) as (file, view):
        file.read_at(0, x)
        file.read_at_all(0, x)
        view.read(x)
        view.read_all(x)


@written("ps.Table.pull")
def _(w: Ways, x: Any, v: Array) -> None:
    table, ids = _table(v)
    table.push(ids, -v)
    table.pull(ids, x)


@in_place("all_reduce")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.do("all_reduce", x)
    return v * w.size


@in_place("all_reduce_coalesced")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.do("all_reduce_coalesced", [x, v.copy()])
    return v * w.size


@in_place("reduce")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.do("reduce", x, 0)
    return v * (1 if w.rank else w.size)


@in_place("scan")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.do("scan", x)
    return v * (w.rank + 1)


@in_place("exscan")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.do("exscan", x)
    return v * (w.rank or 1)


@in_place("Connector.Broadcast")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.dist.Connector().Broadcast(x)
    return v * 1


@in_place("Cartesian.halo_exchange")
def _(w: Ways, x: Any, v: Array) -> Any:
    w.dist.Cartesian([w.size], [True]).halo_exchange(x)
    wanted = v.copy()
    wanted[..., 0], wanted[..., -1] = v[..., -2], v[..., 1]
    return wanted
