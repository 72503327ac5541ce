"""The documents agree with the code: programs run, links have a target, lists are complete."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import paddlempi
import pytest
from blocks import VERBS
from paddlempi import ReduceOp, errors
from paddlempi.testing import run
from paddlempi_bootstrap.known_launchers import BY_PROCESS

# Where a name of the API may be.
SCOPES = (
    paddlempi,
    paddlempi.work.WorkMethods,
    paddlempi.ProcessGroup,
    paddlempi.Window,
)

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

CHECK = """
import numpy as np
mine = [p.detach().numpy().tobytes() for p in model.parameters()]
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, mine)
assert dist.get_world_size() == 2 and everyone == [mine, mine]
print("trained", float(loss))
"""


def read(path: str) -> str:
    return (ROOT / path).read_text()


def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (program,) = re.findall(r"^```python\n(# train.py\n.*?)^```", read("README.md"), re.M | re.S)
    script = tmp_path / "train.py"
    script.write_text(program + CHECK)
    result = run(2, script, timeout=120)
    assert result.returncode == 0, result.output
    losses = [float(loss) for loss in re.findall(r"trained (\S+)", result.stdout)]
    assert len(losses) == 2 and max(losses) < 5, result.output  # the loss begins above 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page}: {target}"
        assert there.is_relative_to(ROOT), f"{page}: {target} is outside the repository"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            assert anchor in map(slug, headings), f"{page}: {target}"


def slug(heading: str) -> str:
    """Return the anchor that a Markdown renderer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_files_exist(page: Path) -> None:
    text = page.read_text()
    for verb in re.findall(r"(?:`|^)(?:[A-Z]+=\w+ )*make ([a-z0-9-]+)\b(?!-?[A-Z])", text, re.M):
        assert verb in VERBS, f"{page}: make {verb}"
    for name in re.findall(r"`((?:gocore|capi|python|tests|tools|examples|docs)/[\w./]+)`", text):
        assert (ROOT / name).exists(), f"{page}: {name}"


# What a function of a library reads, by the call of it.
READ_BY_CALLS = {
    r"\btempfile\.|\bos\.(?:TempDir|MkdirTemp|CreateTemp)\(": "TMPDIR",
    r"\bshutil\.which\(|\bexec\.LookPath\(": "PATH",
    r"\.expanduser\(|\bPath\.home\(|\bos\.UserHomeDir\(": "HOME",
}


def test_the_list_of_variables_is_that_of_the_code() -> None:
    """Every variable that Go, C or Python reads or sets is on the page, and no other."""
    used = {*go_variables(), *c_variables(), *python_variables()} - {"MPI_I"}  # part of a name
    # The search finds those of Go, of C's getenv, of Python, of tables and of libraries.
    known = {"PADDLEMPI_MPI", "XDG_RUNTIME_DIR", "GRPC_GO_LOG_SEVERITY_LEVEL", "HOME", "CC"}
    assert known | {"PADDLEMPI_ROLES", "SLURM_NTASKS", "TMPDIR", "PATH"} <= used
    text = re.sub(r"\]\([^)]*\)", "]", read("docs/settings.md"))
    assert not {name for name in used if not re.search(rf"`{name}[`=]", text)}
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    listed = set(re.findall(r"`([A-Z][A-Za-z0-9_]+)`", " ".join(rows)))
    code = "".join(sources("*.go", "*.c", "*.h", "*.py"))
    assert not {name for name in listed - used if f'"{name}"' not in code}


def sources(*patterns: str) -> Iterator[str]:
    """Yield the files that the package and its build are made from, without tests and fakes."""
    for folder in ("gocore", "capi", "python", "tools/build"):
        for pattern in patterns:
            for path in sorted((ROOT / folder).rglob(pattern)):
                fake = {"cudafake", "mpifake", "testdata"} & set(path.parts)
                if not fake and not path.name.endswith("_test.go"):
                    yield path.read_text()


def anywhere(text: str) -> Iterator[str]:
    """Yield what any file in Go or Python may tell: its calls, and names that are ours."""
    yield from (name for call, name in READ_BY_CALLS.items() if re.search(call, text))
    yield from re.findall(r"""["'](PADDLEMPI_[A-Z_]+)["']""", text)


