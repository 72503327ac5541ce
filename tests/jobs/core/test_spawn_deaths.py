"""A spawned process dies. Intel MPI's launcher ends the job then, and this file is not run."""

from __future__ import annotations

from pathlib import Path

import job
from contract import MPI

DYING_CHILD = """
import os
import signal
import time

import paddlempi as dist

dist.init_process_group("mpi", timeout=40)
parents = dist.get_parent()
if parents.rank() == 1:
    parents.send_object_list(["alive"], 0)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def parent_of_the_dying() -> None:
    import os
    import sys

    import numpy as np
    from ranks_tools import dist, errors, raises, stamp, start

    start()
    command = [sys.executable, os.environ["CHILD"]]
    if os.environ["FAULTS_MPI"] == "mpich":  # its launcher ends the job if the process itself dies
        command = ["/bin/sh", "-c", " ".join(command) + "; sleep 5"]
    children = dist.spawn(command, 2, timeout=50)
    told = [None]
    assert children.recv_object_list(told, 1) == 1 and told == ["alive"]
    with raises(errors.PeerDiedError, "died", ranks=(2,), most=3):
        children.recv(np.zeros(3), 1)
    with raises(errors.PeerDiedError, among=(1, 2)):  # the launcher may end the other one
        children.merge()
    children.disconnect()
    stamp("seen")
    os._exit(0)


def test_a_spawned_process_dies(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(DYING_CHILD)
    options = ("--with-ft", "ulfm") if MPI == "openmpi" else ()
    ended = job.run(1, parent_of_the_dying, env={"CHILD": str(child)}, options=options)
    assert ended.stamp("seen"), ended.output
