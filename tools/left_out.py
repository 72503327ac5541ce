"""Which groups of tests `.ci/run` leaves out: those that take minutes and depend on little.

Prints the targets of the Makefile on whose paths no commit of the last day has changed anything.
`make test LEAVE_OUT=...` takes them; `make test-all` leaves out nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The targets, and the paths on which they alone depend. Other groups test what else they need.
GROUPS = {
    # Other versions of two MPIs, with the jobs that run under all MPIs.
    ("test-faults-debian-openmpi", "test-faults-debian-mpich"): (
        "tools/debian_mpi.sh",
        "gocore/mpi",
        "gocore/launcher",
        "tests/jobs/core",
        "tests/jobs/faults",
    ),
    # The same MPIs with tests/ranks/core, which the wheels' MPIs run, too.
    ("test-mpi-debian-openmpi-2", "test-mpi-debian-mpich-2"): (
        "tools/debian_mpi.sh",
        "gocore/mpi",
        "tests/ranks/core",
    ),
    # Programs of DeepSpeed, Lightning and others on the fronts of torch and Paddle.
    ("test-programs",): (
        "constraints.txt",
        "python/paddlempi/paddle",
        "python/paddlempi/torch",
        "python/paddlempi_autoload.py",
        "python/paddlempi_place.py",
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


def touched(root: Path, paths: tuple[str, ...]) -> bool:
    """Tell whether a commit of the last day has changed something below the paths."""
    log = ["git", "-C", str(root), "log", "-1", "--since=1.day", "--format=%h", "--", *paths]
    return bool(subprocess.run(log, capture_output=True, text=True, check=True).stdout)


def left_out(root: Path = ROOT) -> list[str]:
    """Return the targets that need not run."""
    return [name for names, paths in GROUPS.items() if not touched(root, paths) for name in names]


if __name__ == "__main__":
    print(*left_out())
