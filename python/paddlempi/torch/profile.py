"""The spans of the group's operations in the trace of ``torch.profiler``.

An operation is a span such as ``mpi:all_reduce`` (gloo has ``gloo:all_reduce``). It begins when
the operation is submitted and ends when the operation ends, whether the program waits for it or
not. The inputs of the span are the tensors, with their shapes if ``record_shapes`` is set, and then
numbers: the global ranks of the group and, for a message, the peer's rank in the group (-1: any)
and the tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.profiler as state
from torch._C import _autograd

__all__ = ["Span", "state"]

# Every operation reads ``state._is_profiler_enabled``, an attribute of a module, which is fast.


class Span:
    """An operation in the profiler's trace, if a profiler runs in this thread.

    Args:
        name: the name of the operation, without ``mpi:``.
        tensors: the tensors sent and received: tensors, sequences of tensors, None.
        numbers: the group's ranks, the peer and the tag.
    """

    __slots__ = ("_record",)

    def __init__(self, name: str, tensors: Sequence[Any], *numbers: Any) -> None:
        flat = [tensor for side in tensors if side is not None for tensor in _flat(side)]
        self._record: Any = _autograd._record_function_with_args_enter(
            f"mpi:{name}", *flat, *numbers
        )

    def end(self) -> None:
        """End the span, in the thread in which it began."""
        _autograd._record_function_with_args_exit(self._record)
        self._record = None

    def ends_later(self) -> Any:
        """Return a function that ends the span and may be called in any thread.

        The profiler does not run in that thread. C++ passes its state there with a future.
        """
        gate: Any = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(self._record, gate)
        self._record = None

        def end() -> None:
            # A profiler that has stopped has freed the record that the end would be written to.
            if state._is_profiler_enabled:
                gate.set_result(None)

        return end


def _flat(side: Any) -> Sequence[Any]:
    return side if isinstance(side, (list, tuple)) else (side,)
