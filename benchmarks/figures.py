"""Measure what docs/benchmarks.md shows, and write the page: ``make figures``.

    .venv-openmpi/bin/python benchmarks/figures.py [--only call,step] [--try]
    .venv-openmpi/bin/python benchmarks/figures.py --list | --page

A part answers one question: a call, a message, a step ... In each, paddlempi takes turns with its
peers in the same processes. The figures of a machine are in docs/figures/MACHINE.json; the page and
docs/img/step.svg are made of all such files. A part is refused if other programs used more than a
tenth of the CPUs in the two seconds before it or while it ran: then its older figures stay, and the
exit status is 1. What this machine cannot run is left out by name.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import figures_page
import figures_rows as rows
import step_picture

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures"
PICTURE = ROOT / "docs" / "img" / "step.svg"
MEASURED = ROOT / "tools" / "matrix" / "measured.py"
AT_MOST = 0.1  # of the CPUs, by others
LOOP = 100  # calls in a loop of benchmarks/jax_primitives.py


def _root() -> str:
    return "" if os.geteuid() == 0 else "it needs root to make hosts in network namespaces"


def _gpu() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    return ""


def _has(*modules: str, environment: str = "openmpi") -> Callable[[], str]:
    """Return a function that says which module an environment lacks; "" if none."""

    def lacks() -> str:
        program = python(environment)
        if not program.exists():
            return f".venv-{environment} is not there"
        for module in modules:
            asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
            if subprocess.run([program, "-c", asked], check=False).returncode:
                return f".venv-{environment} has no {module}"
        return ""

    return lacks


def python(environment: str) -> Path:
    return ROOT / f".venv-{environment}" / "bin" / "python"


@dataclass(frozen=True)
class Run:
    """One command, which writes its record to the file that follows ``--json``.

    Attributes:
        means: what its table shows.
        words: the command's words behind Python.
        rows: makes rows of the record.
        quick: words that make it short, for ``--try``.
        ranks: how many run it; 0: it starts its ranks itself, or is one process.
        unit: of a row's time.
        note: the head of the column of notes; "" if there is none.
        environment: the name of its virtual environment.
        lacks: says why it cannot run here; "" if it can.
    """

    means: str
    words: str
    rows: Callable[[rows.Record], Iterator[rows.Row]]
    quick: str = "--iterations 10 --seconds 0.1 --sizes 8,1M"
    ranks: int = 2
    unit: str = "us"
    note: str = ""
    environment: str = "openmpi"
    lacks: Callable[[], str] = str

    def command(self, file: Path, quick: bool) -> list[str]:
        """Return the command that writes a record to a file."""
        program = str(python(self.environment))
        words = self.words.split()
        if words[0].endswith("on_hosts.py"):  # its own --json goes before the words behind --
            words[1:1] = ["--json", str(file)]
        else:
            words += ["--json", str(file)]
        words += self.quick.split() if quick else ()
        if not self.ranks:
            return [program, *words]
        launch = ["-m", "paddlempi.testing.launch", "-np", str(self.ranks), "--", "python"]
        return [program, *launch, *words]


@dataclass(frozen=True)
class Part:
    """A question, what answers it, and how many seconds that takes on two CPUs, about."""

    title: str
    seconds: int
    runs: tuple[Run, ...]


BENCH = "-m paddlempi bench"
CALLS = "all_reduce reduce_scatter all_gather broadcast all_to_all barrier"
UNTIL = "--iterations 400 --warmup 2 --seconds 1"
ALL_PEERS = "--against mpi,mpi4py,gloo"
OF_TORCH = "--sizes 8,64K,1M,32M --framework torch --against gloo"
PS = f"{BENCH} ps --dims 64 --batches 4096,65536 --rounds 20"
PS_QUICK = "--rounds 3 --batches 4096 --rows 10000"
HOSTS = "benchmarks/on_hosts.py --mpi openmpi --shape"
# Calls enough in front that the core has chosen among its ways.
WAYS = "all_reduce --against usual,mpi4py --sizes 128K,1M,16M"
WAYS += " --iterations 100 --warmup 50 --seconds 0.5"
WINDOWS = "benchmarks/windows.py"


def network(means: str, words: str) -> Run:
    """Return a run on two hosts between which there is another network."""
    return Run(
        means,
        f"{HOSTS} 2x1,2x2 {words} -- {WAYS}",
        rows.operations,
        quick="--iterations 10 --seconds 0.1 --warmup 2 --sizes 64K",
        ranks=0,
        note="way",
        lacks=_root,
    )


PARTS = {
    "call": Part(
        "A call",
        60,
        (
            Run(
                "Collectives of NumPy's arrays",
                f"{BENCH} {CALLS} {UNTIL} --sizes 8,64K,1M,16M --against mpi,mpi4py",
                rows.operations,
            ),
            Run(
                "Collectives of torch's tensors, through `torch.distributed`",
                f"{BENCH} all_reduce all_gather all_to_all {UNTIL} {OF_TORCH}",
                rows.operations,
                lacks=_has("torch"),
            ),
        ),
    ),
    "message": Part(
        "A message",
        30,
        (
            Run(
                "Messages of NumPy's arrays there and back",
                f"{BENCH} pingpong {UNTIL} --sizes 8,4K,64K,1M,16M --against mpi4py",
                rows.operations,
            ),
            Run(
                "Messages of torch's tensors from each rank to the next",
                f"{BENCH} sendrecv {UNTIL} {OF_TORCH}",
                rows.operations,
                lacks=_has("torch"),
            ),
        ),
    ),
    "step": Part(
        "Training steps",
        150,
        (
            Run(
                "Training steps of torch, the time above no communication",
                f"{BENCH} step ddp fsdp2 --against mpi,gloo --rounds 60",
                rows.operations,
                quick="--rounds 12 --model mlp-1M,mlp-16M",
                lacks=_has("torch"),
            ),
            Run(
                "Training steps of Paddle, the time above no communication",
                f"{BENCH} step paddle --model mlp-4M,mlp-16M,embedding-12M --against gloo "
                "--rounds 60",
                rows.operations,
                quick="--rounds 12 --model mlp-4M",
                lacks=_has("paddle"),
            ),
        ),
    ),
    "nodes": Part(
        "Several nodes",
        200,
        (
            Run(
                "Collectives and a message between two hosts",
                f"{HOSTS} 2x1,2x2 -- {CALLS} pingpong {UNTIL} --sizes 8,64K,4M {ALL_PEERS}",
                rows.operations,
                quick="--iterations 10 --seconds 0.1 --sizes 8,1M",
                ranks=0,
                lacks=_root,
            ),
            Run(
                "Training steps between two hosts, the time above no communication",
                f"{HOSTS} 2x1,2x2 -- step ddp fsdp2 hsdp --model mlp-16M --against mpi,gloo "
                "--rounds 40",
                rows.operations,
                quick="--rounds 12",
                ranks=0,
                lacks=_root,
            ),
        ),
    ),
    "networks": Part(
        "Other networks",
        300,
        (
            network("Two hosts that send 1 Gb/s", "--rate 1gbit"),
            network("Two hosts 1 ms apart", "--delay 1ms"),
        ),
    ),
    "files": Part(
        "Files",
        40,
        (
            Run(
                "A model cut by rows, saved and loaded",
                f"{BENCH} io --bytes 256M --iterations 8",
                rows.files,
                quick="--bytes 32M --iterations 2",
                ranks=4,
                unit="s",
            ),
        ),
    ),
    "windows": Part(
        "Windows",
        30,
        (
            Run(
                "A put into another rank's window and its flush",
                f"{WINDOWS} --rounds 60",
                rows.windows,
                quick="--rounds 3",
                lacks=_has("mpi4py"),
            ),
            Run(
                "The same between hosts, and the longest put in ms, ours and C's, while the target "
                "computes for 2 s",
                f"{HOSTS} 2x1 --program {WINDOWS} -- --rounds 30 --computing 1",
                rows.windows,
                quick="--rounds 3 --computing 0",
                ranks=0,
                note="computing",
                lacks=_root,
            ),
        ),
    ),
    "servers": Part(
        "Tables of embeddings",
        40,
        (
            Run(
                "Tables of embeddings on one thread",
                f"{PS} --level table",
                rows.servers,
                quick=PS_QUICK,
                ranks=0,
                lacks=_has("torch"),
            ),
            Run(
                "Rows between a trainer and a server",
                f"{PS} --level transport --grpc-program build/psgrpc",
                rows.servers,
                quick=PS_QUICK,
            ),
        ),
    ),
    "jax": Part(
        "JAX",
        90,
        (
            Run(
                f"`all_reduce` in a compiled function of JAX, and in a loop of {LOOP} there",
                "benchmarks/jax_primitives.py --rounds 20 --sizes 8 1048576 16777216",
                partial(rows.jax, loop=LOOP),
                quick="--rounds 3 --sizes 8 1048576",
                environment="jax",
                lacks=_has("jax", environment="jax"),
            ),
        ),
    ),
    "inference": Part(
        "Inference",
        120,
        (
            Run(
                "A small language model that transformers cuts over the ranks, and the part of the "
                "time that is communication",
                f"{BENCH} inference --rounds 20",
                rows.inference,
                quick="--rounds 2",
                unit="ms",
                note="communication",
                lacks=_has("paddlempi.cli.bench.inference", "transformers"),
            ),
        ),
    ),
    "gpu": Part(
        "Tensors in GPU memory",
        180,
        (
            Run(
                "`all_reduce` of tensors in the memory of a GPU that the ranks share; each ratio "
                "is named",
                "benchmarks/cuda.py",
                rows.gpu,
                quick="--rounds 3",
                lacks=_gpu,
            ),
        ),
    ),
}


class Refused(Exception):
    """Others use the machine."""


class Meter:
    """Which part of the CPUs other programs used since it was made.

    Those are all processes but this one, what it has started, and the kernel's threads, which write
    our files. What has ended counts in the process that has waited for it. Steal counts, too.
    """

    def __init__(self) -> None:
        self._used, self._all = self._read()

    @staticmethod
    def _read() -> tuple[float, float]:
        """Return the CPU seconds of others, and those of all CPUs since the machine began."""
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        processes: dict[int, tuple[int, int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                words = path.read_text().rpartition(")")[2].split()
                used = sum(map(int, words[11:15]))  # utime, stime, and those of ended children
                processes[int(path.parent.name)] = int(words[1]), used
        others = sum(used for pid, (_, used) in processes.items() if not _ours(pid, processes))
        hertz = os.sysconf("SC_CLK_TCK")
        return (others + ticks[7]) / hertz, sum(ticks) / hertz

    def others(self) -> float:
        used, total = self._read()
        return max(0.0, used - self._used) / max(total - self._all, 1e-9)


def _ours(pid: int, processes: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a process is this one, below it, or a thread of the kernel (kthreadd is number 2)."""
    while pid in processes and pid not in (2, os.getpid()):
        pid = processes[pid][0]
    return pid in (2, os.getpid())


