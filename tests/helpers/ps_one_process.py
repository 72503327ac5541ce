"""What a synchronous job of trainers and servers computes, computed in one process with torch.

A program is a :class:`Program`. :func:`on_servers` runs it on the trainers of this job;
:class:`OneProcess` runs the batches of all trainers one after another, in the order of ranks. Each
trainer has a model there with buffers and random numbers of its own, and all have the parameters
of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from paddlempi import ps
from ps_roles import BOTH

__all__ = [
    "DIM",
    "EACH",
    "ROLES",
    "ROWS",
    "STEPS",
    "Case",
    "Net",
    "Program",
    "apart",
    "batch",
    "check",
    "loss_of",
    "on_servers",
    "rows",
]

ROWS, DIM, EACH, STEPS = 12, 4, 5, 5
ROLES = (BOTH, "trainer+pserver,trainer:*")
"""All ranks train; all of them are servers, or one is."""

nn = torch.nn


class Program:
    """A training program for one process; a case overrides what is its own.

    Attributes:
        average: whether gradients are divided by the number of trainers.
        early: whether schedules are made before the program is transpiled.
    """

    average = True
    early = False

    def model(self) -> Any:
        """A new model, from the random numbers of now."""
        raise NotImplementedError

    def optimizers(self, model: Any) -> list[Any]:
        return [torch.optim.SGD(model.parameters(), 0.1)]

    def schedules(self, optimizers: list[Any]) -> list[Any]:
        return []

    def backward(self, model: Any, step: int, trainer: int) -> None:
        """What one trainer does before the step: gradients of its batch."""
        raise NotImplementedError

    def clip(self, model: Any) -> None:
        """Change the gradients of one process before a step."""

    def clip_on_servers(self, plan: Any) -> None:
        """Change the gradients of all trainers so, too."""

    def update(self, model: Any, optimizers: list[Any], step: int) -> None:
        """The step, with the gradients of all trainers."""
        for one in optimizers:
            one.step()

    def advance(self, schedules: list[Any], step: int) -> None:
        for one in schedules:
            one.step()

    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        """One step of a program on servers."""
        for one in optimizers:
            one.zero_grad()
        self.backward(plan.model, step, trainer)
        self.clip_on_servers(plan)
        self.update(plan.model, optimizers, step)

    def between(self, plan: Any, step: int) -> None:
        """What trainers do after a step that one process has no need of."""


def seed(trainer: int) -> Any:
    """The random numbers of a trainer at first."""
    return torch.Generator().manual_seed(100 + trainer).get_state()


def begun(program: Program) -> Any:
    torch.manual_seed(7)
    return program.model()


def on_servers(program: Program, roles: str | None, name: str = "plan") -> Any:
    """Run a program on the trainers of this job. Every rank trains. Return its plan."""
    model = begun(program)
    optimizers = program.optimizers(model)
    schedules = program.schedules(optimizers) if program.early else []
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    plan = ps.transpile(model, given, roles, average=program.average, name=name)
    mine = plan.optimizer if len(optimizers) > 1 else [plan.optimizer]
    schedules = schedules or program.schedules(mine)
    me = ps.trainers().index(ps.session.current("a test").rank)
    torch.set_rng_state(seed(me))
    for step in range(STEPS):
        program.train(plan, mine, step, me)
        program.advance(schedules, step)
        program.between(plan, step)
    ps.barrier()
    return plan


class Sgd(torch.optim.Optimizer):
    """SGD without momentum as the servers have it: each operation is rounded to float32."""

    def __init__(self, of: torch.optim.SGD) -> None:
        super().__init__(of.param_groups, {})
        self.param_groups = of.param_groups  # those that a schedule has

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.to_dense()
                    if group["weight_decay"]:
                        gradient = gradient + group["weight_decay"] * parameter
                    parameter.copy_(parameter - float(group["lr"]) * gradient)


class OneProcess:
    """A program in one process.

    Args:
        program: what it runs.
        trainers: how many trainers' batches make a step.
        exact: with the bits of the servers' SGD; else with torch's own optimizers, on
        double: parameters in float64, of which forward and backward see float32.
    """

    def __init__(
        self, program: Program, trainers: int, *, exact: bool = False, double: bool = False
    ) -> None:
        self._program = program
        self.model, *self.trainers = (begun(program) for _ in range(1 + trainers))
        self.model.float()  # as on the servers
        self._lookups = [watched(model) for model in self.trainers]
        self._random = [seed(trainer) for trainer in range(trainers)]
        if double:
            self.model.double()
        self._optimizers = program.optimizers(self.model)
        if exact:
            self._optimizers = [Sgd(one) for one in self._optimizers]
        self._schedules = program.schedules(self._optimizers)

    def run(self) -> OneProcess:
        """Make all steps."""
        for step in range(STEPS):
            for trainer, model in enumerate(self.trainers):
                model.zero_grad()
                with self._random_of(trainer):
                    self._program.backward(model, step, trainer)
            self._add()
            self._program.clip(self.model)
            self._program.update(self.model, self._optimizers, step)
            self._program.advance(self._schedules, step)
            with torch.no_grad():
                for model in self.trainers:
                    for mine, new in zip(model.parameters(), self.model.parameters(), strict=True):
                        mine.copy_(new)
        return self

    def state(self, trainer: int) -> dict[str, Any]:
        """The state of a trainer: its buffers, and the parameters of all."""
        mine = self.trainers[trainer].state_dict()
        for name, value in self.model.state_dict(keep_vars=True).items():
            if isinstance(value, torch.nn.Parameter):
                mine[name] = value.detach()
        return mine

    @contextmanager
    def _random_of(self, trainer: int) -> Iterator[None]:
        torch.set_rng_state(self._random[trainer])
        yield
        self._random[trainer] = torch.get_rng_state()

    def _add(self) -> None:
        """Add the trainers' gradients in the order of ranks: what a step of all takes."""
        own = [dict(model.named_parameters()) for model in self.trainers]
        count = len(own) if self._program.average else 1
        for name, parameter in self.model.named_parameters():
            used = [k for k, mine in enumerate(own) if mine[name].grad is not None]
            parameter.grad = None
            if not used:
                continue
            parts = [(own[k][name].grad, self._lookups[k].get(id(own[k][name]))) for k in used]
            added = [dense(*part, count).to(parameter.dtype) for part in parts]
            total = sum(added[1:], added[0])
            if parts[0][0].is_sparse:
                ids = torch.cat([gradient._indices()[0] for gradient, _ in parts]).unique()
                total = torch.sparse_coo_tensor(
                    ids[None], total[ids], total.shape, is_coalesced=True, check_invariants=False
                )
            parameter.grad = total


