"""The library that jaxlib loads as its MPI, called as XLA calls it. It does not need JAX."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import paddlempi
from paddlempi import _native

TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int16": "INT16_T",
    "uint16": "UINT16_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}


class MPI:
    """The library's functions: ``call`` raises RuntimeError with MPI_Error_string's text."""

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        """Give the library the core's functions; ``seconds`` is how long a split waits."""
        path = Path(paddlempi.__file__).with_name("libpaddlempi_trampoline.so")
        self.library = ctypes.CDLL(str(path))
        begin = self.library.paddlempi_trampoline_start
        begin.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_double]
        assert begin(_native.core().functions(), rank, size, seconds) == 0

    def devices(self, number: int) -> None:
        """Say how many CPU devices this process has."""
        self._count = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: number)  # it is kept
        self.library.paddlempi_trampoline_devices(self._count)

    def constant(self, name: str) -> ctypes.c_ssize_t:
        return ctypes.c_ssize_t.in_dll(self.library, f"MPIABI_{name}")

    def call(self, name: str, *arguments: object) -> None:
        words = [
            a.ctypes.data_as(ctypes.c_void_p) if hasattr(a, "ctypes") else a for a in arguments
        ]
        if code := getattr(self.library, f"MPIABI_{name}")(*words):
            text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
            assert self.library.MPIABI_Error_string(code, text, ctypes.byref(length)) == 0
            assert length.value == len(text.value)
            raise RuntimeError(text.value.decode())

    def split(self, colour: int, key: int) -> ctypes.c_ssize_t:
        """Split as XLA does: it does not look at the code."""
        made = ctypes.c_ssize_t(-1)
        self.library.MPIABI_Comm_split(self.constant("COMM_WORLD"), colour, key, ctypes.byref(made))
        return made

    def place(self, comm: ctypes.c_ssize_t) -> tuple[int, int]:
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.library.MPIABI_Comm_rank(comm, ctypes.byref(rank))
        self.library.MPIABI_Comm_size(comm, ctypes.byref(size))
        return rank.value, size.value

    def all_reduce(self, comm: ctypes.c_ssize_t, x: np.ndarray, op: str = "SUM") -> np.ndarray:
        out = np.empty_like(x)
        of = self.constant(TYPES[x.dtype.name])
        self.call("Allreduce", x, out, x.size, of, self.constant(op), comm)
        return out
