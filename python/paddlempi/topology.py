"""Grids and graphs of ranks, and what neighbours exchange: halos, all-gather, all-to-all.

:class:`Cartesian` puts the ranks of a group on a grid, and exchanges the borders of their tensors.
:class:`Graph` says for each rank to which ranks it gives and from which it gets. What holds for
collectives (:mod:`paddlempi.collectives`) holds for these exchanges too: all members of the group
call them, in the same order, and wrong calls raise on all of them. Tensors are in host or CUDA
memory.

Ranks in arguments and results are global ranks, as in the rest of the package.

Source: chapter 8 of MPI-4.1 (``MPI_Cart_create``, ``MPI_Dist_graph_create_adjacent``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

from . import _buffer, _native
from ._ops import ASYNC, Op
from .arguments import refuse
from .errors import ArgumentError, DtypeError, Error, NotMemberError
from .group import ProcessGroup, get_group_rank, members, new_group
from .tensor_types import Tensor
from .work import Work

__all__ = ["Cartesian", "Graph"]

_Width = int | Sequence[int | Sequence[int]]
_Widths = tuple[tuple[int, int], ...]

_HALO = int(Op.HALO_EXCHANGE)


class Cartesian:
    """The ranks of a group on a grid, in row-major order: the last coordinate grows fastest.

    Args:
        dims: how many ranks each dimension has. Their product is the size of the group. A 0 is
            chosen, as ``MPI_Dims_create`` does: the dimensions are as close to each other as can
            be, the largest first.
        periodic: whether the last rank of a dimension is next to the first one; one bool, or one
            for each dimension.
        group: the ranks; None is the world.
        reorder: give the ranks other places, so that neighbours share a node where they can. The
            grid has a group of its own then (:attr:`group`), and all members of ``group`` make
            it together. Otherwise making a grid is local.

    Raises:
        ArgumentError: the dimensions do not fit the group.
        DtypeError: an argument is of a wrong type.
        NotMemberError: this rank is no member of ``group``.

    Thread-safety: a grid does not change; all methods may be called from any thread.
    """

    dims: tuple[int, ...]
    """How many ranks each dimension has."""
    periodic: tuple[bool, ...]
    """Which dimensions are periodic."""
    coords: tuple[int, ...]
    """Where this rank is."""
    group: ProcessGroup
    """The ranks, in the order of the grid."""

    def __init__(
        self,
        dims: int | Sequence[int],
        periodic: bool | Sequence[bool] = False,
        group: ProcessGroup | None = None,
        reorder: bool = False,
    ) -> None:
        parent = _member(group, "Cartesian")
        wanted = _numbers("Cartesian", "dims", dims if hasattr(dims, "__iter__") else (dims,))
        each = periodic if hasattr(periodic, "__iter__") else (periodic,) * len(wanted)
        wraps = tuple(bool(p) for p in each)
        if len(wraps) != len(wanted):
            raise ArgumentError(
                f"Cartesian: periodic={periodic!r} has {len(wraps)} values, dims={dims!r} has "
                f"{len(wanted)}"
            )
        answer = _native.control(
            "cartesian", group=parent._id, dims=wanted, periodic=wraps, reorder=bool(reorder)
        )
        order = [parent._ranks[i] for i in answer["order"]]
        if order and order != list(parent._ranks):
            parent = new_group(order)
        self._place(parent, tuple(answer["dims"]), wraps)

    def _place(
        self, group: ProcessGroup, dims: tuple[int, ...], periodic: tuple[bool, ...]
    ) -> None:
        self.group = group
        self.dims = dims
        self.periodic = periodic
        self.coords = self._coords(group._rank)
        self._halos: dict[Any, tuple[int, _Widths]] = {}
        self._gradients: dict[Any, _Gradient] = {}

    def __repr__(self) -> str:
        return f"Cartesian(dims={self.dims}, periodic={self.periodic}, coords={self.coords})"

    def _coords(self, group_rank: int) -> tuple[int, ...]:
        at = []
        for n in reversed(self.dims):
            group_rank, x = divmod(group_rank, n)
            at.append(x)
        return tuple(reversed(at))

    def _rank(self, coords: Sequence[int]) -> int | None:
        rank = 0
        for x, n, wraps in zip(coords, self.dims, self.periodic, strict=True):
            if not 0 <= x < n:
                if not wraps:
                    return None
                x %= n
            rank = rank * n + x
        return self.group._ranks[rank]

    def rank_of(self, coords: Sequence[int]) -> int:
        """Return the global rank at coordinates. In a periodic dimension they may be any numbers.

        Raises:
            ArgumentError: there is no such place.
        """
        at = _numbers("rank_of", "coords", coords)
        rank = self._rank(at) if len(at) == len(self.dims) else None
        if rank is None:
            raise ArgumentError(
                f"rank_of: coords={tuple(at)} are not in the grid of {self.dims}, "
                f"periodic={self.periodic}"
            )
        return rank

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """Return where a global rank is.

        Raises:
            ArgumentError: ``rank`` is not in the grid.
        """
        return self._coords(get_group_rank(self.group, rank))

    def shift(self, dim: int, steps: int = 1) -> tuple[int | None, int | None]:
        """Return from which rank and to which rank this one shifts, as ``MPI_Cart_shift`` does.

        Args:
            dim: the dimension; below 0 it counts from the last one.
            steps: how far, up if it is above 0.

        Returns:
            The global ranks that are ``steps`` before and behind this one; None where there is
            none.
        """
        if not -len(self.dims) <= dim < len(self.dims):
            raise ArgumentError(f"shift: dim={dim!r}, the grid has {len(self.dims)} dimensions")

        def at(by: int) -> int | None:
            coords = list(self.coords)
            coords[dim] += by
            return self._rank(coords)

        return at(-index(steps)), at(index(steps))

    def sub(self, remain: Sequence[bool]) -> Cartesian:
        """Return the grid of the ranks that differ from this one only in some dimensions.

        All ranks of the grid call it. Each gets its own part, whose group is new.

        Args:
            remain: for each dimension whether the new grid has it.
        """
        if len(remain) != len(self.dims):
            raise ArgumentError(
                f"sub: remain={remain!r} has {len(remain)} values, the grid has "
                f"{len(self.dims)} dimensions"
            )
        stays = [k for k, keep in enumerate(remain) if keep]
        dims = tuple(self.dims[k] for k in stays)
        ranks = []
        for i in range(prod(dims)):
            coords = list(self.coords)
            for k in reversed(stays):
                i, coords[k] = divmod(i, self.dims[k])
            ranks.append(self.rank_of(coords))
        part = Cartesian.__new__(Cartesian)
        part._place(new_group(ranks), dims, tuple(self.periodic[k] for k in stays))
        return part

    def halo_exchange(
        self, tensor: Tensor, width: _Width = 1, async_op: bool = False
    ) -> Work | None:
        """Fill the border of a tensor with what the neighbours have inside of theirs, in place.

        The dimensions of the grid, 1 to 4, are the last ones of the tensor. In each of them the
        tensor has a border on both sides. It gets what the neighbours have next to it, also at
        edges and corners, from the ranks that are there. Where there is no neighbour, the border
        stays as it is. A rank may be its own neighbour. If the tensor needs a gradient of torch,
        the exchange has one.

        Args:
            tensor: of any dtype and strides, in host or CUDA memory. Neighbours in one dimension
                have tensors of the same lengths in all others, without the border. Inside it is at
                least as long as the border of the neighbours.
            width: of the border: a number, or one for each dimension of the grid, or a pair for a
                dimension, the width before the inner part and the one behind it. It is the same on
                all ranks.
            async_op: return a Work instead of waiting.

        Returns:
            A Work if ``async_op`` is set, else None.
        """
        try:
            pattern, widths = self._halos[width]
        except (KeyError, TypeError):
            pattern, widths = self._halo(width)
        if getattr(tensor, "requires_grad", False):
            return self._halo_with_gradient(tensor, pattern, widths, async_op)
        return self._exchange(tensor, pattern, async_op)

    def _exchange(self, tensor: Tensor, pattern: int, async_op: bool) -> Work | None:
        flags = ASYNC if async_op else 0
        done = _native.submit(_HALO, self.group._id, None, tensor, 0, flags, peer=pattern)
        return Work(done, "halo_exchange", tensor, self.group) if async_op else None

    def _halo(self, width: _Width) -> tuple[int, _Widths]:
        """Return the number of the core's pattern for a width, and the widths."""
        try:
            widths = _widths(width, len(self.dims))
            known = self._halos.get(widths)
            if known is None:
                answer = _native.control("halo", widths=widths, **self._named())
                known = self._halos[widths] = answer["pattern"], widths
        except Error as error:
            refuse(Op.HALO_EXCHANGE, self.group, error)
        if isinstance(width, int):
            self._halos[width] = known
        return known

    def _named(self) -> dict[str, Any]:
        return {"group": self.group._id, "dims": self.dims, "periodic": self.periodic}

    def _halo_with_gradient(
        self, tensor: Any, pattern: int, widths: _Widths, async_op: bool
    ) -> Work | None:
        """Exchange the border of a tensor that may need a gradient."""
        begun = False
        work: Work | None = None

        def forward(data: Any) -> None:
            nonlocal begun, work
            begun = True
            work = self._exchange(data, pattern, async_op)

        def backward(gradient: Any) -> None:
            self._gradient(gradient, widths)

        try:
            done = _buffer.in_place(tensor, forward, backward)
        except Error as error:
            if begun:
                raise
            refuse(Op.HALO_EXCHANGE, self.group, error)
        return work if done else self._exchange(tensor, pattern, async_op)

    def _gradient(self, gradient: Any, widths: _Widths) -> None:
        """Turn the gradient of an exchange's result into that of its tensor, in place.

        The gradient of the border goes to the ranks whose inside was copied there, and is added to
        theirs.
        """
        key = tuple(gradient.shape), widths
        known = self._gradients.get(key)
        if known is None:
            known = self._gradients[key] = _Gradient(self, *key)
        borders = [gradient[box] for box in known.borders]
        arrived = [_buffer.empty_like(gradient[box]) for box in known.insides]
        _native.submit(Op.NEIGHBOR_ALL_TO_ALL, self.group._id, borders, arrived, peer=known.pattern)
        for border in borders:
            border[...] = 0
        for box, more in zip(known.insides, arrived, strict=True):
            gradient[box] += more


