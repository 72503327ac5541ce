"""DataParallel with overlap_next_forward: the next forward makes the step, layer by layer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import dp
import numpy as np
import paddle
import paddlempi
import pytest
from overlapping import (
    OPTIMIZERS,
    Branches,
    Chain,
    overlapping,
    pair,
    same_bits,
    step,
    trained,
    under_way,
    values,
)
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddlempi.errors import ArgumentError
from paddlempi.paddle.buckets import Bucket

pytestmark = pytest.mark.usefixtures("dist")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bit_for_bit(name: str, rank: int, size: int) -> None:
    model, other = pair()
    mine, its = (OPTIMIZERS[name](net.parameters()) for net in (model, other))
    for k in range(4):
        x = dp.part(dp.batch(k, size), rank, size)
        step(model, mine, x, zero=k % 2 == 0)
        assert under_way(model) == (0 if k == 0 else len(model._reducer._buckets))
        step(other, its, x, zero=k % 2 == 0)
    same_bits(values(mine), values(its))
    same_bits(dp.state(model), dp.state(other))
    dp.agree(dp.state(model), dp.state(other), 0)


# What a forward waits for.


EACH = {"comm_buffer_size": 1e-6, "last_comm_buffer_size": 1e-6}


def test_a_layer_waits_for_its_own_bucket_only(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = pair(Chain, **EACH)
    mine, its = (OPTIMIZERS["AdamW"](net.parameters()) for net in (model, other))
    x = dp.part(dp.batch(0, size), rank, size)
    for net, optimizer in ((other, its), (model, mine)):
        for _ in range(3):
            step(net, optimizer, x)
    names = model._reducer._names
    waited: list[str] = []
    wait = Bucket.wait

    def counted(self: Bucket) -> None:
        waited.extend(names[entry.index] for entry in self.entries)
        wait(self)

    monkeypatch.setattr(Bucket, "wait", counted)
    monkeypatch.setattr(Bucket, "is_completed", lambda self: False)  # only wait ends it
    assert under_way(model) == 4
    for number, layer in enumerate(model._layers.steps):
        assert waited == [f"steps.{before}.weight" for before in range(number)]
        assert under_way(model) == 4 - number
        x = layer(x)
    assert under_way(model) == 0
    same_bits(dp.state(model), dp.state(other))


class Held:
    """An all_reduce that this rank starts late: in `begin`, or else in `wait`."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self.start = start
        self.work: Any = None

    def begin(self) -> None:
        self.work = self.work or self.start()

    def wait(self) -> None:
        self.begin()
        self.work.wait()

    def is_completed(self) -> bool:
        return self.work is not None and self.work.is_completed()


def test_the_first_layer_runs_while_others_are_under_way(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddlempi.paddle import reducer

    model, other = pair(Chain, **EACH)
    mine, its = (OPTIMIZERS["SGD"](net.parameters()) for net in (model, other))
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        step(model, mine, x)
        step(other, its, x)
    model.synchronize()
    express = model._reducer._groups[-1]
    start, held = reducer._start_all_reduce, []

    def hold(tensor: Any, op: Any, group: Any) -> Any:
        if rank != 1 or group is express:
            return start(tensor, op, group)
        held.append(Held(lambda: start(tensor, op, group)))
        return held[-1]

    monkeypatch.setattr(reducer, "_start_all_reduce", hold)
    step(model, mine, x)
    layers = model._layers.steps
    h = layers[0](x)  # rank 1 has not started the other buckets
    arrived = [pending.bucket.is_completed() for pending in model._reducer._overlap._pending]
    paddlempi.barrier()
    for one in held:
        one.begin()
    assert arrived == [False] * 3
    for layer in layers[1:]:
        h = layer(h)
    monkeypatch.undo()
    step(other, its, x)
    same_bits(dp.state(model), dp.state(other))


# With any model and loop the results are those without the overlap.


class Tied(nn.Layer):
    """Uses the first layer's weight before that layer runs, and the last layer's after it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x @ self.first.weight.T)) @ self.last.weight


class Words(nn.Layer):
    """A sparse table, a table that is used both as rows and as a weight, and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(40, 8, sparse=True)
        self.table = nn.Embedding(8, 8)
        self.norm = nn.BatchNorm1D(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        at = (x * 10).astype("int64") % 8
        x = nn.functional.embedding(at[:, 0], self.table.weight) + self.rows(at[:, 1])
        return self.last(self.norm(x)) @ self.table.weight.T


class Recurrent(nn.Layer):
    """Paddle's LSTM, which keeps its parameters in a list. The layers that own them never run."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.last(self.lstm(x.reshape([-1, 2, 4]))[0])


class Recomputed(nn.Layer):
    """A block that runs again in backward, in the reentrant way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return recompute(self.block, self.first(x))


def compiled() -> Any:
    return paddle.jit.to_static(dp.Net())


MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "tied": (Tied, {}),
    "words": (Words, {}),
    "buffers averaged": (Words, {"buffers": "average"}),
    "recurrent": (Recurrent, {}),
    "recomputed": (Recomputed, {}),
    "branches": (Branches, {"find_unused_parameters": True}),
    "branches that all take": (Branches, {}),
    "compiled": (compiled, {}),
    "compressed": (dp.Net, {"compression": paddlempi.paddle.Cast("bfloat16")}),
}


def both(
    name: str, train: Callable[[Any, Any], None], optimizer: str = "Momentum, by value"
) -> tuple[Any, Any]:
    """Train the same model with the overlap and without, and compare the bits."""
    build, more = MODELS.get(name, (dp.Net, {}))
    model, other = pair(build, **more)
    for net in (model, other):
        train(net, OPTIMIZERS[optimizer](net.parameters()))
    same_bits(dp.state(model), dp.state(other))
    same_bits(dp.gradients(model), dp.gradients(other))
    return model, other


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, rank: int, size: int) -> None:
    def train(model: Any, optimizer: Any) -> None:
        for k in range(4):
            Branches.used = k % 2
            step(model, optimizer, dp.part(dp.batch(k, size), rank, size), zero=k % 2 == 0)

    # Paddle has no weight decay for sparse gradients, and its Adam for them is not deterministic.
    both(name, train, "no decay" if MODELS[name][0] is Words else "Momentum, by value")


