"""``python -m paddlempi bench`` on several hosts, which network namespaces make of this machine.

    python benchmarks/on_hosts.py [--mpi NAME,...] [--shape 2x1,2x2] [--json FILE] [-- WORDS]
    python benchmarks/on_hosts.py --rate 1gbit --delay 1ms --shape 2x1 [-- WORDS]
    python benchmarks/on_hosts.py --program benchmarks/windows.py --shape 2x1 [-- WORDS]
    make bench-hosts

It starts the command under every MPI that has an environment here (``.venv-NAME``) and for every
shape, hosts x ranks on each, one after the other. The default prints two tables for each: of
operations of 8 bytes to 16 MiB, against mpi4py and gloo, and of the steps of DDP, FSDP2 and HSDP,
against gloo; WORDS are other arguments of the command, or those of another program. FILE gets the
records of all runs, of which ``benchmarks/figures.py`` makes docs/benchmarks.md. The hosts share
the processors and the memory of this machine, and their network is TCP over veth: what is compared
in a run holds, times do not.
With --rate or --delay the network is slower (tools/cluster/hosts.py, ``slow``); the default then
compares only all_reduce, with what it takes in the usual way. It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "cluster"))

import mpis
import requirements
from hosts import Hosts

SHAPES = "2x1,2x2"
KINDS = ("ddp", "fsdp2", "hsdp")
# Both shapes of an MPI take about six minutes on two idle CPUs.
OPERATIONS = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"),
    *("pingpong", "barrier", "--sizes", "8,1K,16K,32K,64K,128K,256K,512K,1M,4M,16M"),
    *("--iterations", "400", "--warmup", "2", "--seconds", "1", "--table"),
)
STEPS = ("step", *KINDS, "--model", "mlp-1M,mlp-16M", "--rounds", "30", "--table")
# On a slow network: what the tuner of the core (docs/algorithms.md) makes of it.
SLOWLY = (
    *("all_reduce", "--against", "usual,mpi4py", "--sizes", "64K,128K,256K,512K,1M,4M,16M"),
    *("--iterations", "100", "--warmup", "40", "--seconds", "0.5", "--table"),
)
HOUR = 3600


def words(python: Path) -> list[Sequence[str]]:
    """Return what is measured if the user does not say it: without steps where torch is missing."""
    asked = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    if subprocess.run([python, "-c", asked], check=False).returncode == 0:
        return [OPERATIONS, STEPS]
    print(f"not measured: {', '.join(KINDS)}: torch is not installed", flush=True)
    return [OPERATIONS]


def layout(shape: str) -> list[tuple[str, int]]:
    """Read a shape: "2x3" are the hosts h1 and h2 with three ranks each."""
    hosts, _, ranks = shape.partition("x")
    if not (hosts.isdecimal() and ranks.isdecimal() and int(hosts) and int(ranks)):
        raise SystemExit(f"on_hosts: --shape {shape}: it must be hosts x ranks on each, as 2x1")
    return [(f"h{i + 1}", int(ranks)) for i in range(int(hosts))]


def seconds(delay: str) -> float:
    """Read a delay: "50us" or "1ms"."""
    for unit, value in (("us", 1e-6), ("ms", 1e-3)):
        number = delay.removesuffix(unit)
        if number != delay and number.isdecimal():
            return int(number) * value
    raise argparse.ArgumentTypeError(f"{delay}: it must be a number of us or ms, as 50us")


def measure(
    mpi: mpis.MPI,
    hosts: Hosts,
    on: Sequence[tuple[str, int]],
    program: str | None,
    given: Sequence[str],
    record: Path | None,
) -> int:
    """Run the command on some hosts and print what it prints. Return its exit status.

    Args:
        mpi, hosts, on: under which MPI, and where.
        program: the file of another command.
        given: the arguments.
        record: which file the command writes.
    """
    ranks = sum(count for _, count in on)
    # Every rank would take all processors for its own host's.
    threads = max(1, (os.cpu_count() or 1) // ranks)
    variables = [f"OMP_NUM_THREADS={threads}"]
    if "CC" in os.environ:  # a host inherits nothing
        variables.append(f"CC={os.environ['CC']}")
    command = [*mpi.mpirun(hosts, on), "env", *variables, str(mpi.python)]
    if program is None:
        command += ["-m", "paddlempi", "bench", *given]
    else:
        command += [str(Path(program).resolve()), *given]
    if record is not None:
        command += ["--json", str(record)]
    result = hosts.execute(command, timeout=HOUR, env=mpi.environment())
    print(result.out, end="", flush=True)
    if result.code != 0 or result.timed_out:
        print(result, file=sys.stderr, flush=True)
    return 1 if result.timed_out else abs(result.code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", default=",".join(mpis.NAMES), metavar="NAME,...")
    parser.add_argument("--shape", default=SHAPES, metavar="NxP,...", help=SHAPES)
    parser.add_argument(
        "--rate", default="", metavar="RATE", help="hosts send no faster: 1gbit, as tc reads it"
    )
    parser.add_argument(
        "--delay",
        type=seconds,
        default=0,
        metavar="TIME",
        help="what a host sends arrives later: 50us, 1ms; some 30 us more is its own",
    )
    parser.add_argument("--program", metavar="FILE", help="instead of python -m paddlempi bench")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records of all runs")
    parser.add_argument("words", nargs="*", help="of python -m paddlempi bench, behind --")
    chosen = parser.parse_args()

    shapes = [layout(shape) for shape in chosen.shape.split(",")]
    names = chosen.mpi.replace(",", " ").split()
    for name in names:
        if name not in mpis.NAMES:
            parser.error(f"--mpi {name} is none of {', '.join(mpis.NAMES)}")
    missing = requirements.hosts_missing()
    if chosen.delay:
        missing = missing or requirements.delay_missing()
    if missing:
        print(f"on_hosts: {missing}", file=sys.stderr)
        return 1
    given = list(chosen.words)
    network = [f"{chosen.rate}"] * bool(chosen.rate)
    network += [f"{1e6 * chosen.delay:.0f} us away"] * bool(chosen.delay)
    if network and not given and chosen.program is None:
        given = [*SLOWLY]
    found = [mpis.MPI(name, mpis.ROOT / f".venv-{name}") for name in names]
    worst = measured = 0
    runs: list[Any] = []
    with (
        Hosts(max(map(len, shapes))) as hosts,
        hosts.slow(chosen.rate, chosen.delay),
        tempfile.TemporaryDirectory() as folder,
    ):
        record = Path(folder, "record.json") if chosen.json else None
        for mpi in found:
            lacks = requirements.venv_missing(mpi.python)
            if lacks:
                print(f"not measured: {mpi.name}: {lacks}", flush=True)
                continue
            default = not given and chosen.program is None
            commands = words(mpi.python) if default else [given]
            for shape, on in zip(chosen.shape.split(","), shapes, strict=True):
                print("##", ", ".join([mpi.name, shape, *network]), flush=True)
                for one in commands:
                    status = measure(mpi, hosts, on, chosen.program, one, record)
                    worst = max(worst, status)
                    measured += 1
                    if record and record.exists():
                        runs.append(json.loads(record.read_text()) | {"network": network})
                        record.unlink()
                        chosen.json.parent.mkdir(parents=True, exist_ok=True)
                        chosen.json.write_text(json.dumps({"runs": runs}, indent=1))
    return worst if measured else 1


if __name__ == "__main__":
    sys.exit(main())
