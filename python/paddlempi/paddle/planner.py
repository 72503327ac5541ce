"""``paddlempi.paddle.apply``: a model and its optimizer, cut over all ranks by a named plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import paddle

from .. import collectives, group, objects
from ..context import get_context
from ..errors import ArgumentError, DtypeError, NotInitializedError
from ..planner import batches
from ..reduce_op import ReduceOp
from . import zero
from .data_parallel import DataParallel
from .parameters import parameters_of
from .replicas import broadcast_all, check_same, has_value

__all__ = ["Applied", "Step", "apply"]

PLANS = {"ddp": 0, "zero1": 1, "zero2": 2}
"""Every plan, and the level of ZeRO that it has."""


class Step:
    """A step of training: ``step(batch)`` with what ``shard_batch`` has returned.

    Attributes:
        optimizer: that was given.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Callable[..., Any] | None) -> None:
        self.optimizer = optimizer
        self._model = model
        self._loss = loss

    def __call__(self, batch: Any) -> Any:
        """Clear the gradients, run forward and backward, and make a step of the optimizer.

        Collective over all ranks.

        Args:
            batch: this rank's part.

        Returns:
            The loss before the step, a mean over the whole batch: a tensor of one number, the same
            on all ranks.

        Raises:
            ArgumentError: the batch has a wrong form, or there is no loss, or it is no scalar.
        """
        self.optimizer.clear_grad()
        loss = batches.loss_of(self._model, batch, paddle.Tensor, self._loss)
        loss.backward()
        self.optimizer.step()
        value = loss.detach().clone()
        collectives.all_reduce(value, ReduceOp.AVG)
        return value


class Applied(NamedTuple):
    """``model, step, shard_batch``: what :func:`apply` returns."""

    model: Any
    step: Step
    shard_batch: Callable[[Any], Any]


def apply(
    model: Any, optimizer: Any, plan: str, *, loss: Callable[..., Any] | None = None
) -> Applied:
    """Train a model on all ranks, each with its part of a batch. Collective over all ranks.

    All ranks begin with the parameters and buffers of rank 0.

    A batch is a pair ``(inputs, target)``, for ``loss(model(inputs), target)``; or a mapping, for
    ``model(**batch)``, whose output has a ``loss`` unless ``loss(output, batch)`` is given; or
    a tensor, for ``loss(model(batch))``, or ``model(batch)`` if there is no loss.

    Args:
        model: a layer, the same on all ranks but for the values.
        optimizer: of parameters of the model, before its first step. It changes in place.
        plan: ``"ddp"`` is :class:`DataParallel`. ``"zero1"`` is so too, and a rank keeps the
            optimizer's states of some parameters only. ``"zero2"`` keeps only the gradients of
            those as well; buffers (BatchNorm's statistics) stay each rank's own then.
        loss: a mean over the rows of a batch, so that the mean of the parts is that of the whole.

    Returns:
        ``model, step, shard_batch``: the model to call, which is a wrapper unless the plan is
        ``"zero2"``; the step; and ``shard_batch(batch)``, which returns this rank's rows of a
        whole batch.

    Raises:
        NotInitializedError: before ``init_parallel_env()``.
        ArgumentError: there is no such plan; the optimizer has made a step, or is spread over the
            ranks already by ``get_context()``, or has other parameters than the model's.
        MismatchError: the ranks' models, plans or optimizers differ; on all ranks.
        DtypeError: the model is no layer.
    """
    if group.WORLD is None:
        raise NotInitializedError(
            "apply: there are no ranks yet: call paddle.distributed.init_parallel_env() first"
        )
    fault: Exception | None = None
    try:
        _check(model, optimizer, plan)
    except (ArgumentError, DtypeError) as error:
        fault = error
    _raise_alike(fault)
    ranks = group.new_group(group.WORLD._ranks)
    named = list(model.named_parameters())
    check_same(named, {"plan": plan, "optimizer": type(optimizer).__name__}, ranks)
    level = PLANS[plan]
    wrapped = model
    if level < 2 and ranks.size() > 1:
        wrapped = DataParallel(model)
    else:
        buffers = [buffer for buffer in model.buffers() if has_value(buffer)]
        broadcast_all([*(parameter for _, parameter in named), *buffers], ranks)
    if level:
        zero.shard(optimizer, level, ranks, get_context().group_bucket_size)
    return Applied(wrapped, Step(wrapped, optimizer, loss), _Parts(plan))


def _raise_alike(fault: Exception | None) -> None:
    """Raise an error that some ranks have on all ranks. Collective."""
    texts: list[Any] = [None] * group.get_world_size()
    objects.all_gather_object(texts, None if fault is None else str(fault))
    if fault is not None:
        raise fault
    for rank, text in enumerate(texts):
        if text is not None:
            raise ArgumentError(f"apply: rank {rank} refused: {text}")


def _check(model: Any, optimizer: Any, plan: Any) -> None:
    if not isinstance(model, paddle.nn.Layer):
        raise DtypeError(f"apply: model={type(model).__name__}: it must be a paddle.nn.Layer")
    if not isinstance(plan, str) or plan not in PLANS:
        raise ArgumentError(f"apply: plan={plan!r}: it must be one of {', '.join(PLANS)}")
    kind = type(optimizer).__name__
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise DtypeError(f"apply: optimizer={kind}: it must be an optimizer of paddle.optimizer")
    if optimizer._accumulators:
        raise ArgumentError(
            f"apply: optimizer={kind} has states: apply a plan before the first step"
        )
    if any(hasattr(optimizer, name) for name in ("_paddlempi_reducer", "_paddlempi_zero")):
        raise ArgumentError(
            f"apply: optimizer={kind} is spread over the ranks already, by the settings of "
            "paddlempi.get_context(): leave enable_data_parallel and zero_opt_level as they were"
        )
    if isinstance(model, paddle.DataParallel):
        raise ArgumentError("apply: model is in DataParallel already: give the bare model")
    ids = {id(parameter) for parameter in model.parameters()}
    if not any(not parameter.stop_gradient for parameter in model.parameters()):
        raise ArgumentError("apply: model has no parameter to train")
    for place, parameter in enumerate(parameters_of(optimizer)):
        if id(parameter) not in ids:
            raise ArgumentError(
                f"apply: parameter {place} of the optimizer, of shape {tuple(parameter.shape)}, is "
                "not the model's: make the optimizer of model.parameters()"
            )


class _Parts:
    """Cuts this rank's part out of a whole batch."""

    def __init__(self, plan: str) -> None:
        self._plan = plan

    def __call__(self, batch: Any) -> Any:
        """Return this rank's rows of a whole batch. Local.

        Raises:
            ArgumentError: a tensor's rows do not divide; on all ranks.
        """
        index, count = group.get_rank(), group.get_world_size()
        return batches.cut(batch, paddle.Tensor, index, count, f"{self._plan} over {count} ranks")
