"""A forked child has one thread and no MPI. Its calls raise a clear error; the parent goes on."""

from __future__ import annotations

import job
import pytest

pytestmark = pytest.mark.launcher("the exit handlers of MPI's library in a child")


def forks() -> None:
    import gc
    import os
    import sys

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    group = dist.new_group([0, 1])
    x = np.full(4, rank + 1.0)
    y = np.zeros(4)
    live = dist.irecv(y, 1 - rank, tag=1)
    over = dist.all_reduce(x, async_op=True)
    over.wait()

    def in_child():
        """Make calls as the child. It then ends as Python ends, with its exit handlers."""
        nonlocal live, over
        fork = "fork"
        for call in (
            lambda: dist.all_reduce(np.ones(4)),
            lambda: dist.all_reduce(np.ones(4), group=group, async_op=True),
            lambda: dist.send(np.ones(4), 0),
            lambda: dist.irecv(np.ones(4), 0),
            lambda: dist.probe(),
            lambda: dist.new_group([0, 1]),
            lambda: live.is_completed(),
            lambda: live.get_future(),
            lambda: live.wait(),
        ):
            with raises(errors.ForkError, fork, most=3.0):
                call()
        live = over = None
        gc.collect()
        with raises(errors.ForkError, fork, most=3.0):
            dist.destroy_process_group()

    for way in "os", "exit", "fail":
        child = os.fork()
        if child == 0:
            try:
                if way == "os":
                    in_child()
            except BaseException as error:
                sys.stderr.write(f"in the child: {error!r}\n")
                sys.stderr.flush()
                os._exit(9)
            if way == "fail":
                # Hide the traceback. If stderr were closed, Python would exit with another status.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                raise ValueError("a child may fail by itself")
            sys.exit(4 if way == "exit" else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == {"os": 0, "exit": 4, "fail": 1}[way], (way, code)
    works()
    dist.send(np.full(4, 6.0), 1 - rank, tag=1)
    live.wait()
    assert (y == 6).all()
    works(group)
    done()


def test_forks() -> None:
    ended = job.succeed(2, forks)
    assert "in the child" not in ended.output
