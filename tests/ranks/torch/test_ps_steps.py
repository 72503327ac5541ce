"""Programs of torch on trainers and servers have the numbers of one process: optimizers, schedules.

As ``test_ps_programs``; and clips, round trips of states, and cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from paddlempi import broadcast_object_list, errors, ps
from paddlempi.testing import World
from ps_one_process import ROLES, STEPS, Case, Net, Program, apart, check, loss_of
from torch.optim import lr_scheduler

pytestmark = pytest.mark.mpi(ranks=[2, 3])

nn = torch.nn


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    ps.shutdown()


# What optimizers there are


class SgdDecay(Case):
    """Decay of the dense parameters, in groups with rates of their own; one group is the rows."""

    def optimizers(self, model: Any) -> list[Any]:
        groups = [
            {"params": [model.words.weight], "lr": 0.3},
            {"params": [model.up.weight, model.down.weight], "weight_decay": 0.1},
            {"params": [model.up.bias, model.down.bias], "lr": torch.tensor(0.05)},
        ]
        return [torch.optim.SGD(groups, 0.1)]


class Kind(Case):
    """An optimizer of the rows, and one of the rest."""

    def __init__(self, of_rows: Any, of_rest: Any) -> None:
        self._of_rows, self._of_rest = of_rows, of_rest

    def optimizers(self, model: Any) -> list[Any]:
        return apart(model, self._of_rows, self._of_rest)


class Often(Kind):
    """Several optimizers that step at different times."""

    def update(self, model: Any, optimizers: list[Any], step: int) -> None:
        optimizers[1].step()
        if step % 2:
            optimizers[0].step()


sgd = partial(torch.optim.SGD, lr=0.1)
heavy = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
nesterov = partial(torch.optim.SGD, lr=0.05, momentum=0.8, nesterov=True)
# Without a sum at first, or with a small epsilon, a rounding error of a gradient is a whole step.
adagrad = partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1)
decayed = partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1, weight_decay=0.05)
adam = partial(torch.optim.Adam, lr=0.01, eps=1e-3, weight_decay=0.05)
adamw = partial(torch.optim.AdamW, lr=0.01, eps=1e-3, betas=(0.8, 0.95))


# Clips


class ClipNorm(Kind):
    """By the norm of all gradients, some of them rows. A plan has methods for torch's functions."""

    most, order = 0.05, 2.0

    def clip(self, model: Any) -> None:
        parameters = [p for p in model.parameters() if p.grad is not None]
        gradients = [p.grad.to_dense() for p in parameters]
        norm = nn.utils.get_total_norm(gradients, self.order)
        for p in parameters:
            p.grad = p.grad * torch.clamp(self.most / (norm + 1e-6), max=1.0)

    def clip_on_servers(self, plan: Any) -> None:
        assert plan.clip_grad_norm_(self.most, self.order) > 0


class ClipValue(ClipNorm):
    def clip(self, model: Any) -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad.to_dense().clamp(-self.most, self.most)

    def clip_on_servers(self, plan: Any) -> None:
        plan.clip_grad_value_(self.most)


class ClipLargest(ClipNorm):
    order = float("inf")


class ClipSum(ClipValue):
    """With parameters that one trainer uses."""

    average, most = False, 0.01

    def model(self) -> Any:
        made = Net()
        made.other = Net()
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        loss_of(model.other if (step + trainer) % 2 else model, step, trainer).backward()


# Schedules


class Scheduled(Case):
    def __init__(self, make: Callable[[Any], Any], early: bool = False) -> None:
        self._make, self.early = make, early

    def schedules(self, optimizers: list[Any]) -> list[Any]:
        return [self._make(one) for one in optimizers]


