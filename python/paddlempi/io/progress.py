"""A bar of the bytes that are done, by tqdm."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Any

from ..errors import UnsupportedError

__all__ = ["Bar"]


class Bar:
    """A bar, for ``with``.

    Args:
        what: stands before it.
        total: the bytes of all.
        shown: False: there is none.

    Raises:
        UnsupportedError: tqdm is not installed.
    """

    def __init__(self, what: str, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            try:
                tqdm = import_module("tqdm")
            except ImportError:
                raise UnsupportedError(f"{what}: progress=True needs tqdm") from None
            self._bar = tqdm.tqdm(total=total, unit="B", unit_scale=True, desc=what)

    def add(self, done: int) -> None:
        """Tell that more bytes are done."""
        if self._bar is not None:
            self._bar.update(done)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