def go_variables() -> Iterator[str]:
    """Yield the variables that Go reads or sets.

    These are the variables in the table of launchers. In files that touch the environment they
    are all strings in capitals with an underscore, and the arguments of the functions that read
    a variable.
    """
    launchers = re.sub(r"VariablePrefixes:.*?\}", "", read("gocore/launcher/table.go"), flags=re.S)
    yield from re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+)"', launchers)
    for text in sources("*.go"):
        yield from anywhere(text)
        if not re.search(r"\.env\(|\.get\(|[Ss]et.*Default\(|[a-z]env\(|LookupEnv\(", text):
            continue
        yield from re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', text)
        yield from re.findall(
            r'(?:[a-z]|\b)(?:get|env|number|Getenv|LookupEnv)\("([A-Z]+)"\)', text
        )


def c_variables() -> Iterator[str]:
    """Yield the variables that C reads. PADDLEMPI_KILL is compiled into tests only."""
    for text in sources("*.c", "*.h"):
        yield from set(re.findall(r'\bgetenv\("(\w+)"\)', text)) - {"PADDLEMPI_KILL"}


def python_variables() -> Iterator[str]:
    """Yield the variables that Python reads: the same strings, in files with the word environ."""
    for text in sources("*.py"):
        yield from anywhere(text)
        if "environ" not in text and "getenv" not in text:
            continue
        for node in ast.parse(text).body:
            yield from re.findall(r"'([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)'", ast.unparse(node))
            yield from re.findall(
                r"(?:environ(?:\.get\(|\[)|getenv\()'([A-Z]+)'", ast.unparse(node)
            )


def test_every_launcher_is_documented() -> None:
    page = (DOCS / "install.md").read_text()
    assert not {name for name in BY_PROCESS if f"`{name}`" not in page}


def test_every_exported_name_is_documented() -> None:
    page = (DOCS / "api.md").read_text()
    page = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    code = " ".join(re.findall(r"`([^`]+)`", page))
    missing = {name for name in paddlempi.__all__ if not re.search(rf"\b{name}\b", code)}
    assert not missing


def test_signatures_are_those_of_the_code() -> None:
    """Every one in a table of the API: names, their order, and defaults."""
    names = {**vars(ReduceOp), "timedelta": timedelta, "signal": signal}
    rows = re.findall(r"^\| (`[^|]*) \|", (DOCS / "api.md").read_text(), re.M)
    printed = [found for row in rows for found in re.findall(r"`(\w+)\(([^`]*)\)`", row)]
    compared = set()
    for name, arguments in printed:
        function = next((vars(scope)[name] for scope in SCOPES if name in vars(scope)), None)
        if function is None or "..." in arguments:
            continue
        wanted = inspect.signature(eval(f"lambda {arguments}: 0", names)).parameters
        real = dict(inspect.signature(function).parameters)
        real.pop("self", None)
        if "rank_list" not in wanted:
            real.pop("rank_list", None)
        one, two = ([(p.name, p.kind, p.default) for p in ps.values()] for ps in (real, wanted))
        assert one == two, name
        compared.add(name)
    assert {"gather", "scatter", "init_process_group", "wait", "allreduce"} <= compared


@pytest.mark.parametrize(
    "cls",
    [paddlempi.Work, paddlempi.ProcessGroup, paddlempi.DistContext, paddlempi.Window],
    ids=lambda c: c.__name__,
)
def test_every_public_method_is_documented(cls: type) -> None:
    page = (DOCS / "api.md").read_text()
    missing = {n for n in vars(cls) if not n.startswith("_") and not re.search(rf"`{n}\b", page)}
    assert not missing


def codes() -> dict[int, str]:
    """Return the codes of the core's errors, without OK: the name in Go by number."""
    found = re.findall(r"^\t(\w+) +Code += (\d+)", read("gocore/status/status.go"), re.M)
    return {int(number): name for name, number in found if number != "0"}


