"""Timelines of all ranks of a job, for programs and notebooks (docs/why-is-my-step-slow.md).

``load(path)`` reads what ``trace record`` has written, and ``align`` puts it on one clock;
``times`` and ``arrivals`` are its arrays, and ``report.make`` says all of it. They need NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import align, ordered
    from .measure import arrivals, times
    from .model import OPERATION, Group, Names, Rank, Timeline
    from .reading import LoadError, load

__all__ = [
    "OPERATION",
    "Group",
    "LoadError",
    "Names",
    "Rank",
    "Timeline",
    "align",
    "arrivals",
    "load",
    "ordered",
    "times",
]

# Commands import modules of this package where there is no NumPy.
_PLACES = {
    **dict.fromkeys(("LoadError", "load"), "reading"),
    **dict.fromkeys(("align", "ordered"), "clock"),
    **dict.fromkeys(("arrivals", "times"), "measure"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES.get(name, 'model')}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
