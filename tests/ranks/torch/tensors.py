"""Tensors of every dtype and layout, their values, and the results that operations must give.

The tests of an operation share a function ``check_...(team, how, dtype, layout)``. It runs the
operation once and compares the results of all members. The tests loop over it, and
tests/ranks/torch/test_corruption.py spoils the results that it compares.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

FLOAT8 = tuple(
    name
    for name in (
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
"""What can be reduced."""
DTYPES = (*NUMBERS, *FLOAT8)
"""What can be moved."""

FACTOR = 0.5
"""Of PREMUL_SUM: no dtype rounds its products."""

DEFINED = {
    "SUM": NUMBERS,
    "PRODUCT": NUMBERS,
    "MIN": ("bool", *INTEGERS, *FLOATS),
    "MAX": ("bool", *INTEGERS, *FLOATS),
    "AVG": (*INTEGERS, *FLOATS, *COMPLEX),
    "BAND": ("bool", *INTEGERS),
    "BOR": ("bool", *INTEGERS),
    "BXOR": ("bool", *INTEGERS),
    "PREMUL_SUM": (*FLOATS, *COMPLEX),
}
"""The dtypes that each reduce op is defined for, as docs/ops.md has it."""

HOWS = ("sync", "async", "future")
"""How an operation is called, see Team.run; ways() pairs them with groups."""


def reduce_op(dist: ModuleType, name: str, factor: Any = FACTOR) -> Any:
    """Return torch's reduce op of this name."""
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factor)
    return getattr(dist.ReduceOp, name)


class Team(NamedTuple):
    """A group that this rank belongs to."""

    dist: ModuleType
    group: Any
    ranks: tuple[int, ...]
    rank: int
    """In the group."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    def run(self, how: str, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call a function of torch.distributed on the group and wait for its end.

        Returns:
            The operation's result: the tensors it has written, or None if `how` is "sync".
        """
        named.setdefault("group", self.group)
        if how == "sync":
            assert function(*arguments, **named) is None
            return None
        work = function(*arguments, **named, async_op=True)
        if how == "future":
            future = work if isinstance(work, torch.futures.Future) else work.get_future()
            return future.wait()
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        return work.result()


def ways(teams: Sequence[Team]) -> Iterator[tuple[Team, str]]:
    """Yield every group with ways to call an operation: all ways in the world, one elsewhere."""
    for i, team in enumerate(teams):
        for how in HOWS if team.group is None else HOWS[i % 2 : i % 2 + 1]:
            yield team, how


def make_teams(dist: ModuleType, rank: int, size: int) -> list[Team]:
    """Return the teams of this rank among the world, all ranks but 0, and all ranks reversed."""
    teams = [Team(dist, None, tuple(range(size)), rank)]
    for ranks in (range(1, size), range(size - 1, -1, -1)):
        group = dist.new_group(list(ranks))
        members = tuple(sorted(ranks))  # torch sorts them
        if rank in members:
            teams.append(Team(dist, group, members, members.index(rank)))
    return teams


# Layouts


class Layout(NamedTuple):
    """Shape, strides and offset, in elements, of a tensor in a memory of ``room`` elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    room: int


LAYOUTS = (
    Layout("flat", (7,), (1,), 0, 7),
    Layout("matrix", (2, 3), (3, 1), 0, 6),
    Layout("strided", (2, 3), (8, 2), 1, 17),
    Layout("transposed", (3, 2), (1, 3), 0, 6),
    Layout("channels last", (2, 3, 2, 2), (12, 1, 6, 3), 0, 24),
    Layout("empty", (0, 3), (3, 1), 0, 0),
    Layout("scalar", (), (), 0, 1),
)
FLAT, MATRIX, STRIDED, TRANSPOSED, CHANNELS_LAST, EMPTY, SCALAR = LAYOUTS
EXPANDED = Layout("expanded", (4, 2), (0, 1), 0, 2)
"""For what is only read."""


def flat(count: int) -> Layout:
    """Return the layout of a contiguous vector of `count` elements."""
    return Layout(f"{count} elements", (count,), (1,), 0, count)


def rows(count: int, spread: bool = False) -> Layout:
    """Return the layout of `count` rows of 3, contiguous or with gaps between all elements."""
    if not spread or not count:
        return Layout(f"{count} rows", (count, 3), (3, 1), 0, count * 3)
    return Layout(f"{count} spread rows", (count, 3), (7, 2), 2, count * 7)


def every(dtypes: Sequence[str] = DTYPES) -> Iterator[tuple[str, Layout]]:
    """Yield every dtype in every layout."""
    for dtype in dtypes:
        for layout in LAYOUTS:
            yield dtype, layout


class Box:
    """A tensor in a memory whose other elements must not change."""

    GUARD = 1  # valid in a bool, too

    def __init__(self, dtype: str, layout: Layout, values: Any = None) -> None:
        self._memory = torch.zeros(layout.room, dtype=torch.uint8).to(getattr(torch, dtype))
        self._layout = layout
        self.tensor = self._inside(self._memory)
        bits(self._memory).fill_(self.GUARD)
        if values is not None:
            bits(self.tensor).copy_(bits(values.reshape(layout.shape)))

    def _inside(self, memory: Any) -> Any:
        return memory.as_strided(self._layout.shape, self._layout.strides, self._layout.offset)

    def holds(self, values: Any) -> None:
        """Assert that the tensor has these values, and that the other elements are unchanged."""
        same(self.tensor, values.reshape(self._layout.shape))
        self.untouched()

    def untouched(self) -> None:
        """Assert that nothing was written between the elements."""
        around = self._memory.clone()
        bits(self._inside(around)).fill_(self.GUARD)
        assert bool((bits(around) == self.GUARD).all()), "written to between the elements"


# Values


def bits(tensor: Any) -> Any:
    """Return the same memory as integers, two for every element of a complex tensor."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(kinds[tensor.element_size()])


