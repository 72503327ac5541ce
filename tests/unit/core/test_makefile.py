"""Every verb of the Makefile finds all that it needs in a fresh clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import left_out

ROOT = left_out.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
HELP = re.findall(r"^## (\S+) +(.*)$", MAKEFILE, re.M)
VERBS = {verb for verb, _ in HELP}
PHONY = set(" ".join(re.findall(r"^\.PHONY: ([^$\n]+)$", MAKEFILE, re.M)).split())


def values(variable: str) -> list[str]:
    """Return the values of a variable that `make help` names: NAME=default (another, another)."""
    found = {
        (default, *re.split(r",\s*", others))
        for _, text in HELP
        for default, others in re.findall(rf"\b{variable}=(\w+) \(([^)]+)\)", text)
    }
    (one,) = found
    return list(one)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what git has of this tree: nothing that make or pip has made."""
    folder = tmp_path_factory.mktemp("clone")
    listing = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # a file that was removed, but is not committed yet, is not
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_a_file_for_one_rank_has_a_run() -> None:
    """Other tests of a front run on two ranks and more, where those for one rank are left out."""
    marked = {
        str(path.relative_to(ROOT))
        for front in ("torch", "paddle", "cuda")
        for path in (ROOT / "tests" / "ranks" / front).glob("test_*.py")
        if re.search(r"^pytestmark = .*mpi\(ranks=1\)", path.read_text(), re.M)
    }
    (run,) = re.findall(r"^TORCH_TESTS_1 := (.*)$", MAKEFILE, re.M)
    assert marked == set(run.split())
    assert "test-torch-newest-1" in MAKEFILE


def plan(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Let make print what it would do, as a user's shell starts it and not as `make test` does."""
    variables = {"MPI", "FRAMEWORK", "PROGRAM", "NP", "MPIS", "RANKS", "OPS", "LEVELS", "LEAVE_OUT"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in variables}
    env.pop("MFLAGS", None)
    return subprocess.run(
        ["make", "--dry-run", *words], cwd=clone, env=env, capture_output=True, text=True
    )


def combinations() -> Iterator[tuple[str, str]]:
    return product(values("MPI"), values("FRAMEWORK"))


def test_help_names_values() -> None:
    assert values("MPI") == ["openmpi", "mpich", "impi"]
    assert values("FRAMEWORK") == ["paddle", "torch"]
    assert values("PROGRAM") == ["dlrm", "words", "ratings", "layers"]
    assert {"train", "train-ps", "test", "lint", "help"} <= VERBS <= PHONY


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_finds_what_it_needs(clone: Path, verb: str) -> None:
    done = plan(clone, verb)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("mpi", "framework"), combinations())
def test_all_verbs_find_what_they_need(clone: Path, mpi: str, framework: str) -> None:
    """With every value that help names, and the verbs that help does not list."""
    done = plan(clone, "--keep-going", *sorted(PHONY), f"MPI={mpi}", f"FRAMEWORK={framework}")
    assert done.returncode == 0, done.stderr
    assert f"examples/{'train' if framework == 'paddle' else 'train_torch'}.py" in done.stdout


@pytest.mark.parametrize("program", values("PROGRAM"))
def test_each_program_finds_what_it_needs(clone: Path, program: str) -> None:
    done = plan(clone, "train-ps", f"PROGRAM={program}")
    assert done.returncode == 0, done.stderr
    script = f"examples/train_ps_{program}.py"
    assert done.stdout.count(script) == 2 and (clone / script).is_file()
    framework = "paddle" if program == "words" else "torch"
    assert f"examples/requirements-{framework}.txt" in done.stdout


def test_a_missing_rule_is_noticed(clone: Path) -> None:
    broken = clone / "broken.mk"
    broken.write_text("include Makefile\ntrain: .venv-openmpi/.example-nothing\n")
    done = plan(clone, "--file", broken.name, "train")
    assert done.returncode and "example-nothing" in done.stderr


def groups(clone: Path, verb: str, *words: str) -> set[str]:
    """Return the groups of tests that a verb starts."""
    (line,) = [s for s in plan(clone, verb, *words).stdout.splitlines() if "--output-sync" in s]
    return {word for word in line.split() if word.startswith("test-")}


def test_what_is_named_is_left_out(clone: Path) -> None:
    named = {name for names in left_out.GROUPS for name in names}
    everything = groups(clone, "test")
    assert everything >= named
    assert groups(clone, "test", f"LEAVE_OUT={' '.join(named)}") == everything - named
    assert groups(clone, "test-all", f"LEAVE_OUT={' '.join(named)}") >= everything