def quiet(meter: Meter, when: str, quick: bool) -> float:
    """Return the part of the CPUs that others used; raise Refused if figures would suffer."""
    found = meter.others()
    if found > AT_MOST and not quick:
        raise Refused(f"others used {found:.0%} of the CPUs {when}; at most {AT_MOST:.0%}")
    return found


def measure(run: Run, seconds: int, quick: bool) -> list[Any]:
    """Run a command, and return the records that it has written."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "record.json")
        limit = str(10 * seconds)
        command = run.command(file, quick)
        print("+", *command, flush=True)
        measured = [sys.executable, str(MEASURED), f"{scratch}/report.json", limit, *command]
        path = f"{python(run.environment).parent}:{os.environ['PATH']}"
        done = subprocess.run(measured, cwd=ROOT, env={**os.environ, "PATH": path}, check=False)
        if done.returncode or not file.exists():
            raise SystemExit(f"figures: status {done.returncode} of: {' '.join(command)}")
        record = json.loads(file.read_text())
    return list(record["runs"]) if "runs" in record else [record]


def tables(run: Run, records: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield what is kept of each record."""
    for record in records:
        where = ""
        if "ranks" in record:
            nodes, ranks = record.get("nodes", 1), record["ranks"]
            where = (
                f"{nodes} nodes ({record['shape']})" if nodes > 1 else f"{ranks} ranks, one node"
            )
        yield {
            "means": run.means,
            "where": where,
            "unit": run.unit,
            "note": run.note,
            "rows": list(run.rows(record)),
            "missing": rows.missing(record),
        }


