"""Files that all ranks write and read: safetensors, one file or a set, and plain files.

::

    from paddlempi import io

    io.save_file(model.state_dict(), "out/model.safetensors")          # all ranks, also shards
    io.load_file("out/model.safetensors", like=model.state_dict())     # any number of ranks
    with io.open_file("out/model.safetensors") as file:                # any rank
        rows = file.get_slice("fc.weight")[100:200]

Needs NumPy. ``docs/files.md`` has examples.

What needs NumPy is imported when it is first used, because ``paddlempi.ps`` imports the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .file import File, View
    from .reader import OpenFile, TensorSlice, load_file, open_file
    from .saving import save_file
    from .shards import Shard
    from .states import load_state, save_state

__all__ = [
    "File",
    "OpenFile",
    "Shard",
    "TensorSlice",
    "View",
    "load_file",
    "load_state",
    "open_file",
    "save_file",
    "save_state",
]

_MODULES = {
    "File": "file",
    "OpenFile": "reader",
    "Shard": "shards",
    "TensorSlice": "reader",
    "View": "file",
    "load_file": "reader",
    "load_state": "states",
    "open_file": "reader",
    "save_file": "saving",
    "save_state": "states",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
