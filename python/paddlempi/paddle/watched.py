"""Who reads parameters, buffers and gradients of a model while they are under way.

Before a layer runs, before anybody takes a parameter or a buffer out of a layer, and before
anybody takes the gradient of a parameter, whoever has it under way is asked to bring it.
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

__all__ = ["Bringer", "busy", "finish_all", "watch_gradients", "watch_layers"]


class Bringer(Protocol):
    """Who has something under way."""

    def needs(self, parameters: Collection[int]) -> None:
        """The values of parameters with these ids are about to be read."""

    def needs_buffers(self) -> None:
        """The model's buffers are about to be read."""

    def needs_gradient(self, parameter: Any) -> None:
        """``parameter.grad`` is about to be read or set."""

    def note_clear(self, parameter: Any, set_to_zero: bool) -> bool:
        """Clear a gradient once it is there. False: it is, do it now."""

    def finish(self) -> None:
        """Everything is about to be read."""


busy: set[Bringer] = set()
"""Those with something under way: kept alive until it is done, whatever becomes of the model."""


def finish_all() -> None:
    """Wait for everything that any model has under way."""
    for bringer in list(busy):
        bringer.finish()


# Parameters and buffers


class _Watched(OrderedDict[str, Any]):
    """A layer's parameters or buffers: whoever reads one waits for it first."""

    def __init__(self, plain: OrderedDict[str, Any], ask: Callable[[Iterable[Any]], None]) -> None:
        super().__init__(plain)
        self._ask = ask

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if busy:
            self._ask((value,))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        if busy and name in self:
            self._ask((super().__getitem__(name),))
        return super().get(name, default)

    def values(self) -> Any:
        if busy:
            self._ask(super().values())
        return super().values()

    def items(self) -> Any:
        if busy:
            self._ask(super().values())
        return super().items()

    def __reduce__(self) -> Any:
        """A copy watches nothing."""
        return OrderedDict, (list(self.items()),)


def watch_layers(model: Any, me: weakref.ref[Any]) -> None:
    """Let the layers of a model ask ``me`` before they run, and before they are read."""
    for layer in model.sublayers(include_self=True):
        layer._parameters = _Watched(OrderedDict(layer._parameters.items()), _asker(me))
        layer._buffers = _Watched(OrderedDict(layer._buffers.items()), _buffers_asker(me))
        compiled = isinstance(getattr(layer, "forward", None), StaticFunction)
        ids = frozenset(_held(layer))
        if ids or compiled or layer._buffers:
            layer.register_forward_pre_hook(_before(me, ids, bool(layer._buffers), compiled))


def _held(layer: Any) -> Iterable[int]:
    """The ids of what a layer's forward may use without asking: lists of parameters too (LSTM)."""
    places = [layer._parameters.values()]
    for value in vars(layer).values():
        if isinstance(value, dict):
            places.append(value.values())
        elif isinstance(value, (list, tuple)):
            places.append(value)
    return (id(one) for place in places for one in place if isinstance(one, EagerParamBase))


def _asker(me: weakref.ref[Any]) -> Callable[[Iterable[Any]], None]:
    def ask(parameters: Iterable[Any]) -> None:
        bringer = me()
        if bringer is not None and bringer in busy:
            found = [one for one in parameters if one is not None]
            if any(one.stop_gradient for one in found):  # BatchNorm keeps its statistics here
                bringer.needs_buffers()
            bringer.needs(list(map(id, found)))

    return ask


def _buffers_asker(me: weakref.ref[Any]) -> Callable[[Iterable[Any]], None]:
    def ask(_: Iterable[Any]) -> None:
        bringer = me()
        if bringer is not None:
            bringer.needs_buffers()

    return ask


def _before(
    me: weakref.ref[Any], ids: Collection[int], buffers: bool, compiled: bool
) -> Callable[[Any, Any], None]:
    """What a layer does before its forward. Compiled ones read their parameters unseen."""

    def before(layer: Any, inputs: Any) -> None:
        bringer = me()
        if bringer is None:
            return
        if compiled:
            bringer.finish()
            return
        if buffers:
            bringer.needs_buffers()
        bringer.needs(ids)

    return before


# Who reads a gradient

_GRADIENT: Any = paddle.Tensor.grad
_CLEAR: Any = paddle.Tensor.clear_gradient


def _settle(parameter: Any) -> None:
    for bringer in list(busy):
        bringer.needs_gradient(parameter)


def _get_gradient(self: Any) -> Any:
    if busy:
        _settle(self)
    return _GRADIENT.__get__(self)


def _set_gradient(self: Any, value: Any) -> None:
    if busy:
        _settle(self)
    _GRADIENT.__set__(self, value)


def _grad_ivar(self: Any) -> Any:
    """What Paddle's own optimizers read."""
    if busy:
        _settle(self)
    return paddle.Tensor._grad_ivar(self)


def _clear_gradient(self: Any, set_to_zero: bool = True) -> None:
    for bringer in busy:
        if bringer.note_clear(self, set_to_zero):
            return
    _CLEAR(self, set_to_zero)


_gradient = property(_get_gradient, _set_gradient)


def _of_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Before the functions of Paddle's core that read many gradients at once."""

    @functools.wraps(original)
    def read(*args: Any) -> Any:
        finish_all()
        return original(*args)

    return read


def watch_gradients() -> None:
    """Stand before what reads gradients of parameters; once a model overlaps, not before."""
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
            found.append((paddle_core.eager, name, _of_all(original)))
    patches.replace(found)
