"""What the options of several commands are read with. argparse shows the text of their errors."""

from __future__ import annotations

import argparse
import re

__all__ = ["NO_NUMPY", "nbytes", "pid", "seconds", "sizes"]

NO_NUMPY = "NumPy is not installed, which makes the tensors: pip install numpy"


def seconds(text: str, least: float = 0.0, most: float = 1e6) -> float:
    """Read a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(
            f"{text!r}: it must be a number of seconds, from {least:g} to {most:,.0f}"
        )
    return value


def nbytes(text: str) -> int:
    """Read a number of bytes: "64K" is 65536."""
    match = re.fullmatch(r"(\d+)([kmg]?)(i?b)?", text.strip().lower())
    if match is None or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, as 8, 64K, 4M, 1G")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def pid(text: str) -> int:
    """Read the number of a process."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a process")
    return int(text)


def sizes(text: str) -> list[int]:
    """Read several numbers of bytes."""
    return [nbytes(part) for part in text.split(",")]
