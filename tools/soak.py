"""Runs the property tests with other examples each time, soak_flat.py and soak_restarts.py.

    python tools/soak.py SECONDS --junitxml=FILE

The three run side by side. Rounds of the property tests go in turn through the worlds below, until
one fails. The command that failed is printed; its seed draws the same examples again. FILE gets the
results of the last round.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

EXAMPLES = "60"
WORLDS = [
    (".venv-openmpi", 2, "tests/ranks/core/test_properties.py", {}),
    (".venv-mpich", 3, "tests/ranks/core/test_properties.py", {}),
    (".venv-openmpi", 2, "tests/ranks/cuda/test_random.py", {}),
    # Ranks that share no memory meet by messages.
    (".venv-mpich", 2, "tests/ranks/core/test_properties.py", {"MPIR_CVAR_NOLOCAL": "1"}),
]
FLAT = (".venv-openmpi", 2)


def ended(command: list[str], seconds: float, **variables: str) -> tuple[int, str]:
    """Run a command that takes some ``seconds``; return its status (124: it hung) and its output.

    A process that the command leaves behind may hold its output open.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * seconds + 300,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:
        return 124, f"{(hung.stdout or b'').decode(errors='replace')}\nhung for {hung.timeout} s"
    return done.returncode, done.stdout


def run(venv: str, ranks: int, program: str, seconds: float, **variables: str) -> str | None:
    """Run a program as ranks and return what it printed; None, after a message, if it failed."""
    command = [
        *(f"{venv}/bin/python", "-m", "paddlempi.testing.launch", "-np", str(ranks), "--"),
        *("python", *program.split()),
    ]
    status, output = ended(command, seconds, **variables)
    if status:
        again = " ".join(f"{k}={v}" for k, v in variables.items())
        print(f"{output}\n{again} {shlex.join(command)}", flush=True)
        return None
    return output


def properties(seconds: float, report: str) -> bool:
    """Run rounds of the property tests; tell whether all passed."""
    end = time.monotonic() + seconds
    for rounds, (venv, ranks, tests, more) in enumerate(itertools.cycle(WORLDS), 1):
        seed = secrets.randbits(32)
        pytest = f"-m pytest -q --color=no --mpi --mpi-ranks {ranks} --hypothesis-seed={seed}"
        program = f"{pytest} {report} {tests}"
        if run(venv, ranks, program, seconds, SOAK_EXAMPLES=EXAMPLES, **more) is None:
            print(f"round {rounds} failed")
            return False
        if time.monotonic() > end:
            break
    print(f"{rounds} rounds of {EXAMPLES} examples a property", flush=True)
    return True


def flat(seconds: float) -> bool:
    """Print what ranks hold that work for long, and tell whether they do not hold more and more."""
    printed = run(*FLAT, f"tools/soak_flat.py {seconds} {secrets.randbits(32)}", seconds)
    print(printed or "", end="")
    return printed is not None


def restarts(seconds: float) -> bool:
    """Kill ranks of jobs that are started anew; tell whether they ended well."""
    program = ["tools/soak_restarts.py", str(seconds), str(secrets.randbits(32)), FLAT[0]]
    status, output = ended([f"{FLAT[0]}/bin/python", *program], seconds)
    print(output, end="", flush=True)
    return status == 0


def main(seconds: float, report: str) -> int:
    """Run all at the same time; return 1 if one failed, else 0."""
    with ThreadPoolExecutor() as pool:
        passed = [
            pool.submit(properties, seconds, report),
            pool.submit(flat, seconds),
            pool.submit(restarts, seconds),
        ]
    return int(not all(future.result() for future in passed))


sys.exit(main(float(sys.argv[1]), sys.argv[2]))
