"""A window of torch's tensors on a rank that shares its node with no other."""

from __future__ import annotations

import job


def alone() -> None:
    """Nobody maps the heap, into which the storage moves all the same."""
    import paddlempi.torch
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpi")
    tensor = torch.zeros(100)
    window = paddlempi.Window(tensor)
    window[0][3] += 2
    assert tensor[3] == 2 and tensor.is_shared()
    window.free()
    dist.destroy_process_group()
    print("added")


def test_a_rank_that_is_alone_on_its_node() -> None:
    result = job.run(1, alone).result
    assert result.returncode == 0 and "added" in result.stdout, result.output
