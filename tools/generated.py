"""The end of the tools that write a file: they write it, or --check finds it up to date."""

from __future__ import annotations

import sys
from pathlib import Path


def settle(tool: str, what: str, file: Path, wanted: str, *, check: bool) -> int:
    """Give a file its text, unless it has it.

    Args:
        tool: the name of the tool, for messages.
        what: what the tool writes, for messages.
        file: where; it need not exist.
        wanted: the whole text.
        check: write nothing, and fail if the text is another one.

    Returns:
        The exit status of the tool.
    """
    if file.is_file() and file.read_text() == wanted:
        return 0
    if check:
        then = "run make generate and commit the result"
        print(f"tools/{tool}: {what} is not up to date; {then}", file=sys.stderr)
        return 1
    file.write_text(wanted)
    return 0
