"""torch's layers with rows on servers, against torch's own, over a fake of one process."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paddlempi import errors, ps
from paddlempi._ops import TableCall
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

pytestmark = pytest.mark.mpi(ranks=1)

ROWS, DIM, STEPS = 11, 5, 6
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def session(ps_core: PsCore) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    ps.init()


def weight_of(layer: Any) -> torch.Tensor:
    """The rows of all ids."""
    return layer.table.pull(torch.arange(ROWS)).clone()


OPTIMIZERS: list[tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = [
    (ps.SGD(0.2), lambda p: torch.optim.SGD(p, 0.2)),
    (ps.Adagrad(0.3), lambda p: torch.optim.Adagrad(p, 0.3)),
]


def train(layer: Any, reference: Any, make: Any, batches: list[tuple[Any, ...]]) -> None:
    """Train a layer and torch's, each with a dense layer behind it, and compare after each step."""
    dense = torch.nn.Linear(DIM, 3)
    same = copy.deepcopy(dense)
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(dense.parameters(), 0.1))
    of_dense, of_rows = torch.optim.SGD(same.parameters(), 0.1), make(reference.parameters())
    for batch in batches:
        optimizer.zero_grad()
        out = layer(*batch)
        loss = dense(out).square().mean()
        loss.backward()
        optimizer.step()
        of_dense.zero_grad()
        of_rows.zero_grad()
        expected = reference(*batch)
        other = same(expected).square().mean()
        other.backward()
        of_dense.step()
        of_rows.step()
        assert out.shape == expected.shape and out.dtype == expected.dtype
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(loss, other, **CLOSE)
    seen = torch.cat([batch[0].reshape(-1) for batch in batches]).unique()
    seen = seen[seen != (-1 if layer.padding_idx is None else layer.padding_idx)]
    torch.testing.assert_close(weight_of(layer)[seen], reference.weight.detach()[seen], **CLOSE)


def with_rows_of(layer: Any, reference: Any) -> None:
    """Give torch's layer the rows of the other one."""
    with torch.no_grad():
        weight = weight_of(layer)
        if reference.padding_idx is not None:
            weight[reference.padding_idx] = 0
        reference.weight.copy_(weight)


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize(("optimizer", "make"), OPTIMIZERS, ids=["sgd", "adagrad"])
def test_embedding(optimizer: Any, make: Any, padding: int | None) -> None:
    layer = ps.Embedding(ROWS, DIM, padding, name="e", optimizer=optimizer, seed=1)
    reference = torch.nn.Embedding(ROWS, DIM, padding, sparse=True)
    with_rows_of(layer, reference)
    batches = [(torch.randint(0, ROWS, (4, 3)),) for _ in range(STEPS)]
    train(layer, reference, make, batches)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(("optimizer", "make"), OPTIMIZERS, ids=["sgd", "adagrad"])
def test_bags_with_offsets(optimizer: Any, make: Any, mode: str, padding: int | None) -> None:
    layer = ps.EmbeddingBag(
        ROWS, DIM, mode, padding_idx=padding, name="e", optimizer=optimizer, seed=1
    )
    reference = torch.nn.EmbeddingBag(
        ROWS, DIM, mode=mode, sparse=mode != "max", padding_idx=padding
    )
    with_rows_of(layer, reference)
    offsets = torch.tensor([0, 4, 4, 7])  # one is empty
    batches = [(torch.randint(0, ROWS, (10,)), offsets) for _ in range(STEPS)]
    train(layer, reference, make, batches)


@pytest.mark.parametrize("last", [False, True])
def test_bags_with_weights(last: bool) -> None:
    layer = ps.EmbeddingBag(ROWS, DIM, "sum", last, name="e", optimizer=ps.SGD(0.3), padding_idx=4)
    reference = torch.nn.EmbeddingBag(
        ROWS, DIM, mode="sum", include_last_offset=last, padding_idx=4
    )
    with_rows_of(layer, reference)
    ids = torch.tensor([1, 4, 1, 9, 0], dtype=torch.int32)
    offsets = torch.tensor([0, 3, 5][: 2 + last], dtype=torch.int32)
    weights = [torch.rand(5, requires_grad=True)]
    weights.append(weights[0].detach().clone().requires_grad_())
    out = layer(ids, offsets, weights[0])
    expected = reference(ids, offsets, weights[1])
    torch.testing.assert_close(out, expected, **CLOSE)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad, **CLOSE)


