"""What the layers of torch and of Paddle have in common: a table, a padding, and rows pulled ahead.

Forward pulls the rows of a batch. Backward notes their gradients, which the next step pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from .. import memory
from ..errors import ArgumentError, DtypeError
from . import session
from .config import whole
from .initializers import Initializer
from .missing_rows import checked_missing
from .optimizers import Optimizer
from .prefetching import Prefetched, start
from .remote import RemoteTable, pull_into

__all__ = ["RemoteLayer", "layers_in", "like_of", "prefetch", "shape_of"]

_AHEAD = 8  # prefetches that a layer remembers until forward asks for them
_PIECE = 4 << 20  # elements of one request of from_pretrained


class RemoteLayer:
    """The part of a layer that needs no framework. A front's class has it as a base.

    Attributes:
        num_embeddings: the number of ids; None: any int64 is one.
        embedding_dim: the number of elements of a row.
        padding_idx: the id whose row is zeros, not negative if ``num_embeddings`` is given; None:
            none is.
        frozen: whether backward notes no gradients.
        missing: what an id without a row gives in forward where it makes no row: "initial", what
            the row would begin with, or "zeros". Forward makes rows if the layer is in training
            mode, gradients are enabled, and it is not frozen.
        table: the table on the servers. ``len(layer.table)`` is the number of its rows, and
            ``layer.table.pull(ids)`` gives rows as they are there.
    """

    num_embeddings: int | None
    embedding_dim: int
    padding_idx: int | None
    frozen: bool
    missing: str = "initial"
    training: bool  # of the framework
    table: RemoteTable
    _ahead: deque[tuple[Prefetched, Any, str | None]]  # with the ids, and _missing() then

    def _attach(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        name: str,
        optimizer: Optimizer | str,
        initializer: Initializer | str,
        missing: str,
        settings: dict[str, Any],
    ) -> None:
        """Take the arguments of a layer, and make its table."""
        self.missing = checked_missing(type(self).__name__, missing)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding(padding_idx, num_embeddings)
        self.table = RemoteTable(
            name, embedding_dim, optimizer, initializer, num_ids=num_embeddings, **settings
        )
        self.frozen = False
        self._ahead = deque(maxlen=_AHEAD)

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, *, name: str, **arguments: Any
    ) -> Any:
        """Make a layer with these rows. All trainers call it; the first one writes the rows.

        Args:
            embeddings: the row of id i is ``embeddings[i]``: a tensor of float32, in host
                or device memory, [num_embeddings, embedding_dim]. Only that of the first trainer is
                read, in pieces of 16 MiB.
            freeze: whether the rows stay as they are. Other layers of the name may train them.
            name: the name of the table. Rows that it had are written over; the states of their
                optimizer stay.
            arguments: the other arguments of the class, but for the first two.

        Raises:
            ArgumentError: ``embeddings`` have another number of dimensions than two, or more rows
                than ``max_rows`` has room for.
            DtypeError: ``embeddings`` are no tensor of float32.
            Error: as the class, and :meth:`paddlempi.ps.RemoteTable.write`.
        """
        what = f"{cls.__name__}.from_pretrained"
        shape = tuple(getattr(embeddings, "shape", ()))
        if len(shape) != 2:
            raise ArgumentError(f"{what}: embeddings have the shape {shape}; it must have two")
        if str(embeddings.dtype).rpartition(".")[2] != "float32":
            raise DtypeError(f"{what}: embeddings are of {embeddings.dtype}, not of float32")
        most = arguments.get("max_rows")
        if most is not None and shape[0] > whole(what, "max_rows", most):
            raise ArgumentError(f"{what}: embeddings have {shape[0]} rows, and max_rows={most}")
        make: Any = cls  # the class of a front, which takes these arguments
        layer = make(*shape, name=name, **arguments)
        layer.frozen = freeze
        layer.set_rows(embeddings)
        session.barrier(f"from_pretrained {name}"[:255])
        if most is not None:
            kept = len(layer.table)
            session.barrier(f"counted {name}"[:255])  # nobody trains before all have counted
            if kept < shape[0]:
                raise ArgumentError(
                    f"{what}: of {shape[0]} rows the servers have kept {kept}: ids are dealt to "
                    f"them by a hash, and one had more than its part of max_rows={most}; give "
                    "some more than there are rows"
                )
        return layer

    def set_rows(self, embeddings: Any) -> None:
        """Have the first trainer write rows to the servers: that of id i is ``embeddings[i]``.

        All trainers call it, and then wait in a barrier.

        Args:
            embeddings: as for :meth:`from_pretrained`.
        """
        found = session.as_trainer(type(self).__name__)
        self._ahead.clear()  # prefetches of the rows of before
        if found.rank != found.trainers[0]:
            return
        detached = embeddings.detach() if hasattr(embeddings, "detach") else embeddings
        count, dim = embeddings.shape
        each = max(1, _PIECE // max(1, dim))
        for begin in range(0, count, each):
            end = min(begin + each, count)
            ids = memory.empty(end - begin, "int64")
            ids[:] = range(begin, end)
            rows = detached[begin:end]
            rows = rows.cpu() if hasattr(rows, "cpu") else rows
            self.table.write(ids, rows.contiguous() if hasattr(rows, "contiguous") else rows)

    @staticmethod
    def _flat(ids: Any) -> Any:
        """Return a copy of ids in host memory, [n]: they are kept until the step.

        Raises:
            DtypeError: they are no tensor of the framework, of int64 or int32.
        """
        raise NotImplementedError

    @staticmethod
    def _has_gradients() -> bool:
        """Whether the framework computes gradients now, on this thread."""
        raise NotImplementedError

    def _missing(self) -> str | None:
        """What a pull of forward does now with ids that have no row, as ``missing`` of a pull."""
        trains = self.training and not self.frozen and self._has_gradients()
        return None if trains else self.missing

    def prefetch(self, ids: Any) -> Prefetched:
        """Pull the rows of a batch in a thread; forward takes them when it gets the same tensor.

        :meth:`paddlempi.ps.RemoteTable.prefetch` says which steps the rows have seen. If the tensor
        holds other ids by then, forward pulls the rows of these. It pulls anew, too, if it makes
        rows and the prefetch did not: one in ``eval()``, or without gradients.

        Args:
            ids: the tensor that forward will get as its first argument.
        """
        flat, missing = self._flat(ids), self._missing()
        pulled = start(ids, lambda: self._pull(flat, missing))
        self._ahead.append((pulled, flat, missing))
        return pulled

    def _pulled(self, ids: Any) -> tuple[Any, Any, Any]:
        """Return what :meth:`_pull` does, from a prefetch of this tensor with these ids."""
        flat, missing = self._flat(ids), self._missing()
        for place, (pulled, before, was) in enumerate(self._ahead):
            if pulled.ids is ids:
                del self._ahead[place]
                if _same(before, flat) and was in (None, missing):
                    kept, places, rows = pulled.wait()
                    return kept, places, rows
                break  # the tensor was written to, or rows are to be made now
        return self._pull(flat, missing)

    def _pull(self, flat: Any, missing: str | None) -> tuple[Any, Any, Any]:
        """Return the ids without the padding, the place of each id's row, and the rows.

        Without a padding the rows are in the order of the ids, and the places are None. With one
        there is one row more, the last, of zeros: ids that are the padding have it.
        """
        kept, places, rows, room = self._room(flat)
        self.table.pull(kept, room, missing=missing)
        return kept, places, rows

    def _room(self, flat: Any) -> tuple[Any, Any, Any, Any]:
        """Return what :meth:`_pull` does, with rows that are still to be pulled into their room."""
        framework = memory.framework_of(flat)
        if self.padding_idx is None:
            rows = memory.empty((len(flat), self.embedding_dim), framework=framework)
            return flat, None, rows, rows
        keep = flat != self.padding_idx
        kept = flat[keep]
        rows = memory.empty((len(kept) + 1, self.embedding_dim), framework=framework)
        rows[-1] = 0
        places = keep.cumsum(0) - 1
        places[~keep] = len(kept)
        return kept, places, rows, rows[:-1]

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the layer has its table, and no prefetches under way.
        return {**self.__dict__, "_ahead": deque(maxlen=_AHEAD)}

    def extra_repr(self) -> str:
        """Return what ``repr`` shows of the layer."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        frozen = ", frozen=True" if self.frozen else ""
        missing = "" if self.missing == "initial" else f", missing={self.missing!r}"
        shape = f"{self.num_embeddings}, {self.embedding_dim}"
        return f"{shape}{padding}, name={self.table.name!r}{frozen}{missing}"


