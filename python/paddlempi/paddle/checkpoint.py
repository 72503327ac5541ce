"""``paddle.distributed.load_state_dict`` on a wheel without CUDA: it wants to send from a GPU."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import paddle
import paddle.distributed as dist

from .patches import Replacement

__all__ = ["replacements"]

_lock = threading.Lock()


def replacements() -> list[Replacement]:
    """What takes the places of Paddle's function.

    Nothing where Paddle has CUDA, nor where its function is another one than in 3.3.
    """
    original = dist.load_state_dict
    if paddle.is_compiled_with_cuda() or ".flex_checkpoint." not in original.__module__:
        return []

    @functools.wraps(original)
    def load_state_dict(*arguments: Any, **named: Any) -> Any:
        with _lock:
            cuda = paddle.Tensor.cuda
            # What it takes for a copy on the GPU is sent, or received into and copied back.
            paddle.Tensor.cuda = lambda tensor, *_, **__: tensor.clone()
            try:
                return original(*arguments, **named)
            finally:
                paddle.Tensor.cuda = cuda

    home = sys.modules[original.__module__]
    return [(place, "load_state_dict", load_state_dict) for place in (dist, home)]
