"""The table in docs/torch.md: what every public function of torch.distributed takes, tried.

    mpirun -np 2 python tools/torch_table/table.py            # writes the table
    mpirun -np 2 python tools/torch_table/table.py --check    # status 1 where ours differs from it

Every function is called with every dtype (and every reduce op) over us and over gloo, and its
result is compared with one computed here; what is right on both ranks goes into the table. The
columns of nccl and of torch's own MPI backend are read in torch's source, for no machine of the
tests has them. ``--check`` runs ours alone, with whichever torch is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import paddlempi.torch  # noqa: F401 (makes "mpi" known where only PYTHONPATH has the package)
import torch
import torch.distributed as dist
from probes import (
    ALL,
    DTYPES,
    LIMIT,
    MOVE,
    OPS,
    OTHER,
    REDUCE,
    Probe,
    Row,
    forgotten,
    is_defined,
    said_of,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- tools/torch_table: begin -->", "<!-- tools/torch_table: end -->"

Table = dict[tuple[str, str], list[str]]
"""The cells of a function with a reduce op; "" for those that move, "-" for the rest."""


class Backend:
    """A backend and the group that it is tried in: made anew after a failure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group: Any = None

    def tries(self, row: Row, dtype: str = "float32", op: str = "SUM") -> str:
        """``""`` where the result is right on all ranks, ``"wrong"``, or the name of an error."""
        if self.group is None:
            self.group = dist.new_group(backend=self.name, timeout=LIMIT)
        rank, size = dist.get_rank(), dist.get_world_size()
        probe = Probe(self.group, getattr(torch, dtype), op, rank, size)
        try:
            outcome = "" if all(_same(*pair) for pair in row.call(probe)) else "wrong"
        except Exception as error:
            outcome = type(error).__name__
        everyones: list[Any] = [None] * size
        dist.all_gather_object(everyones, outcome)
        if any(everyones):  # a part of the ranks may still be in it
            dist.destroy_process_group(self.group)
            self.group = None
        return next(filter(None, everyones), "")


def _same(came: Any, wanted: Any) -> bool:
    """Equal bit for bit."""
    if not isinstance(wanted, torch.Tensor):
        return bool(came == wanted)
    if came.dtype != wanted.dtype or came.shape != wanted.shape:
        return False
    return bool(torch.equal(came.view(torch.uint8), wanted.view(torch.uint8)))


def cell(right: Iterable[str], wrong: Iterable[str] = ()) -> str:
    """Dtypes in as few words as there are."""
    text = _listed({*right})
    return f"{text}; wrong values: {_listed({*wrong})}" if wrong else text


def _listed(dtypes: set[str]) -> str:
    if not dtypes:
        return "no"
    if len(ALL) - len(dtypes) < 3:
        missing = [name for name in ALL if name not in dtypes]
        return " but ".join(filter(None, ["all", " and ".join(missing)]))
    words: list[str] = []
    for family, names in DTYPES.items():
        inside = [name for name in names if name in dtypes]
        missing = [name for name in names if name not in dtypes]
        if not missing:
            words.append(family)
        elif len(missing) == 1 and len(inside) > 3:
            words.append(f"{family} but {missing[0]}")
        else:
            words += inside
    return ", ".join(words)


def fill(backends: Sequence[Backend]) -> Table:
    """Try everything that this torch has."""
    table: Table = {}
    tries = [(row, "") for row in MOVE]
    tries += [(row, op) for op in OPS for row in REDUCE if op in row.ops]
    for row, op in tries:
        if not row.there():
            continue
        cells = []
        for backend in backends:
            dtypes = [dtype for dtype in ALL if not op or is_defined(op, dtype)]
            outcome = {dtype: backend.tries(row, dtype, op or "SUM") for dtype in dtypes}
            wrong = [dtype for dtype, what in outcome.items() if what == "wrong"]
            cells.append(cell([dtype for dtype, what in outcome.items() if not what], wrong))
        table[row.function, op] = cells + _read(row, op)
    for row in filter(Row.there, OTHER):
        outcomes = [backend.tries(row) for backend in backends]
        tried = [f"no: `{outcome}`" if outcome else "yes" for outcome in outcomes]
        table[row.function, "-"] = tried + _read(row, "")
    return table


