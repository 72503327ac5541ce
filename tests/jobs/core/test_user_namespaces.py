"""Every rank runs in a user namespace of its own, as in Apptainer's containers."""

from __future__ import annotations

import subprocess

import job
import pytest


def each_by_itself() -> None:
    """Ranks may not open each other's /proc entries, so a socket passes the descriptors."""
    import os
    import sys
    import time

    if "FAULTS_INSIDE" not in os.environ:
        os.environ["FAULTS_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-U", "-r", sys.executable, *sys.argv])

    import json

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    info = json.loads(dist._native.core().control("info", "{}"))
    assert info["arrive"] == "shared memory, handed over by a socket", info["arrive"]
    heap = info["heap"]
    assert heap["mapped"] and not heap["adopts"], heap  # adopted files are opened through /proc
    works()
    group = dist.new_group([1, 0])
    works(group)
    if rank == 0:  # only shared memory shows the refusal at once
        time.sleep(0.3)
        with raises(errors.DtypeError):
            dist.all_reduce(object(), group=group)
    else:
        with raises(errors.RefusedError, ranks=[0]):
            dist.all_reduce(np.ones(1), group=group)
    works(group)
    assert dist.get_local_size() == 2
    done()


def test_each_by_itself() -> None:
    if subprocess.run(["unshare", "-U", "-r", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    # Debian's MPICH uses UCX, which opens shared memory through /proc unless told otherwise.
    job.succeed(2, each_by_itself, env={"UCX_POSIX_USE_PROC_LINK": "n"})
