"""A DataLoader's workers are forks of a trainer of a parameter server."""

from __future__ import annotations

import job


def workers() -> None:
    """A worker that asks for rows gets ForkError; those that only load data do not disturb."""
    import torch
    from paddlempi import errors, ps
    from ranks_tools import done, start

    start()
    ps.init("trainer:1,pserver:1", timeout=60.0)
    if not ps.is_trainer():
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", 4, ps.SGD(1.0))

    class Loaded(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[torch.Tensor, bool]:
            refused = False
            try:
                table.pull(torch.tensor([i]))
            except errors.ForkError:
                refused = True
            return torch.tensor(i), refused

    loader = torch.utils.data.DataLoader(
        Loaded(), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        for ids, refused in loader:
            assert refused.all()
            table.push(ids, torch.ones(2, 4))
    assert (table.pull(torch.arange(8)) == -2).all()
    done()


def test_workers_of_a_dataloader() -> None:
    job.succeed(2, workers)