class Plateau(Scheduled):
    """All trainers give the schedule the same number."""

    def advance(self, schedules: list[Any], step: int) -> None:
        for one in schedules:
            one.step(1.0 if step else 0.5)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda of: lr_scheduler.StepLR(of, 2, 0.5),
    "several steps": lambda of: lr_scheduler.MultiStepLR(of, [1, 3], 0.3),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(
        of, 0.3, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "cyclic": lambda of: lr_scheduler.CyclicLR(of, 0.01, 0.3, 2, cycle_momentum=False),
    "lambda": lambda of: lr_scheduler.LambdaLR(
        of, lambda step: 0.0 if step == 2 else 1 / (1 + step)
    ),
    "cosine": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 3),
    "warm up, then": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, 0.1, 1, 2), lr_scheduler.ExponentialLR(of, 0.9)], [2]
    ),
}


class RoundTrip(Kind):
    """The state goes to a program of one process in the middle, and comes back."""

    def between(self, plan: Any, step: int) -> None:
        if step == 1:
            state = plan.state_dict()
            alone = self.model()
            alone.load_state_dict(state)
            ps.barrier()
            plan.set_state_dict(alone.state_dict())


CASES: dict[str, Program] = {
    "sgd, decay": SgdDecay(),
    "momentum": Kind(sgd, heavy),
    "nesterov": Kind(sgd, nesterov),
    "adagrad": Kind(adagrad, adagrad),
    "adagrad, decay": Kind(sgd, decayed),
    "adam": Kind(partial(torch.optim.SparseAdam, lr=0.01, eps=1e-12), adam),
    "adamw": Kind(adagrad, adamw),
    "clip by norm": ClipNorm(sgd, adagrad),
    "clip by the largest": ClipLargest(adagrad, sgd),
    "clip by value": ClipValue(sgd, adagrad),
    "clip a sum by value": ClipSum(sgd, sgd),
    "often": Often(adagrad, nesterov),
    "round trip": RoundTrip(adagrad, adam),
    **{f"schedule: {name}": Scheduled(make) for name, make in SCHEDULES.items()},
    "schedule made before": Scheduled(SCHEDULES["step"], early=True),
    "schedule: plateau": Plateau(
        lambda of: lr_scheduler.ReduceLROnPlateau(of, factor=0.5, patience=1)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_one_process(rank: int, case: Program) -> None:
    number = list(CASES.values()).index(case)
    check(case, ROLES[number % 2], rank)


def test_trainers_with_other_rates(rank: int) -> None:
    """A schedule that each trainer gives a loss of its own makes no step; all may go on."""
    model = Net()
    plan = ps.transpile(model, torch.optim.SGD(model.parameters(), 0.1), ROLES[0])
    schedule = lr_scheduler.ReduceLROnPlateau(plan.optimizer, factor=0.5, patience=0)
    before = plan.state_dict()
    schedule.step(1.0)
    schedule.step(1.0 - rank)
    loss_of(plan.model, 0, rank).backward()
    with pytest.raises(errors.MismatchError, match=r"rates 0\.05 and 0\.1 in the same step"):
        plan.optimizer.step()
    assert all(torch.equal(plan.state_dict()[name], value) for name, value in before.items())
    ps.barrier()
    plan.optimizer.zero_grad()
    plan.optimizer.param_groups[0]["lr"] = 0.01
    loss_of(plan.model, 0, rank).backward()
    plan.optimizer.step()
    assert not torch.equal(plan.state_dict()["words.weight"], before["words.weight"])


@pytest.mark.parametrize("roles", ROLES)
def test_it_goes_on_from_a_cut(rank: int, roles: str, tmp_path: Path) -> None:
    """With the rows, the dense parameters, and the states of then, after refresh."""
    told = [str(tmp_path)]
    broadcast_object_list(told)
    case = Kind(adagrad, adam)
    torch.manual_seed(7)
    model = case.model()
    plan = ps.transpile(model, case.optimizers(model), roles)

    def train(begin: int, end: int) -> dict[str, Any]:
        for step in range(begin, end):
            case.train(plan, plan.optimizer, step, rank)
        ps.barrier()
        return plan.state_dict()

    train(0, 2)
    ps.save(told[0], 2)
    wanted = train(2, 5)
    ps.barrier()
    assert ps.restore(told[0])["step"] == 2
    for one in plan.optimizer:
        one.refresh()
    found = train(2, 5)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
