"""``ps.DistributedOptimizer`` for Paddle: one step of all trainers, dense and sparse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import paddle

from .. import ps
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, UnsupportedError
from ..group import ProcessGroup
from ..ps.dense import Blocks, spread
from ..reduce_op import ReduceOp
from .parameters import parameters_of

__all__ = ["DistributedOptimizer"]

_SPARSE = "ps.DistributedOptimizer: a dense parameter has a sparse gradient: use ps.SparseEmbedding"


class DistributedOptimizer:
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of all layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often. Of several such optimizers in a program, each pushes what
    all layers have noted. What it does not have is the wrapped optimizer's
    (``get_lr``, ``set_lr``, ``state_dict``, ``set_state_dict``).

    Args:
        optimizer: the optimizer of the dense parameters.
        dense: how trainers keep their dense parameters the same.

            * "all_reduce": their gradients are averaged in ``step``, and at the beginning all
              trainers get the parameters of the first.
            * "server": they lie on the servers too, in float32, which update them: in sync mode as
              the wrapped optimizer would, in async mode without waiting for other trainers. The
              wrapped optimizer gives its kind, its numbers and its learning rate in each step. All
              trainers begin with the parameters of the first.
            * "local": this object does nothing of all this, such as with ``paddle.DataParallel``.
        average: for what lies on servers; see :func:`paddlempi.ps.step`.
        name: with "server", the name of the table.
        placement: with "server", how their blocks of 8192 elements are dealt to the servers:
            "round_robin", in turn over all such optimizers of the program, which all trainers make
            in the same order; or "hash_name", by a hash of the table's name and the block's number.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, or ``dense`` or ``placement`` is another word.
        UnsupportedError: with "server", servers do not have the wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        dense: str = "all_reduce",
        average: bool = True,
        name: str = "dense",
        placement: str = "round_robin",
    ) -> None:
        if dense not in ("all_reduce", "server", "local"):
            raise ArgumentError(
                f"ps.DistributedOptimizer: dense={dense!r} is none of 'all_reduce', 'server' and "
                "'local'"
            )
        if not ps.is_trainer():
            raise ArgumentError("ps.DistributedOptimizer: this rank is a pserver; it has no steps")
        self.optim = optimizer
        self._average = average
        self._group = ps.trainer_group() if dense == "all_reduce" else None
        self._blocks: Blocks | None = None
        if dense == "server":
            self._blocks = self._to_servers(name, placement)
            spread([self._blocks])
            self.refresh()
        elif self._group is not None and self._group.size() > 1:
            first = ps.trainers()[0]
            for parameter in self._parameters():
                broadcast(parameter, src=first, group=self._group)

    def _parameters(self) -> list[Any]:
        return [p for p in parameters_of(self.optim) if not p.stop_gradient]

    def step(self) -> None:
        """Take one step of all trainers. The gradients are there.

        Raises:
            UnsupportedError: a dense parameter has a sparse gradient.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        if self._blocks is not None:
            self._note(self._blocks)
        ps.step(average=self._average)
        if self._blocks is not None:
            self.refresh()
            return
        if self._group is not None and self._group.size() > 1:
            _average(self._parameters(), self._group)
        self.optim.step()

    def _places(self) -> Iterator[tuple[Any, slice]]:
        """Yield the parameters, and where they are in the blocks."""
        begin = 0
        for parameter in self._parameters():
            size = math.prod(parameter.shape)
            yield parameter, slice(begin, begin + size)
            begin += size

    def _to_servers(self, name: str, placement: str) -> Blocks:
        places = list(self._places())
        elements = places[-1][1].stop if places else 0
        blocks = Blocks(name, elements, _for_servers(self.optim), placement)
        for parameter, place in places:
            blocks.values[place] = parameter.numpy().reshape(-1)
        return blocks

    def _note(self, blocks: Blocks) -> None:
        """Note the gradients for the next step; those of parameters that were not used are 0."""
        for parameter, place in self._places():
            if parameter.grad is None:
                blocks.gradients[place] = 0
            elif parameter.grad.is_selected_rows():
                raise UnsupportedError(_SPARSE)
            else:
                blocks.gradients[place] = parameter.grad.numpy().reshape(-1)
        table, ids, gradients = blocks.request()
        table.learning_rate = float(self.optim.get_lr())
        ps.note(table, ids, gradients)

    def refresh(self) -> None:
        """With ``dense="server"``, set the parameters to those on the servers.

        ``step`` does so. A program does it after ``ps.restore``.
        """
        if self._blocks is None:
            return
        self._blocks.pull()
        for parameter, place in self._places():
            values = self._blocks.values[place].reshape(parameter.shape)
            parameter.set_value(paddle.to_tensor(values).astype(parameter.dtype))

    def minimize(self, loss: Any, *arguments: Any, **named: Any) -> tuple[None, list[Any]]:
        """Take one step, as Paddle's ``minimize`` does in dynamic mode: after ``loss.backward()``.

        Returns:
            None, and the pairs of parameters and gradients.
        """
        self.step()
        return None, [(p, p.grad) for p in self._parameters() if p.grad is not None]

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that layers have noted."""
        ps.discard()
        self.optim.clear_grad(set_to_zero)

    clear_gradients = clear_grad

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not made yet
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optim!r})"


def _average(parameters: list[Any], group: ProcessGroup) -> None:
    """Average the gradients over the trainers. A parameter that no trainer has used keeps none."""
    used = paddle.to_tensor([float(p.grad is not None) for p in parameters], "float32")
    by_dtype: dict[Any, list[Any]] = {paddle.float32: [used]}
    gradients = []
    for parameter in parameters:
        gradient = paddle.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if gradient.is_selected_rows():
            raise UnsupportedError(_SPARSE)
        gradients.append(gradient)
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for tensors in by_dtype.values():
        all_reduce_coalesced(tensors, ReduceOp.AVG, group)
    for parameter, gradient, share in zip(parameters, gradients, used.tolist(), strict=True):
        if share and parameter.grad is None:
            parameter.grad = gradient


def _for_servers(optimizer: Any) -> ps.Optimizer:
    """Return what servers have for an optimizer of Paddle.

    Raises:
        UnsupportedError: they do not have it.
    """
    kind = type(optimizer).__name__
    has = vars(optimizer)
    odd = [
        name
        for name in (
            "regularization",
            "_grad_clip",
            "_amsgrad",
            "_lr_ratio",
            "_regularization_coeff",
        )
        if has.get(name)
    ]
    if has.get("_apply_decay_param_fun") is not None or isinstance(has["_param_groups"][0], dict):
        odd.append("groups of parameters")
    rate = float(optimizer.get_lr())
    if odd:
        raise UnsupportedError(
            f"ps.DistributedOptimizer: servers have no {kind} with {', '.join(odd)}; "
            "take dense='all_reduce'"
        )
    if kind == "SGD":
        return ps.SGD(rate)
    if kind == "Momentum":
        return ps.Momentum(rate, momentum=has["_momentum"], nesterov=has["_use_nesterov"])
    if kind == "Adagrad":
        start = has["initial_accumulator_value"]
        return ps.Adagrad(rate, epsilon=has["_epsilon"], initial_accumulator=start)
    if kind in ("Adam", "AdamW"):
        betas = {"beta1": float(has["_beta1"]), "beta2": float(has["_beta2"])}
        if kind == "Adam":
            return ps.Adam(rate, **betas, epsilon=float(has["_epsilon"]))
        decay = float(has["_weight_decay"])
        return ps.AdamW(rate, decay, **betas, epsilon=float(has["_epsilon"]))
    raise UnsupportedError(
        f"ps.DistributedOptimizer: servers have no {kind}: they have SGD, Momentum, Adagrad, Adam "
        "and AdamW; or take dense='all_reduce'"
    )
