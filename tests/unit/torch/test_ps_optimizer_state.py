"""What an optimizer of torch has goes to servers and comes back: begun here, it goes on there.

The servers are tables of this process (``ps_fake``), so a job of one trainer costs milliseconds.
"""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from paddlempi import errors, ps
from paddlempi._ops import TableCall
from ps_fake import PsCore, ps_core

torch = pytest.importorskip("torch")

__all__ = ["ps_core"]

ROWS, DIM, STEPS = 7, 3, 6
optim = torch.optim


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Net(torch.nn.Module):
    """Two tables, one with a padding, dense layers, a frozen parameter and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(ROWS, DIM, padding_idx=0, sparse=True)
        self.bags = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
        self.up = torch.nn.Linear(DIM, 2)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.late = torch.nn.Parameter(torch.ones(2))

    def forward(self, ids: Any, late: bool) -> Any:
        out = self.up(self.rows(ids) + self.bags(ids.view(-1, 1))) * self.frozen
        return out + self.late if late else out


def split(rows: Any, dense: Any) -> Callable[[Net], list[Any]]:
    """An optimizer of the rows, and one of the rest with two groups and a frozen parameter."""

    def make(model: Net) -> list[Any]:
        tables = [model.rows.weight, model.bags.weight]
        groups = [
            {"params": [model.late, model.frozen], "lr": 0.03},
            {"params": [model.empty, *model.up.parameters()]},
        ]
        return [rows(tables, lr=0.05), dense(groups, lr=0.02)]

    return make


def together(kind: Any) -> Callable[[Net], list[Any]]:
    """One optimizer of all."""
    return lambda model: [kind(model.parameters(), lr=0.05)]


SGD = optim.SGD
# Without the sum at first, the first step has the sign of a gradient, maybe of a rounding error.
Adagrad = partial(optim.Adagrad, initial_accumulator_value=1e-3)
MAKE: dict[str, Callable[[Net], list[Any]]] = {
    "sgd": together(SGD),
    "momentum": split(SGD, partial(SGD, momentum=0.9)),
    "nesterov": split(Adagrad, partial(SGD, momentum=0.8, nesterov=True, weight_decay=0.1)),
    "adagrad": together(Adagrad),
    "adam": split(optim.SparseAdam, partial(optim.Adam, weight_decay=0.1)),
    "adamw": split(optim.SparseAdam, partial(optim.AdamW, betas=(0.8, 0.95))),
}


class Program:
    """A model, its optimizers, and schedules of their learning rates."""

    def __init__(self, make: Callable[[Net], list[Any]]) -> None:
        torch.manual_seed(5)
        self.model = Net()
        self.optimizers = make(self.model)
        self.schedules = [
            optim.lr_scheduler.LambdaLR(one, lambda step: 0.9**step) for one in self.optimizers
        ]
        self.plan: Any = None

    def on_servers(self, **arguments: Any) -> Program:
        self.plan = ps.transpile(self.model, self.optimizers, **arguments)
        self.model, self.optimizers = self.plan.model, self.plan.optimizer
        return self

    def train(self, begin: int, end: int) -> Program:
        for step in range(begin, end):
            for one in self.optimizers:
                one.zero_grad()
            ids = torch.tensor([1, 2, 5, 1, step % ROWS])
            out = self.model(ids, late=step % 3 == 2)  # a parameter that has fewer steps
            (out * torch.arange(10.0).view(5, 2)).square().mean().mul(0.1).backward()
            for one in (*self.optimizers, *self.schedules):
                one.step()
        return self

    def state(self) -> dict[str, Any]:
        if self.plan is not None:
            state: dict[str, Any] = self.plan.state_dict(optimizer=True)
        else:
            optimizers = [one.state_dict() for one in self.optimizers]
            state = {"model": self.model.state_dict(), "optimizer": optimizers}
        schedules = [one.state_dict() for one in self.schedules]
        return saved({**state, "schedule": schedules})

    def load(self, state: dict[str, Any]) -> Program:
        state = copy.deepcopy(state)  # torch's optimizers go on in the tensors that they load
        if self.plan is not None:
            self.plan.set_state_dict(state, optimizer=True)
        else:
            self.model.load_state_dict(state["model"])
            for one, its in zip(self.optimizers, state["optimizer"], strict=True):
                one.load_state_dict(its)
        for one, its in zip(self.schedules, state["schedule"], strict=True):
            one.load_state_dict(its)
        return self


def saved(state: Any) -> Any:
    """What a file brings back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def same(found: dict[str, Any], wanted: dict[str, Any], bits: bool = False) -> None:
    """Compare states. A state of nothing, such as that of SGD without momentum, need not be there.

    torch's SparseAdam adds its epsilon elsewhere, which is seen where a gradient is tiny.
    """
    close = {"rtol": 0, "atol": 0} if bits else {"rtol": 2e-5, "atol": 1e-5}
    torch.testing.assert_close(found["model"], wanted["model"], **close)
    for mine, its in zip(found["optimizer"], wanted["optimizer"], strict=True):
        assert mine["param_groups"] == its["param_groups"]
        one, other = (
            {at: s for at, s in state["state"].items() if any(v is not None for v in s.values())}
            for state in (mine, its)
        )
        assert set(one) == set(other)
        for at, of in other.items():
            assert [(name, type(v)) for name, v in one[at].items()] == [
                (name, type(v)) for name, v in of.items()
            ]
            torch.testing.assert_close(one[at], of, **close)


