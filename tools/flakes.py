"""Run the tests of tests/known_flakes.txt many times on a busy machine: a cause, or a line less.

    python tools/flakes.py [TIMES [SECONDS [BUSY [DELAYS]]]]

Each test runs TIMES (50), beside BUSY (4) loops that compute, and with a random delay of up to
DELAYS (0.2) seconds at each point where its ranks wait for each other (``late`` in
tests/helpers/ranks_tools.py). It stops after SECONDS (3600). The first failure of each is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "matrix"))

import environments  # noqa: E402
import results  # noqa: E402

BUSY = "while True: pass"


def place(pattern: str) -> tuple[str, str]:
    """Return the file and the test that a line of the list names.

    Where the parameters are a pattern, all of the test's are run.
    """
    module, _, name = pattern.replace("\\", "").partition("::")
    return f"{module.replace('.', '/')}.py", name.partition("[")[0] if "*" in name else name


def command(path: str, name: str) -> list[str]:
    """Return what runs the test once."""
    python = environments.python("openmpi")
    test = f"{path}::{name}"
    pytest = ["-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    if path.startswith("tests/ranks/"):
        start = [python, "-m", "paddlempi.testing.launch", "-np", "2", "--", "python"]
        return [*start, *pytest, "--mpi", "--mpi-ranks", "2", test]
    return [python, *pytest, test]


def main(arguments: list[str]) -> int:
    """Return 1 if a test has failed."""
    given = [*map(float, arguments), *(50, 3600, 4, 0.2)[len(arguments) :]]
    times, seconds, busy, delays = given
    ended = time.monotonic() + seconds
    env = {**environments.variables("openmpi"), "TEST_DELAYS": str(delays)}
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(int(busy))]
    lines = [rule.split(": ", 1)[0] for rule in results.rules_of("known_flakes.txt")]
    ran, failed = dict.fromkeys(lines, 0), dict.fromkeys(lines, 0)
    try:
        for _ in range(int(times)):
            for line in lines:
                if time.monotonic() > ended:
                    break
                words = command(*place(line))
                done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
                ran[line] += 1
                if done.returncode:
                    failed[line] += 1
                    if failed[line] == 1:
                        print(
                            f"FAILED {line}\n{done.stdout[-4000:]}{done.stderr[-2000:]}", flush=True
                        )
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    load = os.getloadavg()[0]
    for line in lines:
        print(f"{line}: {failed[line]} of {ran[line]} failed")
    print(f"beside {busy:.0f} busy loops, delays of up to {delays} s, load {load:.0f}")
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
