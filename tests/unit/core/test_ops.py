"""The table of operations, as Python has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paddlempi._ops import Arity, Op, Shares, Trait, Who

ROOT, OTHER = 2, 1
TREE = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("op", "on_root", "elsewhere"),
    [
        (Op.BARRIER, False, False),
        (Op.BROADCAST, False, True),
        (Op.ALL_REDUCE, True, True),
        (Op.REDUCE, True, False),
        (Op.GATHER, True, False),
        (Op.SCATTER, True, True),
        (Op.SEND, False, False),
        (Op.RECV, True, True),
    ],
)
def test_what_is_written(op: Op, on_root: bool, elsewhere: bool) -> None:
    assert op.writes(ROOT, ROOT) is on_root
    assert op.writes(ROOT, OTHER) is elsewhere


def test_the_first_rank_of_an_exclusive_scan_keeps_its_tensor() -> None:
    assert [Op.EXSCAN.writes(-1, rank) for rank in range(3)] == [False, True, True]


def test_operations_keep_their_codes_and_names() -> None:
    assert Op(2) is Op.BROADCAST
    assert (int(Op.PANIC), Op.ALL_TO_ALL.label) == (17, "all_to_all")
    assert [op.value for op in Op] == list(range(1, len(Op) + 1))


def test_traits() -> None:
    assert Op.SCATTER.trait == Trait(
        Arity.ROOT_ONE_OR_N,
        Arity.ONE,
        gives=Who.ROOT,
        gets=Who.EVERYONE,
        shares=Shares.ALIKE,
        collective=True,
        rooted=True,
    )
    assert {Op.RECV, Op.SENDRECV, Op.PROBE} <= {op for op in Op if op.trait.result}
    assert {Op.SCAN, Op.EXSCAN} <= {op for op in Op if op.trait.prefix}
    assert not {Op.ALL_REDUCE, Op.SEND} & {op for op in Op if op.trait.result or op.trait.prefix}


def test_no_other_file_lists_the_operations() -> None:
    """A list of all operations names exscan, which nothing treats in a way of its own."""
    named = re.compile(r"\bexscan\b|\bop\.Exscan\b|\bOP_EXSCAN\b|\bOp\.EXSCAN\b")
    found = {
        str(path.relative_to(TREE))
        for folder in ("gocore", "capi", "python", "tools")
        for path in (TREE / folder).rglob("*")
        if path.suffix in (".go", ".c", ".h", ".py", ".pyi", ".tmpl")
        and not path.name.endswith("_test.go")
        and "DO NOT EDIT" not in path.read_text().partition("\n")[0]
        and named.search(path.read_text())
    }
    assert found == {
        "tools/opgen/table.go",
        "python/paddlempi/collectives.py",
        "python/paddlempi/__init__.py",  # in what is generated
    }