@pytest.mark.parametrize("name", MAKE)
def test_from_servers_to_one_process_and_back(ps_core: PsCore, name: str) -> None:
    make, half = MAKE[name], STEPS
    alone = Program(make).train(0, half)
    here = Program(make).on_servers(name="a").train(0, half)
    there = here.state()
    same(there, alone.state())
    went = Program(make).load(there)
    same(went.state(), there, bits=True)  # on the way no bit is lost
    alone.train(half, 2 * half)
    same(went.train(half, 2 * half).state(), alone.state())
    back = Program(make).on_servers(name="b").load(there)
    same(back.state(), there, bits=True)
    stayed = here.train(half, 2 * half).state()
    same(back.train(half, 2 * half).state(), stayed, bits=True)  # as if it had never moved
    same(stayed, alone.state())
    again = Program(make).on_servers(name="c").load(went.state())
    same(again.train(2 * half, 3 * half).state(), alone.train(2 * half, 3 * half).state())


@pytest.mark.parametrize("name", MAKE)
def test_a_plan_of_an_optimizer_that_has_begun(ps_core: PsCore, name: str) -> None:
    """Its states are those of the servers, and the wrapped one has them no more."""
    make, half = MAKE[name], STEPS
    alone, begun = Program(make).train(0, half), Program(make).train(0, half)
    begun.on_servers()
    same(begun.state(), alone.state(), bits=True)
    same(begun.train(half, 2 * half).state(), alone.train(half, 2 * half).state())
    on_servers = {id(p) for one in begun.optimizers for p in one._parameters() if p.numel()}
    for one in begun.optimizers:
        assert not any(id(p) in on_servers for p in one.optim.state)


def test_the_101st_step_of_adagrad(ps_core: PsCore) -> None:
    """Its sums make it a small one. The first one of a new optimizer was ten times as large."""
    make = together(Adagrad)
    alone = Program(make).train(0, 100)
    begun = Program(make).load(alone.state()).on_servers()
    before = copy.deepcopy(alone.model.state_dict())
    alone.train(100, 101)
    same(begun.train(100, 101).state(), alone.state())
    moved = (alone.model.up.weight - before["up.weight"]).abs().max()
    assert 0 < moved < 0.005


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_a_state_of_before_the_first_step(ps_core: PsCore, name: str) -> None:
    """It takes back all that the servers have, as torch's load_state_dict does."""
    first = Program(MAKE[name]).state()
    here = Program(MAKE[name]).on_servers()
    same(here.state(), first, bits=True)
    same(here.train(0, STEPS).load(first).state(), first, bits=True)
    wanted = Program(MAKE[name]).train(0, STEPS).state()
    same(here.train(0, STEPS).state(), wanted)