def layers_in(modules: Iterable[Any]) -> list[RemoteLayer]:
    """Return those of some modules that are layers whose rows are on servers."""
    return [one for one in modules if isinstance(one, RemoteLayer)]


def prefetch(requests: Iterable[tuple[RemoteLayer, Any]]) -> list[Prefetched]:
    """Pull the rows of a batch for several layers, in a thread and in one request to each server.

    A model calls it before its layers, which would make a request each. Or a program calls it for
    the next batch. Forward of a layer takes its rows when it gets the same tensor, as after
    ``layer.prefetch(ids)``. Layers of one table are in requests one after another.

    Args:
        requests: layers, with the tensors that their forward will get as the first argument.

    Returns:
        What is pulled for each request, in their order. An error of the pull is raised by the
        ``wait`` of each, and by forward.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train.
        DtypeError: a request is something else.
    """
    session.as_trainer("ps.prefetch")
    taken = list(requests) if isinstance(requests, Iterable) else [requests]
    for one in taken:
        pair = isinstance(one, (tuple, list)) and len(one) == 2
        if not pair or not isinstance(one[0], RemoteLayer):
            raise DtypeError(f"ps.prefetch: a request is (a layer of ps, ids), not {one!r:.100}")
    flat = [layer._flat(ids) for layer, ids in taken]
    asked = [(layer, ids, layer._missing()) for (layer, _), ids in zip(taken, flat, strict=True)]
    pulled = _Together(asked)
    started = []
    for number, (layer, ids) in enumerate(taken):
        started.append(start(ids, partial(pulled.of, number)))
        layer._ahead.append((started[-1], *asked[number][1:]))
    return started


