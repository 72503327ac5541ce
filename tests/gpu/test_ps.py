"""Models in GPU memory whose embeddings, and dense parameters, lie on parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from paddlempi import ps

ROWS, DIM, STEPS, EACH = 40, 6, 4, 9


@pytest.fixture(autouse=True)
def ended(dist: ModuleType) -> Iterator[None]:
    yield
    ps.shutdown()


def net(torch: Any) -> Any:
    """Embeddings with sparse gradients, one with a padding, and dense layers."""

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(ROWS, DIM, padding_idx=3, sparse=True)
            self.bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
            self.up = torch.nn.Linear(2 * DIM, 500)
            self.down = torch.nn.Linear(500, 1)

        def forward(self, ids: Any) -> Any:
            rows = torch.cat([self.words(ids).sum(1), self.bag(ids)], 1)
            return self.down(torch.tanh(self.up(rows)))

    torch.manual_seed(7)
    return Net()


def batch(torch: Any, step: int, trainer: int) -> tuple[Any, Any]:
    make = torch.Generator().manual_seed(1000 * step + trainer)
    return torch.randint(0, ROWS, (EACH, 3), generator=make), torch.rand(EACH, 1, generator=make)


def one_process(torch: Any, trainers: int) -> dict[str, Any]:
    """The state after STEPS steps of one process on the CPU, with the batches of all trainers."""
    model = net(torch)
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        for trainer in range(trainers):
            ids, target = batch(torch, step, trainer)
            torch.nn.functional.mse_loss(model(ids), target).backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad / trainers
        optimizer.step()
    state: dict[str, Any] = model.state_dict()
    return state


def train(torch: Any, model: Any, optimizer: Any, rank: int) -> None:
    for step in range(STEPS):
        ids, target = batch(torch, step, rank)
        optimizer.zero_grad()
        # The loss and its gradients are still under way in the stream when the step begins.
        torch.cuda._sleep(2_000_000)
        torch.nn.functional.mse_loss(model(ids.cuda()), target.cuda()).backward()
        optimizer.step()


def near(torch: Any, state: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(state[name].cpu(), value, rtol=1e-3, atol=1e-4)


def test_a_transpiled_model(torch: Any, rank: int, size: int) -> None:
    model = net(torch).cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    plan = ps.transpile(model, optimizer, "trainer+pserver:*")
    assert plan.model.up.weight.is_cuda
    train(torch, plan.model, plan.optimizer, rank)
    assert plan.model.words(torch.tensor([1], device="cuda")).is_cuda
    near(torch, plan.state_dict(), one_process(torch, size))


@pytest.mark.parametrize("dense", ["server", "all_reduce"])
def test_layers_and_an_optimizer(torch: Any, rank: int, size: int, dense: str) -> None:
    ps.init("trainer+pserver:*")
    plain = net(torch)
    model = torch.nn.ModuleDict(
        {
            "words": ps.Embedding(ROWS, DIM, name=f"gpu {dense}", optimizer=ps.SGD(0.1)),
            "up": torch.nn.Linear(DIM, 3),
        }
    ).cuda()
    reference = torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(ROWS, DIM), "up": torch.nn.Linear(DIM, 3)}
    )
    with torch.no_grad():
        reference["words"].weight.copy_(plain.words.weight)
        reference["up"].weight.copy_(plain.up.weight[:3, :DIM])
        reference["up"].bias.zero_()
        model["up"].load_state_dict(reference["up"].state_dict())
    if rank == 0:
        model["words"].table.write(torch.arange(ROWS), reference["words"].weight.detach())
    ps.barrier("written")
    optimizer = ps.DistributedOptimizer(
        torch.optim.SGD(model["up"].parameters(), 0.1), dense=dense, name=f"dense {dense}"
    )
    of_one = torch.optim.SGD(reference.parameters(), 0.1)
    for step in range(STEPS):
        of_one.zero_grad()
        for trainer in range(size):
            ids = batch(torch, step, trainer)[0]
            (reference["up"](reference["words"](ids)).square().mean() / size).backward()
        of_one.step()
        ids = batch(torch, step, rank)[0].cuda()
        optimizer.zero_grad()
        torch.cuda._sleep(2_000_000)
        model["up"](model["words"](ids)).square().mean().backward()
        optimizer.step()
    ids = torch.arange(ROWS, device="cuda")
    torch.testing.assert_close(
        model["words"](ids).cpu(), reference["words"].weight, rtol=1e-3, atol=1e-5
    )
    torch.testing.assert_close(
        model["up"].weight.cpu(), reference["up"].weight, rtol=1e-3, atol=1e-5
    )


def test_what_takes_host_memory_says_so(torch: Any) -> None:
    from paddlempi import errors

    ps.init("trainer+pserver:*")
    table = ps.RemoteTable("of the host", DIM)
    with pytest.raises(errors.UnsupportedError, match="device memory"):
        table.pull(torch.arange(3, device="cuda"))
    table.pull(torch.arange(3))
