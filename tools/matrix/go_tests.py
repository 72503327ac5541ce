"""Run Go's tests and write what they say: ``go_tests.py REPORT PACKAGE...``; `make verify` vets.

After a failure go runs again only the packages that failed: it remembers the others' results.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GO = Path(__file__).resolve().parents[1] / "go.py"


def main(arguments: list[str]) -> int:
    """Return go's status."""
    report, *packages = arguments
    words = [sys.executable, str(GO), "test", "-vet=off", "-json", *packages]
    with Path(report).open("wb") as out:
        return subprocess.run(words, stdout=out, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
