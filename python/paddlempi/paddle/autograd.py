"""Paddle's autograd: when gradients come, when backward begins and ends, where gradients lie."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import paddle
from paddle.base import core as paddle_core

from . import patches

__all__ = [
    "Listener",
    "alias",
    "before_backward",
    "bind",
    "gradient_of",
    "listen",
    "on_gradients",
    "replacements",
    "run_backward",
    "running",
    "watch",
    "watching",
]


class Listener(Protocol):
    """An object that hears of a backward. Either ``finish`` or ``abort`` is called at its end."""

    def gradient_added(self, index: int) -> None:
        """A backward has accumulated into the gradient of parameter number ``index``."""

    def finish(self) -> None:
        """The outermost backward has ended, and all its gradients are there."""

    def abort(self) -> None:
        """The outermost backward has raised an exception, which the caller will see."""


class _Backward(threading.local):
    """The backward that runs in this thread. Invariant: listeners is empty at depth 0."""

    depth = 0

    def __init__(self) -> None:
        self.listeners: list[Listener] = []


_backward = _Backward()
_original: Callable[..., Any] = paddle_core.eager.run_backward
_gradient: Callable[[Any], Any] = paddle.Tensor._grad_ivar
_callbacks: list[Callable[[], None]] = []


def watch() -> None:
    """Replace Paddle's ``run_backward`` by :func:`run_backward`, if that was not done.

    Paddle has a hook for the end of a backward. It is called at the end of an inner backward too
    (reentrant recompute), and never after an exception.
    """
    if not watching():
        patches.replace(replacements())


def watching() -> bool:
    """Return whether Paddle calls :func:`run_backward`."""
    return paddle_core.eager.run_backward is run_backward


def run_backward(*args: Any, **kwargs: Any) -> Any:
    """Run Paddle's ``core.eager.run_backward``, and tell the listeners when it ends."""
    backward = _backward
    if backward.depth:
        return _original(*args, **kwargs)
    for callback in _callbacks:
        callback()
    backward.depth = 1
    try:
        result = _original(*args, **kwargs)
    except BaseException:
        for listener in _end():
            listener.abort()
        raise
    failure: Exception | None = None
    for listener in _end():
        try:
            listener.finish()
        except Exception as error:  # the other models of this backward must finish, too
            failure = failure or error
    if failure is not None:
        raise failure
    return result


def _end() -> list[Listener]:
    listeners = _backward.listeners
    _backward.depth = 0
    _backward.listeners = []
    return listeners


def replacements() -> list[patches.Replacement]:
    """Return the replacement of the function that every backward calls."""
    return [(paddle_core.eager, "run_backward", run_backward)]


def running() -> bool:
    """Return whether this thread is inside a backward. ``paddle.grad`` does not count as one."""
    return _backward.depth > 0


def before_backward(callback: Callable[[], None]) -> None:
    """Call ``callback()`` before every outermost backward."""
    _callbacks.append(callback)


def listen(listener: Listener) -> None:
    """Tell the listener when the backward that runs in this thread ends."""
    _backward.listeners.append(listener)


def on_gradients(parameters: Iterable[Any], listener: Listener) -> None:
    """Call ``listener.gradient_added`` with the parameter's number at every gradient.

    The hooks do not keep the listener alive, because Paddle cannot remove them again.
    """
    reference = weakref.ref(listener)
    for index, parameter in enumerate(parameters):
        parameter._register_backward_hook(_hook(reference, index))


def _hook(reference: weakref.ref[Listener], index: int) -> Callable[[], None]:
    def gradient_added() -> None:
        listener = reference()
        if listener is not None:
            listener.gradient_added(index)

    return gradient_added


def alias(view: Any, shape: list[int]) -> Any:
    """Return another tensor on the memory of ``view``. To clear one leaves the other as it is."""
    return paddle._C_ops.view_shape(view, shape)


def gradient_of(parameter: Any) -> Any:
    """Return ``parameter.grad`` without waiting, even if its all_reduce is under way."""
    return _gradient(parameter)


def bind(parameter: Any, view: Any, shape: list[int]) -> None:
    """Make ``parameter.grad`` a tensor on the memory of ``view``, until it is cleared.

    The tensor that was the gradient keeps its memory and values, because Paddle may have given it
    to the program.
    """
    parameter._copy_gradient_from(alias(view, shape))
