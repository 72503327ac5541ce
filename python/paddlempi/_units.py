"""Bytes and seconds, as people read them."""

from __future__ import annotations

__all__ = ["amount", "duration"]


def amount(nbytes: float) -> str:
    """Return 1536 as "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Return 90 as "1m30s"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{int(seconds) % 60:02}s"
