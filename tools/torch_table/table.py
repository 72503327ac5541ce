"""Make the table in docs/torch.md: what every public function of torch.distributed accepts.

    mpirun -np 2 python tools/torch_table/table.py            # writes the table
    mpirun -np 2 python tools/torch_table/table.py --check    # status 1 if the table is wrong

Every function is called with every dtype (and every reduce op) over paddlempi and over gloo, and
its result is compared with one computed here. The table lists what is right on both ranks. The
columns of nccl and of torch's MPI backend come from reading torch's source, because no machine of
the tests has them. ``--check`` tries paddlempi only, with the torch that is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import paddlempi.torch  # noqa: F401 (registers "mpi" if the package is not installed)
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
    from_source,
    is_defined,
    without_row,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- tools/torch_table: begin -->", "<!-- tools/torch_table: end -->"

Table = dict[tuple[str, str], list[str]]
"""The cells of a function and a reduce op: "" if it does not reduce, "-" if it has no dtype."""


class Backend:
    """A backend, and a group of it in which functions are tried. A failure makes it a new group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group: Any = None

    def outcome(self, row: Row, dtype: str = "float32", op: str = "SUM") -> str:
        """Return ``""`` if the result is right on all ranks, ``"wrong"``, or an error's name."""
        if self.group is None:
            self.group = dist.new_group(backend=self.name, timeout=LIMIT)
        rank, size = dist.get_rank(), dist.get_world_size()
        probe = Probe(self.group, getattr(torch, dtype), op, rank, size)
        try:
            outcome = "" if all(_same(*pair) for pair in row.call(probe)) else "wrong"
        except Exception as error:
            outcome = type(error).__name__
        outcomes: list[Any] = [None] * size
        dist.all_gather_object(outcomes, outcome)
        if any(outcomes):  # the call may still be under way on some ranks
            dist.destroy_process_group(self.group)
            self.group = None
        return next(filter(None, outcomes), "")


def _same(result: Any, wanted: Any) -> bool:
    """Return whether two values are equal, bit for bit if they are tensors."""
    if not isinstance(wanted, torch.Tensor):
        return bool(result == wanted)
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return False
    return bool(torch.equal(result.view(torch.uint8), wanted.view(torch.uint8)))


def cell(right: Iterable[str], wrong: Iterable[str] = ()) -> str:
    """Return the text of a cell: the dtypes, with names for families of them."""
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


def try_all(backends: Sequence[Backend]) -> Table:
    """Try every function that this torch has."""
    table: Table = {}
    tries = [(row, "") for row in MOVE]
    tries += [(row, op) for op in OPS for row in REDUCE if op in row.ops]
    for row, op in tries:
        if not row.is_available():
            continue
        cells = []
        for backend in backends:
            dtypes = [dtype for dtype in ALL if not op or is_defined(op, dtype)]
            outcome = {dtype: backend.outcome(row, dtype, op or "SUM") for dtype in dtypes}
            wrong = [dtype for dtype, what in outcome.items() if what == "wrong"]
            cells.append(cell([dtype for dtype, what in outcome.items() if not what], wrong))
        table[row.function, op] = cells + _from_source(row, op)
    for row in filter(Row.is_available, OTHER):
        outcomes = [backend.outcome(row) for backend in backends]
        tried = [f"no: `{outcome}`" if outcome else "yes" for outcome in outcomes]
        table[row.function, "-"] = tried + _from_source(row, "")
    return table


def _from_source(row: Row, op: str) -> list[str]:
    both = [from_source(row, op, backend) for backend in ("nccl", "native")]
    return [what if isinstance(what, str) else cell(what) for what in both]


# Writing and comparing

HEAD = "| mpi, CPU | gloo, CPU | nccl, CUDA † | torch's own MPI, CPU † |"


def markdown(table: Table) -> str:
    """Return the table in Markdown. Functions with the same cells share a line."""
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
    """Return our cell of each function and op, from the text that :func:`markdown` made."""
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


def is_true_here(page: str | None, tried: str, same_torch: bool) -> bool:
    """Return whether a cell of the page is true of this torch.

    Versions of torch differ in what they do with complex tensors: they pass them to the backend, or
    pass pairs of reals, or refuse them. So another version than the page's may be right with more
    or fewer complex dtypes, and may refuse dtypes for which the page says "wrong values".

    Args:
        page: the cell of the page; None if it has none.
        tried: the cell of this torch.
        same_torch: whether the page was made with this version of torch.
    """
    if page is None or same_torch or page == tried or tried[:3] in ("yes", "no:"):
        return page == tried
    (right, wrong), (right_here, wrong_here) = expand(page), expand(tried)
    return right ^ right_here <= {*DTYPES["complex"]} and wrong_here <= wrong


def expand(text: str) -> tuple[set[str], set[str]]:
    """Return the dtypes of a cell that are right, and those with wrong values."""
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
    """Describe what differs from the page, and functions without a row.

    The page may have functions that this torch does not.
    """
    page = parse(text)
    same_torch = f"Tried with torch {_version()} " in text
    found = [
        f"{' '.join(key)}: the page says {page.get(key)!r}, but it is {cells[0]!r}"
        for key, cells in table.items()
        if not is_true_here(page.get(key), cells[0], same_torch)
    ]
    return found + [f"{name}: a public function that no row tries" for name in without_row()]


def _version() -> str:
    return str(torch.__version__).partition("+")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="try paddlempi only, write nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/torch.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    if dist.get_world_size() != 2:
        raise SystemExit(f"2 ranks, not {dist.get_world_size()}: mpirun -np 2")
    table = try_all([Backend("mpi")] if options.check else [Backend("mpi"), Backend("gloo")])
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
