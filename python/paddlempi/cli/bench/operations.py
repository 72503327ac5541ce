"""The operations of the benchmark: what a rank gives, what it must get, how bytes are counted.

Values are small integers, which depend on the rank, on the place in the tensor and on a number that
changes from call to call. Every sum of them is exact in every dtype. Each rank computes what it
must get from the formula, without communication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ArgumentError

__all__ = [
    "DTYPES",
    "OPERATIONS",
    "Operation",
    "Segment",
    "Shape",
    "Values",
    "pingpong",
    "storage",
]

# The dtypes, and the NumPy dtype of their bits.
DTYPES = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float16",
    "bfloat16": "uint16",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
}
_ONE_BYTE = ("int8", "uint8")
_EXACT_IN_HALVES = ("float16", "bfloat16")  # bfloat16 has all integers up to 256


def storage(dtype: str) -> Any:
    """Return the NumPy dtype that holds the bits of a dtype."""
    import numpy as np

    return np.dtype(DTYPES[dtype])


class Shape(NamedTuple):
    """The elements of a call on one rank. ``send`` is 0 if the operation is in place."""

    send: int
    recv: int
    total: int  # elements of the larger side: its bytes are those of the table


class Segment(NamedTuple):
    """Elements ``first`` to ``first + length`` of a pattern: of one rank's values, or of sums."""

    summed: bool
    rank: int  # whose values; ignored if summed
    first: int
    length: int


