"""Does this MPI move GPU memory? Tried in a process of its own, which a crash may end.

The core starts it, at the first tensor in GPU memory, where MPI says that it does and the user
has not said otherwise. It answers with one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys

from .. import _native
from ..errors import Error

__all__ = ["main"]


def main(request: str) -> int:
    """Move memory of the device that ``request`` names from MPI to itself; 0 if it arrived."""
    try:
        answer = _native.control("cuda_trial", sys_prefix=sys.prefix, **json.loads(request))
    except Error as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0
