"""What a plan of torch refuses by name, and what it has its model and optimizers do besides.

The servers are tables of this process (``ps_fake``).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from paddlempi import errors, ps
from ps_fake import PsCore, ps_core

torch = pytest.importorskip("torch")

__all__ = ["ps_core"]

ROWS, DIM = 6, 3
SGD, Adam = torch.optim.SGD, torch.optim.Adam


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def net() -> Any:
    """Rows with sparse gradients, and a dense layer."""
    layers = {"rows": torch.nn.Embedding(ROWS, DIM, sparse=True), "up": torch.nn.Linear(DIM, 1)}
    return torch.nn.ModuleDict(layers)


def pair() -> Any:
    """Two of these."""
    return torch.nn.ModuleDict({"a": net(), "b": net()})


def equal(found: Any, wanted: Any) -> None:
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "LBFGS": ("'rows.weight'.*not LBFGS", lambda model: torch.optim.LBFGS(model.parameters())),
    "amsgrad": (
        "'up.weight'.*amsgrad",
        lambda model: [SGD([model["rows"].weight], 0.1), Adam(rest_of(model), amsgrad=True)],
    ),
    "RMSprop": (
        "'up.weight'.*no RMSprop",
        lambda model: [SGD([model["rows"].weight], 0.1), torch.optim.RMSprop(rest_of(model))],
    ),
    "momentum of rows": (
        "'rows.weight'.*SGD with momentum",
        lambda model: SGD(model.parameters(), 0.1, momentum=0.9),
    ),
    "padding": (
        "'rows.weight'.*padding 2 is not of zeros",
        lambda model: SGD(padded(model).parameters(), 0.1),
    ),
    "hook of a step": ("optimizer 0 has hooks", lambda model: hooked(model, "pre")),
    "hook after a step": ("optimizer 0 has hooks", lambda model: hooked(model, "post")),
    "hook of rows": ("'rows.weight'.*has hooks", lambda model: hooked(model, "rows")),
    "hook after backward": ("'rows.weight'.*has hooks", lambda model: hooked(model, "accumulate")),
}


def rest_of(model: Any) -> list[Any]:
    return [p for name, p in model.named_parameters() if name != "rows.weight"]


def padded(model: Any) -> Any:
    model["rows"].padding_idx = 2
    return model


def hooked(model: Any, where: str) -> Any:
    optimizer = SGD(model.parameters(), 0.1)
    if where == "rows":
        model["rows"].weight.register_hook(lambda gradient: 2 * gradient)
    elif where == "accumulate":
        model["rows"].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    else:
        register = getattr(optimizer, f"register_step_{where}_hook")
        register(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(("text", "make"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_parameter(ps_core: PsCore, text: str, make: Any) -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(errors.UnsupportedError, match=f"^ps.transpile: .*{text}"):
        ps.transpile(model, make(model))
    assert "ps_init" not in ps_core.called()
    equal(model.state_dict(), before)


def test_the_given_optimizer_makes_no_step(ps_core: PsCore) -> None:
    """A program that has not taken plan.optimizer would train each trainer by itself."""
    model = net()
    given = SGD(model.parameters(), 1.0)
    before = torch.optim.lr_scheduler.StepLR(given, 1)
    plan = ps.transpile(model, given)
    after = torch.optim.lr_scheduler.StepLR(given, 1)
    model["up"](model["rows"](torch.arange(2))).sum().backward()
    with pytest.raises(errors.UnsupportedError, match=r"step of plan\.optimizer"):
        given.step()
    plan.optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before.step()
        after.step()


def test_zero_grad_of_modules(ps_core: PsCore) -> None:
    """It drops the gradients of the rows in a module, also in a copy, and no others."""
    model = pair()
    plan = ps.transpile(model, SGD(model.parameters(), 1.0))
    everyone = torch.arange(ROWS)
    before = [part["rows"](everyone).detach() for part in model.values()]

    def moved(zero: Callable[[], Any]) -> list[bool]:
        for part in plan.model.values():
            part["rows"](everyone).sum().backward()
        zero()
        plan.optimizer.step()
        now = [part["rows"](everyone).detach() for part in model.values()]
        found = [not torch.equal(*two) for two in zip(before, now, strict=True)]
        before[:] = now
        return found

    assert moved(lambda: None) == [True, True]
    assert moved(plan.model.zero_grad) == [False, False]
    assert moved(lambda: plan.model["a"].zero_grad(set_to_none=False)) == [False, True]
    assert moved(plan.model["b"]["rows"].zero_grad) == [True, False]
    twin = copy.deepcopy(plan.model)
    twin["a"]["up"].bias.grad = plan.model["a"]["up"].bias.grad = torch.ones(1)
    assert moved(twin["b"].zero_grad) == [True, False]
    twin.zero_grad()
    assert twin["a"]["up"].bias.grad is None and plan.model["a"]["up"].bias.grad is not None


def test_an_embedding_that_was_replaced_is_its_layer(ps_core: PsCore) -> None:
    rows = torch.nn.Embedding(ROWS, DIM, sparse=True)
    plan = ps.transpile(rows, SGD(rows.parameters(), 1.0))
    before = rows(torch.arange(2)).detach()
    rows(torch.arange(2)).sum().backward()
    plan.optimizer.step()
    assert torch.equal(rows(torch.arange(2)), before - 1)
    with pytest.raises(AttributeError):
        rows.weight  # noqa: B018  # it would not be that of now


def test_a_class_of_the_users_own_is_refused_by_name(ps_core: PsCore) -> None:
    model = net()
    model["own"] = type("Own", (torch.nn.Embedding,), {})(ROWS, DIM, sparse=True)
    plan = ps.transpile(model, SGD(model.parameters(), 1.0))
    model["own"](torch.arange(2)).sum().backward()
    with pytest.raises(errors.UnsupportedError, match=r"'own\.weight' has a sparse gradient"):
        plan.optimizer.step()


def test_an_embedding_with_weight_norm_is_dense(ps_core: PsCore) -> None:
    with pytest.warns(FutureWarning):
        model = torch.nn.utils.weight_norm(torch.nn.Embedding(ROWS, DIM, sparse=True))
    plan = ps.transpile(model, SGD(model.parameters(), 0.1))
    assert [one.blocks for one in plan.parameters] == [1, 1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_clips_of_one_optimizer(ps_core: PsCore, mode: str) -> None:
    torch.manual_seed(4)
    model = pair()
    optimizers = [SGD(one.parameters(), 1.0) for one in model.values()]
    plan = ps.transpile(model, optimizers, mode=mode)
    ids = torch.tensor([1, 1, 2])

    def backward() -> None:
        for one in plan.optimizer:
            one.zero_grad()
        for part in model.values():
            part["rows"](ids).sum().backward()

    def rows() -> Any:
        return torch.stack([part["rows"](torch.arange(3)).detach() for part in model.values()])

    start = rows()
    gradient = torch.tensor([0.0, 2.0, 1.0])[:, None].expand(3, DIM)
    backward()
    norm = plan.clip_grad_norm_(0.5, optimizer=plan.optimizer[0])
    assert norm == pytest.approx(15**0.5)
    for one in plan.optimizer:
        one.step()
    wanted = start - torch.stack([gradient * (0.5 / 15**0.5), gradient])
    torch.testing.assert_close(rows(), wanted, rtol=1e-5, atol=1e-5)
    start = rows()
    backward()
    plan.clip_grad_value_(1.5, optimizer=plan.optimizer[1])
    assert plan.clip_grad_norm_(1e3, 1) == pytest.approx(9 + 7.5)  # far below: nothing changes
    for one in plan.optimizer:
        one.step()
    wanted = start - torch.stack([gradient, gradient.clamp(max=1.5)])
    torch.testing.assert_close(rows(), wanted, rtol=1e-5, atol=1e-5)
    for call, text in (
        (lambda: plan.clip_grad_norm_(-1), "max_norm=-1"),
        (lambda: plan.clip_grad_norm_(1, 0), "norm_type=0"),
        (lambda: plan.clip_grad_value_(float("inf")), "clip_value=inf"),
        (lambda: plan.clip_grad_norm_(1, optimizer=optimizers[0]), "none of this plan"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            call()


def test_layers_that_a_model_had_before_go_with_the_first(ps_core: PsCore) -> None:
    """Their gradients are stepped with, dropped and clipped by it; a second plan has its own."""
    ps.init()
    model = pair()
    model["b"]["own"] = ps.Embedding(ROWS, DIM, name="own", optimizer=ps.SGD(1.0))
    plan = ps.transpile(model, [SGD(one.parameters(), 1.0) for one in model.values()])
    other = net()
    second = ps.transpile(other, SGD(other.parameters(), 1.0), name="second")
    ids = torch.arange(2)
    layers = [model["b"]["own"], model["a"]["rows"], model["b"]["rows"], other["rows"]]

    def moved(*calls: Callable[[], Any]) -> list[float]:
        before = [layer(ids).detach() for layer in layers]
        sum(layer(ids).sum() for layer in layers).backward()
        for call in calls:
            call()
        after = [layer(ids).detach() for layer in layers]
        ps.discard()
        return [round(float((a - b).max()), 3) for a, b in zip(before, after, strict=True)]

    a, b = plan.optimizer
    assert moved(b.step) == [0, 0, 1, 0]
    assert moved(a.step) == [1, 1, 0, 0]
    assert moved(b.zero_grad, a.step, b.step) == [1, 1, 0, 0]
    assert moved(a.zero_grad, a.step, b.step) == [0, 0, 1, 0]
    assert moved(lambda: plan.clip_grad_value_(0.5), a.step, b.step) == [0.5, 0.5, 0.5, 0]
    assert moved(plan.model.zero_grad, a.step, b.step, second.optimizer.step) == [0, 0, 0, 1]
    assert {one.table for one in second.parameters} == {
        "second.rows.weight",
        "second.up.weight",
        "second.up.bias",
    }
