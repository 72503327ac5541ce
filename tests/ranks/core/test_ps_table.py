"""``ps.Table``: tensors, new rows, errors, limits, states, threads. No MPI takes part."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddlempi import errors, ps

pytestmark = pytest.mark.mpi(ranks=1)

DIM = 5


def tensors(framework: str) -> Any:
    """Return a function that makes a tensor of a NumPy array, and one that makes the reverse."""
    if framework == "numpy":
        return np.array, np.asarray
    module = importlib.import_module(framework)
    make = module.tensor if framework == "torch" else module.to_tensor
    return make, lambda tensor: tensor.numpy()


@pytest.mark.parametrize("framework", ["numpy", "torch", "paddle"])
@pytest.mark.parametrize("ids_of", [np.int64, np.int32])
def test_tensors_of_every_framework(framework: str, ids_of: Any) -> None:
    make, read = tensors(framework)
    table = ps.Table(DIM, ps.SGD(0.5), ps.Uniform(-1, 1), seed=2)
    ids = make(np.array([7, -3, 7, 2_000_000_000], ids_of))
    rows = table.pull(ids)
    assert type(rows) is type(ids)
    values = np.array(read(rows))
    assert values.shape == (4, DIM) and values.dtype == np.float32
    assert (values[0] == values[2]).all() and (np.abs(values) <= 1).all() and values.std() > 0.2
    out = make(np.zeros((4, DIM), np.float32))
    assert table.pull(ids, out) is out
    assert (np.asarray(read(out)) == values).all()
    gradients = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM)
    table.push(ids, make(gradients))
    after = np.asarray(read(table.pull(ids)))
    expected = values - np.float32(0.5) * gradients
    expected[[0, 2]] = values[0] - np.float32(0.5) * (gradients[0] + gradients[2])
    assert (after == expected).all()
    assert len(table) == 3
    assert table.ids().tolist() == [-3, 7, 2_000_000_000]


def test_torch_s_autograd_notices() -> None:
    torch = importlib.import_module("torch")
    table, out = ps.Table(DIM), torch.zeros(1, DIM)
    version = out._version
    table.pull(torch.tensor([1]), out)
    assert out._version == version + 1


def test_nothing_to_do() -> None:
    table = ps.Table(DIM)
    none = np.zeros(0, np.int64)
    assert table.pull(none).shape == (0, DIM)
    table.push(none, np.zeros((0, DIM), np.float32))
    assert len(table) == 0 and table.ids().tolist() == []
    again = ps.Table(DIM)
    again.load_state_dict(table.state_dict())
    assert len(again) == 0


@pytest.mark.parametrize("initializer", [ps.Uniform(-2, 3), ps.Normal(0.5, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_new_rows_depend_on_seed_and_id_alone(initializer: Any, dtype: str) -> None:
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3000)
    made = [ps.Table(7, initializer=initializer, dtype=dtype, seed=2**64 - 1) for _ in range(2)]
    first = made[0].pull(ids)
    order = np.random.default_rng(1).permutation(len(ids))
    for piece in np.array_split(order, 7):
        made[1].push(ids[piece], np.zeros((len(piece), 7), np.float32))
    assert (made[1].pull(ids) == first).all()
    other = ps.Table(7, initializer=initializer, dtype=dtype, seed=1).pull(ids)
    assert (other != first).mean() > 0.95
    mean, std = (0.5, 5 / 12**0.5) if isinstance(initializer, ps.Uniform) else (0.5, 2)
    assert abs(first.mean() - mean) < 0.05 and abs(first.std() - std) < 0.05
    if isinstance(initializer, ps.Uniform):
        assert first.min() >= -2 and first.max() <= 3
    else:  # the quantiles of a normal distribution
        inside = (np.abs(first - 0.5) < 2).mean(), (np.abs(first - 0.5) < 4).mean()
        assert abs(inside[0] - 0.6827) < 0.02 and abs(inside[1] - 0.9545) < 0.01


def test_known_values() -> None:
    """The same on every machine: a table that is spread over servers must not depend on them."""
    table = ps.Table(4, initializer=ps.Uniform(0, 1), seed=0)
    # Philox 4x32-10 of key 0 and counter 0, from the paper's known answers.
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    expected = np.array([(w >> 8) / 2**24 for w in words], np.float32)
    assert (table.pull(np.array([0]))[0] == expected).all()


def test_numbers_of_numpy() -> None:
    adam = ps.Adam(np.float32(0.5), clip_norm=np.int64(2), beta1=np.float16(0.5))
    assert adam == ps.Adam(0.5, clip_norm=2.0, beta1=0.5)
    momentum = ps.Momentum(np.float64(0.5), nesterov=np.bool_(True))
    ids = np.arange(3)
    for optimizer in (adam, momentum):
        table = ps.Table(np.int64(DIM), optimizer, ps.Uniform(np.float32(-1), np.int32(1)))
        same = ps.Table(DIM, optimizer, ps.Uniform(-1, 1))
        assert (table.pull(ids) == same.pull(ids)).all()


# Wrong use

F32 = np.float32


@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        ((0,), {}, errors.ArgumentError, "dim=0 is not from 1 to 65536"),
        ((1 << 17,), {}, errors.ArgumentError, "dim=131072"),
        ((2.5,), {}, errors.DtypeError, "dim=2.5 is no integer"),
        ((4, "rmsprop"), {}, errors.ArgumentError, "optimizer='rmsprop' is none of sgd, momentum"),
        ((4, 3), {}, errors.DtypeError, "optimizer=3 is neither"),
        ((4, "sgd", "xavier"), {}, errors.ArgumentError, "initializer='xavier' is none of zeros"),
        ((4, "sgd", None), {}, errors.DtypeError, "initializer=None"),
        ((4,), {"dtype": "int8"}, errors.DtypeError, 'dtype="int8" is none of float32'),
        ((4,), {"seed": -1}, errors.ArgumentError, "seed=-1"),
        ((4,), {"num_ids": 0}, errors.ArgumentError, "num_ids=0 is below 1"),
        ((4,), {"num_ids": 1 << 63}, errors.ArgumentError, "num_ids=9223372036854775808 is not"),
        ((4,), {"memory_limit": -5}, errors.ArgumentError, "memory_limit=-5 is below 1"),
        ((4,), {"non_finite": "maybe"}, errors.ArgumentError, "non_finite='maybe'"),
        ((4, ps.SGD(-1)), {}, errors.ArgumentError, "learning_rate=-1"),
        ((4, ps.SGD(clip_norm=0)), {}, errors.ArgumentError, "clip_norm=0 is not above 0"),
        ((4, ps.Adam(beta1=1.0)), {}, errors.ArgumentError, "beta1=1 is not from 0 to below 1"),
        ((4, "sgd", ps.Uniform(1, 0)), {}, errors.ArgumentError, "low at most high"),
        ((4, "sgd", ps.Normal(0, -1)), {}, errors.ArgumentError, "std at least 0"),
    ],
)
def test_wrong_tables(arguments: Any, named: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        ps.Table(*arguments, **named)


@pytest.mark.parametrize(
    ("ids", "gradients", "error", "text"),
    [
        (np.zeros(2), np.zeros((2, DIM), F32), errors.DtypeError, "ids are of float64"),
        ([1, 2], np.zeros((2, DIM), F32), errors.DtypeError, "are no tensor"),
        (None, np.zeros((2, DIM), F32), errors.DtypeError, "None is no tensor"),
        (np.array([1, 2]), np.zeros((2, DIM)), errors.DtypeError, "gradients are of float64"),
        (
            np.array([1, 2]),
            np.zeros((2, DIM), np.int32),
            errors.DtypeError,
            "gradients are of int32",
        ),
        (np.array([1, 2]), np.zeros((3, DIM), F32), errors.ArgumentError, "each of the 2 ids"),
        (np.array([1, 2]), np.zeros((2, 6), F32), errors.ArgumentError, "12 elements; 2 ids of d"),
        (np.array([1, 2]), np.zeros(2 * DIM, F32), errors.ArgumentError, "1 dimensions and a"),
        (np.array([[1, 2]]), np.zeros((2, DIM), F32), errors.ArgumentError, "ids have 2 dim"),
        (np.array([1, 2]), np.zeros((2, 9), F32)[:, :DIM], errors.ArgumentError, "contiguous"),
        (np.arange(4)[::2], np.zeros((2, DIM), F32), errors.ArgumentError, "contiguous"),
        (np.array([1, 9]), np.zeros((2, DIM), F32), errors.ArgumentError, r"ids\[1\] is 9; .* 8"),
        (np.array([1, -1]), np.zeros((2, DIM), F32), errors.ArgumentError, r"ids\[1\] is -1; "),
    ],
)
def test_wrong_pushes(ids: Any, gradients: Any, error: Any, text: str) -> None:
    table = ps.Table(DIM, num_ids=9)
    with pytest.raises(error, match=text):
        table.push(ids, gradients)
    assert len(table) == 0


def test_wrong_pulls() -> None:
    table = ps.Table(DIM, num_ids=9)
    frozen = np.zeros((2, DIM), F32)
    frozen.flags.writeable = False
    for out, error, text in (
        (frozen, errors.ArgumentError, "read-only"),
        (np.zeros((2, DIM), np.int32), errors.DtypeError, "out are of int32"),
        (np.zeros((1, DIM), F32), errors.ArgumentError, "each of the 2 ids"),
    ):
        with pytest.raises(error, match=text):
            table.pull(np.array([1, 2]), out)
    with pytest.raises(errors.ArgumentError, match=r"pull: ids\[0\] is 9"):
        table.pull(np.array([9, 2]))
    with pytest.raises(errors.DtypeError):
        table.pull(3)
    assert len(table) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite(value: float) -> None:
    gradients = np.ones((300, DIM), F32)
    gradients[123, 4] = value
    table = ps.Table(DIM)
    with pytest.raises(errors.ArgumentError, match=r"gradients\[123, 4\] is not finite"):
        table.push(np.arange(300), gradients)
    assert len(table) == 0 and table.info()["steps"] == 0
    table = ps.Table(DIM, ps.SGD(1.0), non_finite="allow")
    table.push(np.arange(300), gradients)
    rows = table.pull(np.arange(300))
    assert not np.isfinite(rows[123, 4]) and (np.delete(rows, 123, 0) == -1).all()
    small = ps.Table(DIM, dtype="float16")
    with pytest.raises(errors.ArgumentError, match=r"gradients\[123, 4\]"):
        small.push(np.arange(300), gradients.astype(np.float16))


def test_learning_rate_and_step() -> None:
    table, ids, ones = ps.Table(DIM, ps.SGD(0.5)), np.array([1]), np.ones((1, DIM), F32)
    table.push(ids, ones)
    table.push(ids, ones, learning_rate=2)
    table.push(ids, ones, learning_rate=0)
    assert (table.pull(ids) == -2.5).all()
    for rate in (-1.0, np.inf, np.nan):
        with pytest.raises(errors.ArgumentError, match="learning_rate="):
            table.push(ids, ones, learning_rate=rate)
    for step in (0, -1):
        with pytest.raises(errors.ArgumentError, match="step="):
            table.push(ids, ones, step=step)
    assert table.info()["steps"] == 3
    table.push(ids, ones, step=10)
    table.push(ids, ones, step=7)
    assert table.info()["steps"] == 10


def test_a_dense_tensor_is_no_sparse_gradient() -> None:
    table = ps.Table(DIM)
    for framework in ("numpy", "torch", "paddle"):
        make, _ = tensors(framework)
        with pytest.raises(errors.DtypeError):
            table.push(make(np.zeros((2, DIM), F32)))


# Memory


def test_the_limit() -> None:
    limit = 3 << 20
    table = ps.Table(64, memory_limit=limit)
    ids, ones = np.arange(1000), np.ones((1000, 64), F32)
    with pytest.raises(errors.OutOfMemoryError, match=f"{limit} bytes"):
        for number in range(100):
            table.push(ids + 1000 * number, ones)
    assert table.bytes() <= limit
    rows = len(table)
    assert rows * 256 > limit / 2
    values = table.pull(table.ids())
    assert set(np.unique(values)) <= {np.float32(-0.01), np.float32(0)}
    with pytest.raises(errors.OutOfMemoryError):
        table.pull(np.arange(10**6, 10**6 + 20_000))
    before = np.array(table.pull(np.arange(1000)))
    fresh = np.concatenate([np.arange(1000), np.arange(10**7, 10**7 + 20_000)])
    with pytest.raises(errors.OutOfMemoryError):
        table.push(fresh, np.ones((len(fresh), 64), F32))
    assert (table.pull(np.arange(1000)) == before).all(), "no row was updated"
    table.push(np.arange(1000), ones)  # the table goes on
    assert (table.pull(np.arange(1000)) == before - np.float32(0.01)).all()
    with pytest.raises(errors.OutOfMemoryError):
        ps.Table(64, memory_limit=1000).pull(np.array([1]))


@pytest.mark.parametrize(
    ("dim", "optimizer", "dtype", "row", "state"),
    [
        (16, "sgd", "float32", 64, 0),
        (64, "row_wise_adagrad", "float32", 256, 4),
        (64, "adam", "bfloat16", 128, 512),
        (3, "momentum", "float16", 8, 12),
    ],
)
def test_bytes_of_a_row(dim: int, optimizer: str, dtype: str, row: int, state: int) -> None:
    table = ps.Table(dim, optimizer, dtype=dtype)
    for begin in range(0, 200_000, 50_000):
        table.pull(np.arange(begin, begin + 50_000))
    info = table.info()
    assert (info["rows"], info["row_bytes"], info["state_bytes"]) == (200_000, row, state)
    assert 12.8 <= info["index_bytes"] / 200_000 <= 24.1
    assert row + state <= (info["bytes"] - info["index_bytes"]) / 200_000
    assert info["bytes"] < 200_000 * (1.3 * (row + state) + 24.1) + (4 << 20)


def test_memory_is_given_back() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    ids = np.arange(100_000)
    most = 0
    for number in range(12):
        table = ps.Table(64, initializer=ps.Normal())
        assert len(table) == 0
        for begin in range(0, 100_000, 10_000):
            table.push(ids[begin : begin + 10_000], np.ones((10_000, 64), F32))
        if number % 2:
            table.close()
            table.close()
            with pytest.raises(errors.ArgumentError, match="there is no table"):
                table.pull(ids)
        else:
            del table
            gc.collect()
        if number == 3:
            most = resident() + (40 << 20)
    assert resident() < most
    with ps.Table(4) as table:
        assert len(table) == 0
    with pytest.raises(errors.ArgumentError, match="there is no table"):
        len(table)


# State


@pytest.mark.parametrize(
    "optimizer",
    ["sgd", "momentum", "adagrad", "row_wise_adagrad", "adam", ps.AdamW(bias_correction="row")],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_table_goes_on_alike(optimizer: str, dtype: str) -> None:
    generator = np.random.default_rng(4)
    make = {"initializer": ps.Normal(), "seed": 9, "dtype": dtype}
    table = ps.Table(DIM, optimizer, **make)

    def push(*tables: ps.Table) -> None:
        ids = generator.integers(-50, 50, 40)
        gradients = generator.normal(size=(40, DIM)).astype(F32)
        for one in tables:
            one.push(ids, gradients)

    for _ in range(5):
        push(table)
    state = table.state_dict()
    assert state["ids"].tolist() == table.ids().tolist()
    assert (state["rows"] == table.pull(state["ids"])).all()
    other = ps.Table(DIM, optimizer, **make)
    other.push(np.array([1000]), np.ones((1, DIM), F32))
    other.load_state_dict(state)
    assert other.ids().tolist() == table.ids().tolist()
    assert other.info()["steps"] == 5
    for _ in range(5):
        push(table, other)
    everything = np.arange(-60, 60)
    assert (table.pull(everything) == other.pull(everything)).all()


def test_a_state_of_something_else() -> None:
    table = ps.Table(DIM, "adagrad", seed=1)
    table.pull(np.arange(3))
    state = table.state_dict()
    for other, text in (
        (ps.Table(DIM + 1, "adagrad", seed=1), "dim is 5"),
        (ps.Table(DIM, "adam", seed=1), "optimizer is 'adagrad' in the state; this table's"),
        (ps.Table(DIM, "adagrad"), "seed is 1"),
        (ps.Table(DIM, "adagrad", "normal", seed=1), "initializer is"),
    ):
        other.pull(np.array([77]))
        with pytest.raises(errors.ArgumentError, match=text):
            other.load_state_dict(state)
        assert other.ids().tolist() == [77]
    with pytest.raises(errors.ArgumentError, match="rows has shape"):
        table.load_state_dict({**state, "rows": state["rows"][:2]})
    with pytest.raises(errors.DtypeError, match="float64"):
        table.load_state_dict({**state, "rows": state["rows"].astype(np.float64)})
    for wrong, error, text in (
        ({**state, "ids": np.array([0, 1, 1])}, errors.ArgumentError, "3 ids, of which 2 are"),
        ({"format": 1}, errors.ArgumentError, "the state has no 'ids'"),
        (None, errors.DtypeError, "a NoneType is no state_dict"),
    ):
        with pytest.raises(error, match=text):
            table.load_state_dict(wrong)
    for by, other in (("table", "row"), ("row", "table")):
        one, two = (ps.Table(DIM, ps.Adam(bias_correction=kind), seed=1) for kind in (by, other))
        with pytest.raises(errors.ArgumentError, match=f"bias_correction is '{by}' in the state"):
            two.load_state_dict(one.state_dict())
    older = ps.Table(DIM, "adam", seed=1).state_dict()
    assert older.pop("bias_correction") == "table"
    ps.Table(DIM, "adam", seed=1).load_state_dict(older)  # earlier versions did not say it
    small = ps.Table(DIM, "adagrad", seed=1, num_ids=2)
    with pytest.raises(errors.ArgumentError, match=r"ids\[2\] is 2"):
        small.load_state_dict(state)
    assert table.ids().tolist() == [0, 1, 2]


def test_a_table_is_not_copied() -> None:
    table = ps.Table(DIM)
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(errors.UnsupportedError, match="state_dict"):
            call(table)
    table.pull(np.arange(3))


# Threads and processes


def test_threads() -> None:
    """Integers as gradients, whose sum does not depend on the order."""
    table = ps.Table(16, ps.SGD(1.0))
    ids, torn = np.arange(5000), []

    def push(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(20):
            order = generator.permutation(ids)
            table.push(order, np.ones((len(ids), 16), F32))

    def pull(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(20):
            rows = table.pull(generator.integers(0, 6000, 3000))
            if (rows != rows[:, :1]).any():
                torn.append(seed)

    threads = [threading.Thread(target=push, args=(seed,)) for seed in range(3)]
    threads += [threading.Thread(target=pull, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn, "a row was seen half updated"
    assert (table.pull(ids) == -60).all()


def test_the_gil_is_released() -> None:
    table = ps.Table(64, initializer=ps.Normal())
    ticks, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = ticks[0]
    table.pull(np.arange(400_000))  # takes far longer than a switch of threads
    during = ticks[0] - before
    over.set()
    thread.join()
    assert during > 100


def test_a_fork_may_not_use_a_table() -> None:
    table = ps.Table(4)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            table.pull(np.array([1]), np.zeros((1, 4), F32))
        except errors.ForkError:
            del table
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table.pull(np.array([1])).shape == (1, 4)


# A model: a dictionary of NumPy arrays


class Model:
    """What SGD with momentum does, row by row, in float32."""

    def __init__(self, table: ps.Table, dim: int) -> None:
        self.fresh, self.dim = table, dim
        self.rows: dict[int, np.ndarray] = {}
        self.momenta: dict[int, np.ndarray] = {}

    def row(self, id_: int) -> np.ndarray:
        if id_ not in self.rows:
            self.rows[id_] = np.array(self.fresh.pull(np.array([id_]))[0])
            self.momenta[id_] = np.zeros(self.dim, F32)
        return self.rows[id_]

    def push(self, ids: np.ndarray, gradients: np.ndarray, rate: float) -> None:
        merged: dict[int, np.ndarray] = {}
        for id_, gradient in zip(ids.tolist(), gradients, strict=True):
            merged[id_] = merged[id_] + gradient if id_ in merged else gradient
        for id_, gradient in merged.items():
            row = self.row(id_)
            self.momenta[id_] = F32(0.5) * self.momenta[id_] + gradient
            self.rows[id_] = row - F32(rate) * self.momenta[id_]


some_ids = st.lists(
    st.one_of(st.integers(0, 12), st.integers(-(2**63), 2**63 - 1)), min_size=0, max_size=60
)
calls = st.lists(
    st.tuples(st.sampled_from(["pull", "push", "restore", "grow"]), some_ids), max_size=12
)


@settings(
    database=None,
    deadline=None,
    max_examples=60,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(dim=st.integers(1, 40), calls=calls, seed=st.integers(0, 2**64 - 1))
def test_as_a_dictionary(dim: int, calls: list[Any], seed: int) -> None:
    def table() -> ps.Table:
        return ps.Table(dim, ps.Momentum(0.1, momentum=0.5), ps.Normal(std=1), seed=seed)

    ours, model = table(), Model(table(), dim)
    for number, (call, listed) in enumerate(calls):
        ids = np.array(listed, np.int64)
        if call == "pull":
            expected = [model.row(id_) for id_ in listed]
            assert (ours.pull(ids) == np.array(expected, F32).reshape(-1, dim)).all()
        elif call == "push":
            generator = np.random.default_rng(number)
            gradients = generator.normal(size=(len(ids), dim)).astype(F32)
            ours.push(ids, gradients, learning_rate=0.25 + number)
            model.push(ids, gradients, 0.25 + number)
        elif call == "restore":
            restored = table()
            restored.load_state_dict(ours.state_dict())
            ours = restored
        else:  # many ids make the indexes and the lists of slabs grow
            more = np.arange(2**40, 2**40 + 3000)
            ours.pull(more)
            for id_ in more.tolist():
                model.row(id_)
        assert ours.ids().tolist() == sorted(model.rows)
    ids = np.array(sorted(model.rows), np.int64)
    rows = [model.rows[id_] for id_ in ids.tolist()]
    assert (ours.pull(ids) == np.array(rows, F32).reshape(-1, dim)).all()
