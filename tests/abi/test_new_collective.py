"""What a new collective costs: a row, one Go file, one function in Python and its test.

``exscan2``, a copy of ``exscan``, is added to a copy of the tree. All else is generated. The core
is built there, the new test runs on 2 ranks, and so do the tests that have lists of operations.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from abi_here import ROOT, tools_python

# What is written by hand. collectives.py has generated text, too.
BY_HAND = {
    "tools/opgen/table.go",
    "gocore/coll/exscan2_mpi.go",
    "python/paddlempi/collectives.py",
    "tests/ranks/core/test_exscan2.py",
}

ALGORITHM = """package coll

// exscan2MPI is MPI_Exscan.
var exscan2MPI = Algorithm{Name: "mpi", Memory: hostMemory, Enabled: byMPI,
	scratch: scanMPI.scratch, build: scanMPI.build}
"""

TEST = """
import numpy as np
import paddlempi
import pytest
from paddlempi import ReduceOp


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("how", ["sync", "async", "rank_list"])
def test_exscan2(dist, rank, size, dtype, how):
    assert "TREE" in paddlempi.__file__
    tensor, wanted = (np.arange(9).astype(dtype) + rank for _ in range(2))
    dist.exscan(wanted, ReduceOp.SUM)
    if how == "async":
        dist.exscan2(tensor, async_op=True).wait()
    else:
        dist.exscan2(tensor, rank_list=[[0, 1]] if how == "rank_list" else None)
    np.testing.assert_array_equal(tensor, wanted)


def test_the_name_is_in_errors(dist, rank):
    with pytest.raises(dist.errors.DtypeError, match="exscan2"):
        dist.exscan2(np.zeros(3), ReduceOp.AVG)
    with pytest.raises(dist.errors.MismatchError, match="exscan2"):
        (dist.exscan2 if rank else dist.exscan)(np.zeros(3))


def test_its_algorithm_can_be_forced(dist, monkeypatch):
    monkeypatch.setenv("PADDLEMPI_ALGO", "exscan2:mpi")
    dist.exscan2(np.zeros(3), group=dist.new_group([0, 1]))
"""

# Tests in Python and Go that go through the operations, without those that take long.
LISTS = ["test_ops", "test_api_exports", "test_api_collectives", "test_docs"]
SLOW = "not costs and not runs and not loads"
REGISTRY = "^Test(EveryCollectiveHasAnAlgorithm|EveryAlgorithmCanBeForced|NoAlgorithm|What.*)$"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that git tracks or would add."""
    listed = run(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(folder: Path, *command: str, **env: str) -> str:
    """Run a command, which must succeed, and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def add_exscan2(tree: Path) -> None:
    """Write what a new collective needs from its author."""
    table = tree / "tools/opgen/table.go"
    text = table.read_text()
    (row,) = re.findall(r'^\t\{\n\t\tCode: \d+, Ident: "Exscan",.*?^\t\},\n', text, re.M | re.S)
    last = max(int(code) for code in re.findall(r"^\t\tCode: (\d+), Ident", text, re.M))
    row = re.sub(r"Code: \d+", f"Code: {last + 1}", row)
    for old, new in (("Exscan", "Exscan2"), ("exscan", "exscan2"), ("scanMPI", "exscan2MPI")):
        row = row.replace(f'"{old}"', f'"{new}"')
    before, operations, rest = text.partition("var operations = []operation{\n")
    body, end, rest = rest.partition("\n}\n")
    table.write_text(f"{before}{operations}{body}\n{row.rstrip()}{end}{rest}")

    (tree / "gocore/coll/exscan2_mpi.go").write_text(ALGORITHM)

    module = tree / "python/paddlempi/collectives.py"
    text = module.read_text()
    (function,) = re.findall(r"^def exscan\(.*?\n(?=\n\ndef )", text, re.M | re.S)
    copied = function.replace("exscan", "exscan2").replace("EXSCAN", "EXSCAN2")
    module.write_text(text.replace(function, f"{function}\n\n{copied}"))

    test = tree / "tests/ranks/core/test_exscan2.py"
    test.write_text(TEST.replace("TREE", str(tree)))


def differing(tree: Path) -> set[str]:
    """Return the files of the copy that are new or not those of the tree."""
    return {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (
            not (original := ROOT / path.relative_to(tree)).exists()
            or original.read_bytes() != path.read_bytes()
        )
    }


def test_a_new_collective_costs_a_row(tree: Path) -> None:
    python = tools_python()
    add_exscan2(tree)
    assert differing(tree) == BY_HAND

    generators = (ROOT / "tools" / "verify.py").read_text()
    assert '"run", "./tools/opgen")' in generators and '"tools/fronts.py")' in generators
    run(tree, python, "tools/go.py", "run", "./tools/opgen")
    run(tree, python, "tools/fronts.py")
    for name in differing(tree) - BY_HAND:
        generated = r"[Gg]enerated by tools/(opgen|fronts)"
        assert re.search(generated, (tree / name).read_text()), name

    core = tree / "python/paddlempi/_core.abi3.so"
    build = "import core, sys, pathlib; core.build(pathlib.Path(sys.argv[1]), pymodule=True)"
    run(tree, python, "-c", build, str(core), PYTHONPATH=str(tree / "tools/build"))
    ours = {"PYTHONPATH": str(tree / "python")}
    pytest_here = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    on_ranks = (sys.executable, "-m", "paddlempi.testing.launch", "-np", "2", "--", *pytest_here)
    new = "tests/ranks/core/test_exscan2.py"
    assert "11 passed" in run(tree, *on_ranks, "--mpi", "--mpi-ranks", "2", new, **ours)

    run(tree, *pytest_here, "-k", SLOW, *(f"tests/unit/core/{name}.py" for name in LISTS), **ours)
    test = (python, "tools/go.py", "test", "-vet=off", "-trimpath")
    run(tree, *test, "./gocore/op", "./tools/opgen")
    run(tree, *test, "-run", REGISTRY, "./gocore/coll")
