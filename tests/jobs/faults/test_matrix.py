"""The part of the matrix that CI runs: every fault and every class at least once."""

from __future__ import annotations

import sys
from pathlib import Path

import page
import pytest
import runner
import table
from contract import EVERYTHING, MPI, parameters
from table import CELLS, CI, Cell

NAME = MPI if EVERYTHING or "debian" not in sys.prefix else f"debian-{MPI}"


def chosen(nodes: int) -> list[list[Cell]]:
    """Return the cells of every job that this environment runs."""
    if EVERYTHING:
        return list(page.batches([c for c in CELLS if c.in_ci and c.nodes == nodes]))
    asked = parameters("tests/jobs/faults/test_matrix.py::test_one_node")
    return [[c] for c in CELLS if c.name in asked]


def name_of(batch: list[Cell]) -> str:
    return batch[0].name if len(batch) == 1 else f"{len(batch)} cells - {batch[0].front}"


@pytest.mark.launcher("the ranks of a cell start under a launcher")
@pytest.mark.parametrize("batch", chosen(1), ids=name_of)
def test_one_node(batch: list[Cell]) -> None:
    judged = runner.run(batch, NAME, Path(sys.prefix))
    complaints = {one.cell.name: one.complaints for one in judged if one.complaints}
    assert not complaints, complaints


@pytest.mark.launcher("the ranks are on two hosts", only=["openmpi"])
def test_two_nodes() -> None:
    reason = runner.hosts_missing()
    if reason is not None:
        pytest.skip(reason)
    complaints = {}
    with runner.Hosts(2) as hosts:
        for batch in chosen(2):
            for one in runner.run(batch, NAME, Path(sys.prefix), hosts):
                if one.complaints:
                    complaints[one.cell.name] = one.complaints
    assert not complaints, complaints


def test_every_fault_and_every_class_comes() -> None:
    assert {c.fault for c in CI} == {c.fault for c in CELLS}
    assert {c.operation for c in CI} == set(table.CLASSES)
    assert {c.operation for c in CELLS} == set(table.CLASSES)
    assert len(set(CELLS)) == len(CELLS)


def test_the_page_has_every_cell() -> None:
    """docs/faults.md is of this table: run ``make faults`` after a change."""
    lines = page.PAGE.read_text().splitlines()
    rows = [
        tuple(field.strip(" *") for field in line.split("|")[1:3])
        for line in lines
        if line.startswith("| ")
    ]
    assert [row for row in rows if row[0] != "fault"] == [(c.fault, c.operation) for c in CELLS]
