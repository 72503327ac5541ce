"""A signal that comes of the memory of a tensor: the first line on stderr names call and tensor."""

from __future__ import annotations

import re

import job
import pytest

FAULTHANDLER = "Fatal Python error"
DUMPS = (
    *("SIGSEGV: segmentation violation", "SIGBUS: bus error", "unexpected fault address"),
    FAULTHANDLER,
)


def crash() -> None:
    """Rank 1 gives memory that it may not write to, of which NumPy and torch cannot know."""
    import faulthandler
    import os
    import sys
    import tempfile
    import threading
    from typing import Any

    import numpy as np
    import unwritable
    from ranks_tools import dist, start

    case, where = os.environ["CASE"], os.environ.get("FAULTHANDLER")
    faulthandler.disable()
    if where == "before":
        faulthandler.enable(sys.__stderr__)
    rank = start()
    if where == "after":
        faulthandler.enable(sys.__stderr__)
    group = dist.new_group([1, 0])

    def frozen(*shape: int) -> Any:
        """An array that cannot be written to on rank 1."""
        return unwritable.array(*shape) if rank == 1 else np.ones(shape, np.float32)

    def cut(*shape: int) -> Any:
        """An array of a file that another program has cut."""
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(4 * int(np.prod(shape)))
            array = np.memmap(file.name, np.float32, "r+", shape=shape)
            file.truncate(0)
        return array if rank == 1 else np.ones(shape, np.float32)

    def recv(array: Any) -> None:
        if rank == 1:
            dist.recv(array, 0)
        else:
            dist.send(array, 1)
            dist.barrier()

    def irecv(array: Any) -> None:
        """Nobody waits: a thread of Go takes it."""
        if rank == 1:
            dist.irecv(array, 0)
            threading.Event().wait(20)
        else:
            dist.send(array, 1)
            dist.barrier()

    def get(array: Any) -> None:
        dist.Window(dist.empty((2, 5), "float32")).get(array, 0)

    def pull(array: Any) -> None:
        dist.ps.Table(3).pull(np.arange(2), out=array)

    cases = {
        "short": lambda: dist.all_reduce(frozen(2, 3), group=group),
        "long": lambda: dist.all_reduce(frozen(2, 300000)),
        "strided": lambda: dist.broadcast(frozen(4, 6)[::-1, ::2], 0),
        "list": lambda: dist.all_gather(
            [np.ones(3, np.float32), frozen(3)], np.ones(3, np.float32)
        ),
        "async": lambda: dist.all_reduce(frozen(7), async_op=True).wait(),
        "recv": lambda: recv(frozen(5)),
        "long recv": lambda: recv(frozen(1 << 20)),
        "irecv": lambda: irecv(frozen(1 << 20)),
        "window": lambda: get(frozen(2, 5)),
        "table": lambda: pull(frozen(2, 3)),
        "cut": lambda: dist.reduce(cut(1, 5), 0),
    }
    cases[case]()
    dist.barrier()


ALL = "the group of ranks [0 1]"
CASES = {
    "short": "all_reduce on the group of ranks [1 0]: recv tensor 0 (float32[2, 3])",
    "long": f"all_reduce on {ALL}: recv tensor 0 (float32[2, 300000])",
    "strided": f"broadcast on {ALL}: recv tensor 0 (float32[4, 3])",
    "list": f"all_gather on {ALL}: recv tensor 1 (float32[3])",
    "async": f"all_reduce on {ALL}: recv tensor 0 (float32[7])",
    "recv": f"recv on {ALL}: recv tensor 0 (float32[5])",
    "long recv": f"recv on {ALL}: recv tensor 0 (float32[1048576])",
    "irecv": f"recv on {ALL}: recv tensor 0 (float32[1048576])",
    "window": f"Window.get on {ALL}: recv tensor (float32[2, 5])",
    "table": "pull of table 1: tensor of rows (float32[2, 3])",
    "cut": f"reduce on {ALL}: send tensor 0 (float32[1, 5])",
}


def crashed(case: str, **env: str) -> list[str]:
    """Return the lines on stderr from the one on that names the call."""
    ended = job.run(2, crash, env={"CASE": case, **env})
    assert ended.returncode != 0, ended.output
    lines = ended.output.splitlines()
    signal = "SIGBUS" if case == "cut" else "SIGSEGV"
    rank = "" if case == "table" else "rank 1: "
    [at] = [
        i
        for i, line in enumerate(lines)
        if line.startswith(f"paddlempi: {rank}{signal} in {CASES[case]}: ")
    ] or [None]
    assert at is not None, ended.output
    assert not [line for line in lines[:at] if line.startswith(DUMPS)], ended.output
    return lines[at:]


@pytest.mark.parametrize("case", CASES)
def test_the_first_line_names_call_group_and_tensor(case: str) -> None:
    lines = crashed(case)
    assert "docs/errors.md" in lines[0]
    assert ("np.memmap" in lines[0]) == (case != "cut")


@pytest.mark.parametrize("case", ["short", "long"])
@pytest.mark.launcher("the memory that MPI writes to")
def test_under_mpi(case: str) -> None:
    crashed(case, PADDLEMPI_ALGO="all_reduce:mpi")


@pytest.mark.parametrize("where", ["before", "after"])
def test_faulthandler_still_has_its_say(where: str) -> None:
    """It was enabled before the core watches, and after."""
    ended = job.run(2, crash, env={"CASE": "long", "FAULTHANDLER": where})
    lines = ended.output.splitlines()
    ours = [i for i, line in enumerate(lines) if CASES["long"] in line]
    pythons = [i for i, line in enumerate(lines) if FAULTHANDLER in line]
    assert len(ours) == 1, ended.output
    assert len(pythons) == 1, ended.output
    assert (ours[0] < pythons[0]) == (where == "before")
    assert re.search(r'File ".*", line \d+ in all_reduce', ended.output)
