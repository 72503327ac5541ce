"""PADDLEMPI_CHECK_AUTOGRAD=1: autograd notices the tensors that were written, and no others."""

from __future__ import annotations

import job


def checked() -> None:
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done, raises

    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    written, read = torch.ones(2), torch.ones(2)
    dist.all_reduce(written)
    assert written._version == 1
    dist.all_reduce(written, async_op=True).wait()
    assert written._version == 2
    dist.all_reduce_coalesced([written])
    assert written._version == 3
    torch.ops.paddlempi.all_reduce_(written, dist.group.WORLD.group_name)
    assert written._version == 4
    dist.all_gather_into_tensor(torch.empty(2 * size), read)
    assert read._version == 0
    for root in range(size):
        shared = torch.ones(2)
        dist.broadcast(shared, root)
        assert shared._version == (rank != root)
        dist.broadcast(shared, root, async_op=True).wait()
        assert shared._version == 2 * (rank != root)
    sent, received = torch.ones(2), torch.ones(2)
    requests = [dist.irecv(received, (rank - 1) % size), dist.isend(sent, (rank + 1) % size)]
    for request in requests:
        request.wait()
    assert (sent._version, received._version) == (0, 1)
    with torch.inference_mode():
        plain = torch.ones(2)
    dist.all_reduce(plain)  # this tensor has no version

    for async_op in (False, True):
        factor = torch.ones(3)
        product = torch.ones(3, requires_grad=True) * factor
        work = dist.all_reduce(factor, async_op=async_op)
        if async_op:
            work.wait()
        words = "modified by an inplace operation"
        with raises(RuntimeError, words):
            product.sum().backward()
    done()


def test_checked() -> None:
    job.succeed(2, checked, env={"PADDLEMPI_CHECK_AUTOGRAD": "1"})
