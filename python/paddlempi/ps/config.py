"""What a table is: the arguments that a table in this process and one on servers have in common."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, DtypeError
from .initializers import Initializer, initializer
from .optimizers import Optimizer, optimizer

__all__ = ["Configured", "TableConfig", "checked_ids", "from_zero", "length_of", "rate_of", "whole"]


@dataclass(frozen=True)
class TableConfig:
    """The checked arguments of a table. :class:`Table` explains them."""

    dim: int
    optimizer: Optimizer
    initializer: Initializer
    dtype: str
    seed: int
    num_ids: int | None
    memory_limit: int | None
    non_finite: str
    admit_after: int | None = None
    expire_after: int | None = None
    max_rows: int | None = None

    @classmethod
    def checked(
        cls,
        dim: int,
        optimizer_: Optimizer | str,
        initializer_: Initializer | str,
        *,
        dtype: Any,
        seed: int,
        num_ids: int | None,
        memory_limit: int | None,
        non_finite: str,
        admit_after: int | None,
        expire_after: int | None,
        max_rows: int | None,
    ) -> TableConfig:
        """Return the configuration of these arguments.

        Raises:
            ArgumentError: a value is out of range, or there is no optimizer or initializer of the
                name. The core checks ``dim``, ``dtype`` and the optimizer's numbers.
            DtypeError: an argument is of a wrong type.
        """
        if not 0 <= _index("Table", "seed", seed) < 1 << 64:
            raise ArgumentError(f"Table: seed={seed!r} is not from 0 to 2**64 - 1")
        if non_finite not in ("refuse", "allow"):
            raise ArgumentError(f"Table: non_finite={non_finite!r} is neither 'refuse' nor 'allow'")
        for name, limit in (
            ("num_ids", num_ids),
            ("memory_limit", memory_limit),
            ("admit_after", admit_after),
            ("expire_after", expire_after),
            ("max_rows", max_rows),
        ):
            if limit is not None and whole("Table", name, limit) < 1:
                raise ArgumentError(f"Table: {name}={limit!r} is below 1")
        return cls(
            whole("Table", "dim", dim),
            optimizer(optimizer_),
            initializer(initializer_),
            dtype.__name__ if isinstance(dtype, type) else str(dtype).rpartition(".")[2],
            operator.index(seed),
            _or_none(num_ids),
            _or_none(memory_limit),
            non_finite,
            _or_none(admit_after),
            _or_none(expire_after),
            _or_none(max_rows),
        )

    def request(self) -> dict[str, Any]:
        """Return what the core takes."""
        a, b = self.initializer.numbers()
        return {
            "dim": self.dim,
            "dtype": self.dtype,
            "seed": self.seed,
            "refuse": self.non_finite == "refuse",
            "initializer": {"name": self.initializer.NAME, "a": a, "b": b},
            "optimizer": self.optimizer.request(),
            "num_ids": self.num_ids or 0,
            "memory_limit": self.memory_limit or 0,
            "admit_after": self.admit_after or 0,
            "expire_after": self.expire_after or 0,
            "max_rows": self.max_rows or 0,
        }

    @property
    def lifetime(self) -> bool:
        """Whether ids come and go: a row is not made at its first touch, or may be removed."""
        return bool((self.admit_after or 0) > 1 or self.expire_after or self.max_rows)

    def identity(self) -> dict[str, Any]:
        """Return what must be the same in a state that is loaded."""
        by = getattr(self.optimizer, "bias_correction", None)
        return {
            **({} if by is None else {"bias_correction": by}),
            "dim": self.dim,
            "optimizer": self.optimizer.NAME,
            "initializer": [self.initializer.NAME, *self.initializer.numbers()],
            "seed": self.seed,
        }


class Configured:
    """What a table has of its configuration, in this process and on servers."""

    _config: TableConfig

    @property
    def dim(self) -> int:
        """The number of elements of a row."""
        return self._config.dim

    @property
    def dtype(self) -> str:
        """The dtype of the rows."""
        return self._config.dtype

    @property
    def optimizer(self) -> Optimizer:
        """What a push does to a row."""
        return self._config.optimizer


def whole(what: str, name: str, value: Any) -> int:
    """Return an argument as an integer of 64 bits.

    Raises:
        ArgumentError: it needs more bits.
        DtypeError: it is no integer.
    """
    number = _index(what, name, value)
    if not -1 << 63 <= number < 1 << 63:
        raise ArgumentError(f"{what}: {name}={value!r} is not from -2**63 to 2**63 - 1")
    return number


def _or_none(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def from_zero(what: str, name: str, value: Any) -> int:
    """Return an argument as an integer from 0 to 2**63 - 1.

    Raises:
        ArgumentError: it is below 0, or needs more bits.
        DtypeError: it is no integer.
    """
    number = whole(what, name, value)
    if number < 0:
        raise ArgumentError(f"{what}: {name}={value!r} is below 0")
    return number


def _index(what: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{what}: {name}={value!r} is no integer") from None


def rate_of(what: str, rate: Any) -> float | None:
    """Return an argument that is a learning rate, or None.

    Raises:
        ArgumentError: it is negative or not finite. The core would take a NaN for None.
        DtypeError: it is no number.
    """
    if rate is None:
        return None
    try:
        number = float(rate)
    except (TypeError, ValueError):
        raise DtypeError(f"{what}: learning_rate={rate!r} is no number") from None
    if not 0 <= number < math.inf:
        raise ArgumentError(f"{what}: learning_rate={rate!r} is not a finite number of at least 0")
    return number


def checked_ids(what: str, ids: Any, name: str = "ids") -> Any:
    """Return ids that may be a tensor: a list is none, though the core takes lists of tensors.

    Raises:
        DtypeError: they are a list, a tuple or a number.
    """
    if isinstance(ids, (list, tuple, int, float, str)):
        raise DtypeError(
            f"{what}: {name} of type {type(ids).__qualname__} are no tensor: give one of int64 or "
            "int32, [n]"
        )
    return ids


def length_of(what: str, ids: Any, name: str = "ids") -> int:
    """Return how many ids a tensor has.

    Raises:
        ArgumentError: it has no dimensions.
        DtypeError: it is no tensor.
    """
    if getattr(checked_ids(what, ids, name), "shape", None) in ((), []):
        raise ArgumentError(f"{what}: {name} of shape () must be of shape [n]")
    try:
        return len(ids)
    except TypeError:
        raise DtypeError(f"{what}: {name} of type {type(ids).__qualname__} are no tensor") from None