class _Gradient:
    """Where the gradients of the borders of a tensor's shape come from and go to."""

    def __init__(self, cart: Cartesian, shape: tuple[int, ...], widths: _Widths) -> None:
        boxes = _native.control("halo_boxes", widths=widths, shape=shape, **cart._named())
        self.borders = [_slices(box) for box in boxes["in"]]
        self.insides = [_slices(box) for box in boxes["out"]]
        self.pattern: int = _native.control(
            "graph",
            group=cart.group._id,
            to=[box["rank"] for box in boxes["in"]],
            **{"from": [box["rank"] for box in boxes["out"]]},
        )["pattern"]


class Graph:
    """For each rank of a group, from which ranks it gets and to which it gives.

    All members of the group make it together. If one rank expects something of another rank that
    does not list it, all raise.

    Args:
        sources: the global ranks from which this rank gets, in the order of its outputs. A rank may
            be listed more than once, and may be this rank.
        destinations: the global ranks to which this rank gives; None: ``sources``.
        group: the ranks; None is the world.

    Raises:
        ArgumentError: a rank is not in the group; or, on all members, a rank lists another one
            as its source more or less often than that one lists it as its destination.
        DtypeError: ``sources`` or ``destinations`` is no sequence of integers.
        NotMemberError: this rank is no member of ``group``.

    Thread-safety: a graph does not change; all methods may be called from any thread.

    Source: ``MPI_Dist_graph_create_adjacent``.
    """

    sources: tuple[int, ...]
    """The global ranks from which this rank gets."""
    destinations: tuple[int, ...]
    """The global ranks to which this rank gives."""
    group: ProcessGroup
    """The ranks."""

    def __init__(
        self,
        sources: Sequence[int],
        destinations: Sequence[int] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.group = _member(group, "Graph")
        try:
            self.sources = _numbers("Graph", "sources", sources)
            self.destinations = (
                self.sources
                if destinations is None
                else _numbers("Graph", "destinations", destinations)
            )
            places = {rank: i for i, rank in enumerate(self.group._ranks)}
            for name, ranks in (("sources", self.sources), ("destinations", self.destinations)):
                for rank in ranks:
                    if rank not in places:
                        raise ArgumentError(
                            f"Graph: rank {rank} in {name} is not among the group's ranks "
                            f"{list(self.group._ranks)}"
                        )
        except Error as error:
            refuse(Op.ALL_TO_ALL, self.group, error)
        given = [places[rank] for rank in self.destinations]
        got = [places[rank] for rank in self.sources]
        self._compare(given, got)
        answer = _native.control("graph", group=self.group._id, to=given, **{"from": got})
        self._pattern: int = answer["pattern"]

    def _compare(self, given: list[int], got: list[int]) -> None:
        """Raise, on all ranks, if a rank expects more or less than another one gives it."""
        ranks = self.group._ranks
        mine = array("i", bytes(4 * len(ranks)))
        theirs = array("i", bytes(4 * len(ranks)))
        for i in given:
            mine[i] += 1
        _native.submit(Op.ALL_TO_ALL, self.group._id, mine, theirs)
        wrong = [i for i in range(len(ranks)) if theirs[i] != got.count(i)]
        all_wrong = array("i", bytes(4 * len(ranks)))
        this = array("i", [wrong[0] + 1 if wrong else 0])
        _native.submit(Op.ALL_GATHER, self.group._id, this, all_wrong)
        for i, other in enumerate(all_wrong):
            if other:
                raise ArgumentError(
                    f"Graph: rank {ranks[i]} lists rank {ranks[other - 1]} in its sources more or "
                    f"less often than that one lists rank {ranks[i]} in its destinations"
                )

    def __repr__(self) -> str:
        return f"Graph(sources={self.sources}, destinations={self.destinations})"

    def neighbor_all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, async_op: bool = False
    ) -> Work | None:
        """Give this rank's tensor to all its destinations, and get one from each of its sources.

        Args:
            tensor_list: output; one tensor for each of :attr:`sources`, in their order. None may
                share memory with ``tensor`` or another one.
            tensor: input.
            async_op: return a Work instead of waiting.

        Returns:
            A Work if ``async_op`` is set, else None.

        Raises:
            MismatchError: a tensor of this rank and the one of the other rank differ in length
                or dtype. Only the two ranks raise it.

        Source: ``MPI_Neighbor_allgather``.
        """
        return self._exchange(tensor_list, [tensor] * len(self.destinations), async_op)

    def neighbor_all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        async_op: bool = False,
    ) -> Work | None:
        """Give a tensor to each destination, and get one from each source.

        If a rank is listed more than once, its tensors are in the order of the lists. The tensors
        may have different lengths.

        Args:
            output_tensor_list: output; one tensor for each of :attr:`sources`.
            input_tensor_list: input; one tensor for each of :attr:`destinations`.
            async_op: return a Work instead of waiting.

        Returns, raises: as :meth:`neighbor_all_gather`.

        Source: ``MPI_Neighbor_alltoallw``.
        """
        return self._exchange(output_tensor_list, input_tensor_list, async_op)

    def _exchange(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], async_op: bool
    ) -> Work | None:
        code = Op.NEIGHBOR_ALL_TO_ALL
        recv = self._one_each("output", outputs, self.sources)
        send = self._one_each("input", inputs, self.destinations)
        flags = ASYNC if async_op else 0
        done = _native.submit(code, self.group._id, send, recv, 0, flags, peer=self._pattern)
        return Work(done, code.label, recv, self.group) if async_op else None

    def _one_each(
        self, name: str, tensors: Sequence[Tensor], ranks: Sequence[int]
    ) -> Sequence[Tensor]:
        """Return the tensors. If they are not one for each of the ranks, refuse and raise."""
        code = Op.NEIGHBOR_ALL_TO_ALL
        error: Error | None = None
        if not isinstance(tensors, (list, tuple)):
            error = DtypeError(
                f"{code.label}: the {name} tensors are a {type(tensors).__name__}, they must be a "
                "list or a tuple of tensors"
            )
        elif len(tensors) != len(ranks):
            error = ArgumentError(
                f"{code.label}: got {len(tensors)} {name} tensors, it needs {len(ranks)}, one for "
                f"each of the ranks {list(ranks)}"
            )
        if error is not None:
            refuse(code, self.group, error)
        return tensors


