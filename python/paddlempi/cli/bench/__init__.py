"""``python -m paddlempi bench``: how fast operations and training steps are, and compared to what.

Under a launcher (``mpirun -np 2 python -m paddlempi bench all_reduce``) all ranks measure, and rank
0 prints. Every result is checked. Contenders are measured in the same processes, in turn, because
on a shared machine only times that were taken one after the other can be compared.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paddlempi_bootstrap import mpi_launcher

from ... import group
from ...errors import ArgumentError, Error
from .. import options
from . import collectives, contenders, files, picture, ps, report, steps, table
from .collectives import AGAIN, OURS, Plan, Row, WrongResultError
from .contenders import Framework
from .operations import DTYPES, OPERATIONS

__all__ = ["add_to", "run"]

_AGAINST = ("mpi", "mpi4py", "gloo")
_DENSE_SIZES = (4 << 10, 1 << 20, 64 << 20)
_NO_OPTIONS = ("run", "command", "parser")  # in what the parser returns


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "bench",
        help="measure operations and training steps, and compare them with MPI and gloo",
        description="Measures operations on all ranks, checks every result, and prints a table as "
        "the OSU benchmarks do; with --step, training steps. Start it with mpirun or srun: "
        "mpirun -np 2 python -m paddlempi bench all_reduce --against mpi,gloo. The exit status is "
        "1 if a result was wrong, or something could not be measured at all, else 0.",
    )
    _add_what(parser)
    _add_steps(parser)
    _add_ps(parser)
    parser.add_argument(
        "--bytes",
        type=options.nbytes,
        default=512 << 20,
        metavar="BYTES",
        help="of io: the model; 512M",
    )
    parser.add_argument(
        "--folder", metavar="FOLDER", help="of io: which all ranks see; that of temporary files"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="print one table of everything in the end: a line for each operation and size, and "
        "for each step; not for ps and io",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--plot",
        type=_svg,
        metavar="FILE.svg",
        help="draw the times over the bytes of one operation, with that of a memcpy; of ps --level "
        "modes: the losses over time",
    )
    parser.add_argument(
        "--timeout",
        type=lambda text: options.seconds(text, 0.001),
        default=120.0,
        metavar="SECONDS",
        help="how long an operation waits for the other ranks; 120",
    )
    parser.set_defaults(run=run, parser=parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, on which tensors, how often and against whom."""
    parser.add_argument(
        "operations",
        nargs="*",
        metavar="op",
        help=f"{', '.join(OPERATIONS)}, or all; all_reduce if neither op nor --step is given; or "
        "ps: tables of embeddings, and parameter servers (--level); or io: files of all ranks",
    )
    parser.add_argument(
        "--min", type=options.nbytes, default=8, metavar="BYTES", help="as 8 (the default)"
    )
    parser.add_argument(
        "--max",
        type=options.nbytes,
        default=4 << 20,
        metavar="BYTES",
        help="4M by default; 64K, 1G",
    )
    parser.add_argument(
        "--sizes",
        type=options.sizes,
        metavar="BYTES,...",
        help="instead of --min and --max: 8,1K,1M; of ps --level dense: 4K,1M,64M by default",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument(
        "--framework",
        choices=("numpy", "torch", "paddle"),
        default="numpy",
        help="whose tensors, by whose functions: paddlempi's for numpy (the default), else those "
        "of torch.distributed or paddle.distributed",
    )
    parser.add_argument(
        "--memory",
        choices=("ordinary", "mapped"),
        default="ordinary",
        help="where the tensors lie; mapped: in memory that the ranks of a node map "
        "(paddlempi.empty)",
    )
    parser.add_argument(
        "--iterations",
        type=_positive,
        metavar="N",
        help="calls that are measured at each size; of io: 5",
    )
    parser.add_argument(
        "--seconds",
        type=lambda text: options.seconds(text, 0.001),
        metavar="SECONDS",
        help="after so long a size is measured no further, if it has had ten rounds",
    )
    parser.add_argument(
        "--warmup", type=_natural, metavar="N", help="calls before them (steps: always 3)"
    )
    parser.add_argument(
        "--same-buffer",
        action="store_true",
        help="every call takes the same tensor, of zeros, as the OSU benchmarks do; the default is "
        "several tensors in turn, written anew before each round",
    )
    parser.add_argument(
        "--against",
        type=_names((*_AGAINST, "none")),
        metavar="NAME,...",
        help="contenders: mpi (the same over plain MPI), mpi4py, gloo; none. The default is none, "
        "and on several nodes mpi4py and gloo where they are installed",
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    """Add the options of training steps."""
    parser.add_argument(
        "--step",
        type=_names(tuple(steps.KINDS)),
        default=[],
        metavar="KIND,...",
        help="training steps: ddp, fsdp2, hsdp (FSDP2 on each node, gradients averaged over the "
        "nodes), paddle (with --against gloo: over gloo too; mpi: ddp and fsdp2 over plain MPI)",
    )
    parser.add_argument(
        "--model", type=lambda text: text.split(","), metavar="NAME,...", help="of --step; all"
    )
    parser.add_argument(
        "--rounds", type=_positive, default=200, metavar="N", help="steps of each kind; 200"
    )


def _add_ps(parser: argparse.ArgumentParser) -> None:
    """Add the options of tables of embeddings and parameter servers."""
    parser.add_argument(
        "--dims", type=_numbers, default=[16, 64, 128], metavar="N,...", help="of ps; 16,64,128"
    )
    parser.add_argument(
        "--batches", type=_numbers, default=[4096, 65536], metavar="N,...", help="of ps; 4096,65536"
    )
    parser.add_argument(
        "--rows", type=_positive, default=1_000_000, metavar="N", help="of ps; 1000000"
    )
    parser.add_argument(
        "--level",
        choices=tuple(ps.LEVELS),
        default="table",
        help="of ps. table (the default): tables in one process, without a launcher; on two ranks, "
        "a trainer and a server: transport: pull and push of rows, against gRPC, Redis and torch's "
        "RPC; dense: of a whole vector, against gRPC; rpc: a gRPC call while threads wait in MPI; "
        "model: training steps, against TorchRec; on more ranks, servers: 1 server and more; on "
        "three ranks and more, modes: the loss over time with a slow trainer, in every mode",
    )
    parser.add_argument(
        "--trainers",
        type=_positive,
        default=1,
        metavar="N",
        help="of ps --level servers: the first N ranks; 1",
    )
    parser.add_argument(
        "--grpc-program",
        metavar="FILE",
        help="of ps --level transport and dense: build/psgrpc, which make bench-ps builds",
    )


def run(chosen: argparse.Namespace) -> int:
    """Measure what was chosen; print it on rank 0.

    Returns:
        0; 1 after an error; 2 if the command is wrong, and nothing was begun.
    """
    rank = 0
    try:
        _check(chosen)
    except ArgumentError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    if chosen.operations == ["ps"]:
        return ps.run(chosen)
    if chosen.operations == ["io"]:
        return files.run(chosen)
    try:
        group.init_process_group(timeout=chosen.timeout)
        rank = group.get_rank()
        gc.disable()  # a collection would count as the time of some call
        try:
            _measure(chosen)
        finally:
            gc.enable()
            contenders.stop()
    except (ArgumentError, WrongResultError) as error:  # all ranks raise it alike
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _check(chosen: argparse.Namespace) -> None:
    """Complete the operations, and raise ArgumentError if the options do not go together."""
    if importlib.util.find_spec("numpy") is None:
        raise ArgumentError("bench: NumPy is not installed, and the values are checked with it")
    named: list[str] = chosen.operations
    if not named and not chosen.step:
        named = ["all_reduce"]
    if chosen.against and "none" in chosen.against:
        if len(chosen.against) > 1:
            raise ArgumentError(f"bench: --against {','.join(chosen.against)}: none stands alone")
        chosen.against = []
    chosen.operations = list(OPERATIONS) if "all" in named else list(dict.fromkeys(named))
    if named in (["ps"], ["io"]):
        for option in ("against", "step", "plot", "model", "table", "seconds"):
            if getattr(chosen, option) and (option, chosen.level) != ("plot", "modes"):
                raise ArgumentError(f"bench: --{option} is not for {named[0]}")
        chosen.operations = named
        chosen.sizes = chosen.sizes or list(_DENSE_SIZES)
        return
    if chosen.level != "table":
        raise ArgumentError(f"bench: --level {chosen.level}: levels are of ps")
    for name in chosen.operations:
        if name not in OPERATIONS:
            more = "all: it is measured alone" if name in ("ps", "io") else "all, ps, io"
            raise ArgumentError(f"bench: op {name!r} is none of {', '.join(OPERATIONS)}, {more}")
    if chosen.max < chosen.min:
        raise ArgumentError(f"bench: --max {chosen.max} is below --min {chosen.min}")
    if chosen.plot and (len(chosen.operations) != 1 or chosen.operations == ["barrier"]):
        raise ArgumentError(
            f"bench: --plot {chosen.plot}: a picture shows one operation that moves data, not "
            f"{', '.join(chosen.operations) or 'steps'}"
        )
    # Under a launcher rank 0's host counts.
    missing = "" if mpi_launcher.find() else _no_folder(chosen)
    if missing:
        raise ArgumentError(missing)
    if chosen.model and not chosen.step:
        raise ArgumentError(f"bench: --model {','.join(chosen.model)}: models are of --step")
    if chosen.step and chosen.against == ["mpi4py"] and not chosen.operations:
        raise ArgumentError("bench: --against mpi4py: steps are compared with gloo and mpi only")


def _no_folder(chosen: argparse.Namespace) -> str:
    """Say which file cannot be written here, because its folder is missing; "" if all can."""
    for file in (chosen.json, chosen.plot):
        if file and not Path(file).parent.is_dir():
            return f"bench: {file}: there is no folder {Path(file).parent}"
    return ""


def _measure(chosen: argparse.Namespace) -> None:
    """Measure operations and steps. Collective over the world."""
    first = group.get_rank() == 0
    missing = _no_folder(chosen) if first else ""
    for reason in filter(None, collectives.of_all_ranks(missing)):
        raise ArgumentError(reason)
    models = _models(chosen.step, chosen.model)
    bar = report.Bar(len(chosen.operations) + len(models))

    def say(*lines: str) -> None:
        bar.clear()
        if first:
            print(*lines, sep="\n", flush=True)

    found = report.environment()
    say(report.headline(found), "# times of a call or step are those of its slowest rank")
    if found["nodes"] > 1 and chosen.operations:
        say("# traffic: bytes that leave a node : the fewest possible")
    if chosen.against is None:
        chosen.against = _installed(chosen.framework) if found["nodes"] > 1 else []
    rows, absent = _operations(chosen, found["nodes"] > 1, say, bar)
    measured = []
    for kind, model in models:
        against = [name for name in chosen.against if name in ("gloo", "mpi")]
        measured.append(steps.measure(kind, model, against, chosen.rounds, bar.show))
        bar.next()
        if not chosen.table:
            say(*report.step_lines(measured[-1]))
        gc.collect()
    record = {
        **found,
        "options": {k: v for k, v in vars(chosen).items() if k not in _NO_OPTIONS},
        "rows": [row.record() for row in rows],
        "steps": [row.record() for row in measured],
        "not_measured": absent,
    }
    if chosen.table:
        say(*table.lines(record))
    if first and chosen.json:
        Path(chosen.json).write_text(json.dumps(record, indent=1))
    if first and chosen.plot:
        title = (
            f"{rows[0].operation}, {chosen.dtype}, {report.counted(found['ranks'], 'rank')}, "
            f"{found['mpi']['name']}: median"
        )
        Path(chosen.plot).write_text(picture.draw(title, rows))


def _installed(framework: str) -> list[str]:
    """Return which of mpi4py and gloo all ranks have installed. Collective over the world."""
    packages = {"mpi4py": "mpi4py", "gloo": "paddle" if framework == "paddle" else "torch"}
    mine = [name for name, package in packages.items() if importlib.util.find_spec(package)]
    of_ranks = [text.split() for text in collectives.of_all_ranks(" ".join(mine))]
    return [name for name in packages if all(name in of_rank for of_rank in of_ranks)]


def _operations(
    chosen: argparse.Namespace, several_nodes: bool, say: Callable[..., None], bar: report.Bar
) -> tuple[list[Row], dict[str, str]]:
    rows: list[Row] = []
    absent: dict[str, str] = {}
    if not chosen.operations:
        return rows, absent
    names = [
        OURS,
        *chosen.against,
        *[AGAIN] * bool(chosen.against),
        *["memcpy"] * bool(chosen.plot),
    ]
    plan = Plan(
        sorted(chosen.sizes) if chosen.sizes else collectives.sizes(chosen.min, chosen.max),
        chosen.iterations,
        chosen.warmup,
        chosen.same_buffer,
        chosen.seconds,
    )
    tensors = Framework(chosen.framework, chosen.dtype, chosen.memory)

    def show(of_size: list[Row]) -> None:
        rows.extend(of_size)
        if not chosen.table:
            say(*report.operation_lines(of_size, several_nodes))

    for name in chosen.operations:
        heads = report.heads(
            name, chosen.framework, chosen.dtype, bool(chosen.against), several_nodes
        )
        if not chosen.table:
            say(*heads)
        reasons = collectives.measure(name, names, tensors, plan, show, bar.show)
        bar.next()
        gc.collect()
        for contender, reason in reasons.items():
            if not chosen.table:
                say(f"not measured: {contender}: {reason}")
            absent[f"{name}, {contender}"] = reason
    return rows, absent


def _models(kinds: Sequence[str], asked: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the kinds of steps with their models: those that were asked for, or all."""
    known = [
        (kind, model) for kind in kinds for model in contenders.front(steps.KINDS[kind]).MODELS
    ]
    names = [model for _, model in known]
    for name in asked or ():
        if name not in names:
            raise ArgumentError(
                f"bench: --model {name!r} is none of {', '.join(dict.fromkeys(names))}"
            )
    return [(kind, model) for kind, model in known if not asked or model in asked]


# Types of arguments


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def _positive(text: str) -> int:
    if _natural(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    """Read several numbers above 0."""
    return [_positive(part) for part in text.split(",")]


def _svg(text: str) -> str:
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .svg, the only format")
    return text


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(text.split(",")))

    return names
