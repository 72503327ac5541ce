"""What a rank tells the test: one JSON file a process, because a launcher may mix their output."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddlempi as dist

Facts = dict[str, Any]


def write(facts: Facts) -> None:
    """Write `facts` to a file in the directory argv[1], named by host and process id.

    Processes on different hosts may have the same process id.
    """
    host = socket.gethostname()
    path = Path(sys.argv[1], f"{host}-{os.getpid()}")
    path.with_suffix(".new").write_text(json.dumps(facts | {"host": host}))
    path.with_suffix(".new").rename(path.with_suffix(".json"))


def error_of(call: Callable[[], object]) -> Facts:
    """Return the error that `call` raised: its class, its message and the ranks that it names."""
    try:
        call()
    except dist.Error as error:
        return {"error": type(error).__name__, "message": str(error), "ranks": list(error.ranks)}
    return {"error": None}
