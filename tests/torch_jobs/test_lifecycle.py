"""Beginning and end of the default group, where torch is the only one that uses MPI."""

from __future__ import annotations

import job


def again() -> None:
    import paddlempi
    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    for _ in range(2):
        dist.init_process_group("mpi")
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 3
        assert paddlempi.is_initialized()
        dist.destroy_process_group()
        assert not paddlempi.is_initialized()
    done()


def test_init_after_destroy() -> None:
    job.succeed(2, again)
