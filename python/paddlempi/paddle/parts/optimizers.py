"""The part of an optimizer, with its learning rate; and :class:`Steps`, which others build on."""

from __future__ import annotations

import copy
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler

from ... import collectives
from ... import group as core_group
from ...elasticity.sharing import told
from ...errors import UnsupportedError
from ..parameters import put_before

__all__ = ["Optimizer", "Steps"]

_RATE = "LR_Scheduler"
_WEIGHTS = "master_weights"


class _Counted:
    """What :class:`Steps` puts before an optimizer's class."""

    _paddlempi_steps: Steps

    def step(self) -> Any:
        """Make a step, which the part counts."""
        with self._paddlempi_steps:
            return super().step()  # type: ignore[misc]

    def minimize(self, *arguments: Any, **named: Any) -> Any:
        """Make a step, which the part counts."""
        with self._paddlempi_steps:
            return super().minimize(*arguments, **named)  # type: ignore[misc]


class Steps:
    """The steps that an optimizer makes, and its learning rate."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._begun = self._ended = self._depth = 0
        self._usual = 1
        self._taken = False  # a rank's state, or a part of it, since the step began
        self._rate: Any = None
        optimizer._paddlempi_steps = self
        put_before(optimizer, _Counted)

    def __enter__(self) -> None:
        self._begun += self._depth == 0  # minimize() may call step()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        self._ended += self._depth == 0 and kind is None

    def before(self) -> None:
        """Keep the learning rate."""
        self._usual = self._ended or self._usual
        self._begun = self._ended = 0
        self._taken = False
        self._rate = self.rate()

    def back(self) -> None:
        """Give the learning rate back."""
        self.set_rate(self._rate)
        self._begun = self._ended = 0

    def whole(self) -> bool:
        """False once it has begun to step, or to share: :meth:`back` cannot undo that."""
        return self._begun == 0 and not self._taken

    def made(self) -> bool:
        """Whether the optimizer has stepped, as often as in the step of the job before."""
        return self._begun == self._ended >= self._usual

    def rate(self) -> Any:
        """Return the learning rate, or the state of its scheduler."""
        rate = self._optimizer._learning_rate
        return copy.deepcopy(rate.state_dict()) if isinstance(rate, LRScheduler) else rate

    def set_rate(self, rate: Any) -> None:
        """Take what :meth:`rate` has returned."""
        of = self._optimizer._learning_rate
        if isinstance(of, LRScheduler):
            of.set_state_dict(copy.deepcopy(rate))
        elif of != rate:
            self._optimizer.set_lr(rate)


class Optimizer(Steps):
    """An optimizer of which every rank has the whole state, and its learning rate.

    Raises:
        UnsupportedError: its states are divided among the ranks (ZeRO).
    """

    def __init__(self, optimizer: Any) -> None:
        if hasattr(optimizer, "_paddlempi_zero"):
            raise UnsupportedError(
                "attach: the states of this optimizer are divided among the ranks "
                "(zero_opt_level): attach paddlempi.paddle.Sharded(build) instead of the model "
                "and its optimizer"
            )
        super().__init__(optimizer)

    def reformed(self, job: Any) -> None:
        """Do nothing: it knows no group."""

    def share(self, root: int) -> None:
        """Take the root's state and learning rate."""
        optimizer = self._optimizer
        mine = {k: v for k, v in optimizer.state_dict().items() if k != _RATE}
        weights = mine.pop(_WEIGHTS, {})
        self._taken = True
        state, weights = _shared(mine, root), _shared(weights, root)
        rate = told(self.rate(), root)
        if core_group.get_rank() != root:
            full = {**state, **({_WEIGHTS: weights} if weights else {})}
            optimizer.set_state_dict({**full, **({_RATE: rate} if isinstance(rate, dict) else {})})
        self.set_rate(rate)
        self._begun = self._ended = 0


def _shared(mine: dict[str, Any], root: int) -> dict[str, Any]:
    """Return the root's tensors by name. Those that fit are filled in place."""
    plan = [(name, list(t.shape), str(t.dtype).rpartition(".")[2]) for name, t in mine.items()]
    found: dict[str, Any] = {}
    for name, shape, dtype in told(plan, root):
        tensor = mine.get(name)
        if tensor is None or [*tensor.shape] != shape or not str(tensor.dtype).endswith(dtype):
            tensor = paddle.empty(shape, dtype)
        collectives.broadcast(tensor.detach(), root)
        found[name] = tensor
    return found
