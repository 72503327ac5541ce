"""Programs of torch with a parameter server do what they do in one process, or say why not.

The servers are tables of this process (``ps_fake``), so a job of one trainer costs milliseconds.
"""

from __future__ import annotations

import copy
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


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


ROWS, DIM = 6, 3
SGD, Adam = torch.optim.SGD, torch.optim.Adam
# Without the sum at first, the first step has the sign of a gradient, maybe of a rounding error.
Adagrad = partial(torch.optim.Adagrad, initial_accumulator_value=0.1)


class Net(torch.nn.Module):
    """Rows with sparse gradients at two places, a dense layer, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(ROWS, DIM, padding_idx=0, sparse=True)
        self.again = torch.nn.ModuleList([self.rows])
        self.up = torch.nn.Linear(DIM, 2)
        self.norm = torch.nn.BatchNorm1d(DIM)

    def forward(self, ids: Any) -> Any:
        return self.up(self.norm(self.rows(ids) + self.again[0](ids.flip(0))))


def loss_of(model: Any, step: int) -> Any:
    ids = torch.tensor([1, 2, 5, step % ROWS])
    return (model(ids) * torch.arange(8.0).view(4, 2)).square().sum() / 100


def train(model: Any, optimizer: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def made(kind: Any = Adagrad, **numbers: Any) -> tuple[Any, Any, Any, Any]:
    """A model and its optimizer, for one process and for a plan."""
    torch.manual_seed(5)
    alone = Net()
    model = copy.deepcopy(alone)
    return (
        alone,
        kind(alone.parameters(), **{"lr": 0.1, **numbers}),
        model,
        kind(model.parameters(), **{"lr": 0.1, **numbers}),
    )


def equal(found: Any, wanted: Any) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_a_state_dict_has_all_names(ps_core: PsCore) -> None:
    """Of a module at two places, too; the model of one machine loads it, and the plan its."""
    alone, optimizer, model, given = made()
    plan = ps.transpile(model, given)
    train(alone, optimizer, 0, 4)
    train(plan.model, plan.optimizer, 0, 4)
    state = plan.state_dict()
    assert {"rows.weight", "again.0.weight"} < set(state)
    equal(state, alone.state_dict())
    alone.load_state_dict(state)
    changed = {
        name: value * 2 if value.is_floating_point() else value + 1 for name, value in state.items()
    }
    plan.set_state_dict(changed)
    equal(plan.state_dict(), changed)
    alone.load_state_dict(changed)
    train(alone, optimizer, 4, 8)
    train(plan.model, plan.optimizer, 4, 8)
    equal(plan.state_dict(), alone.state_dict())


def test_a_state_dict_that_does_not_fit(ps_core: PsCore) -> None:
    *_, model, given = made()
    plan = ps.transpile(model, given)
    state, bad = plan.state_dict(), torch.ones(ROWS, DIM)
    for name, value, text in (
        ("odd", bad, "no 'odd'"),
        ("up.weight", bad, r"'up.weight' has the shape \(6, 3\).*\(2, 3\)"),
        ("again.0.weight", bad[1:], r"\(5, 3\).*\(6, 3\)"),
        ("rows.weight", bad, "padding 0 is not"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            plan.set_state_dict({name: value})
    equal(plan.state_dict(), state)


@pytest.mark.parametrize("way", ["plan", "optimizer"])
def test_learning_rates_after_a_state_was_loaded(ps_core: PsCore, way: str) -> None:
    model = Net()
    if way == "plan":
        plan = ps.transpile(model, SGD(model.parameters(), 0.1))
        model, given = plan.model, plan.optimizer
    else:
        ps.init()
        del model.rows, model.again
        given = ps.DistributedOptimizer(SGD(model.parameters(), 0.1), dense="server")
    schedule = torch.optim.lr_scheduler.LambdaLR(given, lambda step: float(step % 2))
    given.load_state_dict(copy.deepcopy(given.state_dict()))
    everyone = torch.arange(ROWS)

    def now() -> list[Any]:
        rows = [model.rows(everyone).detach()] if way == "plan" else []
        return [model.up.weight.detach().clone(), *rows]

    for step in range(4):
        before = now()
        given.zero_grad()
        out = model(everyone) if way == "plan" else model.up(torch.ones(DIM))
        out.square().sum().backward()
        given.step()
        schedule.step()
        for was, one in zip(before, now(), strict=True):
            assert torch.equal(was, one) == (step % 2 == 0), step


def test_other_numbers_of_rows_cannot_change(ps_core: PsCore) -> None:
    model = torch.nn.Embedding(ROWS, DIM, sparse=True)
    plan = ps.transpile(model, Adagrad(model.parameters(), 0.1))
    plan.optimizer.param_groups[0]["eps"] = 0.5
    plan.model(torch.arange(2)).sum().backward()
    with pytest.raises(errors.UnsupportedError, match=r"epsilon=0\.5"):
        plan.optimizer.step()


class Pair(torch.nn.Module):
    """Two that are trained against each other, each with rows and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            part = torch.nn.Sequential(
                torch.nn.Embedding(ROWS, DIM, sparse=True), torch.nn.Linear(DIM, 1)
            )
            setattr(self, name, part)


