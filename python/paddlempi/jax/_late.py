"""For programs that import jax before paddlempi.jax: jaxlib looks for its MPI once more.

jaxlib looks for ``MPITRAMPOLINE_LIB`` in a constructor, that is when it is loaded. Imports are
usually sorted, so most programs import jax first, and then it is too late: jaxlib's functions of
MPI end the process. The function that looks, ``mpitrampoline_init`` of MPItrampoline 5, does
nothing at its second call because of a flag. It is not exported, but jaxlib's wheel has a symbol
table. So this module finds both there, clears the flag, and calls the function.

It is only for releases of jaxlib with which it was tried (:data:`._private.RELEASES`). A build of
them without a symbol table makes :func:`look_again` return False.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from pathlib import Path

import numpy as np

__all__ = ["look_again"]

_LIBRARY = "libjax_common.so"
_FUNCTION, _FLAG = "mpitrampoline_init", "did_init_mpitrampoline"

_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = np.dtype(  # Elf64_Sym
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_SYMTAB = 2


def look_again() -> bool:
    """Let jaxlib, which is loaded, look for ``MPITRAMPOLINE_LIB`` again. Return whether it did.

    It must not have looked successfully before. jaxlib ends the process if the library that the
    variable names cannot be loaded.
    """
    loaded = _loaded()
    if loaded is None:
        return False
    path, base = loaded
    places = _symbols(path, [_FUNCTION, _FLAG])
    if places is None:
        return False
    ctypes.c_bool.from_address(base + places[1]).value = False
    ctypes.CFUNCTYPE(None)(base + places[0])()
    return True


def _loaded() -> tuple[str, int] | None:
    """Return the path of jaxlib's library, and the address at which it is loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].endswith("/" + _LIBRARY) and int(words[2], 16) == 0:
            return words[5], int(words[0].partition("-")[0], 16)
    return None


def _symbols(path: str, names: list[str]) -> list[int] | None:
    """Return the offsets of symbols of a shared library; None if one is not there exactly once."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return None
        at, size, count = (
            struct.unpack_from(f, data, o)[0] for f, o in (("<Q", 40), ("<H", 58), ("<H", 60))
        )
        sections = [_SECTION.unpack_from(data, at + size * i) for i in range(count)]
        tables = [section for section in sections if section[1] == _SYMTAB]
        if len(tables) != 1:
            return None
        _, _, _, _, begin, length, link, *_ = tables[0]
        strings_at, strings_end = sections[link][4], sections[link][4] + sections[link][5]
        symbols = np.frombuffer(data[begin : begin + length], _SYMBOL)
        found = []
        for name in names:
            text, where = name.encode() + b"\0", []
            place = data.find(text, strings_at, strings_end)
            while place >= 0:  # a name may be the end of a longer one
                where.append(place - strings_at)
                place = data.find(text, place + 1, strings_end)
            values = symbols["value"][np.isin(symbols["name"], where)]
            if len(values) != 1:
                return None
            found.append(int(values[0]))
        return found
