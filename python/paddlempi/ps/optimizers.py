"""The optimizers of a table, by the formulas of torch's of the same name.

A row that is not in a push stays as it is, also its momentum (torch's ``SparseAdam`` and Paddle's
``lazy_mode`` do the same). ``docs/ps-reference.md`` has the formulas.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ..errors import ArgumentError, DtypeError
from .plain_numbers import make_plain

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Momentum",
    "Optimizer",
    "RowWiseAdagrad",
    "optimizer",
]


@dataclass(frozen=True)
class Optimizer:
    """The base class of the optimizers.

    Attributes:
        learning_rate: that of a push which names no other.
        weight_decay: this times the row is added to its gradient (L2). ``AdamW`` shrinks the row.
        clip_value: every element of a gradient is clipped to at most this distance from 0.
        clip_norm: a row's gradient with a larger norm is scaled to this norm.

    A gradient is clipped by value, then by norm; weight decay comes after that, as in Paddle.

    Raises:
        ArgumentError: a number is not finite.
        DtypeError: an argument is no number.
    """

    NAME: ClassVar[str]
    STATE: ClassVar[str] = "none"
    """The floats of a row's state: "none", "one", "row" or "two rows"."""

    learning_rate: float = 0.01
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)

    def state_width(self, dim: int) -> int:
        """Return how many floats the state of a row of ``dim`` elements has."""
        return {"none": 0, "one": 1, "row": dim, "two rows": 2 * dim}[self.STATE]

    def request(self) -> dict[str, Any]:
        """Return what the core takes."""
        return {"name": self.NAME, **asdict(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """``row -= learning_rate * gradient``."""

    NAME: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum, torch's (without dampening) and Paddle's, which are the same."""

    NAME: ClassVar[str] = "momentum"
    STATE: ClassVar[str] = "row"

    momentum: float = 0.9
    nesterov: bool = False


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad, with a sum of squares for each element."""

    NAME: ClassVar[str] = "adagrad"
    STATE: ClassVar[str] = "row"

    epsilon: float = 1e-10
    initial_accumulator: float = 0.0


@dataclass(frozen=True)
class RowWiseAdagrad(Optimizer):
    """Adagrad, with one sum for each row: of the means of the squares of its gradients."""

    NAME: ClassVar[str] = "row_wise_adagrad"
    STATE: ClassVar[str] = "one"

    epsilon: float = 1e-8
    initial_accumulator: float = 0.0


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, lazy.

    Attributes:
        bias_correction: "table": it depends on the step of the push, as in torch's ``SparseAdam``;
            or "row": on how many updates the row has had, which is one float more of its state. A
            row that is seldom in a push then moves as if it were in each.
    """

    NAME: ClassVar[str] = "adam"
    STATE: ClassVar[str] = "two rows"

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    bias_correction: str = "table"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_correction not in ("table", "row"):
            raise ArgumentError(
                f"{type(self).__name__}: bias_correction={self.bias_correction!r} is neither "
                "'table' nor 'row'"
            )

    def state_width(self, dim: int) -> int:
        """Return how many floats the state of a row of ``dim`` elements has."""
        return super().state_width(dim) + (self.bias_correction == "row")


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: the row is first multiplied by 1 - rate * decay."""

    NAME: ClassVar[str] = "adamw"

    weight_decay: float = 0.01


_BY_NAME = {kind.NAME: kind for kind in (SGD, Momentum, Adagrad, RowWiseAdagrad, Adam, AdamW)}


def optimizer(given: Any) -> Optimizer:
    """Return an optimizer, or that of a name with its default numbers.

    Raises:
        ArgumentError: there is no optimizer of that name.
        DtypeError: ``given`` is neither.
    """
    if isinstance(given, Optimizer):
        return given
    if not isinstance(given, str):
        raise DtypeError(f"Table: optimizer={given!r} is neither a name nor an Optimizer")
    if given not in _BY_NAME:
        raise ArgumentError(f"Table: optimizer={given!r} is none of {', '.join(_BY_NAME)}")
    return _BY_NAME[given]()
