"""What an MPI says that cannot spawn or join, and wrong arguments of both."""

from __future__ import annotations

import job
from contract import MPI, WHEEL


def refused() -> None:
    import os
    import sys

    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    kind = os.environ["FAULTS_MPI"]
    if "OLD" in os.environ:
        with raises(errors.UnsupportedError, "MPICH 4.0", "(ch4:ucx)", most=1):
            dist.spawn([sys.executable, "-c", ""], 1)
        with raises(errors.UnsupportedError, "MPICH 4.0", "(ch4:ucx)", most=1):
            dist.accept("127.0.0.1:9", secret="s", timeout=20)
        done()
        return
    for call in (dist.accept, dist.connect):
        if kind != "mpich":
            with raises(errors.UnsupportedError, "MPICH", "I_MPI_SPAWN=1", most=1):
                call("127.0.0.1:9", secret="s", timeout=20)
    if kind == "impi":
        with raises(errors.UnsupportedError, "I_MPI_SPAWN=1", most=1):
            dist.spawn([sys.executable, "-c", ""], 1)
    with raises(errors.DtypeError, "command"):
        dist.spawn([1], 1)
    if kind != "impi":
        with raises(errors.ArgumentError, "n=0 is not from 1"):
            dist.spawn("true", 0)
        with raises(errors.ArgumentError, "no-such-program", ranks=() if rank == 0 else (0,)):
            dist.spawn(["./no-such-program"], 1)
    done()


def test_what_is_refused() -> None:
    old = {"OLD": "1"} if MPI == "mpich" and not WHEEL else {}
    job.succeed(2, refused, env=old)
