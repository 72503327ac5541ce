"""The program of every rank of test_ps_equal_torch.py, with modules of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import paddlempi
import ps_equal
import torch
from paddlempi import ps
from ps_equal import DIM, ROLES, ROWS, STEPS, WIDTH, compare

RATE = 1e-3
LARGE = 100.0  # so that gradients are far above an epsilon of 1e-8, which SparseAdam adds elsewhere


class Net(torch.nn.Module):
    """A table, and weights of several blocks and of one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(ROWS, DIM, sparse=True)
        self.words.weight.data *= 0.1  # so that 1e-6 is several bits
        self.up = torch.nn.Linear(DIM, WIDTH)
        self.down = torch.nn.Linear(WIDTH, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.tanh(self.up(self.words(ids).mean(1))))
        return out


def backward(model: torch.nn.Module, step: int, trainer: int) -> None:
    ids, target = map(torch.from_numpy, ps_equal.batch(step, trainer))
    (LARGE * torch.nn.functional.mse_loss(model(ids), target)).backward()


def apart(rows: Callable[..., Any], dense: Callable[..., Any]) -> Callable[[Net], list[Any]]:
    """One optimizer for the rows, and another one for the rest."""
    return lambda model: [
        rows([model.words.weight], lr=RATE),
        dense([p for name, p in model.named_parameters() if name != "words.weight"], lr=RATE),
    ]


def sgd(parameters: Any, lr: float) -> Any:
    return torch.optim.SGD(parameters, lr / 10)


def nesterov(parameters: Any, lr: float) -> Any:
    return torch.optim.SGD(parameters, lr / 50, momentum=0.9, nesterov=True, weight_decay=0.01)


KINDS: dict[str, Callable[[Net], list[Any]]] = {
    "sgd": apart(sgd, sgd),
    "momentum": apart(torch.optim.Adagrad, nesterov),
    "adagrad": apart(torch.optim.SparseAdam, torch.optim.Adagrad),
    "adam": apart(torch.optim.SparseAdam, torch.optim.Adam),
    "adamw": apart(sgd, torch.optim.AdamW),
}


def main() -> None:
    """Train with every optimizer, and compare."""
    torch.set_num_threads(1)
    roles: str | None = ROLES
    for name, make in KINDS.items():
        torch.manual_seed(5)
        model = Net()
        alone = copy.deepcopy(model)
        plan = ps.transpile(model, make(model), roles, average=False, name=name)
        roles = None  # a server serves in the first call, and ends in it
        trainers, me = ps.trainers(), ps.trainers().index(paddlempi.get_rank())
        for step in range(STEPS):
            for one in plan.optimizer:
                one.zero_grad()
            backward(plan.model, step, me)
            for one in plan.optimizer:
                one.step()
        ps.barrier()
        if me == 0:
            wanted = by_hand(alone) if name == "sgd" else of_torch(alone, make, len(trainers))
            compare(name, plan.state_dict(), wanted, bits=name == "sgd")
        ps.barrier()


def of_torch(model: Net, make: Callable[[Net], list[Any]], trainers: int) -> dict[str, Any]:
    """One process runs all batches one after another, with torch's own optimizers."""
    optimizers = make(model)
    for step in range(STEPS):
        for one in optimizers:
            one.zero_grad()
        for trainer in range(trainers):
            backward(model, step, trainer)
        for one in optimizers:
            one.step()
    return dict(model.state_dict())


def by_hand(model: Net) -> dict[str, Any]:
    """One process, which adds up gradients in the order of ranks: w - r g in float32."""
    for step in range(STEPS):
        parts = []
        for trainer in range(2):
            model.zero_grad()
            backward(model, step, trainer)
            parts.append({name: gradient_of(p) for name, p in model.named_parameters()})
        for name, parameter in model.named_parameters():
            total = parts[0][name] + parts[1][name]
            new = ps_equal.sgd(parameter.detach().numpy(), total, RATE / 10)
            if name == "words.weight":  # a row that is in no batch stays as it is
                new = np.where(total != 0, new, parameter.detach().numpy())
            parameter.data = torch.from_numpy(new)
    return dict(model.state_dict())


def gradient_of(parameter: torch.Tensor) -> Any:
    """A gradient as an array. That of rows: each row's added up in the order of the batch."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient.numpy().copy()
    ids, rows = gradient._indices()[0].numpy(), gradient._values().numpy()
    return ps_equal.of_rows(ids, rows)[1]