def test_every_status_code_is_documented() -> None:
    page = (DOCS / "errors.md").read_text()
    header = re.findall(r"PMPI_ERR_(\w+) = (\d+)", read("capi/pmpi.h"))
    assert {int(number) for _, number in header} == set(codes())
    for name, number in header:
        (row,) = re.findall(rf"^\| {number} \| `{name}` \| (.*)$", page, re.M)
        cls = errors.BY_CODE.get(int(number))
        assert f"`{cls.__name__ if cls else 'KeyboardInterrupt'}`" in row.partition("|")[0]


def test_the_tree_of_exceptions_is_the_real_one() -> None:
    page = (DOCS / "errors.md").read_text()
    tree = re.search(r"^```\n(Error\n.*?)^```", page, re.M | re.S)
    assert tree is not None
    path: list[str] = []
    seen = set()
    for line in tree[1].splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)(?: +\(([\w.]+)\))?$", line)
        assert match is not None, line
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        cls = getattr(errors, match[2])
        seen.add(match[2])
        if depth:
            assert cls.__bases__[0] is getattr(errors, path[depth - 1]), line
        if match[3]:
            assert match[3].rpartition(".")[2] in {b.__name__ for b in cls.__mro__[1:]}, line
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert seen == classes


def test_every_control_method_is_documented() -> None:
    methods = []
    for file, beginning in (
        ("gocore/control/control.go", r"^var methods ="),
        ("gocore/ps/job/process.go", r"^func \(p \*Process\) Methods\(\)"),
    ):
        table = re.search(beginning + r".*?^}", read(file), re.M | re.S)
        assert table is not None
        methods += re.findall(r'^\t+"(\w+)":', table[0], re.M)
    assert methods == re.findall(r"^## (\w+)$", (DOCS / "control.md").read_text(), re.M)


def test_every_algorithm_is_documented() -> None:
    page = (DOCS / "algorithms.md").read_text()
    rows: dict[str, set[str]] = {}
    operation = ""
    for names, algorithm in re.findall(r"^\| ([^|]*) \| `(\w+)` \|", page, re.M) + re.findall(
        r"^\|( )\| `(\w+)` \|", page, re.M
    ):
        operation = names.strip() or operation
        rows.setdefault(algorithm, set()).add(operation)
    files = (ROOT / "gocore" / "coll").glob("*.go")
    built = {name for f in files for name in re.findall(r'Algorithm\{Name: "(\w+)"', f.read_text())}
    assert built == set(rows)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return tools/way/way.py."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "way"))
    return importlib.import_module("way")


def test_the_way_of_a_call_names_what_is_there(way: ModuleType) -> None:
    text = read("docs/way.md")
    assert text.startswith(way.HEAD), "make way"
    assert [f"## {case.title}" for case in way.CASES] == re.findall(r"^## .*", text, re.M)
    assert not list(way.missing(text)), "make way"
    gone = "1. `capi/gone.c`: `f`\n2. `gocore/core.go`: `Gone`, `Submit`\n"
    gone += "3. `capi/guard.c`: `gone`\n"
    gone += "4. `python/paddlempi/collectives.py`: `gone`, `all_reduce`\n"
    assert list(way.missing(gone)) == [
        "capi/gone.c",
        "gocore/core.go: Gone",
        "capi/guard.c: gone",
        "python/paddlempi/collectives.py: gone",
    ]


def test_a_call_that_goes_another_way_is_told(way: ModuleType) -> None:
    case = way.CASES[0]
    usual, rare, new = (way.Function("gocore/group/a.go", name) for name in "ABC")

    def told(was: object, now: object) -> list[str]:
        text = way.page([(case, was)])
        return list(way.differences(case, way.written(text, case), now))

    one = way.Trace([[usual, rare]], 1, 1, frozenset({usual}))
    assert way.written(way.page([(case, one)]), case).always == {usual}
    assert told(one, one) == []
    assert told(one, way.Trace([[usual]], 1, 1, frozenset({usual}))) == []  # a matter of time
    also = way.Trace([[usual, rare, new]], 1, 1, frozenset({usual, new}))
    (added,) = told(one, also)
    assert added.endswith("every call enters gocore/group/a.go: C, which the page does not have")
    (gone,) = told(also, one)
    assert gone.endswith("calls do not enter gocore/group/a.go: C any more")
    assert f"{case.title}: 4 calls, the page says 1" in told(one, one._replace(calls=4))
    assert list(way.differences(case, way.written("", case), one))


