"""Checks of the arguments of the collectives that ``torch.distributed`` calls.

If an argument is wrong, the other members are told before the error is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from .. import _native
from .._ops import Op
from ..errors import ArgumentError, DtypeError, Error
from .arguments import options
from .issue import Issuer
from .reduce_op import reduction

__all__ = ["Checked"]


class Checked(Issuer):
    """A group that checks arguments: the part below the collectives."""

    def _refuse(self, code: Op, error: Error) -> NoReturn:
        """Raise ``error``, and tell the other members of a collective that this rank refuses it."""
        if self._steps is not None:
            self._steps.settle()
        _native.core().refuse(code, self._gid, str(error))
        raise error

    def _options(self, code: Op, kind: Any, given: Any, *more: Any, **fields: Any) -> Any:
        if given.__class__ is kind:
            return given
        try:
            return options(kind, given, *(more or (None,)), **fields)
        except Error as error:
            self._refuse(code, error)

    def _reduction(self, code: Op, opts: Any) -> tuple[int, float]:
        try:
            return reduction(opts.reduceOp)
        except Error as error:
            self._refuse(code, error)

    def _one(self, tensors: Any, code: Op) -> Any:
        """Return the one tensor of an argument that is a tensor, or a list with one tensor."""
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
            tensors = tensors[0]
        if isinstance(tensors, torch.Tensor):
            return tensors
        if isinstance(tensors, (list, tuple)):
            text = f"{code.label}: got {len(tensors)} tensors, a group over MPI takes one"
            return self._refuse(code, ArgumentError(text))
        text = f"{code.label}: got an object of type {type(tensors).__name__} instead of a tensor"
        return self._refuse(code, DtypeError(text))

    def _per_rank(self, tensors: Any, code: Op, name: str) -> list[Any]:
        """Return a list of one tensor for each member, which torch wraps in another list."""
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
            inner = tensors[0]
            if isinstance(inner, (list, tuple)):
                tensors = inner
        return self._list(tensors, code, name, self._core.size())

    def _list(self, tensors: Any, code: Op, name: str, count: int = 0) -> list[Any]:
        """Return an argument that is a list of ``count`` items, or for 0 of at least one."""
        if not isinstance(tensors, (list, tuple)):
            self._refuse(
                code,
                DtypeError(
                    f"{code.label}: {name} is a {type(tensors).__name__}, it must be a list"
                ),
            )
        if len(tensors) != count if count else not tensors:
            self._refuse(
                code,
                ArgumentError(
                    f"{code.label}: {name} has {len(tensors)} tensors, it needs {count or 'some'}"
                ),
            )
        return list(tensors)

    def _splits(self, name: str, tensor: Any, splits: Sequence[int] | None) -> Sequence[int] | None:
        """Return the rows for each member, or None for equal parts. Raise if they do not fit."""
        size = self._core.size()
        if splits is not None and len(splits):
            if len(splits) != size:
                self._refuse(
                    Op.ALL_TO_ALL,
                    ArgumentError(
                        f"all_to_all_single: {name}_split_sizes={list(splits)} must be {size} "
                        "numbers of rows, one a rank"
                    ),
                )
            return splits
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            return None  # the core raises the error
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % size:
            self._refuse(
                Op.ALL_TO_ALL,
                ArgumentError(
                    f"all_to_all_single: the {name} of shape {tuple(tensor.shape)} cannot be cut "
                    f"into {size} equal parts along its first dimension: give "
                    f"{name}_split_sizes"
                ),
            )
        return None
