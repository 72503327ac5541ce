"""The part of the cells that CI runs. ``make faults-ps`` runs all of them."""

from __future__ import annotations

import os

import jobs
import pytest
from cells import (
    CABLE,
    CELLS,
    CI,
    DISK,
    KILL,
    MASTER,
    MODES,
    MOMENTS,
    MORE,
    SERVER,
    TRAINER,
    Cell,
)
from hosts import Hosts
from requirements import hosts_missing

CHOSEN = {"all": CELLS, "more": MORE}.get(os.environ.get("PS_FAULTS", ""), CI)


@pytest.mark.parametrize(
    "cell", [cell for cell in CHOSEN if cell.fault != CABLE], ids=lambda cell: cell.name
)
def test_one_node(cell: Cell) -> None:
    if cell.fault == DISK and os.geteuid() != 0:
        pytest.skip("a small disk is mounted, for which a test must be root")
    wrong = jobs.run(cell)
    assert not wrong, "\n".join(wrong)


def test_two_hosts() -> None:
    reason = hosts_missing()
    if reason is not None:
        pytest.skip(reason)
    wrong = {}
    for cell in CHOSEN:
        if cell.fault == CABLE:
            with Hosts(2) as hosts:
                found = jobs.run(cell, hosts)
            if found:
                wrong[cell.name] = found
    assert not wrong, wrong


def test_every_fault_role_moment_and_mode_comes() -> None:
    assert set(CI) <= set(CELLS) and len(CI) == len(set(CI)) == 6
    assert set(MORE) <= set(CELLS) and len(MORE) == len(set(MORE)) == 24
    for field in ("victim", "fault", "moment", "mode"):
        assert {getattr(c, field) for c in MORE} == {getattr(c, field) for c in CELLS}
    assert {c.moment for c in MORE} == set(MOMENTS) and {c.mode for c in CI} == set(MODES)
    assert {(c.victim, c.fault) for c in CI} >= {(SERVER, KILL), (TRAINER, KILL), (MASTER, KILL)}
    assert {c.fault for c in CI} == {c.fault for c in CELLS}
