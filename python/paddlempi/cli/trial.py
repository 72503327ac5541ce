"""A trial whether this MPI takes GPU memory, in a child process, because MPI may crash.

The core starts the process when it meets the first tensor in GPU memory, if MPI says that it takes
GPU memory and the user has not said anything else. The answer is a line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys

from .. import _native
from ..errors import Error

__all__ = ["main"]


def main(request: str) -> int:
    """Let MPI send device memory from this process to itself, and print the answer.

    Args:
        request: a JSON object, the arguments of the core's control method ``cuda_trial``.

    Returns:
        The exit status: 0 if all bytes arrived, else 1.
    """
    try:
        answer = _native.control("cuda_trial", sys_prefix=sys.prefix, **json.loads(request))
    except Error as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0
