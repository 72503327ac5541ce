"""What a rank tells the test: one JSON file, which no launcher mixes with another rank's."""

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
    """Leaves `facts` in the directory named on the command line; process ids are the hosts' own."""
    host = socket.gethostname()
    path = Path(sys.argv[1], f"{host}-{os.getpid()}")
    path.with_suffix(".new").write_text(json.dumps(facts | {"host": host}))
    path.with_suffix(".new").rename(path.with_suffix(".json"))


def error_of(call: Callable[[], object]) -> Facts:
    """What `call` raised: its class, its message and the ranks it names."""
    try:
        call()
    except dist.Error as error:
        return {"error": type(error).__name__, "message": str(error), "ranks": list(error.ranks)}
    return {"error": None}
