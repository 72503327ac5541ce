"""Reduce ops: how a reduction combines the elements of all ranks.

``docs/ops.md`` lists which op is defined for which dtype. Another combination raises
:class:`~paddlempi.errors.DtypeError` before anything is sent.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ._ops import ReduceCode

__all__ = ["PremulSum", "ReduceOp"]


class ReduceOp(int):
    """A reduce op, with the names of ``torch.distributed.ReduceOp``.

    ``SUM``, ``PRODUCT``, ``MIN``, ``MAX``, ``AVG``, ``BAND``, ``BOR``, ``BXOR`` are instances.
    ``PREMUL_SUM(factor)`` makes an instance: the sum of ``factor * x`` over the ranks. An input
    tensor that is not also the output stays as it is.

    For bool, SUM and MAX are *or*, PRODUCT and MIN are *and*. 16-bit floats are summed in float32
    and rounded once. Integers wrap. NaN propagates through MIN and MAX.
    """

    scale: float = 1.0
    """The factor of PREMUL_SUM, by which every rank's elements are multiplied; else 1."""

    SUM: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    PREMUL_SUM: ClassVar[type[PremulSum]]

    @property
    def name(self) -> str:
        """The name of the op, ``"SUM"``."""
        return ReduceCode(int(self)).name

    def __repr__(self) -> str:
        return f"ReduceOp.{self.name}"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        return (ReduceOp, (int(self),))


class PremulSum(ReduceOp):
    """``ReduceOp.PREMUL_SUM(factor)``: the sum of ``factor * x`` over the ranks.

    It is defined for floating-point and complex dtypes.

    Args:
        factor: a real number, the same on every rank.
    """

    def __new__(cls, factor: float) -> PremulSum:
        self = super().__new__(cls, ReduceCode.PREMUL_SUM)
        self.scale = float(factor)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PremulSum) and other.scale == self.scale

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self.scale))

    def __repr__(self) -> str:
        return f"ReduceOp.PREMUL_SUM({self.scale!r})"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        return (PremulSum, (self.scale,))


for _code in ReduceCode:
    if _code is not ReduceCode.PREMUL_SUM:
        setattr(ReduceOp, _code.name, ReduceOp(_code))
ReduceOp.PREMUL_SUM = PremulSum

SUM: Final = ReduceOp.SUM
