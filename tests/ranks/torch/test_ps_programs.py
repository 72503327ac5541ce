"""Programs of torch on trainers and servers have the numbers of one process: models, and backward.

Each case is a program; ``ps_one_process`` says what it is compared with: with plain SGD bit for
bit, else with torch's optimizers in float64 to 1e-6, and in float32 to 1e-5 of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from paddlempi import ps
from paddlempi.testing import World
from ps_one_process import DIM, EACH, ROLES, ROWS, Case, Net, Program, batch, check, loss_of, rows

pytestmark = pytest.mark.mpi(ranks=[2, 3])

nn = torch.nn


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    ps.shutdown()


# What models have


class Norms(Case):
    """BatchNorm has the statistics of its trainer."""

    def model(self) -> Any:
        return Net(middle=nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8)))


class Dropout(Case):
    """Each trainer draws its own random numbers."""

    def model(self) -> Any:
        return Net(middle=nn.Dropout(0.5))


class Padding(Case):
    def model(self) -> Any:
        return Net(rows(padding_idx=2))


class NegativePadding(Case):
    def model(self) -> Any:
        return Net(rows(padding_idx=-1))


class TiedDense(Case):
    """An embedding without sparse gradients whose weight is that of a linear layer, too."""

    def model(self) -> Any:
        made = nn.ModuleDict({"a": nn.Embedding(ROWS, DIM), "b": nn.Linear(DIM, ROWS)})
        made["b"].weight = made["a"].weight
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, _ = batch(step, trainer)
        nn.functional.cross_entropy(model["b"](model["a"](ids).mean(1)), ids[:, 0]).backward()


class Shared(Case):
    """A module with rows at two places, which a forward calls twice each."""

    def model(self) -> Any:
        made = Net()
        made.more = nn.ModuleList([made.words, nn.ModuleDict({"it": made.words, "up": made.up})])
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        other = model.more[1]["up"](model.more[0](ids.flip(0)).mean(1))
        (model(ids) * other.sum(1, keepdim=True) - target).square().mean().backward()


class Aliased(Case):
    """An embedding that a program has in a list and in a function, too, which are no modules."""

    def model(self) -> Any:
        made = Net()
        made.plain, made.call = [made.words], partial(made.words)
        made.words.register_forward_hook(lambda module, ids, out: out * 3)
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        found = model.plain[0](ids) + model.call(ids[:, :1]) - model.words(ids.flip(0))
        nn.functional.mse_loss(model.down(model.up(found.mean(1))), target).backward()


class Shapes(Case):
    """Parameters of no dimension, in another order of memory, and of several blocks."""

    def model(self) -> Any:
        made = Net()
        made.scale = nn.Parameter(torch.tensor(0.5))
        made.turned = nn.Parameter(torch.rand(3, DIM).t())
        made.large = nn.Parameter(torch.rand(9000) / 100)
        made.none = nn.Parameter(torch.empty(0, 3))
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        extra = (
            model.words(ids[1:]) @ model.turned
        ).sum() * model.scale + model.large.square().sum()
        (nn.functional.mse_loss(model(ids), target) + extra / 10).backward()


class Frozen(Case):
    """A frozen layer, and a frozen embedding, which each trainer has."""

    def model(self) -> Any:
        made = Net()
        made.up.requires_grad_(False)
        made.fixed = rows().requires_grad_(False)
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        nn.functional.mse_loss(
            model(ids) + model.fixed(ids).sum((1, 2))[:, None], target
        ).backward()


class Bag(Case):
    """EmbeddingBag, with ids in a line, offsets, and weights that are trained, too."""

    mode, last, padding = "sum", False, None

    def model(self) -> Any:
        made = nn.Module()
        settings = {"include_last_offset": self.last, "padding_idx": self.padding}
        made.bag = nn.EmbeddingBag(ROWS, DIM, mode=self.mode, sparse=True, **settings)
        made.factors = nn.Parameter(torch.rand(3 * EACH))
        made.down = nn.Linear(DIM, 1)
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids = batch(step, trainer)[0].reshape(-1)
        offsets = torch.tensor([0, 2, 2, 7, *([len(ids)] if self.last else [])])  # one is empty
        factors = model.factors if self.mode == "sum" else None
        out = model.down(model.bag(ids, offsets, per_sample_weights=factors))
        (out.square().sum() + model.factors.square().sum()).mul(0.1).backward()


class BagMean(Bag):
    mode, last = "mean", True


class BagPadding(Bag):
    mode, padding = "mean", 3


def halve(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


class Hooks(Case):
    """Hooks of parameters and of modules, also of the embedding."""

    def model(self) -> Any:
        made = Net()
        made.up.weight.register_hook(lambda gradient: gradient * 2)
        made.down.bias.register_post_accumulate_grad_hook(halve)
        made.words.register_forward_hook(lambda module, ids, out: out * 3)
        made.words.register_forward_pre_hook(lambda module, ids: (ids[0].flip(0),))
        return made


class Halves(Case):
    """Dense parameters of 16 bits: on the servers they have 32, as master weights do."""

    def model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        nn.functional.mse_loss(model(ids.bfloat16() / 10), target.bfloat16()).backward()


class Averaged(Case):
    """A moving average of the dense parameters, by a copy of the model, which has the same rows."""

    def between(self, plan: Any, step: int) -> None:
        if step == 0:
            self.average_model = torch.optim.swa_utils.AveragedModel(plan.model)
        self.average_model.update_parameters(plan.model)
        ids = batch(step, 0)[0]
        if step == 0:
            assert torch.equal(self.average_model(ids), plan.model(ids))


# What programs do before a step


class Accumulation(Case):
    """Several batches for a step."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        for part in range(3):
            (loss_of(model, 10 * step + part, trainer) / 3).backward()


