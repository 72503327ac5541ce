"""More tables than a request names in its header: pulled, pushed, saved and restored as few are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paddlempi import ps
from ps_roles import BOTH, begin, folder

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2])


def test_more_tables_than_a_header_names(begin: Callable[..., bool], folder: Path) -> None:
    begin(BOTH)
    tables = [ps.RemoteTable(f"t{i}", 1, ps.SGD(1.0)) for i in range(1030)]
    ids = [np.arange(i % 3 + 1) for i in range(len(tables))]

    def push() -> None:
        parts = zip(tables, ids, strict=True)
        ps.push([(t, at, np.full((len(at), 1), i, np.float32)) for i, (t, at) in enumerate(parts)])

    def check(steps: int) -> None:
        for i, rows in enumerate(ps.pull(list(zip(tables, ids, strict=True)))):
            assert (rows == -2 * steps * i).all(), (i, rows)  # of two trainers

    push()
    check(1)
    ps.save(folder, 1)  # what it says of the tables is longer than a call of the service may be
    push()
    check(2)
    assert len(ps.restore(folder)["tables"]) == len(tables)
    check(1)
