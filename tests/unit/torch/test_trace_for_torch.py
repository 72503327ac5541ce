"""torch's own analyser reads what ``trace show --torch`` writes."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from paddlempi.cli import main
from rings_made import message, operation, ring, write
from torch.distributed.flight_recorder import fr_trace


def analysed(folder: Path, caplog: pytest.LogCaptureFixture, *made: dict[str, Any]) -> list[Any]:
    """Return the collectives of the analyser's database. What it prints is in caplog."""
    prefix = folder / "torch" / "rank_"
    assert main(["trace", "show", "--torch", str(prefix), str(write(folder / "in", *made))]) == 0
    assert sorted(p.name for p in prefix.parent.iterdir()) == [f"rank_{m['rank']}" for m in made]
    out = folder / "out"
    with caplog.at_level(logging.DEBUG):
        fr_trace.main([str(prefix.parent), "-o", str(out)])
    _, database = pickle.loads(out.read_bytes())
    return list(database.collectives)


ALL = (
    {},
    {"operation": "barrier", "dtype": None, "count": 0, "reduce_op": None},
    {"operation": "broadcast", "root": 1, "reduce_op": None},
    {"operation": "reduce", "root": 0},
    {"operation": "all_gather", "reduce_op": None},
    {"operation": "gather", "root": 0, "reduce_op": None},
    {"operation": "scatter", "root": 0, "reduce_op": None},
    {"operation": "reduce_scatter"},
    {"operation": "all_to_all", "reduce_op": None, "count": -1},
    {"operation": "all_reduce_coalesced"},
)


def test_all_collectives_match(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair = {2: [0, 2]}
    lists = []
    for rank in range(3):
        made = [operation(i + 1, i + 1.0, i + 1.5, **kind) for i, kind in enumerate(ALL)]
        if rank != 1:
            made.append(operation(1, 30.0, 31.0, group=2))
            made.append(message(40.0, "recv", 1, group=2))
        made.append(operation(len(ALL) + 1, 50.0, 51.0, operation="scan"))
        lists.append(made)
    found = analysed(tmp_path, caplog, *(ring(r, 3, lists[r], pair) for r in range(3)))
    assert len(found) == len(ALL) + 1
    assert {c.collective_state for c in found} == {"completed"}
    assert "error" not in caplog.text
    assert "Not all ranks" not in caplog.text
    assert {tuple(sorted(c.expected_ranks)) for c in found} == {(0, 1, 2), (0, 2)}


def test_missing_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = analysed(
        tmp_path,
        caplog,
        ring(0, 3, [operation(1, 1.0, 1.1), operation(2, 2.0)]),
        ring(1, 3, [operation(1, 1.0, 1.1), operation(2, 2.0)]),
        ring(2, 3, [operation(1, 1.0, 1.1)]),
    )
    assert [c.collective_seq_id for c in found] == [1, 2]
    assert "Not all ranks joining collective, sequence number: 2" in caplog.text
    assert "missing ranks: {2}" in caplog.text


def test_other_shape_and_other_operation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for i, other in enumerate(({"count": 9}, {"operation": "reduce", "root": 0})):
        found = analysed(
            tmp_path / str(i),
            caplog,
            ring(0, 2, [operation(1, 1.0, 2.0, "mismatch")]),
            ring(1, 2, [operation(1, 1.0, 2.0, "mismatch", **other)]),
        )
        assert len(found) == 1
        word = ("SIZE_OR_SYNTAX_MISMATCH", "COLLECTIVE_TYPE_MISMATCH")[i]
        assert f"Culprit rank 1; Error type: {word}" in caplog.text


def test_rings_that_begin_at_different_collectives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = analysed(
        tmp_path,
        caplog,
        ring(0, 2, [operation(i, float(i), i + 0.5) for i in range(5, 9)]),
        ring(1, 2, [operation(i, float(i), i + 0.5) for i in range(6, 9)]),
    )
    assert [c.collective_seq_id for c in found] == [6, 7, 8]
    assert "Not all ranks" not in caplog.text
