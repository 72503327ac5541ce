"""What ``torch.profiler`` shows of the group's operations.

Each is a span ``mpi:all_reduce`` (and so on, as gloo shows ``gloo:all_reduce``) from its being
issued to its end, whoever waits for it or not. Its inputs are the tensors, with
``record_shapes`` their shapes, and then numbers: the global ranks of the group and, of a
message, the peer in the group (-1: any) and the tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.profiler as state
from torch._C import _autograd

__all__ = ["Span", "state"]

# ``state._is_profiler_enabled`` is what every operation looks at, an attribute of a module.


class Span:
    """One operation in the trace of the profiler that runs in this thread; else nothing.

    Args:
        name: of the operation, without ``mpi:``.
        tensors: sent and received; tensors, sequences of tensors, None.
        numbers: the group's ranks, peer and tag.
    """

    __slots__ = ("_record",)

    def __init__(self, name: str, tensors: Sequence[Any], *numbers: Any) -> None:
        flat = [each for some in tensors if some is not None for each in _flat(some)]
        self._record: Any = _autograd._record_function_with_args_enter(
            f"mpi:{name}", *flat, *numbers
        )

    def end(self) -> None:
        """It ended, in the thread in which it began."""
        _autograd._record_function_with_args_exit(self._record)
        self._record = None

    def ends_later(self) -> Any:
        """A function that says it ended, in any thread.

        That thread is not profiled: C++ has to carry the profiler's state there, with a future.
        """
        gate: Any = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(self._record, gate)
        self._record = None

        def end() -> None:
            # A profiler that has stopped has let go of what the end would be written to.
            if state._is_profiler_enabled:
                gate.set_result(None)

        return end


def _flat(some: Any) -> Sequence[Any]:
    return some if isinstance(some, (list, tuple)) else (some,)
