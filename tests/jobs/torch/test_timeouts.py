"""A member that dies, and works that outlive the world."""

from __future__ import annotations

import job
import pytest


def died() -> None:
    """A member dies. The others raise within the deadline, or the launcher ends the job."""
    import os
    from datetime import timedelta

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import stamp

    dist.init_process_group("mpi", timeout=timedelta(seconds=5))
    dist.barrier()
    if dist.get_rank() == 1:
        stamp("died")
        os._exit(7)
    dist.all_reduce(torch.ones(2), async_op=True).wait()


def died_beside_an_operator() -> None:
    """A member dies. The operator of the others raises the error that names it."""
    import os
    import signal

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from paddlempi.torch.errors import PeerDiedError
    from ranks_tools import done, raises

    dist.init_process_group("mpi")
    name = dist.group.WORLD.group_name

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.ops.paddlempi.all_reduce_(y, name)
        return y

    if os.environ["FAULTS_WAY"] == "compiled":
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert call(torch.ones(2)).tolist() == [4, 4]
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with raises(PeerDiedError, ranks=[1]):
        call(torch.ones(2))
    done()
    os._exit(0)


def beyond_the_end() -> None:
    """Works outlive the world. Ended works keep their outcome, and other works raise an error."""
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    dist.init_process_group("mpi")
    x = torch.ones(2)
    ended = dist.all_reduce(x, async_op=True)
    ended.wait()
    waiting = dist.irecv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size(), tag=9)
    future = waiting.get_future()
    dropped = dist.irecv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size(), tag=10)
    del dropped
    dist.destroy_process_group()
    assert ended.wait() and ended.is_success()
    for read in (waiting.wait, future.wait):
        try:
            read()
        except RuntimeError as error:
            assert "destroy" in str(error), repr(error)
        else:
            raise AssertionError("a message that nobody sent")
    done()


def test_a_dead_rank_ends_the_job() -> None:
    ended = job.run(2, died)
    assert ended.returncode != 0
    assert ended.at - ended.stamp("died") < 30, ended.output


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_an_operator_names_a_dead_rank(way: str) -> None:
    ended = job.run(2, died_beside_an_operator, env={"FAULTS_WAY": way})
    assert ended.result.stdout.count("done\n") == 1, ended.output


def test_works_outlive_the_world() -> None:
    job.succeed(2, beyond_the_end, timeout=120)  # its end waits for 10 s
