"""What functions take as a tensor, for type checkers.

At run time a tensor is checked by the core, and ``Tensor`` is ``Any``: protocols would have to be
made at every import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    from typing_extensions import Buffer

    class _DLPack(Protocol):
        def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    class _CudaArray(Protocol):
        @property
        def __cuda_array_interface__(self) -> Any: ...

    class _NumPyArray(Protocol):
        """NumPy's stubs tell of the buffer protocol from Python 3.12 on only."""

        @property
        def __array_interface__(self) -> Any: ...

    Tensor = Buffer | _DLPack | _CudaArray | _NumPyArray
else:
    Tensor = Any

__all__ = ["Tensor"]
