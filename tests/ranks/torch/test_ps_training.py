"""Training with tables on servers is training in one process, for torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from paddlempi import errors, ps
from paddlempi.ps import stepping
from ps_roles import BOTH, ONE_SERVER, begin, layouts

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM, STEPS, EACH = 12, 4, 5, 6
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def batch(step: int, trainers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and targets of all trainers, EACH for every one."""
    make = torch.Generator().manual_seed(step)
    ids = torch.randint(0, ROWS, (EACH * trainers, 3), generator=make)
    return ids, torch.rand(EACH * trainers, 1, generator=make)


def dense() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2 * DIM, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def loss_of(model: torch.nn.Module, rows: Any, bags: Any, ids: Any, target: Any) -> torch.Tensor:
    out = model(torch.cat([rows(ids).sum(1), bags(ids)], 1))
    return torch.nn.functional.mse_loss(out, target)


@pytest.mark.parametrize("way", ["all_reduce", "server"])
@pytest.mark.parametrize("prefetching", [False, True], ids=["", "prefetch"])
def test_it_is_like_one_process(
    begin: Callable[..., bool], rank: int, roles: str, way: str, prefetching: bool
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # the parameters of the first trainer count
    if not begin(roles):
        return
    trainers = len(ps.trainers())
    me = ps.trainers().index(rank)
    rows = ps.Embedding(ROWS, DIM, 3, name="rows", optimizer=ps.Adagrad(0.2), seed=1)
    bags = ps.EmbeddingBag(ROWS, DIM, "mean", name="bags", optimizer=ps.SGD(0.2), seed=2)
    model = dense()
    optimizer = ps.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), dense=way)

    everyone = torch.arange(ROWS)
    same = copy.deepcopy(model)
    same_rows = torch.nn.Embedding(ROWS, DIM, 3)
    same_bags = torch.nn.EmbeddingBag(ROWS, DIM)
    with torch.no_grad():
        same_rows.weight.copy_(rows(everyone))
        same_bags.weight.copy_(bags(everyone[:, None]))
    ps.barrier("read")
    others = [
        torch.optim.Adam(same.parameters(), 0.01),
        torch.optim.Adagrad(same_rows.parameters(), 0.2),
        torch.optim.SGD(same_bags.parameters(), 0.2),
    ]
    mine = slice(me * EACH, (me + 1) * EACH)
    following = batch(0, trainers)[0][mine]
    for step in range(STEPS):
        ids, target = batch(step, trainers)
        loss = loss_of(model, rows, bags, following, target[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        following = batch(step + 1, trainers)[0][mine]
        if prefetching:
            rows.prefetch(following)
        for other in others:
            other.zero_grad()
        loss_of(same, same_rows, same_bags, ids, target).backward()
        for other in others:
            other.step()
    with torch.no_grad():
        torch.testing.assert_close(rows(everyone), same_rows.weight, **CLOSE)
        torch.testing.assert_close(bags(everyone[:, None]), same_bags.weight, **CLOSE)
        for here, there in zip(model.parameters(), same.parameters(), strict=True):
            torch.testing.assert_close(here, there, **CLOSE)


def test_a_parameter_that_some_trainers_use(begin: Callable[..., bool], rank: int) -> None:
    if not begin(BOTH):
        return
    parts = [torch.nn.Parameter(torch.full((2,), 5.0)) for _ in range(3)]
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(parts, 1.0, weight_decay=0.5))
    used = parts[0] * 2 + (parts[1] * len(ps.trainers()) if rank == 0 else 0)
    used.sum().backward()
    optimizer.step()
    assert (parts[0] == 5 - 2.5 - 2).all()
    assert (parts[1] == 5 - 2.5 - 1).all()
    assert (parts[2] == 5).all() and parts[2].grad is None  # nobody used it: no weight decay


@pytest.mark.parametrize(
    ("way", "mistake"),
    [
        ("all_reduce", "sparse"),
        ("server", "sparse"),
        ("server", "not finite"),
        ("local", "not finite"),
    ],
)
def test_a_mistake_of_one_trainer(
    begin: Callable[..., bool], rank: int, way: str, mistake: str
) -> None:
    """The others learn of it, nothing was changed, and all can go on."""
    if not begin(BOTH):
        return
    layer = torch.nn.Embedding(4, 2, sparse=rank == 0 and mistake == "sparse")
    rows = ps.Embedding(4, 2, name="rows", optimizer=ps.SGD(1.0))
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), 1.0), dense=way)
    ids = torch.arange(4)
    before = layer.weight.detach().clone(), rows(ids).detach().clone()
    layer(torch.tensor([1])).sum().backward()
    factor = float("nan") if rank == 0 and mistake == "not finite" else 1.0
    (rows(torch.tensor([2])) * factor).sum().backward()
    kind, text = (errors.RefusedError, r"\[0\]")
    if rank == 0:
        kind, text = (
            (errors.UnsupportedError, r"ps\.Embedding")
            if mistake == "sparse"
            else (errors.ArgumentError, "finite")
        )
    with pytest.raises(kind, match=text):
        optimizer.step()
    for weight, was in zip((layer.weight, rows(ids)), before, strict=True):
        assert (weight == was).all()
    optimizer.zero_grad()
    rows(torch.tensor([3])).sum().backward()
    optimizer.step()
    assert (rows(ids)[3] == before[1][3] - 1).all() and (rows(ids)[2] == before[1][2]).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", [errors.OutOfMemoryError, errors.TimeoutError, KeyboardInterrupt])
