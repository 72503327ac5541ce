"""The core's numbers of torch's reduce ops."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp, _make_nccl_premul_sum

from .._ops import ReduceCode
from ..errors import ArgumentError

__all__ = ["CODE_BY_HASH", "reduction"]

_KIND = ReduceOp.RedOpType
_CODES = {
    _KIND.SUM: int(ReduceCode.SUM),
    _KIND.AVG: int(ReduceCode.AVG),
    _KIND.PRODUCT: int(ReduceCode.PRODUCT),
    _KIND.MIN: int(ReduceCode.MIN),
    _KIND.MAX: int(ReduceCode.MAX),
    _KIND.BAND: int(ReduceCode.BAND),
    _KIND.BOR: int(ReduceCode.BOR),
    _KIND.BXOR: int(ReduceCode.BXOR),
    _KIND.PREMUL_SUM: int(ReduceCode.PREMUL_SUM),
}


def _by_hash() -> dict[int, int]:
    # Equal ReduceOps have the same hash. Comparing two of them takes five times as long as hashing.
    ops = [(ReduceOp(kind), code) for kind, code in _CODES.items() if kind != _KIND.PREMUL_SUM]
    found = {hash(op): code for op, code in ops}
    again = [ReduceOp(kind) for kind in _CODES if kind != _KIND.PREMUL_SUM]
    same = len(found) == len(ops) and [hash(op) for op in again] == list(found)
    return found if same and hash(_make_nccl_premul_sum(1.0)) not in found else {}


CODE_BY_HASH = _by_hash()
"""The core's code for the hash of a ``ReduceOp`` without a factor.

It is empty if this torch's hashes differ between equal ops, or are the same for different ones.
"""


def reduction(op: Any) -> tuple[int, float]:
    """Return the core's code of a ``ReduceOp``, and the factor of a PREMUL_SUM (else 1).

    Raises:
        ArgumentError: the op is unknown, or it is a PREMUL_SUM without a factor or with a factor
            that is no real number.
    """
    code = CODE_BY_HASH.get(hash(op))
    if code is not None:
        return code, 1.0
    kind = getattr(op, "op", op)
    code = _CODES.get(kind)
    if code is None:
        raise ArgumentError(f"op={op!r}: the MPI process group does not know this reduce op")
    if kind != _KIND.PREMUL_SUM:
        return code, 1.0
    return code, _factor(op)


def _factor(op: Any) -> float:
    # Only the pickled state has the factor. The state of a bare RedOpType is a number.
    try:
        factor = op.__getstate__()[1]
    except TypeError:
        factor = None
    if isinstance(factor, torch.Tensor):
        if factor.is_complex():
            raise ArgumentError(
                f"PREMUL_SUM: the factor is a tensor of {factor.dtype}, it must be a real number"
            )
        return float(factor)
    if factor is None:
        raise ArgumentError(
            "PREMUL_SUM has no factor: make it with torch.distributed._make_nccl_premul_sum(factor)"
        )
    return float(factor)