def same(got: Any, wanted: Any) -> None:
    """Assert the same dtype, shape and bits."""
    assert got.dtype == wanted.dtype, f"{got.dtype} instead of {wanted.dtype}"
    assert got.shape == wanted.shape, f"{got.shape} instead of {wanted.shape}"
    assert torch.equal(bits(got), bits(wanted)), f"{got} instead of {wanted}"


def _generator(*of: object) -> Any:
    return torch.Generator().manual_seed(zlib.crc32(repr(of).encode()))


def noise(dtype: str, shape: Sequence[int] | int, *of: object) -> Any:
    """Return random bits. The same arguments give the same bits."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    kind, count = getattr(torch, dtype), math.prod(shape)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=_generator(of)).bool()
    if not count:
        return torch.zeros(shape, dtype=torch.uint8).to(kind)
    size = count * kind.itemsize
    made = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=_generator(dtype, of))
    return made.view(kind).reshape(shape)


def numbers(dtype: str, shape: Sequence[int] | int, *of: object) -> Any:
    """Return values whose sums and products no dtype rounds over few ranks; integers overflow."""
    if dtype == "bool" or dtype in INTEGERS:
        return noise(dtype, shape, *of)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    generator = _generator(dtype, of)
    values = torch.randint(-3, 4, shape, generator=generator)
    if dtype in COMPLEX:
        return torch.complex(
            values.double(), torch.randint(-2, 3, shape, generator=generator).double()
        ).to(getattr(torch, dtype))
    return values.to(getattr(torch, dtype))


def reduced(op: str, parts: Sequence[Any]) -> Any:
    """Return NumPy's reduction of all ranks' parts; 16-bit floats are rounded once, at the end."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    stack = np.stack([part.to(wide).numpy() for part in parts])
    kind = stack.dtype
    with np.errstate(all="ignore"):
        if kind == np.bool_ and op in ("SUM", "PRODUCT"):
            answer = stack.any(0) if op == "SUM" else stack.all(0)
        elif op in ("SUM", "AVG", "PREMUL_SUM"):
            answer = (stack * FACTOR if op == "PREMUL_SUM" else stack).sum(0, dtype=kind)
            if op == "AVG" and kind.kind in "iu":  # rounded toward zero, as NCCL does
                answer = np.sign(answer) * (abs(answer.astype(object)) // len(parts))
            elif op == "AVG":
                answer = answer / len(parts)
        else:
            functions: dict[str, Any] = {
                "PRODUCT": np.multiply,
                "MIN": np.minimum,
                "MAX": np.maximum,
                "BAND": np.bitwise_and,
                "BOR": np.bitwise_or,
                "BXOR": np.bitwise_xor,
            }
            answer = functions[op].reduce(stack, 0, dtype=kind)
    return torch.from_numpy(np.asarray(answer, kind)).to(dtype)


def same_reduced(got: Any, op: str, parts: Sequence[Any]) -> None:
    """Assert the same numbers as NumPy's; an average may differ in the last place."""
    wanted = reduced(op, parts)
    assert got.dtype == wanted.dtype, f"{got.dtype} instead of {wanted.dtype}"
    assert got.shape == wanted.shape, f"{got.shape} instead of {wanted.shape}"
    if op == "AVG" and (got.is_floating_point() or got.is_complex()):
        last = torch.finfo(got.dtype).eps
        exact = torch.complex128 if got.is_complex() else torch.float64
        off = (got.to(exact) - wanted.to(exact)).abs()
        assert bool((off <= 2 * last * wanted.to(exact).abs()).all()), f"{got} instead of {wanted}"
    else:  # -0.0 and 0.0 are the same number
        both = [torch.view_as_real(t) if t.is_complex() else t for t in (got, wanted)]
        equal = [(t + 0 if t.is_floating_point() else t) for t in both]
        assert torch.equal(bits(equal[0]), bits(equal[1])), f"{got} instead of {wanted}"