def test_bags_of_one_length() -> None:
    layer = ps.EmbeddingBag(ROWS, DIM, name="e")
    reference = torch.nn.EmbeddingBag(ROWS, DIM)
    with_rows_of(layer, reference)
    ids = torch.randint(0, ROWS, (6, 3))
    torch.testing.assert_close(layer(ids), reference(ids), **CLOSE)


def test_ids_that_nobody_has_listed() -> None:
    layer = ps.Embedding(None, DIM, name="e", initializer=ps.Zeros())
    ids = torch.tensor([-(2**63), 2**63 - 1, 7])
    layer(ids).sum().backward()
    ps.step()
    assert (layer(ids) == -0.01).all()
    assert layer(torch.tensor(7)).shape == (DIM,)
    assert layer(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, DIM)


def test_layers_of_one_step_share_a_request(ps_core: PsCore) -> None:
    one = ps.Embedding(ROWS, DIM, name="a", optimizer=ps.SGD(1.0))
    two = ps.EmbeddingBag(ROWS, DIM, "sum", name="b", optimizer=ps.SGD(1.0))
    ids = torch.tensor([[1, 2], [1, 3]])
    before = one(ids[0]).detach().clone()
    # One table twice, and accumulated over two backwards.
    for _ in range(2):
        (one(ids[0]).sum() + one(ids[1]).sum() + two(ids).sum()).backward()
    ps.step()
    assert ps_core.requests == [(2, ["a", "b"])]
    torch.testing.assert_close(one(ids[0]), before - torch.tensor([[4.0], [2.0]]), **CLOSE)


def test_zero_grad_drops_what_was_noted(ps_core: PsCore) -> None:
    layer = ps.Embedding(ROWS, DIM, name="a")
    dense = torch.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(dense.parameters(), 0.1))
    dense(layer(torch.tensor([1]))).sum().backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in dense.parameters())
    optimizer.step()
    assert ps_core.requests == [(TableCall.PUSH, [])]


@pytest.mark.parametrize("padding", [None, 3])
def test_the_batch_may_be_written_to_before_the_step(padding: int | None) -> None:
    """As with torch's layer, after backward: a loop that accumulates has one tensor of ids."""
    layer = ps.Embedding(ROWS, DIM, padding, name="a", optimizer=ps.SGD(1.0))
    before = weight_of(layer)
    ids = torch.tensor([[1, 2], [4, 5]])[:, 0]
    for other in (2, 7):
        layer(ids).sum().backward()
        ids.fill_(other)
    ps.step()
    changed = (weight_of(layer) != before).all(1).nonzero().flatten().tolist()
    assert changed == [1, 2, 4]


def test_rows_and_their_gradient_may_be_written_to() -> None:
    """As with torch's layer: in-place functions behind it, and a buffer that gradients come in."""
    layer = ps.Embedding(ROWS, DIM, name="a", optimizer=ps.SGD(1.0))
    reference = torch.nn.Embedding(ROWS, DIM)
    with_rows_of(layer, reference)
    ids = torch.tensor([[1, 2], [1, 3]])
    for each in (layer, reference):
        buffer = torch.ones(2, 2, DIM)
        each(ids).mul_(2).relu_().backward(buffer)
        buffer.fill_(7)
        each(ids).backward(buffer)
        buffer.fill_(9)
    ps.step()
    expected = reference.weight.detach() - reference.weight.grad
    torch.testing.assert_close(weight_of(layer), expected, **CLOSE)


def test_a_layer_that_is_not_trained(ps_core: PsCore) -> None:
    layer = ps.Embedding(ROWS, DIM, name="a")
    assert layer.requires_grad_(False) is layer
    assert layer.frozen and not layer(torch.tensor([1])).requires_grad
    layer.requires_grad_()
    assert layer(torch.tensor([1])).requires_grad


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [ps.Embedding, ps.EmbeddingBag])
def test_a_trace_would_keep_rows(make: Any) -> None:
    layer = make.from_pretrained(torch.ones(ROWS, DIM), name="t")  # frozen: torch would do it
    with pytest.raises(errors.UnsupportedError, match="would keep the rows"):
        torch.jit.trace(layer, torch.tensor([[1, 2]]), check_trace=False)


def test_nothing_is_noted_without_gradients(ps_core: PsCore) -> None:
    layer = ps.Embedding(ROWS, DIM, name="a")
    with torch.no_grad():
        assert not layer(torch.tensor([1])).requires_grad
    layer.eval()
    assert layer(torch.tensor([1])).requires_grad  # as torch's
    ps.step()
    assert ps_core.requests == [(TableCall.PUSH, [])]


