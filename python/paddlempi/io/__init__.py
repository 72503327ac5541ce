"""Files that all ranks write and read: safetensors, one file or a set, and plain files.

::

    from paddlempi import io

    io.save_file(model.state_dict(), "out/model.safetensors")          # all ranks, also shards
    io.load_file("out/model.safetensors", like=model.state_dict())     # any number of ranks
    with io.open_file("out/model.safetensors") as file:                # any rank
        rows = file.get_slice("fc.weight")[100:200]

Needs NumPy. ``docs/files.md`` has examples.
"""

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