def against(model: Any, a: Any, b: Any) -> None:
    """Each one's loss has gradients of both. b steps more often, and drops what a's loss gave."""
    ids = torch.tensor([0, 2, 2])
    for step in range(6):
        if step % 3 == 0:
            a.zero_grad()
            (model.a(ids) * model.b(ids + 1)).sum().backward()
            b.zero_grad()
            a.step()
        b.zero_grad()
        (model.a(ids + step % 2) - model.b(ids).square()).sum().backward()
        b.step()
        a.zero_grad()


@pytest.mark.parametrize("way", ["plan", "optimizers"])
def test_optimizers_with_steps_of_their_own(ps_core: PsCore, way: str) -> None:
    torch.manual_seed(3)
    alone = Pair()
    model = copy.deepcopy(alone)
    against(alone, Adagrad(alone.a.parameters(), 0.1), SGD(alone.b.parameters(), 0.2))
    if way == "plan":
        plan = ps.transpile(
            model, [Adagrad(model.a.parameters(), 0.1), SGD(model.b.parameters(), 0.2)]
        )
        against(plan.model, *plan.optimizer)
        equal(plan.state_dict(), alone.state_dict())
        return
    ps.init()
    for part, does in ((model.a, ps.Adagrad(0.1, initial_accumulator=0.1)), (model.b, ps.SGD(0.2))):
        part[0] = ps.Embedding.from_pretrained(
            part[0].weight, False, name=repr(does), optimizer=does
        )
    a = ps.DistributedOptimizer(Adagrad(model.a[1].parameters(), 0.1), tables=[model.a[0]])
    b = ps.DistributedOptimizer(SGD(model.b[1].parameters(), 0.2), dense="server")
    against(model, a, b)
    for part, wanted in ((model.a, alone.a), (model.b, alone.b)):
        torch.testing.assert_close(part[0](torch.arange(ROWS)).detach(), wanted[0].weight.detach())
        torch.testing.assert_close(part[1].weight, wanted[1].weight)
    with pytest.raises(errors.ArgumentError, match="a table has one"):
        ps.DistributedOptimizer(SGD(model.a[1].parameters(), 0.1), tables=[model.a[0]])
    with pytest.raises(errors.DtypeError, match="no layer"):
        ps.DistributedOptimizer(SGD(model.a[1].parameters(), 0.1), tables=[3])