@dataclass(frozen=True)
class Operation:
    """An operation. The functions take the rank, the number of ranks n and ``Shape.total``.

    Attributes:
        in_place: the tensor that is given is the tensor that gets the result.
        shared: the larger side has one share for each rank.
        smaller: the side that has one share only: "send", "recv", or "" if none has.
        bus: the factor from algorithm bandwidth to bus bandwidth for n ranks, as in nccl-tests.
        gives: the segments of the input; None: the rank gives nothing.
        gets: the segments of the result; None: the rank gets nothing.
    """

    name: str
    in_place: bool
    shared: bool
    smaller: str
    bus: Callable[[int], float]
    gives: Callable[[int, int, int], list[Segment] | None]
    gets: Callable[[int, int, int], list[Segment] | None]
    empty: bool = False  # it moves nothing

    def shape(self, nbytes: int, itemsize: int, ranks: int) -> Shape:
        """Return the elements of a call of about ``nbytes`` bytes, at least one for each share."""
        if self.empty:
            return Shape(0, 0, 0)
        total = max(1, nbytes // itemsize)
        if self.shared:
            total = max(1, total // ranks) * ranks
        if self.in_place:
            return Shape(0, total, total)
        share = total // ranks if self.shared else total
        return Shape(
            share if self.smaller == "send" else total,
            share if self.smaller == "recv" else total,
            total,
        )


def _own(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, rank, 0, total)]


def _own_share(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, rank, 0, total // n)]


def _of_root(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, 0, 0, total)]


def _all_shares(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, r, 0, total // n) for r in range(n)]


def _sum(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(True, 0, 0, total)]


def _my_part_of_sum(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(True, 0, rank * (total // n), total // n)]


def _my_part_of_root(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, 0, rank * (total // n), total // n)]


def _my_parts_of_all(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, r, rank * (total // n), total // n) for r in range(n)]


def _of_rank_before(rank: int, n: int, total: int) -> list[Segment]:
    return [Segment(False, (rank - 1) % n, 0, total)]


def _nothing(rank: int, n: int, total: int) -> None:
    return None


def _at_root(
    function: Callable[[int, int, int], list[Segment]],
) -> Callable[[int, int, int], list[Segment] | None]:
    return lambda rank, n, total: function(rank, n, total) if rank == 0 else None


def _once(n: int) -> float:
    return 1.0


def _twice(n: int) -> float:
    return 2.0


def _to_others(n: int) -> float:
    return (n - 1) / n


def _to_others_twice(n: int) -> float:
    return 2 * (n - 1) / n


def pingpong(first: int, second: int) -> Operation:
    """Return the operation in which one rank sends, and another answers with its own values."""
    other = {first: second, second: first}

    def gives(rank: int, n: int, total: int) -> list[Segment] | None:
        return _own(rank, n, total) if rank in other else None

    def gets(rank: int, n: int, total: int) -> list[Segment] | None:
        return _own(other[rank], n, total) if rank in other else None

    return Operation("pingpong", False, False, "", _twice, gives, gets)


_ALL = (
    # name, in place, shared, smaller side, bus factor, gives, gets
    Operation("all_reduce", True, False, "", _to_others_twice, _own, _sum),
    Operation("reduce_scatter", False, True, "recv", _to_others, _own, _my_part_of_sum),
    Operation("all_gather", False, True, "send", _to_others, _own_share, _all_shares),
    Operation("broadcast", True, False, "", _once, _own, _of_root),
    Operation("reduce", True, False, "", _once, _own, _at_root(_sum)),
    Operation("gather", False, True, "send", _to_others, _own_share, _at_root(_all_shares)),
    Operation("scatter", False, True, "recv", _to_others, _at_root(_own), _my_part_of_root),
    Operation("all_to_all", False, True, "", _to_others, _own, _my_parts_of_all),
    Operation("sendrecv", False, False, "", _once, _own, _of_rank_before),
    pingpong(0, 1),
    Operation("barrier", True, False, "", _once, _nothing, _nothing, empty=True),
)

OPERATIONS = {operation.name: operation for operation in _ALL}


class Values:
    """The values of one dtype and number of ranks, for tensors of up to ``most`` elements.

    Element i of rank r in call c is ``(i + 3 r + c) % prime``. So every segment is a slice of one
    of two tables, which are made once: a write is a copy, a check is a comparison of memory.
    """

    def __init__(self, dtype: str, ranks: int, most: int) -> None:
        import numpy as np

        limit = 120 if dtype in _ONE_BYTE else 250 if dtype in _EXACT_IN_HALVES else 16000
        if ranks > limit // 2:
            raise ArgumentError(
                f"bench: {ranks} ranks are too many for sums of {dtype} that can be checked "
                f"exactly; take float32"
            )
        self.prime = next(m for m in range(limit // ranks, 1, -1) if _is_prime(m))
        places = np.arange(self.prime)
        total = sum((places + 3 * rank) % self.prime for rank in range(ranks))
        length = most + 2 * self.prime
        self._one = np.resize(_encoded(places, dtype), length)
        self._sum = np.resize(_encoded(total, dtype), length)

    def _slice(self, segment: Segment, call: int) -> Any:
        if segment.summed:
            first = segment.first + call % self.prime
            return self._sum[first : first + segment.length]
        first = segment.first + (3 * segment.rank + call) % self.prime
        return self._one[first : first + segment.length]

    def write(self, bits: Any, segments: list[Segment], call: int) -> None:
        """Write the values of a call to a tensor, given as the array of its bits."""
        at = 0
        for segment in segments:
            bits[at : at + segment.length] = self._slice(segment, call)
            at += segment.length

    def wrong(self, bits: Any, segments: list[Segment], call: int) -> str:
        """Return what is wrong with the result of a call; "" if nothing is."""
        import numpy as np

        at = 0
        for segment in segments:
            found, expected = bits[at : at + segment.length], self._slice(segment, call)
            places = np.flatnonzero(found != expected)
            if len(places):
                first = places[0]
                return (
                    f"{len(places)} of {segment.length} elements differ, first element "
                    f"{at + first}: {found[first]} instead of {expected[first]}"
                )
            at += segment.length
        return ""


def _encoded(integers: Any, dtype: str) -> Any:
    """Return the bits of integers in a dtype."""
    import numpy as np

    if dtype == "bfloat16":
        return (integers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return integers.astype(storage(dtype))


def _is_prime(m: int) -> bool:
    return all(m % d for d in range(2, int(m**0.5) + 1))