def test_the_aims_of_a_way_are_judged(way: ModuleType) -> None:
    case = way.Case("a", "A call", (("files", 1), ("python and go", 1)))
    files = [way.Function(f"gocore/group/{name}.go", "F") for name in "ab"]
    one, two = (way.count(way.Trace([files[:n]], 1, 1)) for n in (1, 2))
    assert [row.split(" | ")[-1] for row in way.aims(case, one)] == ["met |", "met |"]
    assert [row.split(" | ")[-1] for row in way.aims(case, two)] == ["**not met** |"] * 2


def test_the_ways_crossings_are_counted(way: ModuleType) -> None:
    def walk(*rooms: str) -> list[object]:
        return [way.Function(f"{room}/a.go", f"F{i}") for i, room in enumerate(rooms)]

    group, op, coll = "gocore/group", "gocore/op", "gocore/coll"
    down = walk(group, group, coll, op)
    assert way.crossings([down]) == way.Crossings(stays=3, rooms=3, returns=0, climbs=0)
    up = walk(group, op, coll, group)  # another thread: it has returned from nowhere at its begin
    assert way.crossings([up]) == way.Crossings(stays=4, rooms=3, returns=1, climbs=2)
    assert way.crossings([down, up]) == way.Crossings(stays=7, rooms=3, returns=1, climbs=2)


def test_the_way_has_what_most_calls_enter(way: ModuleType) -> None:
    common, rare = way.Function("gocore/group/a.go", "A"), way.Function("gocore/op/a.go", "B")
    short = way.Trace([[common]], calls=1, entries=1)
    long = way.Trace([[common, rare]], calls=3, entries=2)
    each = frozenset({common})
    assert way.usual([short, long, short]) == short._replace(always=each)
    assert way.usual([long, short, long]) == long._replace(always=each)
    assert way.usual([short, long, short, long, long]) == long._replace(always=each)
    other = way.Trace([[common], [rare]], calls=2, entries=1)  # rare in another thread
    assert way.usual([short, other, short]) == short._replace(always=each)


def test_the_tour_names_what_is_there() -> None:
    tour = read("gocore/doc.go")
    named = re.findall(r"\b([a-z]+)\.([A-Z]\w+)(?:\.([A-Z]\w+))?", tour)
    assert ("collective", "Group", "Submit") in named
    for room, name, method in named:
        files = [f for f in (ROOT / "gocore" / room).glob("*.go") if not f.stem.endswith("_test")]
        defined = rf"func \(\w+ \*?{name}\) {method}\(" if method else rf"(?:func|type) {name}\b"
        text = "\n".join(file.read_text() for file in files)
        assert re.search(f"^{defined}", text, re.MULTILINE), (room, name, method)
    for room in re.findall(r"\(package (\w+)\)", tour):
        assert (ROOT / "gocore" / room).is_dir(), room


def test_every_page_is_two_clicks_from_the_readme() -> None:
    def linked(page: str, prefix: str = "") -> set[str]:
        return set(re.findall(rf"\]\({prefix}([\w-]+\.md)(?:#[\w-]*)?\)", read(page)))

    one = linked("README.md", "docs/")
    two = set().union(*(linked(f"docs/{page}") for page in one))
    assert {page.name for page in DOCS.glob("*.md")} <= one | two


# What a reader who has never seen it looks for, and a heading that answers it.
LOOKED_FOR = {
    "on-a-cluster.md": "A script for sbatch",
    "why-is-my-step-slow.md": "Why is my step slow?",
    "when-a-rank-dies.md": "What happens when a rank dies?",
    "install.md": "Which MPI is taken",
    "testing.md": "Testing on several ranks",
}


