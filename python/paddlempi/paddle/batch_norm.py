"""SyncBatchNorm on the CPU, for which Paddle has no kernel: statistics of all ranks' batches.

One all_gather forward (each rank's mean, sum of squared deviations and count: 2 C + 1 numbers),
one all_reduce backward (2 C numbers). They go through the world's group, in the calling thread.

Source: ``paddle.nn.SyncBatchNorm``.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.autograd import PyLayer

from .. import group as core_group
from ..collectives import all_gather_into_tensor, all_reduce
from .patches import Replacement

__all__ = ["forward", "replacements"]

_original = paddle.nn.SyncBatchNorm.forward


def forward(self: Any, x: Any) -> Any:
    """``paddle.nn.SyncBatchNorm.forward``: on the CPU, over all ranks of the world.

    In evaluation, on one rank, or off the CPU: what Paddle's BatchNorm or Paddle itself does.
    """
    self._check_data_format()
    if not paddle.in_dynamic_mode() or not x.place.is_cpu_place():
        return _original(self, x)
    world = core_group.WORLD
    if not self.training or world is None or world.size() == 1:
        return paddle.nn.functional.batch_norm(
            x,
            self._mean,
            self._variance,
            self.weight,
            self.bias,
            training=self.training,
            momentum=self._momentum,
            epsilon=self._epsilon,
            data_format=self._data_format,
        )
    # Channels last, everything else one dimension.
    last = self._data_format == "NHWC" or x.ndim == 2
    forth = list(range(x.ndim)) if last else [0, *range(2, x.ndim), 1]
    back = list(range(x.ndim)) if last else [0, x.ndim - 1, *range(1, x.ndim - 1)]
    turned = paddle.transpose(x, forth)
    flat = turned.reshape([-1, turned.shape[-1]])
    out, mean, variance = _Normalize.apply(flat, self.weight, self.bias, self._epsilon)
    with paddle.no_grad():
        keep = self._momentum
        for statistic, value in ((self._mean, mean), (self._variance, variance)):
            statistic.set_value(statistic * keep + value * (1 - keep))
    return paddle.transpose(out.reshape(turned.shape), back)


class _Normalize(PyLayer):  # type: ignore[misc]
    """[rows, channels] to zero mean and unit variance over the rows of all ranks, scaled."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, epsilon: float) -> Any:
        channels = x.shape[1]
        rows = x.shape[0]
        # Deviations from the rank's own mean, joined as Chan et al. do: no cancellation.
        mean = x.mean(0) if rows else paddle.zeros([channels], x.dtype)
        squares = ((x - mean) ** 2).sum(0)
        mine = paddle.concat([mean, squares, paddle.full([1], rows, x.dtype)])
        world = core_group.WORLD
        size = 1 if world is None else world.size()
        everyone = paddle.empty([size, 2 * channels + 1], x.dtype)
        all_gather_into_tensor(everyone, mine)
        means, deviations = everyone[:, :channels], everyone[:, channels:-1]
        counts = everyone[:, -1:]
        count = counts.sum()
        mean = (means * counts).sum(0) / count
        variance = (deviations.sum(0) + (counts * (means - mean) ** 2).sum(0)) / count
        scale = paddle.rsqrt(variance + epsilon)
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.frozen = x.stop_gradient, weight.stop_gradient, bias.stop_gradient
        ctx.mark_non_differentiable(mean, variance)
        return normal * weight + bias, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        normal, weight, scale, count = ctx.saved_tensor()
        bias_gradient = gradient.sum(0)
        weight_gradient = (gradient * normal).sum(0)
        sums = paddle.concat([bias_gradient, weight_gradient])
        all_reduce(sums)
        first, second = paddle.split(sums / count, 2)
        x_gradient = (gradient - first - normal * second) * scale * weight
        found = x_gradient, weight_gradient, bias_gradient
        return tuple(None if frozen else one for one, frozen in zip(found, ctx.frozen, strict=True))


def replacements() -> list[Replacement]:
    """Paddle's own, off the CPU, is called from ours."""
    return [(paddle.nn.SyncBatchNorm, "forward", forward)]
