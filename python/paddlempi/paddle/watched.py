"""Parameters, buffers and gradients that a program may read while they are under way.

With :mod:`overlap`, gradients and updates may be under way when backward and ``step()`` have
returned. They must be complete before a layer runs, and before the program reads a parameter or
buffer of a layer, or a gradient. The hooks and replacements here notice these reads, and wait by
:class:`PendingUpdates`.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import paddle
from paddle.base import core as paddle_core
from paddle.base.framework import EagerParamBase
from paddle.jit.dy2static.program_translator import StaticFunction

from . import patches

__all__ = ["PendingUpdates", "busy", "finish_all", "watch_gradients", "watch_layers"]


class PendingUpdates(Protocol):
    """The gradients and updates of one model that may be under way."""

    def wait_for_parameters(self, ids: Collection[int]) -> None:
        """Complete the values of the parameters with these ids; they are about to be read."""

    def wait_for_buffers(self) -> None:
        """Complete the model's buffers; they are about to be read."""

    def wait_for_gradient(self, parameter: Any) -> None:
        """Complete ``parameter.grad``; it is about to be read or set."""

    def add_clear(self, parameter: Any, set_to_zero: bool) -> bool:
        """Clear a gradient when it is complete.

        Returns:
            False if it is complete: then the caller clears it.
        """

    def finish(self) -> None:
        """Complete everything."""


busy: set[PendingUpdates] = set()
"""The pending updates that are not complete. They are kept alive here if the model is deleted."""


def finish_all() -> None:
    """Wait for everything that is under way, of all models."""
    for pending in list(busy):
        pending.finish()


# Parameters and buffers


class _WatchedDict(OrderedDict[str, Any]):
    """The parameters or buffers of a layer. Every read calls ``on_read(values)`` first."""

    def __init__(
        self, plain: OrderedDict[str, Any], on_read: Callable[[Iterable[Any]], None]
    ) -> None:
        super().__init__(plain)
        self._on_read = on_read

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if busy:
            self._on_read((value,))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        if busy and name in self:
            self._on_read((super().__getitem__(name),))
        return super().get(name, default)

    def values(self) -> Any:
        if busy:
            self._on_read(super().values())
        return super().values()

    def items(self) -> Any:
        if busy:
            self._on_read(super().values())
        return super().items()

    def __reduce__(self) -> Any:
        """Make copies plain dictionaries, which are not watched."""
        return OrderedDict, (list(self.items()),)


def watch_layers(model: Any, reference: weakref.ref[Any]) -> None:
    """Let the layers of a model wait before they run and before they are read.

    Args:
        model: the model.
        reference: a weak reference to the :class:`PendingUpdates` that they wait for.
    """
    for layer in model.sublayers(include_self=True):
        layer._parameters = _WatchedDict(
            OrderedDict(layer._parameters.items()), _on_parameters_read(reference)
        )
        layer._buffers = _WatchedDict(
            OrderedDict(layer._buffers.items()), _on_buffers_read(reference)
        )
        compiled = isinstance(getattr(layer, "forward", None), StaticFunction)
        ids = frozenset(_parameter_ids(layer))
        if ids or compiled or layer._buffers:
            layer.register_forward_pre_hook(
                _before_forward(reference, ids, bool(layer._buffers), compiled)
            )


def _parameter_ids(layer: Any) -> Iterable[int]:
    """Return the ids of the parameters that a layer's forward may use.

    They include those in lists and dictionaries of the layer (LSTM), whose reading is not watched.
    """
    containers = [layer._parameters.values()]
    for value in vars(layer).values():
        if isinstance(value, dict):
            containers.append(value.values())
        elif isinstance(value, (list, tuple)):
            containers.append(value)
    return (
        id(value)
        for container in containers
        for value in container
        if isinstance(value, EagerParamBase)
    )


def _on_parameters_read(reference: weakref.ref[Any]) -> Callable[[Iterable[Any]], None]:
    def on_read(parameters: Iterable[Any]) -> None:
        pending = reference()
        if pending is not None and pending in busy:
            found = [parameter for parameter in parameters if parameter is not None]
            # BatchNorm keeps its statistics among the parameters.
            if any(parameter.stop_gradient for parameter in found):
                pending.wait_for_buffers()
            pending.wait_for_parameters(list(map(id, found)))

    return on_read


def _on_buffers_read(reference: weakref.ref[Any]) -> Callable[[Iterable[Any]], None]:
    def on_read(_: Iterable[Any]) -> None:
        pending = reference()
        if pending is not None:
            pending.wait_for_buffers()

    return on_read


def _before_forward(
    reference: weakref.ref[Any], ids: Collection[int], buffers: bool, compiled: bool
) -> Callable[[Any, Any], None]:
    """Return a hook that waits for what a layer uses in its forward.

    A compiled layer waits for everything, because its reading of parameters is not noticed.
    """

    def wait(layer: Any, inputs: Any) -> None:
        pending = reference()
        if pending is None:
            return
        if compiled:
            pending.finish()
            return
        if buffers:
            pending.wait_for_buffers()
        pending.wait_for_parameters(ids)

    return wait


# Gradients

_GRADIENT: Any = paddle.Tensor.grad
_CLEAR: Any = paddle.Tensor.clear_gradient


def _wait_for_gradient(parameter: Any) -> None:
    for pending in list(busy):
        pending.wait_for_gradient(parameter)


def _get_gradient(self: Any) -> Any:
    if busy:
        _wait_for_gradient(self)
    return _GRADIENT.__get__(self)


def _set_gradient(self: Any, value: Any) -> None:
    if busy:
        _wait_for_gradient(self)
    _GRADIENT.__set__(self, value)


def _grad_ivar(self: Any) -> Any:
    """Return the gradient. Paddle's optimizers read it by this method."""
    if busy:
        _wait_for_gradient(self)
    return paddle.Tensor._grad_ivar(self)


def _clear_gradient(self: Any, set_to_zero: bool = True) -> None:
    for pending in busy:
        if pending.add_clear(self, set_to_zero):
            return
    _CLEAR(self, set_to_zero)


_gradient = property(_get_gradient, _set_gradient)


def _finish_before(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of Paddle's core that reads many gradients: it waits for all first."""

    @functools.wraps(original)
    def read(*args: Any) -> Any:
        finish_all()
        return original(*args)

    return read


def watch_gradients() -> None:
    """Replace what reads gradients of parameters, if that was not done.

    It is called only when a model overlaps, so that other programs read gradients as before.
    """
    if vars(EagerParamBase).get("grad") is _gradient:
        return
    found: list[patches.Replacement] = [
        (EagerParamBase, "grad", _gradient),
        (EagerParamBase, "_grad_ivar", _grad_ivar),
        (EagerParamBase, "clear_gradient", _clear_gradient),
    ]
    for name in ("get_all_grads", "get_grads_lists"):
        original = getattr(paddle_core.eager, name, None)
        if original is not None:
            found.append((paddle_core.eager, name, _finish_before(original)))
    patches.replace(found)
