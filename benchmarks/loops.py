"""Loops in C for the benchmarks: how they are compiled, and the clock that they read."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

CLOCK = r"""
#include <time.h>
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}
"""


def compiled(source: str, include: str = ".") -> ctypes.CDLL:
    """Return the functions of a source in C, which may call ``now()``: seconds of a clock.

    The compiler is ``CC``, or cc. ``include`` is a folder of headers.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file, built = Path(scratch, "loops.c"), Path(scratch, "loops.so")
        file.write_text(CLOCK + source)
        cc = os.environ.get("CC", "cc").split()
        words = [*cc, "-O2", "-shared", "-fPIC", "-I", include, "-o", built, file]
        subprocess.run(words, check=True)
        return ctypes.CDLL(str(built))
