"""The numbers of system calls, for filters that refuse them."""

from __future__ import annotations

import platform

_NUMBERS = {
    "x86_64": {"memfd_create": 319, "process_vm_readv": 310, "seccomp": 317},
    "aarch64": {"memfd_create": 279, "process_vm_readv": 270, "seccomp": 277},
}


def number(name: str) -> str:
    """Return the number of a system call on this machine, for a variable of a job."""
    return str(_NUMBERS[platform.machine()][name])
