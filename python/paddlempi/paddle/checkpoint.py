"""``paddle.distributed.load_state_dict`` on a wheel without CUDA: Paddle's would use a GPU."""

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
    """Return the replacements of Paddle's function.

    There are none if Paddle has CUDA, nor if its function is not that of Paddle 3.3.
    """
    original = dist.load_state_dict
    if paddle.is_compiled_with_cuda() or ".flex_checkpoint." not in original.__module__:
        return []

    @functools.wraps(original)
    def load_state_dict(*arguments: Any, **named: Any) -> Any:
        with _lock:
            cuda = paddle.Tensor.cuda
            # Paddle's function sends copies of tensors on the GPU, or receives into such copies
            # and copies them back. A copy in host memory does as well.
            paddle.Tensor.cuda = lambda tensor, *_, **__: tensor.clone()
            try:
                return original(*arguments, **named)
            finally:
                paddle.Tensor.cuda = cuda

    home = sys.modules[original.__module__]
    return [(module, "load_state_dict", load_state_dict) for module in (dist, home)]
