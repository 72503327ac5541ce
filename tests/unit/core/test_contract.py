"""The list of what every MPI is asked: each line names a test that is there, and says why."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import contract
import pytest

TESTS = contract.ROOT / "tests"


def names_in(file: Path) -> set[str]:
    """Return the names of the tests of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def entries() -> list[contract.Entry]:
    return contract.parse(contract.LIST.read_text(encoding="utf-8"))


def test_each_entry_names_a_test() -> None:
    for entry in entries():
        file, _, test = entry.name.partition("::")
        assert (contract.ROOT / file).is_file(), entry.name
        name = test.partition("[")[0]
        assert not test or name in names_in(contract.ROOT / file), entry.name


def test_no_entry_comes_twice() -> None:
    names = [entry.name for entry in entries()]
    assert sorted(set(names)) == sorted(names)


def test_an_entry_says_something_beyond_that_of_its_file() -> None:
    kinds = {entry.name: entry.kinds for entry in entries()}
    for name, own in kinds.items():
        for wider in (name.partition("[")[0], name.partition("::")[0]):
            assert wider == name or kinds.get(wider) != own, f"{name}: {wider} says it"


def test_kinds_are_those_of_mpis() -> None:
    for entry in entries():
        assert entry.kinds and set(entry.kinds) <= set(contract.KINDS), entry
        assert len(set(entry.kinds)) == len(entry.kinds), entry


@pytest.mark.parametrize("line", ["tests/x.py", "tests/x.py : ", "tests/x.py @openmpi: why"])
def test_a_line_without_a_reason_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        contract.parse(f"# first\n{line}\n")


def test_parameters_are_those_of_tests() -> None:
    """An id is known when it is collected. Ids of tests of several ranks are in no entry."""
    named = [entry.name for entry in entries() if "[" in entry.name]
    files = sorted({name.partition("::")[0] for name in named})
    assert not [file for file in files if not file.startswith("tests/jobs/")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--color=no", *files]
    # Where all tests run but those of other launchers.
    collected = subprocess.run(
        command,
        cwd=contract.ROOT,
        env={**os.environ, "TEST_ALL": "1", "CONTRACT": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = set(collected.stdout.splitlines())
    here = [e.name for e in entries() if e.name in named and contract.KIND in e.kinds]
    assert here, contract.KIND
    missing = [name for name in here if name not in found]
    assert not missing, f"{missing}\n{collected.stdout[-2000:]}{collected.stderr[-2000:]}"


def test_the_marks_before_the_list_are_gone() -> None:
    old = re.compile(r"\bone_(mpi|abi)\b")
    for file in TESTS.rglob("*.py"):
        if file != Path(__file__).resolve():
            assert not old.search(file.read_text(encoding="utf-8")), file


def test_launchers_have_a_reason() -> None:
    """The marker's first argument is one, and ``only`` names MPIs."""
    for folder in ("jobs/core", "jobs/faults"):
        for file in (TESTS / folder).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(
                    "mark.launcher"
                ):
                    continue
                where = f"{file.name}: line {node.lineno}"
                assert len(node.args) == 1 and ast.literal_eval(node.args[0]).strip(), where
                for given in node.keywords:
                    kinds = ast.literal_eval(given.value)
                    assert given.arg == "only" and set(kinds) <= set(contract.KINDS), where
