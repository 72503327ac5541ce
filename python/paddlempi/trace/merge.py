"""Parts of several hosts as one file.

The parts stay as they are, with the stamps of their own hosts: who reads the file puts them on one
clock, as with several files. ``clocks`` says for people what that gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import clock, parts, reading
from .replacing import replacing

__all__ = ["files_of", "write"]


def files_of(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Yield the parts that are named, or lie in a folder that is."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(file for file in path.glob("*.json") if parts.is_part(file))
        else:
            yield path


def write(paths: Iterable[str | Path], output: str | Path) -> list[str]:
    """Write the parts of several hosts into one file, which reads as they do.

    Args:
        paths: parts, merged ones too, or folders of parts.

    Returns:
        Sentences on the clocks of the hosts, and on what is not in the file.

    Raises:
        reading.LoadError: none can be read.
        OSError: the file cannot be written.
    """
    whole, told, read = [], [], []
    for file in files_of(paths):
        try:
            parts.read_part(file)
        except parts.PartError as error:
            told.append(f"left out: {error}")
            continue
        data = json.loads(file.read_bytes())
        whole += data.get("parts", [data])
        read.append(file)
    timeline = clock.align(reading.read(read or [Path(str(path)) for path in paths]))
    made = {
        "parts": whole,
        "format": "paddlempi-timeline",
        "version": parts.VERSION,
        "clocks": [one.as_dict() for one in timeline.clocks.hosts],
    }
    with replacing(output) as staged:
        staged.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
    return [*told, *timeline.clocks.sentences(), *timeline.warnings]