def about(record: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of what was measured."""
    found = {"paddlempi": record.get("paddlempi"), "Python": record.get("python")}
    found |= record.get("versions", {})
    if record.get("mpi"):
        name = record["mpi"]["version"].partition("\n")[0].partition(",")[0]
        found["MPI"] = " ".join(name.split())
    return {name: version for name, version in found.items() if version}


def measured_part(part: Part, quick: bool) -> dict[str, Any]:
    """Measure a part; raise Refused if others use the machine."""
    before = Meter()
    time.sleep(2)
    others = quiet(before, "before it", quick)
    load, began, meter = [os.getloadavg()[0]], time.monotonic(), Meter()
    made: list[dict[str, Any]] = []
    versions: dict[str, Any] = {}
    left_out = {}
    for run in part.runs:
        if reason := run.lacks():
            left_out[run.means] = reason
            continue
        records = measure(run, part.seconds, quick)
        made += tables(run, records)
        versions |= about(records[0])
    others = max(others, quiet(meter, "while it ran", quick))
    return {
        "title": part.title,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.monotonic() - began),
        "load": [round(value, 1) for value in (*load, os.getloadavg()[0])],
        "others": round(others, 3),
        "versions": versions,
        "tables": made,
        "left_out": left_out,
    }


def machine() -> tuple[str, str]:
    """Return a name of this machine for a file, and its words for the page."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor, cpus = found[1] if found else os.uname().machine, len(os.sched_getaffinity(0))
    name = re.sub(r"\W+", "-", re.sub(r"\((R|TM)\)|CPU|@.*", "", processor)).strip("-").lower()
    return f"{name}-{cpus}", f"{processor}, {cpus} CPUs"


def dumped(value: Any, indent: str = "") -> str:
    """Return JSON in which what is short stands on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(text) <= 150 or not isinstance(value, (dict, list)):
        return text
    more = indent + " "
    if isinstance(value, dict):
        lines = [f"{more}{json.dumps(key)}: {dumped(part, more)}" for key, part in value.items()]
    else:
        lines = [more + dumped(part, more) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(lines), indent + closing])


def measure_all(names: list[str], quick: bool) -> int:
    """Measure parts and keep their figures, or only print them. Return how many were refused."""
    name, words = machine()
    file = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    failed = 0
    for part in names:
        try:
            measured = measured_part(PARTS[part], quick)
        except Refused as reason:
            print(f"figures: {part}: {reason}; not measured", file=sys.stderr, flush=True)
            failed += 1
            continue
        found["parts"][part] = measured
        if quick:
            print("\n".join(figures_page.part_lines(measured)), flush=True)
            continue
        ordered = {key: found["parts"][key] for key in PARTS if key in found["parts"]}
        FOLDER.mkdir(exist_ok=True)
        file.write_text(dumped({"machine": words, "parts": ordered}) + "\n")
    return failed


def write_page() -> None:
    """Write docs/benchmarks.md and the picture of all machines' figures."""
    found = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    figures_page.PAGE.write_text(figures_page.page(found))
    pictures = [text for text in map(step_picture.drawn, found) if text]
    if pictures:
        PICTURE.write_text(pictures[0])


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="print the parts and their durations")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page")
    parser.add_argument(
        "--try", dest="quick", action="store_true", help="few rounds; write nothing"
    )
    chosen = parser.parse_args(arguments)
    names = chosen.only.split(",") if chosen.only else [*PARTS]
    for name in names:
        if name not in PARTS:
            parser.error(f"--only {name} is none of {', '.join(PARTS)}")
    if chosen.list:
        for name in names:
            missing = " ".join(filter(None, (run.lacks() for run in PARTS[name].runs)))
            print(f"{name:8} {PARTS[name].seconds:4} s  {PARTS[name].title}  {missing}".rstrip())
        return 0
    refused = 0 if chosen.page else measure_all(names, chosen.quick)
    if not chosen.quick:
        write_page()
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
