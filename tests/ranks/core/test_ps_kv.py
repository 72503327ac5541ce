"""Functions of the servers' program, which trainers call by keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, get_world_size, ps
from ps_roles import BOTH, begin, layouts

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

Begin = Callable[..., bool]
KEYS = np.arange(-30, 30) * 7919


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


@pytest.fixture(autouse=True)
def no_other_functions() -> Iterator[None]:
    from paddlempi.ps import functions

    yield
    functions._functions.clear()


class Sums:
    """A function that adds rows up, and notes what it was asked."""

    def __init__(self, name: str = "sums") -> None:
        self.rows: dict[int, Any] = {}
        self.requests: list[ps.KVRequest] = []
        self.threads: set[str] = set()
        ps.server_function(name)(self.answer)

    def answer(self, request: ps.KVRequest) -> Any:
        self.requests.append(request)
        self.threads.add(threading.current_thread().name)
        assert request.push == (request.values is not None)
        keys = request.keys.tolist()
        for i, key in enumerate(keys):
            if request.push:
                self.rows[key] = self.rows.get(key, 0) + request.values[i]
        return [self.rows[key] for key in keys] if request.pull else None


def rows_of(keys: np.ndarray, dim: int, dtype: Any, factor: int = 1) -> np.ndarray:
    return ((keys[:, None] + np.arange(dim)) % 100 * factor).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "dim"), [("float32", 5), ("int64", 3), ("uint8", 3), ("float64", 1), ("int16", 4)]
)
def test_push_and_pull(begin: Begin, roles: str, dtype: str, dim: int) -> None:
    sums = Sums()
    if not begin(roles):
        return
    kv = ps.KV("sums", dim, dtype)
    assert (kv.name, kv.dim, kv.dtype) == ("sums", dim, dtype)
    stamps = [kv.push(KEYS, rows_of(KEYS, dim, dtype, factor)) for factor in (1, 2)]
    assert stamps[0] < stamps[1]
    for stamp in (*stamps, stamps[0]):
        assert kv.wait(stamp) is None
    ps.barrier()
    some = np.concatenate([KEYS[::-3], KEYS[:4], KEYS[:4]])
    expected = rows_of(some, dim, dtype) * np.array(3 * len(ps.trainers()), dtype)
    rows = kv.wait(kv.pull(some))
    assert rows.dtype == np.dtype(dtype) and (rows == expected).all()
    out = np.zeros_like(expected)
    assert kv.wait(kv.pull(some.astype(np.int32), out)) is out and (out == expected).all()
    if sums.requests:
        assert sums.threads == {"paddlempi-kv"}
    ps.barrier()


def test_push_pull_and_what_a_function_is_told(begin: Begin, rank: int, roles: str) -> None:
    told = []

    @ps.server_function("mirror")
    def mirror(request: ps.KVRequest) -> Any:
        assert (request.push, request.pull) == (True, True)
        told.append(request.sender)
        keys = np.repeat(request.keys[:, None], 2, axis=1)
        return keys * 1000 + request.sender * 100 + request.command + request.values

    if not begin(roles):
        return
    kv = ps.KV("mirror", 2, "int64")
    ones = np.ones((len(KEYS), 2), np.int64)
    rows = kv.wait(kv.push_pull(KEYS, ones, command=7))
    assert (rows == KEYS[:, None] * 1000 + rank * 100 + 8).all()
    assert kv.wait(kv.push_pull(KEYS[:0], ones[:0])).shape == (0, 2)
    if rank in ps.pservers() and len(ps.pservers()) > 1:
        ps.barrier()
        assert sorted(told) == ps.trainers()
    else:
        ps.barrier()


def test_calls_of_a_trainer_come_in_order(begin: Begin, rank: int, roles: str) -> None:
    last: dict[int, Any] = {}

    @ps.server_function("last")
    def keep(request: ps.KVRequest) -> Any:
        if request.push:
            expected = last.get(request.sender, -1) + 1
            assert request.command == expected, (request.command, expected)
            last[request.sender] = request.command
        return np.full((len(request.keys), 1), last[request.sender]) if request.pull else None

    if not begin(roles):
        return
    kv = ps.KV("last", 1, "int32")
    keys = np.arange(500)  # some for every server
    value = np.zeros((500, 1), np.int32)
    for i in range(60):
        value[:] = i
        kv.push(keys, value, command=i)  # more than there are credits; nobody waits
        value[:] = -1
    assert (kv.wait(kv.pull(keys)) == 59).all()


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_tensors_of_frameworks(begin: Begin, framework: str) -> None:
    pytest.importorskip(framework)
    from paddlempi import memory

    Sums()
    if not begin(BOTH):
        return
    kv = ps.KV("sums", 2)
    keys, key = memory.zeros(3, "int64", framework), memory.zeros(1, "int64", framework)
    assert kv.wait(kv.push(key, memory.zeros((1, 2), "float32", framework) + 2)) is None
    ps.barrier()
    rows = kv.wait(kv.pull(keys))
    assert type(rows) is type(keys) and tuple(rows.shape) == (3, 2)
    assert (rows.numpy() == 2 * len(ps.trainers())).all()


def test_an_exception_reaches_its_trainer_only(begin: Begin, rank: int, roles: str) -> None:
    Sums()

    @ps.server_function("picky")
    def picky(request: ps.KVRequest) -> Any:
        if request.command == 1:
            raise LookupError(f"no key for rank {request.sender}")
        if request.command == 2:
            raise SystemExit("not here")
        return {3: None, 4: np.zeros((1, 1)), 5: ["a"] * len(request.keys)}[request.command]

    if not begin(roles):
        return
    kv, sums = ps.KV("picky", 2), ps.KV("sums", 2)
    for command, text in [
        (1, f"LookupError: no key for rank {rank}\n(?s:.*)Traceback(?s:.*)in picky"),
        (2, "SystemExit: not here"),
        (3, "returned None for a pull"),
        (4, r"shape \(1, 1\) instead of \(\d+, 2\)"),
        (5, "ValueError: could not convert"),
    ]:
        stamp = kv.pull(KEYS, command=command)
        with pytest.raises(errors.RefusedError, match=text) as caught:
            kv.wait(stamp)
        assert set(caught.value.ranks) <= set(ps.pservers()) and caught.value.ranks
        assert kv.wait(stamp) is None  # the error was taken
    stamp = kv.push(KEYS, np.zeros((len(KEYS), 2), np.float32), command=1)
    with pytest.raises(errors.RefusedError, match="LookupError"):
        kv.wait(stamp)
    assert kv.wait(stamp) is None  # the error was taken
    sums.wait(sums.push(KEYS, np.ones((len(KEYS), 2), np.float32)))  # servers go on
    ps.barrier()
    assert (sums.wait(sums.pull(KEYS)) == len(ps.trainers())).all()


def test_wrong_use(begin: Begin, rank: int, roles: str) -> None:
    Sums()
    if not begin(roles):
        with pytest.raises(errors.ArgumentError, match="only trainers"):
            ps.KV("sums")
        return
    kv, ones = ps.KV("sums", 2), np.ones((3, 2), np.float32)
    keys = np.arange(3)
    for wrong in [
        lambda: ps.KV("nobody"),
        lambda: ps.KV("sums", 0),
        lambda: kv.push(np.array([1, 2, 1]), ones),
        lambda: kv.push(keys, ones[:2]),
        lambda: kv.push(keys, np.ones((3, 3), np.float32)),
        lambda: kv.push(keys, np.ones(6, np.float32)),
        lambda: kv.push(keys, np.ones((2, 3), np.float32).T),
        lambda: kv.pull(keys, ones[:2]),
        lambda: kv.wait(10**6),
        lambda: kv.wait(0),
        lambda: kv.wait(1 << 63),
        lambda: kv.pull(keys, command=1 << 63),
    ]:
        with pytest.raises(errors.ArgumentError):
            wrong()
    for wrong in [
        lambda: ps.KV(3),
        lambda: ps.KV("sums", 2, "float99"),
        lambda: ps.KV("sums", 2.5),
        lambda: kv.push(keys, ones.astype(np.float64)),
        lambda: kv.push(keys.astype(np.float32), ones),
        lambda: kv.push(keys, None),
        lambda: kv.push(None, ones),
        lambda: kv.push(keys, ones, command="x"),
        lambda: kv.pull(keys, ones.astype(np.int32)),
        lambda: kv.wait("x"),
    ]:
        with pytest.raises(errors.DtypeError):
            wrong()
    with pytest.raises(errors.MismatchError, match="dim=2"):
        ps.KV("sums", 3)
    with pytest.raises(errors.MismatchError, match="float32"):
        ps.KV("sums", 2, "int32")


def test_timestamps_belong_to_a_kv(begin: Begin, roles: str) -> None:
    Sums()
    Sums("others")
    if not begin(roles):
        return
    kv, other = ps.KV("sums"), ps.KV("others")
    stamp = kv.push_pull(KEYS, np.ones((len(KEYS), 1), np.float32))
    with pytest.raises(errors.ArgumentError, match='of KV "sums", not "others"'):
        other.wait(stamp)
    assert (kv.wait(stamp) >= 1).all()


def test_threads(begin: Begin, roles: str) -> None:
    Sums()
    if not begin(roles):
        return
    kv = ps.KV("sums", 4)
    failed: list[BaseException] = []

    def work(base: int) -> None:
        try:
            keys = np.arange(base, base + 50)
            for _ in range(20):
                kv.wait(kv.push(keys, np.ones((50, 4), np.float32)))
            rows = kv.wait(kv.pull(keys))
            assert (rows >= 20).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_session_after_another(begin: Begin, rank: int) -> None:
    """ps.complete waits for calls that nobody has waited for. The next session has its own."""
    for session in range(2):
        sums = Sums()
        if begin(BOTH):
            ps.KV("sums").push(KEYS, np.full((len(KEYS), 1), session + 1, np.float32))
        ps.shutdown()
        assert sums.rows, "every server has some of the keys"
        assert {float(row[0]) for row in sums.rows.values()} == {
            float(get_world_size() * (session + 1))
        }