def cleared_late(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for x in xs:
        loss = dp.square(model, x)
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()


def cleared_by_the_model(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for k, x in enumerate(xs):
        dp.square(model, x).backward()
        optimizer.step()
        (model, model._layers, optimizer, model)[k].clear_gradients()


def accumulated(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for k, x in enumerate(xs):
        with model.no_sync() if k % 2 == 0 else contextlib.nullcontext():
            dp.square(model, x).backward()
        if k % 2:
            optimizer.step()
            optimizer.clear_grad()


def accumulated_over_all(model: Any, optimizer: Any, xs: list[Any]) -> None:
    # Two backwards before the first step, then one backward of two losses and two steps.
    dp.square(model, xs[0]).backward()
    dp.square(model, xs[1]).backward()
    optimizer.step()
    (dp.square(model, xs[2]) + dp.square(model, xs[3])).backward()
    optimizer.step()
    optimizer.step()
    optimizer.clear_grad()


def skipped(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for k, x in enumerate(xs):
        dp.square(model, x).backward()
        if k != 2:
            optimizer.step()
        optimizer.clear_grad()


def minimized(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for x in xs:
        loss = dp.square(model, x)
        loss.backward()
        optimizer.minimize(loss)
        optimizer.clear_grad()


def clipped_by_hand(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for x in xs:
        dp.square(model, x).backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad * 0.5
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.clear_grad()


def other_rates(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for k, x in enumerate(xs):
        step(model, optimizer, x)
        optimizer.set_lr(0.1 / (k + 1))


def evaluated(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for k, x in enumerate(xs):
        step(model, optimizer, x)
        with paddle.no_grad():
            (model if k % 2 else model._layers)(x)


def restored(model: Any, optimizer: Any, xs: list[Any]) -> None:
    for x in xs[:2]:
        step(model, optimizer, x)
    copies = [
        {name: t.clone() for name, t in one.state_dict().items()} for one in (model, optimizer)
    ]
    step(model, optimizer, xs[2])
    model.set_state_dict(copies[0])
    optimizer.set_state_dict(copies[1])
    step(model, optimizer, xs[3])


def by_two(model: Any, optimizer: Any, xs: list[Any]) -> None:
    """A second optimizer for some of the parameters, made during the training."""
    for x in xs[:2]:
        step(model, optimizer, x)
    second = paddle.optimizer.Adam(0.1, parameters=model._layers.first.parameters())
    for x in xs:
        dp.square(model, x).backward()
        optimizer.step()
        second.step()
        optimizer.clear_grad()


LOOPS = [
    cleared_late,
    cleared_by_the_model,
    accumulated,
    accumulated_over_all,
    skipped,
    minimized,
    clipped_by_hand,
    other_rates,
    evaluated,
    restored,
    by_two,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops(loop: Any, rank: int, size: int) -> None:
    xs = [dp.part(dp.batch(k, size), rank, size) for k in range(4)]
    both("net", lambda model, optimizer: loop(model, optimizer, xs))


def test_two_models_in_turn(rank: int, size: int) -> None:
    def train(model: Any, optimizer: Any) -> None:
        second = overlapping(dp.twin(dp.Net, model))
        its = OPTIMIZERS["AdamW"](second.parameters())
        for k in range(3):
            x = dp.part(dp.batch(k, size), rank, size)
            step(second, its, x)
            step(model, optimizer, x)
            y = second(x).detach()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()

    both("net", train)


# Reads of parameters and states.


READS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "state_dict": dp.state,
    "of the bare model": lambda model: dp.state(model._layers),
    "parameters": lambda m: {str(k): p.numpy() for k, p in enumerate(m.parameters())},
    "named_parameters": lambda m: {n: p.numpy() for n, p in m._layers.named_parameters()},
    "attribute": lambda model: {"weight": model._layers.middle.weight.numpy()},
    "get": lambda model: {"bias": model._layers.last._parameters.get("bias").numpy()},
    "copy": lambda model: dp.state(copy.deepcopy(model._layers)),
}


@pytest.mark.parametrize("read", READS)
def test_reads(read: str, rank: int, size: int) -> None:
    model, other, _, _ = trained(rank, size)
    same_bits(READS[read](model), READS[read](other))


def test_saving(rank: int, size: int, tmp_path: Any) -> None:
    model, other, mine, its = trained(rank, size)
    paddle.save(model.state_dict(), str(tmp_path / "model"))
    same_bits(
        {name: t.numpy() for name, t in paddle.load(str(tmp_path / "model")).items()},
        dp.state(other),
    )
    model, other, mine, its = trained(rank, size)
    same_bits(values(mine), values(its))
    assert under_way(model) == 0


def test_what_was_kept_needs_synchronize(rank: int, size: int) -> None:
    model, other = pair()
    kept = model._layers.last.weight
    mine, its = (OPTIMIZERS["AdamW"](net.parameters()) for net in (model, other))
    x = dp.part(dp.batch(0, size), rank, size)
    for net, optimizer in ((other, its), (model, mine)):
        for _ in range(2):
            step(net, optimizer, x)
    before = kept.numpy()
    assert (before != other._layers.last.weight.numpy()).any()
    model.synchronize()
    np.testing.assert_array_equal(kept.numpy(), other._layers.last.weight.numpy())


def test_gradients_are_there_for_who_reads_them(rank: int, size: int) -> None:
    model, other = pair()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    for k in range(3):
        x = dp.part(dp.batch(k, size), rank, size)
        for net in (other, model):
            dp.square(net, x).backward()
        if k:
            assert len(model._reducer._overlap._pending) == len(model._reducer._buckets)
        same_bits(dp.gradients(model), dp.gradients(other))
        for net in (model, other):
            net.clear_gradients()
    del optimizer


def test_an_optimizer_that_is_not_known(rank: int, size: int) -> None:
    """The optimizer was made before paddlempi.paddle was imported. Nothing overlaps then."""
    from paddlempi.paddle import overlap

    model, other = pair()
    mine = OPTIMIZERS["AdamW"](other.parameters())
    mine._parameter_list = mine._param_groups = model.parameters()
    its = OPTIMIZERS["AdamW"](other.parameters())
    overlap._optimizers.discard(mine)
    x = dp.part(dp.batch(0, size), rank, size)
    step(model, mine, x)
    with pytest.warns(UserWarning, match="no optimizer of this model is known"):
        step(model, mine, x)
    for _ in range(2):
        step(other, its, x)
    same_bits(dp.state(model), dp.state(other))


class Sneaky(nn.Layer):
    """Keeps a parameter in a hidden place and uses it before its layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        weight = self.last.weight
        self.take = lambda: weight

    def forward(self, x: Any) -> Any:
        return self.first(x) @ self.take()


def test_a_parameter_used_too_early_is_an_error(rank: int, size: int) -> None:
    model = overlapping(Sneaky(), find_unused_parameters=True)
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        step(model, optimizer, x)
    loss = dp.square(model, x)
    with pytest.raises(ArgumentError, match=r"'last\.weight' was used before its update"):
        loss.backward()
    model.clear_gradients()
    step(model, optimizer, x)
    model.synchronize()  # as the error message says
    step(model, optimizer, x)
    mine = dp.state(model)
    dp.agree(mine, mine)
