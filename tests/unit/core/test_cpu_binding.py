"""Which CPUs ranks are bound to, on machines of many kinds."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from paddlempi.errors import UnsupportedError
from paddlempi.startup.cpu_binding import bound, shares


def machine(folder: Path, sockets: int, nodes: int, cores: int, threads: int) -> int:
    """Write what the kernel tells of a machine whose numbers go round the sockets, as servers' do.

    Args:
        folder: where.
        sockets, nodes, cores, threads: of the machine, a socket, a node, a core.

    Returns the number of CPUs. The second CPUs of all cores come after all first ones.
    """
    first = sockets * nodes * cores
    for cpu in range(first * threads):
        core = cpu % first
        own = folder / f"cpu{cpu}"
        (own / "topology").mkdir(parents=True)
        (own / f"node{core % sockets * nodes + core // sockets % nodes}").mkdir()
        (own / "topology" / "physical_package_id").write_text(f"{core % sockets}\n")
        siblings = ",".join(str(core + first * thread) for thread in range(threads))
        (own / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    return first * threads


@pytest.mark.parametrize(
    ("built", "cpus", "number", "expected"),
    [
        # One socket, 4 cores of 2 CPUs: 0 and 4 are one core.
        ((1, 1, 4, 2), None, 1, [[0, 4, 1, 5, 2, 6, 3, 7]]),
        ((1, 1, 4, 2), None, 2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        ((1, 1, 4, 2), None, 3, [[0, 4], [1, 5], [2, 6, 3, 7]]),
        ((1, 1, 4, 2), None, 8, [[0], [4], [1], [5], [2], [6], [3], [7]]),
        ((1, 1, 4, 2), None, 6, [[0], [4], [1, 5], [2], [6], [3, 7]]),
        # The process may use a part of them.
        ((1, 1, 4, 2), {1, 2, 5, 7}, 2, [[1, 5], [2, 7]]),
        ((1, 1, 4, 2), {1, 2, 5, 7}, 3, [[1, 5], [2], [7]]),
        # More ranks than CPUs
        ((1, 1, 2, 1), None, 5, [[0], [1], [0], [1], [0]]),
        ((1, 1, 4, 2), {6}, 2, [[6], [6]]),
        # 2 sockets of 2 nodes of 2 cores: core 0 is of socket 0, core 1 of socket 1.
        ((2, 2, 2, 1), None, 2, [[0, 4, 2, 6], [1, 5, 3, 7]]),
        ((2, 2, 2, 1), None, 4, [[0, 4], [2, 6], [1, 5], [3, 7]]),
        # The kernel tells nothing.
        (None, {0, 1, 2, 3, 8, 9}, 3, [[0, 1], [2, 3], [8, 9]]),
        (None, {0, 1, 2}, 2, [[0], [1, 2]]),
    ],
)
def test_shares(
    built: tuple[int, int, int, int] | None,
    cpus: Collection[int] | None,
    number: int,
    expected: Sequence[Sequence[int]],
    tmp_path: Path,
) -> None:
    count = machine(tmp_path, *built) if built else 0
    assert shares(number, cpus or range(count), tmp_path) == expected


def test_a_thread_that_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = os.sched_getaffinity(0)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    told = r"bind: rank 3 .*CPUs \[0\] .*not permitted"
    with pytest.raises(UnsupportedError, match=told), bound([0], 3):
        raise AssertionError("not bound")
    with bound(None, 3):
        assert os.sched_getaffinity(0) == cpus