def test_a_push_that_fails_at_one_trainer(
    begin: Callable[..., bool], rank: int, mode: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trainer averages dense gradients in that step, so that later they average the same."""
    if not begin(BOTH, mode=mode):
        return
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = ps.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    rows = ps.Embedding(4, 2, name="rows", optimizer=ps.SGD(1.0))

    def step(number: int) -> None:
        optimizer.zero_grad()
        ((weight + rows(torch.tensor([0]))) * 10**number).sum().backward()
        optimizer.step()

    def fails(requests: Any) -> None:
        pushed(requests)  # so that no trainer waits for it
        raise kind("in a push")

    step(0)
    pushed = stepping.remote.push
    with monkeypatch.context() as replaced:
        if rank == 0:
            replaced.setattr(stepping.remote, "push", fails)
        with pytest.raises(kind if rank == 0 else errors.RefusedError):
            step(1)
    step(2)
    assert weight.tolist() == [-101, -101]


def test_optimizers_that_begin_later(begin: Callable[..., bool], rank: int, roles: str) -> None:
    """Adam counts the steps of its own parameters and table, on every server."""
    torch.manual_seed(rank)
    if not begin(roles):
        return
    size = 200  # two blocks, which two servers share
    models = [torch.nn.Linear(size, 50), torch.nn.Linear(size, 50)]
    rows = ps.Embedding(ROWS, DIM, name="rows", optimizer=ps.Adam(0.1), seed=1)
    other = ps.Embedding(ROWS, DIM, name="other", optimizer=ps.Adam(0.1), seed=1)
    ids = torch.arange(ROWS)
    for _ in range(3):
        other(ids).sum().backward()
        ps.step()
    made = [
        ps.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), 0.1), dense="server", name=name
        )
        for name, model in zip("ab", models, strict=True)
    ]
    same, same_rows = copy.deepcopy(models), torch.nn.Embedding(ROWS, DIM)
    with torch.no_grad():
        same_rows.weight.copy_(rows(ids))
    ps.barrier("read")
    theirs: list[Any] = [torch.optim.Adam(model.parameters(), 0.1) for model in same]
    theirs.append(torch.optim.Adam(same_rows.parameters(), 0.1))
    for step in range(3):
        for optimizer in (*made, *theirs):
            optimizer.zero_grad()
        for parts, table in ((models, rows), (same, same_rows)):
            factor = (step - 1.5) * table(ids).sum()
            (sum(model(torch.ones(size)).square().sum() for model in parts) + factor).backward()
        for optimizer in (*made, *theirs):
            optimizer.step()
    for model, expected in zip(models, same, strict=True):
        torch.testing.assert_close(model.weight, expected.weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rows(ids).detach(), same_rows.weight.detach(), **CLOSE)


def test_frozen_parameters_are_the_same(begin: Callable[..., bool], rank: int) -> None:
    if not begin(BOTH):
        return
    for way in ("all_reduce", "server"):
        frozen = torch.nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
        trained = torch.nn.Parameter(torch.full((2,), float(rank)))
        ps.DistributedOptimizer(torch.optim.SGD([frozen, trained], 1.0), dense=way)
        assert (frozen == 0).all() and (trained == 0).all()


def test_rows_of_another_model(begin: Callable[..., bool], rank: int, roles: str) -> None:
    if not begin(roles):
        return
    weight = torch.arange(ROWS * DIM, dtype=torch.float32).reshape(DIM, ROWS).t()
    given = weight if rank == ps.trainers()[0] else torch.empty_like(weight)
    frozen = ps.Embedding.from_pretrained(torch.nn.Parameter(given), name="a", padding_idx=1)
    bags = ps.EmbeddingBag.from_pretrained(given, False, name="b", mode="sum", optimizer=ps.SGD(1))
    assert len(frozen.table) == len(bags.table) == ROWS and frozen.table
    ids = torch.arange(ROWS)
    assert (frozen(ids)[2:] == weight[2:]).all() and (frozen(ids)[1] == 0).all()
    assert not frozen(ids).requires_grad and "frozen=True" in repr(frozen)
    bags(ids[:, None]).sum().backward()
    ps.step()
    assert (bags(ids[:, None]) == weight - 1).all() and (frozen(ids)[2:] == weight[2:]).all()


def test_asynchronous_training_learns(begin: Callable[..., bool], rank: int) -> None:
    torch.manual_seed(0)
    if not begin(ONE_SERVER, mode="async"):
        return
    me = ps.trainers().index(rank)
    layer = ps.EmbeddingBag(None, DIM, "sum", name="bags", optimizer=ps.Adagrad(0.3))
    model = torch.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.02), dense="server")
    losses = []
    for step in range(60 + 20 * me):  # as many as each likes
        ids = torch.from_numpy(np.random.default_rng([me, step]).integers(-50, 50, (32, 4)))
        target = (ids > 0).sum(1, keepdim=True).float()
        loss = torch.nn.functional.mse_loss(model(layer(ids)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_restored_dense_parameters(begin: Callable[..., bool], tmp_path: Any) -> None:
    """Also by another number of servers, in another placement: with the momentum of then."""
    from paddlempi import broadcast_object_list

    folder = [str(tmp_path)]
    broadcast_object_list(folder)
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 100)

    def begun(roles: str, placement: str) -> Any:
        begin(roles)
        inner = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        return ps.DistributedOptimizer(inner, dense="server", placement=placement)

    def stepped(optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        model(torch.ones(200)).square().mean().backward()
        optimizer.step()
        return model.weight.detach().clone()

    optimizer = begun(BOTH, "round_robin")
    first = stepped(optimizer)
    ps.save(folder[0], 1)
    second = stepped(optimizer)
    ps.shutdown()
    optimizer = begun("trainer+pserver,trainer:*", "hash_name")
    assert (model.weight == second).all() and ps.restore(folder[0])["step"] == 1
    optimizer.refresh()
    assert (model.weight == first).all() and (first != second).any()
    assert (stepped(optimizer) == second).all()


def test_ids_that_come_and_go(
    begin: Callable[..., bool], roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id gets its row in the second step that has it; pretrained rows must have room."""
    if not begin(roles):
        return
    rows = torch.arange(56.0).reshape(28, 2)
    with pytest.raises(errors.ArgumentError, match="28 rows, and max_rows=27"):
        ps.Embedding.from_pretrained(rows, name="small", max_rows=27)
    monkeypatch.setattr("paddlempi.ps.layers._PIECE", 8)  # written in seven pieces
    if len(ps.pservers()) > 1:  # whose parts these ids do not fit
        with pytest.raises(errors.ArgumentError, match="of 28 rows the servers have kept"):
            ps.Embedding.from_pretrained(rows, name="tight", max_rows=28)
    wide = ps.Embedding.from_pretrained(rows, False, name="wide", max_rows=60)
    assert torch.equal(wide(torch.arange(28)), rows)
    words = ps.Embedding(
        None, 2, 0, name="words", admit_after=2, initializer="zeros", missing="zeros"
    )
    ids = torch.tensor([0, 7, 8, 7])
    for seen in range(3):
        for training in (True, False):
            words.train(training)
            assert (words(ids) == 0).all() == (seen < 2)
        words.train()
        (words(ids).sum() + wide(ids).sum()).backward()
        ps.step()
    ps.barrier()
    assert len(words.table) == 2
