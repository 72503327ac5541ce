"""What the options of several commands are read with. argparse shows the text of their errors."""

from __future__ import annotations

import argparse

__all__ = ["seconds"]


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