def test_optimizers_that_share_tables_step_together(ps_core: PsCore) -> None:
    ps.init()
    layer = ps.Embedding(ROWS, DIM, name="rows", optimizer=ps.SGD(1.0))
    ids = torch.arange(2)
    first = layer(ids).detach()
    parts = [torch.nn.Parameter(torch.ones(DIM)) for _ in "ab"]
    a, b = (ps.DistributedOptimizer(SGD([one], 1.0)) for one in parts)

    both = [a, b]

    def backward() -> None:
        layer(ids).sum().backward()

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises(errors.ArgumentError, match=r"'rows' may belong to any of 2.*tables="):
            call()
        for optimizer in both:
            optimizer.zero_grad()

    for one, other in ((a, b), (b, a), (a, b)):  # in any order, also with a step that is left out
        backward()
        a.zero_grad()
        b.zero_grad()
        backward()
        one.step()
        other.step()
    torch.testing.assert_close(layer(ids).detach(), first - 3)
    backward()
    a.step()
    backward()
    fails(b.step)  # as of two that are trained in turn
    backward()
    a.step()
    backward()
    fails(a.step)  # or one more often
    backward()
    b.zero_grad()
    fails(a.step)  # whose were they?
    torch.testing.assert_close(layer(ids).detach(), first - 5)
    backward()
    ps.step()  # by hand
    both.clear()
    del b, one, other  # nobody has it any more
    for _ in range(2):
        backward()
        a.step()
    torch.testing.assert_close(layer(ids).detach(), first - 8)
    a = ps.DistributedOptimizer(SGD([parts[0]], 1.0), tables=())
    backward()
    with pytest.raises(errors.ArgumentError, match="'rows' has gradients and no optimizer"):
        a.step()


def test_models_that_are_trained_in_turn(ps_core: PsCore) -> None:
    """Each with an optimizer without tables: whose gradients there are says whose step it is."""
    ps.init()
    torch.manual_seed(5)
    ids = torch.arange(2)
    layers = [ps.Embedding(ROWS, DIM, name=f"rows{i}", optimizer=ps.SGD(1.0)) for i in range(2)]
    heads = [torch.nn.Linear(DIM, 1) for _ in layers]
    both = [ps.DistributedOptimizer(SGD(head.parameters(), 0.0)) for head in heads]
    before = [layer(ids).detach() for layer in layers]
    for turn in (0, 1, 0, 0, 1, 1, 1, 0):
        for _ in range(2):  # a backward whose gradients are dropped
            both[turn].zero_grad()
            heads[turn](layers[turn](ids)).sum().backward()
        both[turn].step()
    for layer, head, first in zip(layers, heads, before, strict=True):
        torch.testing.assert_close(layer(ids).detach(), first - 4 * head.weight.detach())
    # As a generator whose loss goes through the discriminator.
    both[0].zero_grad()
    both[1].zero_grad()
    heads[1](layers[1](ids)).sum().backward()
    both[1].step()
    heads[1](heads[0](layers[0](ids)) + layers[1](ids)).sum().backward()
    both[0].step()
    both[1].zero_grad()
    heads[1](layers[1](ids)).sum().backward()
    with pytest.raises(errors.ArgumentError, match="do not step together"):
        both[1].step()


