"""What ``torch.compile`` is told of this package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["hide"]


def hide(functions: Iterable[Any]) -> None:
    """Tell ``torch.compile`` not to compile functions that C++ calls inside a compiled model.

    It would compile them like functions of the model, and since torch 2.15 that fails. What is no
    function of Python is left out.
    """
    frames = torch._C._dynamo.eval_frame
    run = frames._FrameAction.SKIP  # run the function, and what it calls, without compiling
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(run, run))