def watched(model: Any) -> dict[int, list[tuple[Any, Any]]]:
    """Note what backward gives the lookups of a model: ids and gradients, by id() of the weight.

    Torch adds sparse gradients of a weight in an order of its own.
    """
    found: dict[int, list[tuple[Any, Any]]] = {}

    def hook(module: Any, inputs: Any, out: Any) -> None:
        def note(_: Any, gradients: Any) -> None:
            pair = inputs[0].reshape(-1), gradients[0].reshape(-1, module.embedding_dim).clone()
            found.setdefault(id(module.weight), []).append(pair)

        if out.requires_grad:
            out.grad_fn.register_hook(note)

    def zero_grad() -> None:
        type(model).zero_grad(model)
        found.clear()

    vars(model)["zero_grad"] = zero_grad
    for module in model.modules():
        if type(module) is torch.nn.Embedding and module.sparse:
            module.register_forward_hook(torch.compiler.disable(hook), prepend=True)
    return found


def dense(gradient: Any, lookups: list[tuple[Any, Any]] | None, count: int) -> Any:
    """A trainer's part of a step's gradient, without rows that are missing.

    The gradients of a row are divided, and then added as backward gives them.
    """
    if not gradient.is_sparse:
        return gradient.float() / count
    total = np.zeros(tuple(gradient.shape), np.float32)
    for ids, rows in lookups or [(gradient._indices()[0], gradient._values())]:
        np.add.at(total, ids.numpy(), (rows / count).numpy())
    return torch.from_numpy(total)


def is_sgd(optimizers: list[Any]) -> bool:
    """Whether the servers' numbers have known bits."""
    plain: Callable[[Any], bool] = lambda one: (  # noqa: E731
        type(one) is torch.optim.SGD and not any(group["momentum"] for group in one.param_groups)
    )
    return all(map(plain, optimizers))


def check(program: Program, roles: str, trainer: int) -> None:
    """Fail unless the trainers of this job have the numbers of one process after all steps."""
    found = on_servers(program, roles).state_dict()
    exact = is_sgd(program.optimizers(program.model()))
    for settings in [{"exact": True}] if exact else [{}, {"double": True}]:
        wanted = OneProcess(program, len(ps.trainers()), **settings).run().state(trainer)
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            if exact:
                assert torch.equal(found[name], value.to(found[name].dtype)), name
                continue
            far = 1e-6 if settings else 1e-5
            here, there = found[name].to(value.dtype), value
            torch.testing.assert_close(here, there, rtol=far, atol=1e-6, msg=name)
    program.model().load_state_dict(found)


# What cases have in common


def batch(step: int, trainer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, [EACH, 3], some of them twice, and targets, [EACH, 1]."""
    make = torch.Generator().manual_seed(1000 * step + trainer)
    return torch.randint(0, ROWS, (EACH, 3), generator=make), torch.rand(EACH, 1, generator=make)


def rows(**more: Any) -> Any:
    """An embedding with small rows, so that 1e-6 is several bits of them."""
    made = nn.Embedding(ROWS, DIM, sparse=True, **more)
    made.weight.data *= 0.3
    return made


class Net(nn.Module):
    """Rows, a dense layer, and whatever a case puts in between."""

    def __init__(self, words: Any = None, middle: Any = None) -> None:
        super().__init__()
        self.words = rows() if words is None else words
        self.up = nn.Linear(DIM, 8)
        self.middle = nn.Tanh() if middle is None else middle
        self.down = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.middle(self.up(self.words(ids).mean(1))))
        return out


def loss_of(model: Any, step: int, trainer: int) -> torch.Tensor:
    ids, target = batch(step, trainer)
    return nn.functional.mse_loss(model(ids), target)


class Case(Program):
    """Net, with plain SGD for all of it."""

    def model(self) -> Any:
        return Net()

    def backward(self, model: Any, step: int, trainer: int) -> None:
        loss_of(model, step, trainer).backward()


def apart(model: Any, of_rows: Callable[..., Any], of_rest: Callable[..., Any]) -> list[Any]:
    """An optimizer for the rows of Net, and another one for what else is trained."""
    rest = [p for n, p in model.named_parameters() if n != "words.weight" and p.requires_grad]
    return [of_rows([model.words.weight]), of_rest(rest)]
