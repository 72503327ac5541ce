"""Run a program as ranks that are forked from a process which has imported what it imports.

    forked.py ENVIRONMENTS PROGRAM OPTIONS...

ENVIRONMENTS are the variables of the ranks in JSON. To import a framework takes longer than most
programs run.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    environments, sys.argv[:] = json.loads(sys.argv[1]), sys.argv[2:]
    program = Path(sys.argv[0])
    importlib.import_module(program.stem)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would keep one of the threads"
    for variables in environments:
        if os.fork() == 0:
            os.environ.update(variables)
            runpy.run_path(str(program), run_name="__main__")
            return
    for _ in environments:
        if os.wait()[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
