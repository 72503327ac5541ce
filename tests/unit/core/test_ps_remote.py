"""Tables on servers, over a fake of one process: requests, steps, prefetch, pickles."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps.dense import Blocks, pull, spread
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

DIM = 3
IDS = np.array([5, -2, 5])
ONES = np.ones((3, DIM), np.float32)


@pytest.fixture
def table(ps_core: PsCore) -> ps.RemoteTable:
    ps.init()
    return ps.RemoteTable("t", DIM, ps.SGD(0.5), ps.Uniform(-1, 1), seed=4)


def test_it_is_like_a_local_table(ps_core: PsCore, table: ps.RemoteTable) -> None:
    local = ps.Table(DIM, ps.SGD(0.5), ps.Uniform(-1, 1), seed=4)
    for rate in (None, 0.25):
        table.push(IDS, ONES, rate)
        local.push(IDS, ONES, rate)
        assert (table.pull(IDS) == local.pull(IDS)).all()
    out = np.zeros((3, DIM), np.float32)
    assert table.pull(IDS, out) is out and (out == local.pull(IDS)).all()
    assert (table.name, table.dim, table.dtype) == ("t", DIM, "float32")
    assert table.optimizer == ps.SGD(0.5)
    assert ps_core.steps == 2


def test_what_is_declared(ps_core: PsCore, table: ps.RemoteTable) -> None:
    (given,) = [given for method, given in ps_core.controls if method == "ps_declare"]
    assert given == {
        "name": "t",
        "by": "hash",
        "dim": DIM,
        "dtype": "float32",
        "seed": 4,
        "refuse": True,
        "initializer": {"name": "uniform", "a": -1, "b": 1},
        "optimizer": ps.SGD(0.5).request(),
        "num_ids": 0,
        "memory_limit": 0,
        "admit_after": 0,
        "expire_after": 0,
        "max_rows": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((7, DIM), errors.DtypeError, "name=7 is no text"),
        (("u", "3"), errors.DtypeError, "dim='3' is no integer"),
        (("u", 0), errors.ArgumentError, "dim"),
        (("u", DIM, "sgdd"), errors.ArgumentError, "none of sgd"),
    ],
)
def test_wrong_tables(ps_core: PsCore, arguments: Any, kind: type, text: str) -> None:
    ps.init()
    with pytest.raises(kind, match=text):
        ps.RemoteTable(*arguments)


@pytest.mark.parametrize("name", ["admit_after", "expire_after", "max_rows"])
@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0, errors.ArgumentError, "=0 is below 1"),
        (-3, errors.ArgumentError, "=-3 is below 1"),
        (1 << 63, errors.ArgumentError, "is not from"),
        ("9", errors.DtypeError, "='9' is no integer"),
        (2.5, errors.DtypeError, "=2.5 is no integer"),
    ],
)
def test_wrong_lifetimes(ps_core: PsCore, name: str, value: Any, kind: type, text: str) -> None:
    ps.init()
    before = len(ps_core.controls)
    with pytest.raises(kind, match=f"{name}.*{text}"):
        ps.RemoteTable("u", DIM, **{name: value})
    with pytest.raises(kind, match=f"{name}.*{text}"):
        ps.Table(DIM, **{name: value})
    assert len(ps_core.controls) == before


def test_a_pickle_has_the_lifetime(ps_core: PsCore) -> None:
    ps.init()
    table = ps.RemoteTable("u", DIM, admit_after=3, expire_after=40, max_rows=500)
    again = pickle.loads(pickle.dumps(table))
    assert again._config == table._config
    given = [given for method, given in ps_core.controls if method == "ps_declare"]
    assert [(one["admit_after"], one["expire_after"], one["max_rows"]) for one in given] == [
        (3, 40, 500)
    ] * 2


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda t: t.pull([1, 2]), errors.DtypeError, "ids of type list are no tensor"),
        (lambda t: t.pull(3), errors.DtypeError, "ids of type int are no tensor"),
        (lambda t: t.pull(np.array(3)), errors.ArgumentError, r"shape \(\) must be of"),
        (lambda t: t.pull([1], ONES[:1]), errors.DtypeError, "pull: ids of type list"),
        (lambda t: t.push([1], ONES[:1]), errors.DtypeError, "push: ids of type list"),
        (lambda t: t.push([1]), errors.DtypeError, "push: ids of type list"),
        (lambda t: t.write([1], ONES[:1]), errors.DtypeError, "write: ids of type list"),
        (lambda t: ps.note(t, [1], ONES[:1]), errors.DtypeError, "ps.note: ids of type list"),
        (lambda t: ps.note("t", IDS, ONES), errors.DtypeError, "table='t' is no RemoteTable"),
        (lambda t: ps.pull(t), errors.DtypeError, r"a request is \(RemoteTable, ids\), not Remo"),
        (lambda t: ps.pull([("t", IDS)]), errors.DtypeError, r"not \('t', array"),
        (lambda t: ps.pull([(t, [1])]), errors.DtypeError, "ps.pull: ids of type list"),
        (lambda t: ps.push([(t, IDS)]), errors.DtypeError, "RemoteTable, ids, gradients"),
        (lambda t: ps.push([(t, [1], ONES)]), errors.DtypeError, "ps.push: ids of type list"),
        (lambda t: t.push(IDS, ONES, float("nan")), errors.ArgumentError, "learning_rate=nan"),
        (lambda t: t.push(IDS, ONES, "fast"), errors.DtypeError, "learning_rate='fast'"),
        (lambda t: ps.set_learning_rate("t", None), errors.DtypeError, "rate=None is no number"),
        (lambda t: ps.set_learning_rate("t", "x"), errors.DtypeError, "'x' is no number"),
        (lambda t: ps.set_learning_rate(3, 0.1), errors.DtypeError, "name=3 is no text"),
        (lambda t: ps.barrier(3), errors.DtypeError, "name=3 is no text"),
        (lambda t: ps.restore("folder", "2"), errors.DtypeError, "step='2' is no integer"),
        (lambda t: ps.SGD("0.1"), errors.DtypeError, "SGD: learning_rate='0.1' is no number"),
        (lambda t: ps.Adam(None), errors.DtypeError, "Adam: learning_rate=None is no number"),
        (lambda t: ps.Normal(std=None), errors.DtypeError, "Normal: std=None is no number"),
        (lambda t: ps.Adam(float("nan")), errors.ArgumentError, "learning_rate=nan is not finite"),
        (lambda t: ps.SGD(10**400), errors.ArgumentError, "SGD: learning_rate=1.*0 is not finite"),
        (lambda t: ps.Uniform(0, 1e400), errors.ArgumentError, "Uniform: high=inf is not finite"),
        (lambda t: ps.Momentum(nesterov=1), errors.DtypeError, "nesterov=1 is neither True nor"),
    ],
)
def test_wrong_calls(
    ps_core: PsCore, table: ps.RemoteTable, call: Any, kind: type, text: str
) -> None:
    before = len(ps_core.controls)
    with pytest.raises(kind, match=text):
        call(table)
    assert (ps_core.requests, ps_core.steps, len(ps_core.controls)) == ([], 0, before)


def test_a_rate_that_became_nan(ps_core: PsCore, table: ps.RemoteTable) -> None:
    """To the core it would be no rate."""
    table.learning_rate = float("nan")
    with pytest.raises(errors.ArgumentError, match="learning_rate=nan"):
        ps.push([(table, IDS, ONES)])
    assert ps_core.steps == 0


def test_one_request_for_all_tables(ps_core: PsCore, table: ps.RemoteTable) -> None:
    other = ps.RemoteTable("u", 2)
    rows = ps.pull([(other, IDS), (table, IDS[:1])])
    assert [r.shape for r in rows] == [(3, 2), (1, DIM)]
    table.learning_rate = 2.0
    ps.push([(table, IDS[:1], ONES[:1]), (other, IDS, np.ones((3, 2), np.float32))])
    assert ps_core.requests == [(1, ["u", "t"]), (2, ["t", "u"])]
    assert ps_core.steps == 1 and ps_core.rates == [2.0, None]
    assert (table.pull(IDS[:1]) == rows[1] - 2).all()
    assert ps.pull([]) == []


def test_a_step_joins_what_was_noted(ps_core: PsCore, table: ps.RemoteTable) -> None:
    before = table.pull(IDS)
    ps.note(table, IDS, ONES)
    ps.note(table, IDS[1:2], 3 * ONES[:1])
    ps.step()
    assert (table.pull(IDS) == before - 0.5 * np.array([[2], [4], [2]], np.float32)).all()
    ps.note(table, IDS, ONES)
    ps.discard()
    before = table.pull(IDS)
    ps.step()  # with nothing: a step all the same
    assert ps_core.requests == [(2, ["t"]), (2, [])]
    assert (table.pull(IDS) == before).all()


def test_a_step_without_tables(ps_core: PsCore) -> None:
    ps.init()
    ps.step()
    assert ps_core.requests == []


def test_rows_that_are_set(table: ps.RemoteTable) -> None:
    table.write(IDS[:2], 7 * ONES[:2])
    assert (table.pull(IDS) == 7).all()


@pytest.mark.parametrize("framework", ["numpy", "torch", "paddle"])
def test_notes_of_a_framework_are_joined(table: ps.RemoteTable, framework: str) -> None:
    module = pytest.importorskip(framework)
    make = {"numpy": "array", "torch": "from_numpy", "paddle": "to_tensor"}[framework]
    make = getattr(module, make)
    before = table.pull(IDS)
    for _ in range(2):
        ps.note(table, make(IDS), make(ONES))
    ps.step()
    assert (table.pull(IDS) == before - np.array([[2], [1], [2]], np.float32)).all()


@pytest.mark.parametrize(
    ("mode", "average", "share"), [("sync", True, 2), ("sync", False, 1), ("async", True, 1)]
)
def test_gradients_are_averaged_over_the_trainers(
    monkeypatch: pytest.MonkeyPatch, mode: str, average: bool, share: int
) -> None:
    import ps_fake

    ps_fake.install(monkeypatch, rank=0, size=2)
    ps.init(mode=mode)
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ps.note(table, IDS[:1], ONES[:1])
    ps.step(average=average)
    assert (table.pull(IDS[:1]) == -1 / share).all()
    ps.shutdown()


def test_a_sparse_gradient(table: ps.RemoteTable) -> None:
    torch = pytest.importorskip("torch")
    before = table.pull(np.array([1, 4]))
    rows = torch.sparse_coo_tensor([[4, 1, 4]], torch.ones(3, DIM), (9, DIM), check_invariants=True)
    table.push(rows)
    assert (table.pull(np.array([1, 4])) == before - [[0.5], [1]]).all()


def test_prefetch(table: ps.RemoteTable) -> None:
    asked = table.prefetch(IDS)
    assert asked.ids is IDS and (asked.wait() == table.pull(IDS)).all() and asked.done()
    wrong = table.prefetch(np.zeros(3, np.float32))
    with pytest.raises(errors.DtypeError):
        wrong.wait()
    later = [table.prefetch(IDS) for _ in range(20)]
    ps.complete()  # waits for all of them
    assert all(asked.done() for asked in later)


def test_prefetch_in_a_fork(table: ps.RemoteTable) -> None:
    table.prefetch(IDS).wait()  # the thread is there
    if (pid := os.fork()) == 0:
        try:
            table.prefetch(IDS).wait()
        except errors.ForkError:
            os._exit(3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_two_tables_of_one_name(ps_core: PsCore, table: ps.RemoteTable) -> None:
    """They are one table: a step has the rate of both, or is refused."""
    other = ps.RemoteTable("t", DIM, ps.SGD(0.5), ps.Uniform(-1, 1), seed=4)
    before = table.pull(IDS)
    for first, second in ((0.25, 0.5), (None, 0.25), (0.25, None)):
        table.learning_rate, other.learning_rate = first, second
        ps.note(table, IDS[:1], ONES[:1])
        ps.note(other, IDS[:1], ONES[:1])
        with pytest.raises(errors.ArgumentError, match=f"'t'.*rate={first} and .*rate={second}"):
            ps.step()
    assert (table.pull(IDS) == before).all() and ps_core.steps == 0
    for mine in (table, other):  # each alone has its own
        mine.learning_rate = 1.0 if mine is other else 0.25
        ps.note(mine, IDS[:1], ONES[:1])
        ps.step()
    assert np.allclose(table.pull(IDS[:1]), before[:1] - 1.25)
    table.learning_rate = other.learning_rate
    ps.note(table, IDS[:1], ONES[:1])
    ps.note(other, IDS[:1], ONES[:1])
    ps.step()
    assert np.allclose(table.pull(IDS[:1]), before[:1] - 3.25)


def test_notes_of_many_threads(table: ps.RemoteTable) -> None:
    def many() -> None:
        for _ in range(200):
            ps.note(table, IDS[:1], ONES[:1])

    threads = [threading.Thread(target=many) for _ in range(4)]
    before = table.pull(IDS[:1])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ps.step()
    assert np.abs(table.pull(IDS[:1]) - (before - 400)).max() < 1e-3


def test_a_pickle_has_the_name_and_no_rows(ps_core: PsCore, table: ps.RemoteTable) -> None:
    again = pickle.loads(pickle.dumps(table))
    assert again.name == "t" and (again.pull(IDS) == table.pull(IDS)).all()
    assert copy.deepcopy(table) is table and copy.copy(table) is table
    assert "RemoteTable('t', dim=3" in repr(again)
    kept = pickle.dumps(table)
    ps.shutdown()
    with pytest.raises(errors.NotInitializedError, match="DataLoader's worker has none"):
        pickle.loads(kept)


def test_how_blocks_are_dealt(ps_core: PsCore) -> None:
    ps.init()

    def offset(name: str, blocks: int, **more: str) -> int:
        Blocks(name, 8192 * blocks - 5, ps.SGD(0.5), **more)
        return int(ps_core.offsets[name])

    assert [offset("a", 3), offset("b", 1), offset("a", 3), offset("c", 2)] == [0, 3, 0, 4]
    by_name = [offset(name, 2, placement="hash_name") for name in ("d", "e", "d")]
    assert by_name[0] == by_name[2] != by_name[1] and min(by_name) > 0
    assert ps_core.ways["c"] == "modulo" and ps_core.ways["d"] == "hash"
    assert offset("f", 1) == 6, "a turn is taken only where blocks go in turn"


@pytest.mark.parametrize(
    ("elements", "shape"), [(1, (1, 1)), (8192, (1, 8192)), (8193, (2, 8192)), (99, (1, 99))]
)
def test_blocks_of_dense_parameters(ps_core: PsCore, elements: int, shape: tuple[int, int]) -> None:
    ps.init()
    vector = Blocks("d", elements, ps.SGD(0.5))
    assert (ps_core.ways, ps_core.configs["d"]["dims"]) == ({"d": "modulo"}, [elements])
    vector.values[:elements] = np.arange(elements)
    spread([vector])
    vector.gradients[:elements] = 2
    ps.push([vector.request()])
    pull([vector])
    assert (vector.values[:elements] == np.arange(elements) - 1).all()
    assert vector.request()[2].shape == shape and (vector.values[elements:] == 0).all()