def _read(row: Row, op: str) -> list[str]:
    both = [said_of(row, op, backend) for backend in ("nccl", "native")]
    return [what if isinstance(what, str) else cell(what) for what in both]


# Writing and comparing

HEAD = "| mpi, CPU | gloo, CPU | nccl, CUDA † | torch's own MPI, CPU † |"


def markdown(table: Table) -> str:
    """The table as it stands in the page: functions that are alike share a line."""
    text = [f"Tried with torch {_version()} on 2 ranks."]
    for title, ops in (
        ("What moves", ("",)),
        ("What reduces", OPS),
        ("Groups, barriers, objects", ("-",)),
    ):
        by_op = ops is OPS
        text += ["", f"### {title}", "", ("| op " if by_op else "") + "| function " + HEAD]
        text.append("|---" * (5 + by_op) + "|")
        for op in ops:
            alike: dict[tuple[str, ...], list[str]] = {}
            for (function, of), cells in table.items():
                if of == op:
                    alike.setdefault(tuple(cells), []).append(function)
            for shared, functions in alike.items():
                first = [f"`{op}`"] if by_op else []
                text.append("| " + " | ".join([*first, "; ".join(functions), *shared]) + " |")
    return "\n".join([*text, ""])


def parse(text: str) -> dict[tuple[str, str], str]:
    """Our cell of each function and op, from :func:`markdown`'s text."""
    ours: dict[tuple[str, str], str] = {}
    op_of = {"What moves": "", "Groups, barriers, objects": "-"}
    title = ""
    for line in text.splitlines():
        if line.startswith("### "):
            title = line[4:]
        elif line.startswith("| ") and not line.endswith(HEAD):
            cells = line.strip("| ").split(" | ")
            op = op_of[title] if title in op_of else cells.pop(0).strip("`")
            ours.update({(function, op): cells[1] for function in cells[0].split("; ")})
    return ours


def agree(page: str | None, tried: str, same_torch: bool) -> bool:
    """Whether a cell is true of this torch.

    Versions differ in whether they hand complex tensors on, and as pairs of reals: another one
    than the page's may be right with more complex dtypes or fewer, and refuse what the page
    says goes wrong.
    """
    if page is None or same_torch or page == tried or tried[:3] in ("yes", "no:"):
        return page == tried
    (right, wrong), (right_here, wrong_here) = expand(page), expand(tried)
    return right ^ right_here <= {*DTYPES["complex"]} and wrong_here <= wrong


def expand(text: str) -> tuple[set[str], set[str]]:
    """The dtypes of a cell: those that are right, those with wrong values."""
    halves = (*text.split("; wrong values: "), "no")[:2]
    sets = []
    for half in halves:
        found: set[str] = set()
        for word in half.split(", "):
            family, _, missing = word.partition(" but ")
            names = {"all": ALL, "no": ()}.get(family) or DTYPES.get(family, (family,))
            found |= {*names} - {*missing.split(" and ")}
        sets.append(found - {"no"})
    return sets[0], sets[1]


def differences(table: Table, text: str) -> list[str]:
    """Where what was tried is not what the page says, which may know a newer torch's functions."""
    page = parse(text)
    same_torch = f"Tried with torch {_version()} " in text
    found = [
        f"{' '.join(key)}: the page says {page.get(key)!r}, but it is {cells[0]!r}"
        for key, cells in table.items()
        if not agree(page.get(key), cells[0], same_torch)
    ]
    return found + [f"{name}: a public function that no row tries" for name in forgotten()]


def _version() -> str:
    return str(torch.__version__).partition("+")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare ours, write nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/torch.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    if dist.get_world_size() != 2:
        raise SystemExit(f"2 ranks, not {dist.get_world_size()}: mpirun -np 2")
    table = fill([Backend("mpi")] if options.check else [Backend("mpi"), Backend("gloo")])
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank:
        return
    before, _, rest = options.page.read_text().partition(BEGIN)
    page, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{options.page}: no {BEGIN} ... {END}")
    if options.check:
        wrong = differences(table, page)
        print("\n".join(wrong) or f"{len(table)} lines of {options.page} are right")
        sys.exit(1 if wrong else 0)
    options.page.write_text(f"{before}{BEGIN}\n{markdown(table)}{END}{after}")


if __name__ == "__main__":
    main()
