"""Warm starts with torch: what its import leaves in the server, and a job of two ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from paddlempi.testing import Warm, run, warm_wire
from paddlempi.testing import warm as client

MODULES = ["numpy", "torch", "torch._dynamo", "torch.nn.parallel", "torch.distributed"]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Warm]:
    with Warm(MODULES) as warm:
        yield warm


def trains() -> None:
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    assert torch.initial_seed() == 67280421310721
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    step = torch.optim.SGD(model.parameters(), lr=0.5)
    (model(torch.full((3, 4), rank + 1.0)).sum()).backward()
    assert torch.equal(model.module.weight.grad, torch.full((2, 4), 4.5))  # 3 and 6
    step.step()
    x = torch.ones(512, 512) @ torch.ones(512, 512)
    dist.all_reduce(x)
    assert (x == 1024).all()
    dist.destroy_process_group()
    print("trained")


@pytest.mark.parametrize("threads", ["1", "2"])
def test_data_parallel(threads: str) -> None:
    result = run(2, trains, warm=True, env={"OMP_NUM_THREADS": threads})
    assert result.returncode == 0, result.output
    assert result.stdout.count("trained") == 2


def test_the_server_computes_nothing(server: Warm) -> None:
    """A thread pool, or autograd's threads, would be threads of the server."""
    assert run(2, trains, warm=True).returncode == 0
    with client._connected(server.folder, MODULES) as sock:
        pid = warm_wire.peer(sock)[0]
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_a_server_that_has_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\ntorch.set_num_threads(2)\ntorch.ones(999, 999) @ torch.ones(999, 999)\n"
    (tmp_path / "computes.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Warm(["computes"]), pytest.raises(RuntimeError, match=r"it has \d+ threads"):
        run(1, "program.py", warm=True)
