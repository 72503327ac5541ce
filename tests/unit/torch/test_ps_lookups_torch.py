"""Layers of torch make rows where backward may train them, and no others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from paddlempi import errors, ps
from paddlempi._ops import TableCall
from ps_fake import PsCore, ps_core

torch = pytest.importorskip("torch")

__all__ = ["ps_core"]

DIM = 3


@pytest.fixture(autouse=True)
def session(ps_core: PsCore) -> None:
    torch.set_num_threads(1)
    ps.init()


def rows_of(ps_core: PsCore, name: str = "e") -> int:
    asked = json.dumps({"table": ps_core.tables_by_name[name]})
    rows: int = json.loads(ps_core._real.control("table_info", asked))["rows"]
    return rows


def embedding(**arguments: Any) -> Any:
    return ps.Embedding(None, DIM, name="e", optimizer=ps.SGD(1.0), seed=1, **arguments)


def bags(**arguments: Any) -> Any:
    return ps.EmbeddingBag(None, DIM, "sum", name="e", optimizer=ps.SGD(1.0), seed=1, **arguments)


def in_eval(layer: Any, ids: Any) -> Any:
    layer.eval()
    try:
        return layer(ids)
    finally:
        layer.train()


def without_gradients(layer: Any, ids: Any) -> Any:
    with torch.no_grad():
        return layer(ids)


def in_inference(layer: Any, ids: Any) -> Any:
    with torch.inference_mode():
        return layer(ids)


def frozen(layer: Any, ids: Any) -> Any:
    layer.requires_grad_(False)
    try:
        return layer(ids)
    finally:
        layer.requires_grad_(True)


WAYS = [in_eval, without_gradients, in_inference, frozen]
IDS = torch.tensor([[5, -2], [5, 2**61]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [embedding, bags])
@pytest.mark.parametrize("way", WAYS)
def test_evaluation_makes_no_rows(
    ps_core: PsCore, way: Callable[..., Any], make: Callable[..., Any], dtype: str
) -> None:
    layer = make(dtype=dtype)
    looked = way(layer, IDS).detach().clone()
    assert rows_of(ps_core) == 0
    assert (layer(IDS) == looked).all()  # the row is made as the lookup has said
    assert rows_of(ps_core) == 3
    zeros = make(dtype=dtype, missing="zeros")
    known, unknown = torch.tensor([[5, 5]]), torch.tensor([[5, 77], [78, 77]])
    found = way(zeros, unknown).detach().clone()
    assert rows_of(ps_core) == 3
    row = layer.table.pull(torch.tensor([5]))
    wanted = torch.zeros(2, 2, DIM)
    wanted[0, 0] = row
    assert (found == (wanted if make is embedding else wanted.sum(1))).all()
    assert (way(zeros, known) == way(layer, known)).all()
    assert "missing" not in repr(layer) and "missing='zeros'" in repr(zeros)


def test_a_padding_stays_zeros(ps_core: PsCore) -> None:
    layer = embedding(padding_idx=-2)
    out = in_eval(layer, IDS)
    assert (out[0, 1] == 0).all() and (out[0, 0] != 0).all()
    assert rows_of(ps_core) == 0


def test_a_backward_in_eval_makes_the_row(ps_core: PsCore) -> None:
    """Torch's layer has a gradient there; a push makes rows."""
    layer = embedding().eval()
    before = layer(IDS).detach().clone()
    layer(IDS).sum().backward()
    assert rows_of(ps_core) == 0
    ps.step()
    assert rows_of(ps_core) == 3
    assert (layer(IDS)[0, 1] == before[0, 1] - 1).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_backward(ps_core: PsCore, reentrant: bool) -> None:
    """The reentrant kind runs forward without gradients first, where it makes no row."""
    layer = embedding()
    x = torch.ones(2, 2, DIM, requires_grad=True)
    seen = []

    def part(x: Any) -> Any:
        seen.append(layer(IDS).detach().clone())
        return layer(IDS) * x

    out = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)
    assert rows_of(ps_core) == (0 if reentrant else 3)
    out.sum().backward()
    assert rows_of(ps_core) == 3 and len(seen) == 2 and (seen[0] == seen[1]).all()
    ps.step()
    assert (layer(IDS)[0, 1] == seen[0][0, 1] - 1).all()


def test_prefetches_in_both_directions(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward takes the rows of a prefetch, unless it is to make rows and the prefetch did not."""
    layer = embedding(missing="zeros")
    pulls: list[Any] = []
    pull = layer.table.pull
    monkeypatch.setattr(
        layer.table, "pull", lambda *a, **k: (pulls.append(k["missing"]), pull(*a, **k))[1]
    )
    with torch.no_grad():
        assert (layer.prefetch(IDS).wait()[2] == 0).all()
    trained = layer(IDS)
    assert pulls == ["zeros", None] and rows_of(ps_core) == 3 and (trained != 0).all()
    layer.prefetch(IDS).wait()
    assert (in_eval(layer, IDS) == trained).all()
    assert pulls == ["zeros", None, None]
    layer.eval()
    layer.prefetch(IDS + 1).wait()
    again = IDS + 1
    layer.prefetch(again).wait()
    assert (layer(again) == 0).all() and pulls[3:] == ["zeros", "zeros"]
    assert rows_of(ps_core) == 3


def test_prefetches_of_several_layers(ps_core: PsCore) -> None:
    """Layers that make rows share a request, and those that do not."""
    made = [ps.Embedding(None, DIM, name=name, seed=1) for name in "abcd"]
    made[1].eval()
    made[2].frozen = True
    made[3].missing = "zeros"
    given = [torch.tensor([n, 9]) for n in range(4)]
    for one in ps.prefetch(zip(made, given, strict=True)):
        one.wait()
    assert ps_core.requests == [(TableCall.PULL, ["a", "d"]), (TableCall.LOOK, ["b", "c"])]
    with torch.no_grad():
        asked = ps.prefetch(zip(made, [ids + 20 for ids in given], strict=True))
    for one in asked:
        one.wait()
    assert ps_core.requests[2:] == [
        (TableCall.LOOK, ["a", "b", "c"]),
        (TableCall.LOOK_ZEROS, ["d"]),
    ]
    assert [rows_of(ps_core, name) for name in "abcd"] == [2, 0, 0, 2]


def test_a_plan_is_evaluated(ps_core: PsCore) -> None:
    """Its rows are all there; a lookup leaves the servers as they are."""
    model = torch.nn.Sequential(torch.nn.Embedding(6, DIM, sparse=True), torch.nn.Linear(DIM, 1))
    alone = copy.deepcopy(model)
    plan = ps.transpile(model, torch.optim.SGD(model.parameters(), 0.1))
    (layer,) = plan.layers.values()
    calls: list[Any] = []
    pull = layer.table.pull
    layer.table.pull = lambda *a, **k: (calls.append(k["missing"]), pull(*a, **k))[1]
    plan.model.eval()
    ids = torch.arange(6)
    torch.testing.assert_close(plan.model(ids), alone(ids))
    plan.state_dict()
    assert calls == ["initial", "initial"]


@pytest.mark.parametrize("missing", [None, "none", 0])
def test_another_word(missing: Any) -> None:
    for make in (embedding, bags):
        with pytest.raises(errors.ArgumentError, match=r"Embedding.*: missing=.* is none of"):
            make(missing=missing)


def test_an_id_out_of_range() -> None:
    layer = ps.Embedding(4, DIM, name="f", missing="zeros").eval()
    with pytest.raises(errors.ArgumentError, match=r"ids\[1\] is 4"):
        layer(torch.tensor([1, 4]))
