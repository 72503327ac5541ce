"""``python -m paddlempi bench``: how fast operations and training steps are, and compared to what.

Under a launcher (``mpirun -np 2 python -m paddlempi bench all_reduce``) all ranks measure, and rank
0 prints. Every result is checked. Contenders are measured in the same processes, in turn, because
on a shared machine only times that were taken one after the other can be compared.
"""

from __future__ import annotations

from typing import Any

from . import calibrate, calls, files, inference, ps, training

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "bench",
        help="measure operations and training steps, and compare them with MPI and gloo",
        description="Measures on all ranks, and checks every result. Start it with mpirun or srun: "
        "mpirun -np 2 python -m paddlempi bench all_reduce --against mpi,gloo; an OPERATION as the "
        "first word is short for call OPERATION. TOOL --help lists its options. The exit status is "
        "1 if a result was wrong, or something could not be measured at all, else 0.",
    )
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    calibrate.add_to(parser, tools)
    for tool in (calls, training, inference, ps, files):
        tool.add_to(tools)
    # They are no aliases of add_parser, as the help would list all of them in one line.
    tools.choices.update(dict.fromkeys(calls.NAMES, tools.choices["call"]))
