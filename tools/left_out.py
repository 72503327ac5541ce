"""Which groups of tests `.ci/run` leaves out: those that take minutes and depend on little.

Prints `test-all` if a commit of the last day has pinned another version of what was pinned. Else it
prints the targets of the Makefile on whose paths no commit of the last half day has changed
anything, and `make test LEAVE_OUT=...` takes them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The targets, and the paths on which they alone depend. Other groups test what else they need.
GROUPS = {
    # Other versions of two MPIs, with jobs and values that the wheels' MPIs run, too.
    (
        "test-faults-debian-openmpi",
        "test-faults-debian-mpich",
        "test-mpi-debian-openmpi-2",
        "test-mpi-debian-mpich-2",
    ): (
        "gocore/launcher",
        "gocore/mpi",
        "tools/debian_mpi.sh",
    ),
    # Programs of DeepSpeed, Lightning and others on the fronts of torch and Paddle.
    ("test-programs",): (
        "constraints.txt",
        "python/paddlempi/paddle",
        "python/paddlempi/start",
        "python/paddlempi/torch",
        "python/paddlempi_autoload.py",
        "python/paddlempi_place.py",
        "python/paddlempi_starts.py",
        "python/paddlempi_stubs.py",
        "tests/jobs/programs",
        "tests/requirements-programs.txt",
    ),
    # PyTorch's own tests of its process groups, on the front of torch.
    ("test-torch-suite-newest",): (
        "constraints.txt",
        "python/paddlempi/torch",
        "tests/jobs/torch/cpu_for_cuda.py",
        "tests/jobs/torch/pytorch_suite.py",
        "tests/jobs/torch/test_pytorch_suite.py",
    ),
    # Jobs of Paddle's front, and its values on 3 ranks, which 2 ranks have in every run.
    ("test-paddle-jobs", "test-paddle-openmpi-3"): (
        "constraints.txt",
        "python/paddlempi/paddle",
        "python/paddlempi/start",
        "python/paddlempi_autoload.py",
        "python/paddlempi_place.py",
        "python/paddlempi_starts.py",
        "python/paddlempi_stubs.py",
        "tests/jobs/paddle",
        "tests/ranks/paddle",
    ),
    # The same of JAX.
    ("test-jax-jobs", "test-jax-3"): (
        "capi/trampoline",
        "capi/xla.c",
        "capi/xla.h",
        "constraints.txt",
        "python/paddlempi/jax",
        "tests/jobs/jax",
        "tests/ranks/jax",
        "tests/requirements-jax.txt",
    ),
    # The site of the documents; the packages' __init__.py have the public names.
    ("test-docs-site",): (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "constraints.txt",
        "docs",
        "mkdocs.yml",
        "python/paddlempi/__init__.py",
        "python/paddlempi/io/__init__.py",
        "python/paddlempi/jax/__init__.py",
        "python/paddlempi/paddle",
        "python/paddlempi/ps/__init__.py",
        "python/paddlempi/testing/__init__.py",
        "python/paddlempi/torch",
        "tests/helpers/site_build.py",
        "tests/site",
        "tools/build/links.py",
        "tools/debian_chromium.sh",
        "tools/debian_root.sh",
        "tools/requirements-docs.txt",
        "tools/site.css",
        "tools/site.js",
        "tools/site_hook.py",
    ),
    # The generators of what a new collective needs. tests/unit/core/test_ops.py always looks for
    # other lists of operations.
    ("test-new-collective",): (
        "gocore/op",
        "python/paddlempi/collectives.py",
        "tests/abi/test_new_collective.py",
        "tools/fronts.py",
        "tools/opgen",
    ),
}


def git(root: Path, *words: str) -> str:
    """Return what a command of git has printed."""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def touched(root: Path, paths: tuple[str, ...]) -> bool:
    """Tell whether a commit of the last half day has changed something below the paths."""
    return bool(git(root, "log", "-1", "--since=12.hours", "--format=%h", "--", *paths))


def pins(root: Path, commit: str) -> dict[tuple[str, str], str]:
    """Return the versions that a commit pins, by file and package."""
    files = git(root, "ls-tree", "--name-only", commit).splitlines()
    return {
        (file, package): version
        for file in files
        if re.fullmatch(r"constraints.*\.txt", file)
        for package, version in re.findall(
            r"^(\S+)==(\S+)", git(root, "show", f"{commit}:{file}"), re.M
        )
    }


def another_version(root: Path = ROOT) -> bool:
    """Tell whether what was pinned a day ago, so far as git knows, has another version now."""
    commit = git(root, "log", "-1", "--until=1.day", "--format=%H")
    before, after = (pins(root, commit), pins(root, "HEAD")) if commit else ({}, {})
    return not commit or any(
        after.get(what, version) != version for what, version in before.items()
    )


def left_out(root: Path = ROOT) -> list[str]:
    """Return the targets that need not run."""
    return [name for names, paths in GROUPS.items() if not touched(root, paths) for name in names]


if __name__ == "__main__":
    print(*(["test-all"] if another_version() else left_out()))
