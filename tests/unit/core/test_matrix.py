"""The table of the tests, and the verbs of the Makefile: what they name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "matrix"))

import environments
import go_tests
import groups
from environments import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = re.findall(r"^## ([a-z-]+) ", MAKEFILE, re.M)


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Let make print what it would do, as a user's shell starts it and not as `make test` does."""
    ours = {"MPI", "FRAMEWORK", "PROGRAM", "NP", "MPIS", "RANKS", "OPS", "LEVELS", "SECONDS"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ours}
    env.pop("MFLAGS", None)
    words = ("make", "--dry-run", *words)
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)


def matrix(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/matrix", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def things_of(printed: str) -> list[str]:
    """Return the things that printed commands ask for: the first word, but all of `make`."""
    asked = re.findall(r"tools/matrix (?:in|ranks) (\S+)", printed)
    asked += " ".join(re.findall(r"tools/matrix make (.*)", printed)).split()
    return [thing for word in asked for thing in word.split(",")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_what_there_is(verb: str) -> None:
    done = make(verb)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for thing in things_of(done.stdout.replace("\\\n", "")):
        assert thing in environments.THINGS, done.stdout
    for script in re.findall(r"\b(?:examples|benchmarks|tools)/\w+(?:/\w+)?\.py\b", done.stdout):
        assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("mpi", ["openmpi", "mpich", "impi"])
@pytest.mark.parametrize("framework", ["paddle", "torch"])
def test_train_with_every_value(mpi: str, framework: str) -> None:
    done = make("train", f"MPI={mpi}", f"FRAMEWORK={framework}")
    assert f"{mpi}:example-{framework}" in environments.THINGS
    assert f"ranks {mpi}:example-{framework} 2" in done.stdout
    assert f"examples/{'train' if framework == 'paddle' else 'train_torch'}.py" in done.stdout


@pytest.mark.parametrize("program", ["dlrm", "words", "ratings", "layers"])
def test_train_ps_with_every_program(program: str) -> None:
    done = make("train-ps", f"PROGRAM={program}")
    framework = "paddle" if program == "words" else "torch"
    assert done.stdout.count(f"openmpi:example-{framework}") == 2
    assert (ROOT / f"examples/train_ps_{program}.py").is_file()


def test_the_makefile_is_a_door() -> None:
    assert len(MAKEFILE.splitlines()) <= 150
    assert max(map(len, MAKEFILE.splitlines())) <= 150
    shown = matrix("help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for verb in VERBS:
        assert f"make {verb} " in shown or verb == "help", verb
    for group in groups.GROUPS.values():
        assert f"make test-{group.family} " in shown


def test_every_path_of_the_table_is_there() -> None:
    for group in groups.GROUPS.values():
        for word in group.words:
            for path in re.findall(r"\btests/[\w/]+(?:\.py)?", word):
                assert (ROOT / path).exists(), (group.name, path)
        for need in group.needs:
            assert need in environments.THINGS, (group.name, need)


def test_every_folder_of_tests_is_in_the_table() -> None:
    run = {word for group in groups.of_tier("all") for word in group.words}
    for test in (ROOT / "tests").rglob("test_*.py"):
        path = test.relative_to(ROOT)
        assert {str(path), *map(str, path.parents)} & run, path


def test_a_file_for_one_rank_has_a_run() -> None:
    """Other tests of a front run on two ranks and more, where those for one rank are left out."""
    marked = {
        str(path.relative_to(ROOT))
        for front in ("torch", "paddle", "cuda")
        for path in (ROOT / "tests" / "ranks" / front).glob("test_*.py")
        if re.search(r"^pytestmark = .*mpi\(ranks=1\)", path.read_text(), re.M)
    }
    assert marked == set(groups.LISTS["TORCH_1"])
    assert groups.GROUPS["torch-newest-1"] in groups.of_tier("ci")


def test_tiers_contain_each_other() -> None:
    test, ci, everything = ({g.name for g in groups.of_tier(tier)} for tier in groups.TIERS)
    assert test < ci < everything < set(groups.GROUPS)
    # What everybody waits for must fit; `make budget` tells what .ci/run takes too much.
    total = sum(group.budget for group in groups.of_tier("test") if not group.on)
    assert total <= groups.BUDGETS["test"][1]


def test_make_test_needs_neither_apt_nor_qemu_nor_a_browser() -> None:
    needs = {need for group in groups.of_tier("test") for need in group.needs}
    assert not [name for name in environments.order(sorted(needs)) if "debian" in name]


def test_every_mpi_is_asked_the_contract_in_ci() -> None:
    names = {group.name for group in groups.of_tier("ci")}
    for mpi in groups.MPIS:
        assert f"faults-{mpi}" in names
        assert any(name.startswith(f"mpi-{mpi}-") for name in names)


def test_a_name_that_is_not_there() -> None:
    done = matrix("test", "nothing")
    assert done.returncode == 2 and "no such tests" in done.stderr


def test_one_test_again() -> None:
    """The command that a failure prints leads to the right environment."""
    for name in ("mpi-mpich-3", "torch-newest-2", "unit", "mpi-node-2"):
        assert re.match(r"make try .*T=\{test\}$", groups.GROUPS[name].again), name
    assert groups.GROUPS["mpi-mpich-3"].again == "make try MPI=mpich NP=3 T={test}"
    assert groups.GROUPS["mpi-node-2"].again == "make try MPI=node NP=2 T={test}"


def test_what_has_changed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "STAMPS", tmp_path / ".made")
    source, made = tmp_path / "source", []
    source.write_text("1")
    things = {
        "a": environments.Thing(lambda: made.append("a"), of=lambda: [source]),
        "b": environments.Thing(lambda: made.append("b"), after=("a",), minutes=2),
        "c": environments.Thing(lambda: made.append("c"), after=("a",), when=("a",)),
    }
    monkeypatch.setattr(environments, "THINGS", things)

    def ask() -> list[str]:
        environments.digest.cache_clear()
        made.clear()
        environments.make(["b", "c"])
        return list(made)

    assert ask() == ["a", "b", "c"]
    assert "making b (2 of 3), about 2 minutes\nmade b in 0 s\n" in capsys.readouterr().out
    assert ask() == []
    source.write_text("2")
    assert ask() == ["a", "c"]  # b only has to come after a


def test_why_a_thing_cannot_be_made_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "STAMPS", tmp_path / ".made")
    asked = []

    def refuse() -> None:
        asked.append(1)
        raise environments.LeftOut("no apt on this machine")

    monkeypatch.setattr(environments, "THINGS", {"debian": environments.Thing(refuse)})
    environments.digest.cache_clear()
    for _ in range(2):
        with pytest.raises(environments.LeftOut, match="no apt on this machine"):
            environments.make(["debian"])
    assert asked == [1]


def test_what_short_leaves_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(go_tests, "ROOT", tmp_path)
    package = tmp_path / "gocore" / "some"
    package.mkdir(parents=True)
    (package / "a_test.go").write_text(
        "func TestLong(t *testing.T) {\n\tif testing.Short() {\n\t}\n}\n\n"
        "func TestShort(t *testing.T) {\n\tsizes()\n}\n\n"
        "func TestOfEachSize(t *testing.T) {\n\teach(t, sizes())\n}\n"
    )
    (package / "b_test.go").write_text(
        "func each(t *testing.T) {\n\tfor n := range ofThisRun() {\n\t}\n}\n\n"
        "func ofThisRun() []int { return list(testing.Short()) }\n\n"
        "func sizes() []int { return []int{1} }\n"
    )
    (tmp_path / "gocore" / "c_test.go").write_text("func TestC(t *testing.T) { each() }\n")
    found = go_tests.long_tests(sorted(tmp_path.glob("gocore/**/*_test.go")))
    assert found == {"./gocore/some": {"TestLong", "TestOfEachSize"}}
