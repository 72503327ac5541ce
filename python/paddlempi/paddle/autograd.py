"""Paddle's autograd: when a gradient is there, when backward begins and ends, where a gradient
lives.
"""

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
    "at_begin",
    "bind",
    "gradient_of",
    "join",
    "on_gradients",
    "replacements",
    "run_backward",
    "running",
    "watch",
    "watching",
]


class Listener(Protocol):
    """Who takes part in a backward: one of the last two is called when the outermost has ended."""

    def came(self, index: int) -> None:
        """A backward has accumulated into the gradient of parameter number ``index``."""

    def finish(self) -> None:
        """Every gradient of this backward is there."""

    def abort(self) -> None:
        """Backward ended with an exception, which goes on to the caller."""


class _Frame(threading.local):
    """The backward that runs in this thread. Invariant: listeners is empty at depth 0."""

    depth = 0

    def __init__(self) -> None:
        self.listeners: list[Listener] = []


_frame = _Frame()
_original: Callable[..., Any] = paddle_core.eager.run_backward
_gradient: Callable[[Any], Any] = paddle.Tensor._grad_ivar
_beginnings: list[Callable[[], None]] = []


def watch() -> None:
    """Stand before Paddle's ``run_backward`` if nobody has put :func:`run_backward` there yet.

    Paddle's own hook for the end of a backward fires at the end of an inner one too (reentrant
    recompute), and never after an exception.
    """
    if not watching():
        patches.replace(replacements())


def watching() -> bool:
    """Whether backward goes through :func:`run_backward`."""
    return paddle_core.eager.run_backward is run_backward


def run_backward(*args: Any, **kwargs: Any) -> Any:
    """Paddle's ``core.eager.run_backward``, whose listeners learn of its end."""
    frame = _frame
    if frame.depth:
        return _original(*args, **kwargs)
    for begin in _beginnings:
        begin()
    frame.depth = 1
    try:
        result = _original(*args, **kwargs)
    except BaseException:
        for listener in _leave():
            listener.abort()
        raise
    failure: Exception | None = None
    for listener in _leave():
        try:
            listener.finish()
        except Exception as error:  # the other models of this backward end theirs first
            failure = failure or error
    if failure is not None:
        raise failure
    return result


def _leave() -> list[Listener]:
    left = _frame.listeners
    _frame.depth = 0
    _frame.listeners = []
    return left


def replacements() -> list[patches.Replacement]:
    """What every backward goes through."""
    return [(paddle_core.eager, "run_backward", run_backward)]


def running() -> bool:
    """Whether this thread is inside a backward; ``paddle.grad`` is none."""
    return _frame.depth > 0


def at_begin(begin: Callable[[], None]) -> None:
    """Call ``begin()`` before every outermost backward."""
    _beginnings.append(begin)


def join(listener: Listener) -> None:
    """Hear of the end of the backward that runs."""
    _frame.listeners.append(listener)


def on_gradients(parameters: Iterable[Any], listener: Listener) -> None:
    """Tell the listener of every gradient, by the parameter's place.

    Paddle has no way to take a hook back: what the parameters hold keeps no listener alive.
    """
    me = weakref.ref(listener)
    for index, parameter in enumerate(parameters):
        parameter._register_backward_hook(_hook(me, index))


def _hook(me: weakref.ref[Listener], index: int) -> Callable[[], None]:
    def came() -> None:
        listener = me()
        if listener is not None:
            listener.came(index)

    return came


def alias(view: Any, shape: list[int]) -> Any:
    """Another tensor on the memory of ``view``: clearing the one leaves the other as it is."""
    return paddle._C_ops.view_shape(view, shape)


def gradient_of(parameter: Any) -> Any:
    """``parameter.grad`` as it lies there, though it may be under way."""
    return _gradient(parameter)


def bind(parameter: Any, view: Any, shape: list[int]) -> None:
    """Make ``view`` the memory of ``parameter.grad``, until it is cleared.

    The tensor that was the gradient stays as it is, for Paddle may have handed it to others.
    """
    parameter._copy_gradient_from(alias(view, shape))