def test_what_people_look_for_is_one_click_from_the_readme() -> None:
    readme = read("README.md").partition("## Documents")[0]
    for page, heading in LOOKED_FOR.items():
        assert f"](docs/{page}" in readme, page
        assert re.search(rf"^#+ {re.escape(heading)}$", read(f"docs/{page}"), re.M), heading


# Pages that do not show first what one sees: a cluster's is another everywhere.
WITHOUT_OUTPUT = {"on-a-cluster.md", "benchmarks.md", "architecture.md"}


def test_pages_begin_with_a_program_and_its_output() -> None:
    pages = re.findall(r": ([\w-]+\.md)$", read("mkdocs.yml").partition("\nnav:\n")[2], re.M)
    for page in {*pages, "security.md"} - WITHOUT_OUTPUT:
        text = read("README.md" if page == "index.md" else f"docs/{page}")
        assert re.search(r"^```(python|sh|console)\b", "\n".join(text.splitlines()[:16]), re.M), (
            page
        )
        (first, *later) = re.findall(r"^```([^\n]*)\n.*?^```$", text, re.M | re.S)[:4]
        assert first == "console" or "text" in later, page


def test_the_navigation_is_short() -> None:
    nav = read("mkdocs.yml").partition("\nnav:\n")[2]
    assert 20 <= len(re.findall(r": [\w/-]+\.md$", nav, re.M)) <= 30


def test_every_decision_is_in_the_list() -> None:
    index = (DOCS / "adr" / "README.md").read_text()
    records = sorted((DOCS / "adr").glob("[0-9]*.md"))
    assert [r.name for r in records] == re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)
    for record in records:
        text = record.read_text()
        title = re.match(r"# (\d{4}): \S", text)
        assert title is not None and record.name.startswith(title[1]), record
        headings = re.findall(r"^## (.*)$", text, re.M)
        assert headings == ["Context", "Decision", "Consequence"], record


# How long the documents are: people read them. What is cut is said elsewhere, or gone.

APART = {"control.md", "faults.md", "ops.md", "way.md"}  # generated, or tables
PAGES_AT_MOST = 45_000  # words of docs/, without decisions and what is generated
WITH_DECISIONS = (
    72_388  # 45 % less than before they were cut; without the figures, a generated page
)
LAST_CUT = "0065"  # the last decision that was there then
DECISION_AT_MOST = 500
FIGURES_AT_MOST = 3_000
GENERATED = re.compile(r"<!-- Generated [^>]*-->.*?<!-- End of [^>]*-->", re.S)


def words(page: Path) -> int:
    """Count the words of a page that people have written."""
    return len(GENERATED.sub("", page.read_text()).split())


def test_the_pages_are_short() -> None:
    pages = sum(words(page) for page in DOCS.glob("*.md") if page.name not in APART)
    records = {page.name[:4]: words(page) for page in (DOCS / "adr").glob("[0-9]*.md")}
    decisions = sum(number for name, number in records.items() if name <= LAST_CUT)
    assert not {name for name in records if name > LAST_CUT and records[name] > DECISION_AT_MOST}
    assert pages <= PAGES_AT_MOST
    figures = words(DOCS / "benchmarks.md")
    assert figures <= FIGURES_AT_MOST
    assert pages - figures + decisions <= WITH_DECISIONS


def test_readme_and_changelog_are_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 1_200 and len(readme.splitlines()) <= 100
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


def prose(text: str) -> Iterator[str]:
    """Yield the lines that are neither of a table, nor of a block of code, nor one link."""
    text = re.sub(r"^( *)```.*?^\1```", "", GENERATED.sub("", text), flags=re.M | re.S)
    for line in text.splitlines():
        if not line.lstrip().startswith("|") and " " in line.strip():
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_fit(page: Path) -> None:
    if page.name in APART:
        return  # they are made by programs
    assert not [line for line in prose(page.read_text()) if len(line) > 120]


def test_what_counts_as_prose() -> None:
    text = "a line\n| a row |\n```sh\na command\n```\n* a\n\n  ```\n  b c\n  ```\n[link](a)\nb c\n"
    assert list(prose(text)) == ["a line", "* a", "b c"]