def test_prefetched_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ps.Embedding(ROWS, DIM, 3, name="a", optimizer=ps.SGD(1.0))
    ids = torch.tensor([[1, 3], [3, 2]])
    expected = layer(ids).detach()
    layer.prefetch(ids).wait()
    with monkeypatch.context() as patch:
        patch.setattr(layer.table, "pull", None)
        out = layer(ids)  # does not pull
        with pytest.raises(TypeError):
            layer(ids)  # the rows are for one forward
    assert (out == expected).all()
    out.sum().backward()
    ps.step()
    assert (layer(ids)[0, 0] == expected[0, 0] - 1).all()


def test_rows_of_several_layers(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request has them, but for a table that two layers have."""
    words = ps.Embedding(ROWS, DIM, 3, name="a", optimizer=ps.SGD(1.0), initializer="uniform")
    bags = ps.EmbeddingBag(None, 4, mode="sum", name="b", initializer="uniform")
    again = ps.Embedding(ROWS, DIM, name="a", optimizer=ps.SGD(1.0), initializer="uniform")
    layers = [words, bags, again]
    given = [torch.tensor([[1, 3], [3, 2]]), torch.tensor([[5, 6, 5]]), torch.tensor([2, 3])]
    expected = [layer(ids).detach() for layer, ids in zip(layers, given, strict=True)]
    before = len(ps_core.requests)
    asked = ps.prefetch(zip(layers, given, strict=True))
    rows = [one.wait() for one in asked]
    assert [code_and_tables[1] for code_and_tables in ps_core.requests[before:]] == [
        ["a", "b"],
        ["a"],
    ]
    assert len(rows) == 3 and asked[1].done() and asked[1].ids is given[1]
    with monkeypatch.context() as patch:
        for layer in layers:
            patch.setattr(layer.table, "pull", None)  # forward does not pull
        out = [layer(ids) for layer, ids in zip(layers, given, strict=True)]
    for one, wanted in zip(out, expected, strict=True):
        assert one.shape == wanted.shape and (one == wanted).all()
    (out[0].sum() + out[2].sum()).backward()
    ps.step()
    assert (again(torch.tensor([2])) == expected[2][0] - 2).all()  # of both layers
    assert ps.prefetch([]) == []

    # An error is that of each.
    asked = ps.prefetch([(words, torch.tensor([ROWS])), (bags, given[1])])
    for one in asked:
        with pytest.raises(errors.ArgumentError, match=str(ROWS)):
            one.wait()
    with pytest.raises(errors.ArgumentError, match=str(ROWS)):
        bags(given[1])
    assert (bags(given[1]) == expected[1]).all()  # it pulls
    for wrong in ([words], [(words,)], [(words.table, given[0])], words):
        with pytest.raises(errors.DtypeError, match=r"ps\.prefetch: a request is"):
            ps.prefetch(wrong)  # type: ignore[arg-type]


def test_a_prefetched_tensor_that_was_written_to() -> None:
    """Forward has the rows of the ids that are there now, and backward trains these."""
    layer = ps.Embedding(None, DIM, name="a", optimizer=ps.SGD(1.0), initializer="uniform")
    before = layer(torch.arange(6)).detach()
    for new in ([3, 4], [5], [1, 2, 3], []):
        ids = torch.tensor([1, 2])
        layer.prefetch(ids)
        if len(new) == 2:
            ids.numpy()[:] = new  # torch does not count this as a write
        else:
            ids.set_(torch.tensor(new, dtype=torch.int64))
        out = layer(ids)
        assert (out == before[new]).all()
        out.sum().backward()
        ps.step()
        before[new] -= 1
        assert (layer(torch.arange(6)) == before).all()


def test_schedulers_states_and_closures() -> None:
    dense = torch.nn.Linear(DIM, 1)
    inner = torch.optim.SGD(dense.parameters(), 0.1, momentum=0.9)
    optimizer = ps.DistributedOptimizer(inner)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = dense(torch.ones(DIM)).sum()
        loss.backward()
        return loss

    before = dense.bias.item()
    assert optimizer.step(closure) is not None
    scheduler.step()
    assert abs(dense.bias.item() - (before - 0.1)) < 1e-6
    assert inner.param_groups[0]["lr"] == 0.05 and optimizer.defaults["lr"] == 0.1
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    optimizer.load_state_dict(torch.load(saved))
    assert len(optimizer.state) == 2
    with pytest.raises(errors.UnsupportedError, match="state_dict"):
        copy.deepcopy(optimizer)


def test_a_grad_scaler_is_refused(ps_core: PsCore) -> None:
    layer, dense = ps.Embedding(ROWS, DIM, name="a"), torch.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(torch.optim.SGD(dense.parameters(), 0.1))
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler.scale(dense(layer(torch.tensor([1]))).sum()).backward()
        if enabled:
            with pytest.raises(errors.UnsupportedError, match="bfloat16"):
                scaler.step(optimizer)
            optimizer.zero_grad()
        else:
            scaler.step(optimizer)
    assert ps_core.steps == 1


def test_models_can_be_saved_and_copied() -> None:
    model = torch.nn.Sequential(ps.Embedding(ROWS, DIM, name="a"), torch.nn.Linear(DIM, 1))
    assert set(model.state_dict()) == {"1.weight", "1.bias"}
    assert len(list(model.parameters())) == 2
    ids = torch.tensor([1, 2])
    model[0].prefetch(torch.tensor([3])).wait()
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for again in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        assert (again(ids) == model(ids)).all()
    assert "Embedding(11, 5, name='a')" in repr(model)


def test_rows_of_16_bits() -> None:
    layer = ps.Embedding(ROWS, DIM, name="a", dtype=torch.bfloat16, optimizer=ps.SGD(1.0))
    ids = torch.tensor([1, 2])
    rows = layer(ids)
    assert rows.dtype == torch.float32 and (rows == rows.bfloat16()).all()
    rows.sum().backward()
    ps.step()
    assert (layer(ids) == (rows - 1).bfloat16()).all()


def test_recomputed_in_backward() -> None:
    layer = ps.Embedding(ROWS, DIM, name="a", optimizer=ps.SGD(1.0))
    ids = torch.tensor([1, 2])
    before = layer(ids).detach().clone()
    x = torch.ones(2, DIM, requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(lambda x: layer(ids) * x, x, use_reentrant=False)
    out.sum().backward()
    ps.step()
    torch.testing.assert_close(layer(ids), before - 1, **CLOSE)


DENSE: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, 0.1),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.1),
    lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.9), weight_decay=0.01),
    lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
]


@pytest.mark.parametrize("make", DENSE, ids=["sgd", "momentum", "adagrad", "adam", "adamw"])
def test_dense_parameters_on_servers(ps_core: PsCore, make: Any) -> None:
    layer = ps.Embedding(ROWS, DIM, name="a", optimizer=ps.SGD(0.0))
    dense = torch.nn.Sequential(torch.nn.Linear(DIM, 300), torch.nn.Linear(300, 300))
    same = copy.deepcopy(dense)
    of_servers = ps.DistributedOptimizer(make(dense.parameters()), dense="server")
    schedule = torch.optim.lr_scheduler.StepLR(of_servers, 2, 0.5)
    other = make(same.parameters())
    other_schedule = torch.optim.lr_scheduler.StepLR(other, 2, 0.5)
    for step in range(STEPS):
        ids = torch.randint(0, ROWS, (4,))
        for model, optimizer in ((dense, of_servers), (same, other)):
            optimizer.zero_grad()
            model(layer(ids)).square().mean().backward()
            optimizer.step()
        schedule.step()
        other_schedule.step()
        for mine, theirs in zip(dense.parameters(), same.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE)
        # One request to push, and one to pull.
        assert ps_core.requests[1 + 2 * step :] == [
            (TableCall.PUSH, ["a", "dense.0"]),
            (TableCall.PULL, ["dense.0"]),
        ]
    assert ps_core.ways == {"a": "hash", "dense.0": "modulo"}
    with pytest.raises(errors.UnsupportedError, match="groups cannot grow"):
        of_servers.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_groups_of_parameters_that_are_not_trained(ps_core: PsCore) -> None:
    frozen, model = torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 2)
    inner = torch.optim.SGD([{"params": frozen.parameters()}, {"params": model.parameters()}], 1.0)
    optimizer = ps.DistributedOptimizer(inner, dense="server")
    assert set(ps_core.ways) == {"dense.1"}
    before = model.bias.detach().clone()
    model(frozen(torch.ones(2))).sum().backward()
    optimizer.step()
    assert (model.bias == before - 1).all()


def freeze(dense: Any, optimizer: Any) -> None:
    dense[0].requires_grad_(False)


def unfreeze(dense: Any, optimizer: Any) -> None:
    dense[2].requires_grad_()


def decay(dense: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


def cycle(dense: Any, optimizer: Any) -> None:
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)


@pytest.mark.parametrize(
    ("change", "text"),
    [(freeze, "unfrozen"), (unfreeze, "unfrozen"), (decay, "decay=0.1"), (cycle, "cycle_mom")],
)
def test_servers_do_not_take_changes(ps_core: PsCore, change: Any, text: str) -> None:
    """They would go on with what they were told at the beginning."""
    dense = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])
    dense[2].requires_grad_(False)
    inner = torch.optim.SGD([{"params": part.parameters()} for part in dense], 0.1, momentum=0.9)
    optimizer = ps.DistributedOptimizer(inner, dense="server")
    dense[0](torch.ones(2)).sum().backward()
    before = dense[0].bias.detach().clone()
    change(dense, optimizer)
    with pytest.raises(errors.UnsupportedError, match=text):
        optimizer.step()
    assert (dense[0].bias == before).all() and ps_core.steps == 0
    assert ps_core.called()[-1] == "ps_refuse"  # the others do not wait for this trainer


def test_optimizers_of_one_name(ps_core: PsCore) -> None:
    """The second one would get the parameters of the first."""
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    ps.DistributedOptimizer(torch.optim.SGD(first.parameters()), dense="server")
    with pytest.raises(errors.ArgumentError, match="name='dense'"):
        ps.DistributedOptimizer(torch.optim.SGD(second.parameters()), dense="server")
    ps.DistributedOptimizer(torch.optim.SGD(second.parameters()), dense="server", name="second")


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_a_step(ps_core: PsCore, when: str) -> None:
    seen: list[Any] = []
    for way in ("all_reduce", "server"):
        dense = torch.nn.Linear(2, 2)
        optimizer = ps.DistributedOptimizer(torch.optim.SGD(dense.parameters()), dense=way)
        register = getattr(optimizer, f"register_step_{when}_hook")
        if way == "server":
            with pytest.raises(errors.UnsupportedError, match="hook"):
                register(seen.append)
        else:
            register(lambda *arguments: seen.append(arguments[0]))
            optimizer.step()
            assert seen == [optimizer.optim]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: torch.optim.RMSprop(p), "servers have no RMSprop"),
        (lambda p: torch.optim.SparseAdam(p), "servers have no SparseAdam"),
        (
            lambda p: torch.optim.SGD([torch.ones(2, dtype=torch.cfloat, requires_grad=True)]),
            "complex",
        ),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "'dampening': 0.5"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "'amsgrad': True"),
    ],
)
def test_optimizers_that_servers_do_not_have(make: Any, text: str) -> None:
    dense = torch.nn.Linear(2, 2)
    with pytest.raises(errors.UnsupportedError, match=text):
        ps.DistributedOptimizer(make(dense.parameters()), dense="server")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: ps.Embedding(ROWS, DIM, 11, name="a"), errors.ArgumentError, "padding_idx=11"),
        (lambda: ps.EmbeddingBag(9, DIM, "avg", name="a"), errors.ArgumentError, "mode='avg'"),
        (
            lambda: ps.Embedding(ROWS, DIM, name="a")(torch.tensor([11])),
            errors.ArgumentError,
            "11",
        ),
        (
            lambda: ps.Embedding(ROWS, DIM, name="a")(torch.tensor([1.0])),
            errors.DtypeError,
            "ids are of torch.float32",
        ),
        (lambda: ps.Embedding(ROWS, DIM, name="a")([1]), errors.DtypeError, "ids are of list"),
        (lambda: ps.DistributedOptimizer(7), errors.DtypeError, "a int is no optimizer"),
        (
            lambda: ps.DistributedOptimizer(torch.nn.Linear(1, 1)),
            errors.DtypeError,
            "a Linear is no optimizer of torch",
        ),
        (
            lambda: ps.DistributedOptimizer(
                ps.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1))
            ),
            errors.ArgumentError,
            "it is one already",
        ),
        (
            lambda: ps.DistributedOptimizer(torch.optim.LBFGS(torch.nn.Linear(1, 1).parameters())),
            errors.UnsupportedError,
            "LBFGS",
        ),
        (lambda: ps.Embedding(ROWS, DIM, 1.5, name="a"), errors.DtypeError, "padding_idx=1.5"),
        (
            lambda: ps.DistributedOptimizer(
                torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), dense="ddp"
            ),
            errors.ArgumentError,
            "dense='ddp'",
        ),
        (
            lambda: ps.DistributedOptimizer(
                torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), placement="random"
            ),
            errors.ArgumentError,
            "placement='random' is none of 'round_robin', 'hash_name'",
        ),
    ],
)
def test_wrong_arguments(make: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        make()