def test_one_optimizer_is_not_a_list(ps_core: PsCore) -> None:
    model = torch.nn.Linear(2, 2)
    plan = ps.transpile(model, optim.Adam(model.parameters(), 0.1))
    model(torch.ones(2)).sum().backward()
    plan.optimizer.step()
    state = plan.state_dict(optimizer=True)
    assert set(state) == {"model", "optimizer"}
    assert state["optimizer"]["state"][0]["step"].item() == 1
    plan.set_state_dict(state, optimizer=True)
    optim.Adam(model.parameters()).load_state_dict(state["optimizer"])
    for wrong, text in (
        ({"model": state["model"]}, "no 'optimizer'"),
        (state["model"], "no 'model'"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            plan.set_state_dict(wrong, optimizer=True)
    two = torch.nn.Linear(2, 2)
    other = ps.transpile(two, [optim.Adam(two.parameters(), 0.1)], name="two")
    with pytest.raises(errors.ArgumentError, match="2 optimizers, and the plan 1"):
        other.set_state_dict({"model": {}, "optimizer": [state["optimizer"]] * 2}, optimizer=True)


@pytest.mark.parametrize("way", ["plan", "optimizer"])
def test_what_servers_have_no_place_for(ps_core: PsCore, way: str) -> None:
    """It is named before anything has changed."""
    torch.manual_seed(1)
    model = torch.nn.Linear(DIM, 2)

    def spread(optimizer: Any, name: str) -> Any:
        if way == "plan":
            return ps.transpile(model, optimizer, name=name).optimizer
        return ps.DistributedOptimizer(optimizer, dense="server", name=name)

    def stepped(optimizer: Any) -> Any:
        optimizer.zero_grad()
        model(torch.ones(DIM)).square().sum().backward()
        optimizer.step()
        return optimizer

    if way == "optimizer":
        ps.init()
    begun = stepped(optim.Adam(model.parameters(), 0.1, amsgrad=True))
    begun.param_groups[0]["amsgrad"] = False
    odd = copy.deepcopy(begun.state_dict())
    with pytest.raises(errors.UnsupportedError, match=r"max_exp_avg_sq of parameter .*with Adam"):
        spread(begun, "a")
    short = stepped(optim.Adagrad(model.parameters(), 0.1))
    short.state[model.weight]["sum"] = torch.ones(3)
    with pytest.raises(errors.UnsupportedError, match=r"has sum of parameter "):
        spread(short, "b")
    momentum = stepped(SGD(model.parameters(), 0.1, momentum=0.9))
    momentum.param_groups[0]["momentum"] = 0
    with pytest.raises(errors.UnsupportedError, match=r"momentum_buffer of parameter .*with SGD"):
        spread(momentum, "c")

    mine = spread(optim.Adam(model.parameters(), 0.1), "d")
    mine = stepped(mine)
    state = copy.deepcopy(mine.state_dict())
    for wrong, error, text in (
        (odd, errors.UnsupportedError, r"max_exp_avg_sq of parameter 0, of shape \(2, 3\)"),
        ({**state, "param_groups": []}, errors.ArgumentError, r"groups of \[\] parameters.*\[2\]"),
        (with_number(state, "eps", 0.5), errors.UnsupportedError, r"epsilon=0\.5"),
        (with_number(state, "betas", (0.5, 0.5)), errors.UnsupportedError, r"beta1=0\.5"),
    ):
        with pytest.raises(error, match=text):
            mine.load_state_dict(copy.deepcopy(wrong))
        torch.testing.assert_close(mine.state_dict(), state, rtol=0, atol=0)
    mine.load_state_dict(with_number(state, "lr", 0.25))
    assert mine.param_groups[0]["lr"] == 0.25
    mine = stepped(mine)
    mine.optim.load_state_dict(copy.deepcopy(state))  # behind its back
    with pytest.raises(errors.UnsupportedError, match=r"exp_avg.*load them by this"):
        stepped(mine)


def with_number(state: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**state, "param_groups": [{**group, name: value} for group in state["param_groups"]]}


def test_a_wrapped_optimizer_with_dense_parameters_on_servers(ps_core: PsCore) -> None:
    """Without a plan: a group is one vector, whose parameters have made as many steps."""

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(torch.ones(DIM)).square().sum().backward()
        optimizer.step()

    ps.init()
    torch.manual_seed(1)
    alone = torch.nn.Linear(DIM, 2)
    theirs = optim.Adam(alone.parameters(), 0.1)
    for _ in range(3):
        step(alone, theirs)
    model = copy.deepcopy(alone)
    begun = optim.Adam(model.parameters(), 0.1)
    begun.load_state_dict(copy.deepcopy(theirs.state_dict()))
    mine = ps.DistributedOptimizer(begun, dense="server")
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    for _ in range(3):
        step(alone, theirs)
        step(model, mine)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    state = mine.state_dict()
    state["state"][1]["step"] += 2
    with pytest.raises(errors.UnsupportedError, match="made from 6 to 8 steps of Adam"):
        mine.load_state_dict(state)
    theirs.state[alone.bias]["step"] += 2
    with pytest.raises(errors.UnsupportedError, match="made from 6 to 8 steps of Adam"):
        ps.DistributedOptimizer(theirs, dense="server", name="other")


def test_states_in_mode_geo(ps_core: PsCore) -> None:
    """They go into this trainer's copy."""
    here = Program(MAKE["adam"]).on_servers(mode="geo").train(0, 2)
    there = here.state()
    same(here.load(there).state(), there, bits=True)


def test_a_state_has_what_was_pushed(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode half_async, where a step returns before the servers have it."""
    here = Program(MAKE["adagrad"]).on_servers(mode="half_async", merge=1)
    of_fake = ps_core.tables

    def slow(code: int, entries: Any) -> int:
        if code == TableCall.PUSH:
            time.sleep(0.05)
        return of_fake(code, entries)

    monkeypatch.setattr(ps_core, "tables", slow)
    here.train(0, 1)
    (optimizer,) = here.optimizers
    same(
        {"model": {}, "optimizer": [optimizer.state_dict()]},
        {**Program(MAKE["adagrad"]).train(0, 1).state(), "model": {}},
    )


def test_many_parameters_cost_no_square(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step asks each of n parameters a fixed number of times whether it is complex."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(60)])
    asked = 0
    of_torch = torch.Tensor.is_complex

    def counted(tensor: Any) -> bool:
        nonlocal asked
        asked += 1
        return bool(of_torch(tensor))

    monkeypatch.setattr(torch.Tensor, "is_complex", counted)
    plan = ps.transpile(model, SGD(model.parameters(), 0.1))
    sum(p.sum() for p in model).backward()
    plan.optimizer.step()
    assert 60 <= asked < 600
    odd = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(errors.UnsupportedError, match="no complex"):
        ps.transpile(odd, SGD(odd.parameters(), 0.1), name="odd")