class Evaluation(Case):
    """Forwards without gradients, in between; and one whose gradients are dropped."""

    def model(self) -> Any:
        return Net(middle=nn.BatchNorm1d(8))

    def backward(self, model: Any, step: int, trainer: int) -> None:
        with torch.no_grad():
            model(batch(99, trainer)[0])
        with torch.inference_mode():
            model.eval()(batch(98, trainer)[0])
        loss_of(model.train(), 50 + step, trainer)  # no backward
        loss_of(model, step, trainer).backward()


class Dropped(Case):
    """Gradients that zero_grad drops: of the optimizer, also to zeros, and of the model."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        if step == 3:
            loss_of(model, 60, trainer).backward()
            model.zero_grad()
        loss_of(model, step, trainer).backward()

    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        loss_of(plan.model, 70 + step, trainer).backward()
        for one in optimizers:
            one.zero_grad(set_to_none=step % 2 == 0)
        self.backward(plan.model, step, trainer)
        self.update(plan.model, optimizers, step)


class Unused(Case):
    """Parameters and rows that a step, or a trainer, does not use; and a trainer without ids."""

    def model(self) -> Any:
        made = Net()
        made.other = Net()
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        if step == 0 and trainer == 1:
            return  # no backward at all
        if step == 1 and trainer == 0:
            model(torch.empty(2, 3, dtype=torch.int64)[:0]).sum().backward()
            return
        loss_of(model.other if (step + trainer) % 2 else model, step, trainer).backward()


class Closure(Case):
    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        def closure() -> float:
            optimizers[0].zero_grad()
            self.backward(plan.model, step, trainer)
            return 2.5

        assert optimizers[0].step(closure) == 2.5


class Checkpointed(Case):
    """Forward is computed again in backward."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        out = torch.utils.checkpoint.checkpoint(model, ids, use_reentrant=False)
        nn.functional.mse_loss(out, target).backward()


class Autograd(Case):
    """torch.autograd.grad, of dense parameters and of what an embedding returns."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        found = model.words(ids)
        loss = model.down(model.middle(model.up(found.mean(1)))).sub(target).square().mean()
        parts = torch.autograd.grad(loss, [model.up.weight, found], retain_graph=True)
        scale = 1 + sum(part.norm().detach() for part in parts)
        (loss / scale).backward()


class Penalty(Case):
    """The norm of a gradient is a part of the loss."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        loss = loss_of(model, step, trainer)
        (found,) = torch.autograd.grad(loss, [model.up.weight], create_graph=True)
        (loss + found.square().sum()).backward()


class Mixed(Case):
    """Autocast to bfloat16."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, step, trainer)
        loss.backward()


class Compiled(Case):
    """torch.compile, with a break of the graph at the embedding."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        loss_of(torch.compile(model, backend="eager"), step, trainer).backward()


class Wrapped(Case):
    """A model that is compiled before it is transpiled."""

    def model(self) -> Any:
        return torch.compile(Net(), backend="eager")


class Sum(Case):
    """Gradients that are added up, and not divided."""

    average = False


def cases(*kinds: type[Program]) -> dict[str, Program]:
    return {kind.__name__: kind() for kind in kinds}


CASES = {
    **cases(Case, Sum, Aliased, Norms, Dropout, Padding, NegativePadding, TiedDense, Shared),
    **cases(Shapes, Frozen, Halves, Averaged, Bag, BagMean, BagPadding, Hooks, Accumulation),
    **cases(
        Evaluation,
        Dropped,
        Unused,
        Closure,
        Checkpointed,
        Autograd,
        Penalty,
        Mixed,
        Compiled,
        Wrapped,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_one_process(rank: int, case: Program) -> None:
    number = list(CASES.values()).index(case)
    check(case, ROLES[number % 2], rank)