class _Together:
    """The rows of several layers, pulled by the first that asks. One thread asks for all."""

    def __init__(self, requests: list[tuple[RemoteLayer, Any, str | None]]) -> None:
        self._requests = requests
        self._rows: list[tuple[Any, Any, Any]] | None = None
        self._error: BaseException | None = None

    def of(self, number: int) -> tuple[Any, Any, Any]:
        if self._rows is None and self._error is None:
            try:
                self._rows = self._pull()
            except BaseException as error:
                self._error = error
        if self._rows is None:
            assert self._error is not None
            raise self._error
        return self._rows[number]

    def _pull(self) -> list[tuple[Any, Any, Any]]:
        rooms = [layer._room(flat) for layer, flat, _ in self._requests]
        pull_into(
            (layer.table, kept, room, missing)
            for (layer, _, missing), (kept, _, _, room) in zip(self._requests, rooms, strict=True)
        )
        return [(kept, places, rows) for kept, places, rows, _ in rooms]


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors of ids are equal."""
    if len(one) != len(other) or one.dtype != other.dtype:
        return False
    return len(one) == 0 or bool((one == other).all())


def _padding(padding_idx: int | None, num_embeddings: int | None) -> int | None:
    """Return the id of the padding; a negative one counts from the end, as in torch and Paddle."""
    if padding_idx is None:
        return None
    padding = whole("Embedding", "padding_idx", padding_idx)
    if num_embeddings is None:
        return padding
    count = whole("Embedding", "num_embeddings", num_embeddings)
    if not -count <= padding < count:
        raise ArgumentError(
            f"Embedding: padding_idx={padding_idx} is not within num_embeddings={num_embeddings}"
        )
    return padding % count


def like_of(member: Any) -> Any:
    """Return a parameter of an optimizer, or for a layer in its place the shape of its rows."""
    if isinstance(member, RemoteLayer):
        return member.num_embeddings, member.embedding_dim
    return member


def shape_of(member: Any) -> tuple[int, ...]:
    """Return the shape of a parameter of an optimizer, or of the rows of a layer in its place."""
    like = like_of(member)
    return tuple(getattr(like, "shape", like))
