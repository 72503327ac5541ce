"""``python -m paddlempi doctor``: tries what a job needs, and says what to change.

Under a launcher (``mpirun -np 4 python -m paddlempi doctor``) all ranks try it, and rank 0 prints
the findings of all ranks. Without a launcher it is a job of one rank. The command needs only the
package. That there is no MPI is a failure, because nothing works without one. If there is no GPU,
the checks of it are skipped, unless the user has asked for one by a variable.
"""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from .. import __version__, group
from . import doctor_collect, doctor_judge
from .colours import paint
from .doctor_judge import Finding

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "doctor",
        help="try MPI, the node and the GPUs, and say what to change",
        description="Tries what a job needs and says what it found and what to change: under "
        "mpirun or srun on all ranks together, alone as a job of one. The exit status is 1 if a "
        "check failed, else 0.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--mpi", metavar="PATH", help="the libmpi to try, before any search (as PADDLEMPI_MPI)"
    )
    parser.set_defaults(run=run, parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Do all checks and print the findings on rank 0. Return 1 if a check failed, else 0."""
    facts = doctor_collect.collect(chosen.mpi)
    findings = doctor_judge.judge(facts)
    rank = group.get_rank() if group.is_initialized() else facts[0]["rank"]
    if rank == 0:
        print(_json(facts, findings) if chosen.json else _text(findings))
    if group.is_initialized():
        group.destroy_process_group()
    return int(any(finding.status == "fail" for finding in findings))


def _json(facts: list[dict[str, Any]], findings: Sequence[Finding]) -> str:
    found = [finding._asdict() for finding in findings]
    return json.dumps({"paddlempi": __version__, "findings": found, "ranks": facts}, indent=2)


def _text(findings: Sequence[Finding]) -> str:
    width = max(60, min(120, shutil.get_terminal_size().columns)) - 18
    wrap = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    ).wrap
    lines = []
    for finding in findings:
        first = paint(finding.status, f"{finding.status:<6}") + f"{finding.name:<12}"
        for text in (finding.found, finding.advice and "-> " + finding.advice):
            for line in text.splitlines():
                for piece in wrap(line) or [""]:
                    lines.append(first + piece)
                    first = " " * 18
    counts = [sum(f.status == s for f in findings) for s in ("fail", "warn", "ok", "skip")]
    worst = "fail" if counts[0] else "warn" if counts[1] else "ok"
    told = "{} failed, {} to look at, {} good, {} skipped".format(*counts)
    lines.append(paint(worst, told))
    return "\n".join(lines)
