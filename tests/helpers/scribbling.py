"""Write into the memory that the ranks of a node share, as a damaged process does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOTS = 32
_SLOT_BYTES = 64
_BLOCK_BYTES = (SLOTS + 2) * _SLOT_BYTES
"""The layout of ``gocore/arrive/slots.h``: slots, then a line of how far the member has come, then
a line of whether it takes part."""


def areas(name: str) -> set[tuple[int, int]]:
    """Return where this process maps the memory files of that name: begin and end of each."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"/memfd:{name} " in line:
            begin, _, end = line.partition(" ")[0].partition("-")
            found.add((int(begin, 16), int(end, 16)))
    return found


def put(at: int, *values: int, size: int = 8) -> None:
    """Write numbers of ``size`` bytes from an address on."""
    data = b"".join((value % (1 << 8 * size)).to_bytes(size, "little") for value in values)
    ctypes.memmove(at, data, len(data))


class Lines:
    """The arrival lines of a group, as a rank of the group maps them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        before = areas("paddlempi-arrive")
        self.group = make()
        ((self.begin, self.end),) = areas("paddlempi-arrive") - before

    def slot(self, member: int, seq: int) -> int:
        """Return the address of a member's slot for a collective."""
        return self.begin + member * _BLOCK_BYTES + seq % SLOTS * _SLOT_BYTES

    def spoil_slots(self, member: int, number: int) -> None:
        """Write a number into all slots of a member, in place of those of its collectives."""
        for seq in range(SLOTS):
            put(self.slot(member, seq), number)

    def spoil_chunks(self, members: int, value: int) -> None:
        """Write a value into all words with which the members share out the work."""
        each = max(128, members + 1)
        room = min(4096, 65536 // members // 64 * 64)
        begin = self.begin + members * (_BLOCK_BYTES + SLOTS * room)
        put(begin, *[value] * (SLOTS * each))


def files(name: str) -> list[int]:
    """Return the descriptors of this process's memory files of that name."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link).startswith(f"/memfd:{name} "):
                found.append(int(link.name))
        except OSError:  # the descriptor of the folder itself
            continue
    return found