@pytest.mark.parametrize("kind", [Adam, partial(SGD, momentum=0.9, weight_decay=0.1)])
def test_a_parameter_that_a_step_does_not_use_stays(ps_core: PsCore, kind: Any) -> None:
    torch.manual_seed(2)
    alone = torch.nn.ModuleList([torch.nn.Linear(2, 1) for _ in range(2)])
    model = copy.deepcopy(alone)
    plan = ps.transpile(model, kind(model.parameters(), lr=0.1))
    for one, optimizer in ((alone, kind(alone.parameters(), lr=0.1)), (model, plan.optimizer)):
        for used in (0, 1, 0, 0, 1):
            optimizer.zero_grad()
            one[used](torch.ones(2)).square().sum().backward()
            optimizer.step()
    equal(plan.state_dict(), alone.state_dict())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "load": lambda model: model.load_state_dict(
        {name: value + 1 for name, value in model.state_dict().items()}
    ),
    "clamp": lambda model: model.up.weight.data.clamp_(-0.1, 0.1),
    "one element": lambda model: model.norm.bias.detach()[1].add_(1),
    "swap": lambda model: setattr(model.up.bias, "data", model.up.bias.data + 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", ["step", "state_dict"])
def test_what_is_set_is_not_undone(ps_core: PsCore, change: Any, way: str) -> None:
    alone, optimizer, model, given = made()
    plan = ps.transpile(model, given)
    for _ in range(2):
        train(alone, optimizer, 0, 2)
        train(plan.model, plan.optimizer, 0, 2)
        change(plan.model)
        wanted = copy.deepcopy(plan.model.state_dict())
        with pytest.raises(errors.UnsupportedError, match=r"'(up|norm)\..*was changed.*publish"):
            if way == "step":
                loss_of(plan.model.eval(), 0).backward()
                plan.optimizer.step()
            plan.state_dict()
        equal(plan.model.train().state_dict(), wanted)
        plan.optimizer.zero_grad()
        plan.optimizer.publish()
        alone.load_state_dict({**alone.state_dict(), **wanted})
    equal(plan.state_dict(), alone.state_dict())
    change(plan.model)
    plan.optimizer.refresh()  # the servers' values, and not those that were set
    train(alone, optimizer, 2, 4)
    train(plan.model, plan.optimizer, 2, 4)
    torch.testing.assert_close(plan.model.up.weight, alone.up.weight)


def test_an_average_that_is_swapped_in_and_out(ps_core: PsCore) -> None:
    *_, model, given = made()
    plan = ps.transpile(model, given)
    train(plan.model, plan.optimizer, 0, 2)
    kept = plan.model.up.weight.data
    plan.model.up.weight.data = kept / 2
    plan.model.up.weight.data = kept
    train(plan.model, plan.optimizer, 2, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_values_of_other_dtypes_are_not_taken_for_changes(ps_core: PsCore, dtype: Any) -> None:
    ps.init()
    model = torch.nn.Linear(3, 2).to(dtype)
    optimizer = ps.DistributedOptimizer(SGD(model.parameters(), 0.1), dense="server")
    for _ in range(3):
        model(torch.ones(3, dtype=dtype)).sum().backward()
        optimizer.step()


def test_a_state_dict_has_what_was_pushed(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode half_async, where a step returns before the servers have it."""
    alone, optimizer, model, given = made(SGD)
    plan = ps.transpile(model, given, mode="half_async", merge=1)
    of_fake = ps_core.tables

    def slow(code: int, entries: Any) -> int:
        if code == TableCall.PUSH:
            time.sleep(0.05)
        return of_fake(code, entries)

    monkeypatch.setattr(ps_core, "tables", slow)
    train(alone, optimizer, 0, 1)
    train(plan.model, plan.optimizer, 0, 1)
    equal(plan.state_dict(), alone.state_dict())


def test_rows_that_forward_changes(ps_core: PsCore) -> None:
    for kind, sparse in (("Embedding", False), ("Embedding", True), ("EmbeddingBag", False)):
        one = getattr(torch.nn, kind)(ROWS, DIM, max_norm=1.0, sparse=sparse)
        model = torch.nn.ModuleDict({"it": one})
        with pytest.raises(errors.UnsupportedError, match=r"'it.*max_norm"):
            ps.transpile(model, SGD(model.parameters(), 0.1))
    assert "ps_init" not in ps_core.called()
    frozen = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM, max_norm=1.0), torch.nn.Linear(3, 1))
    frozen[0].weight.requires_grad_(False)
    ps.transpile(frozen, SGD(frozen[1].parameters(), 0.1))


def test_buffers_whose_elements_share_memory(ps_core: PsCore) -> None:
    def model(buffer: Any) -> Any:
        made = torch.nn.Linear(2, 2)
        made.register_buffer("it", buffer)
        return made

    for buffer, text in (
        (torch.arange(8).unfold(0, 4, 1), r"'it'.*\(5, 4\).*share memory"),
        (torch.eye(3).to_sparse(), "'it'.*layout torch.sparse"),
        (torch.empty(3, device="meta"), "'it'.*meta"),
    ):
        one = model(buffer)
        with pytest.raises(errors.UnsupportedError, match=text):
            ps.transpile(one, SGD(one.parameters(), 0.1))
    assert "ps_init" not in ps_core.called()
    one = model(torch.arange(3.0).expand(4, 3))
    plan = ps.transpile(one, SGD(one.parameters(), 0.1))
    ((name, tensor),) = plan.frozen()
    assert name == "it" and tensor.shape == (1, 3) and tensor.data_ptr() == one.it.data_ptr()
    plan.set_state_dict({name: value + 1 for name, value in plan.state_dict().items()})
    assert (one.it == torch.arange(1.0, 4.0)).all()