def _member(group: ProcessGroup | None, what: str) -> ProcessGroup:
    found = members(group)
    if not isinstance(found, ProcessGroup):
        raise DtypeError(f"{what}: group is a {type(group).__name__}, it must be None or a group")
    if found._rank < 0:
        raise NotMemberError(f"{what}: this rank does not belong to the given group")
    return found


def _numbers(what: str, name: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(index(value) for value in values)
    except TypeError:
        raise DtypeError(f"{what}: {name}={values!r} must be a sequence of integers") from None


def _slices(box: dict[str, list[int]]) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in zip(box["from"], box["to"], strict=True))


def _widths(width: _Width, dims: int) -> _Widths:
    """Return the widths before and behind the inner part, for each dimension of the grid."""

    def pair(value: Any) -> tuple[int, int]:
        if isinstance(value, Sequence) and not isinstance(value, str):
            before, behind = value
            return index(before), index(behind)
        return index(value), index(value)

    try:
        each = width if isinstance(width, Sequence) else (width,) * dims
        widths = tuple(pair(value) for value in each)
    except (TypeError, ValueError):
        raise DtypeError(
            f"halo_exchange: width={width!r} must be a number, or for each of the {dims} "
            "dimensions a number or a pair"
        ) from None
    if len(widths) != dims:
        raise ArgumentError(
            f"halo_exchange: width={width!r} has {len(widths)} values, the grid has {dims} "
            "dimensions"
        )
    return widths
