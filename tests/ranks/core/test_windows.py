"""Windows: memory that all ranks read, write and update.

On one node the ranks work in mapped memory. Between nodes the same tests go by messages.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, Window, errors, zeros
from paddlempi.window import WindowOp
from ranks_tools import raises
from tensors import NAMES, Kind, every, noise, numbers, numpy_dtype

pytestmark = pytest.mark.mpi(ranks=[2, 3])

OPS: dict[Any, Any] = {
    ReduceOp.SUM: lambda a, b: a + b,
    ReduceOp.PRODUCT: lambda a, b: a * b,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
    Window.REPLACE: lambda a, b: b,
    Window.NO_OP: lambda a, b: a,
    Window.LAND: np.logical_and,
    Window.LOR: np.logical_or,
    Window.LXOR: np.logical_xor,
}
MOVES = (Window.REPLACE, Window.NO_OP)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR, Window.LAND, Window.LOR, Window.LXOR)


def defined(op: Any, dtype: str) -> bool:
    if op in MOVES:
        return True
    if dtype.startswith("float8"):
        return False
    if op in BITS:
        return dtype == "bool" or "int" in dtype
    return op in (ReduceOp.SUM, ReduceOp.PRODUCT) or not dtype.startswith("complex")


def combined(op: Any, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.float32 if a.dtype.itemsize == 2 and a.dtype.kind not in "iub" else a.dtype
    if a.dtype.kind == "b" and op in (ReduceOp.MIN, ReduceOp.MAX):
        op = {ReduceOp.MIN: ReduceOp.PRODUCT, ReduceOp.MAX: ReduceOp.SUM}[op]
    with np.errstate(all="ignore"):
        result = OPS[op](a.astype(wide), b.astype(wide))
    return np.asarray(result).astype(a.dtype)


@pytest.fixture
def neighbours(rank: int, size: int) -> tuple[int, int]:
    """The ranks after and before this one."""
    return (rank + 1) % size, (rank - 1) % size


def assert_same(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], op: Any) -> None:
    """Assert the same numbers, and the same bits of elements that are only moved."""
    if op in MOVES:
        assert got.tobytes() == wanted.tobytes(), op
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=str(op))


def memory_of(window: Window) -> np.ndarray[Any, Any]:
    """Return a copy of this rank's memory, after all accesses before and before all later ones."""
    window.fence()
    copy = np.array(window.local)
    window.fence()
    return copy


def test_put_and_get_of_every_tensor(
    dist: ModuleType, kind: Kind, neighbours: tuple[int, int]
) -> None:
    """Every dtype and layout, at an offset. A get brings back what was put, and nothing else."""
    after, before = neighbours
    for dtype, layout in every(kind):
        with Window(layout.size + 5, dtype=dtype) as window:
            values = noise(dtype, layout.size, dist.get_rank())
            sent = kind.make(dtype, layout).fill(values)
            window.put(sent.given, after, offset=3)
            window.fence()
            assert sent.bits() == values.tobytes()
            wanted = np.zeros(layout.size + 5, values.dtype)
            wanted[3 : 3 + layout.size] = noise(dtype, layout.size, before)
            assert window.local.tobytes() == wanted.tobytes(), (dtype, layout.name)
            received = kind.make(dtype, layout).fill(noise(dtype, layout.size, "before"))
            window.get(received.given, after, offset=3)
            assert received.bits() == values.tobytes(), (dtype, layout.name)


@pytest.mark.parametrize("dtype", NAMES)
def test_every_op(dist: ModuleType, rank: int, neighbours: tuple[int, int], dtype: str) -> None:
    after, _ = neighbours
    length = 37
    for op in OPS:
        window = Window(length, dtype=dtype)
        window.local[...] = first = numbers(dtype, length, "first")
        window.fence()
        given = numbers(dtype, length, op)
        if not defined(op, dtype):
            with pytest.raises(errors.DtypeError, match=f"op={op!r}".rpartition(".")[2][:3]):
                window.accumulate(given, after, op)
            window.free()
            continue
        wanted = combined(op, first, given)
        old = np.zeros_like(first)
        window.get_accumulate(given, old, after, op)
        assert old.tobytes() == first.tobytes()
        assert_same(memory_of(window), wanted, op)
        window.accumulate(given[5:], after, op, offset=5)
        wanted[5:] = combined(op, wanted[5:], given[5:])
        assert_same(memory_of(window), wanted, op)
        window.free()


def test_nothing_is_lost(dist: ModuleType, rank: int, size: int) -> None:
    """All ranks, from two threads each, add to the same elements of all ranks."""
    times = 300
    for dtype in ("int8", "uint16", "int64", "float16", "float32", "float64", "complex128"):
        with Window(3, dtype=dtype) as window:
            one = np.ones(2, numpy_dtype(dtype))
            failures: list[BaseException] = []

            def add(
                window: Window = window,
                one: np.ndarray[Any, Any] = one,
                failures: list[BaseException] = failures,
            ) -> None:
                try:
                    for i in range(times):
                        window.accumulate(one, i % size, offset=1)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=add) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures
            window.fence()
            wanted = np.array(2 * size * len(range(rank, times, size))).astype(numpy_dtype(dtype))
            assert window.local.tolist() == [0, wanted, wanted], dtype


def test_numbers_of_a_counter_are_different(dist: ModuleType, rank: int, size: int) -> None:
    with Window(1, dtype="int32") as counter, Window(200 * size, dtype="int32") as drawn:
        for i in range(200):
            number = counter.fetch_and_op(1, 0)
            drawn.put(np.array([number], "int32"), 0, offset=200 * rank + i)
        drawn.fence()
        if rank == 0:
            assert sorted(drawn.local.tolist()) == list(range(200 * size))
        # One of them swaps.
        counter.fence()
        before = counter.compare_and_swap(200 * size, -1 - rank, 0)
        counter.fence()
        now = counter.fetch_and_op(0, 0, Window.NO_OP)
        assert (before == 200 * size) == (now == -1 - rank)


@pytest.mark.parametrize("dtype", [name for name in NAMES if not name.startswith("float8")])
def test_numbers_of_python(dist: ModuleType, neighbours: tuple[int, int], dtype: str) -> None:
    after, _ = neighbours
    with Window(2, dtype=dtype) as window:
        least, most = (False, True) if dtype == "bool" else (1, 3)
        if dtype.startswith(("int", "uint")):
            limits = np.iinfo(dtype)
            least, most = int(limits.min), int(limits.max)
        if dtype.startswith("complex"):
            most = 3 - 2j
        kind = {"b": bool, "f": float, "c": complex}.get(numpy_dtype(dtype).kind, int)
        kind = float if dtype == "bfloat16" else kind
        for value in (least, most):
            was = window.fetch_and_op(value, after, Window.REPLACE, index=1)
            assert type(was) is kind
            assert window.fetch_and_op(0, after, Window.NO_OP, index=1) == value
            assert window.compare_and_swap(value, value, after, index=1) == value
        if kind is int:
            for value in (least - 1, most + 1, 1 << 70):
                with pytest.raises(errors.ArgumentError, match=f"value={value} does not fit"):
                    window.fetch_and_op(value, after)
            with pytest.raises(errors.DtypeError, match=r"value=1\.5 is no number"):
                window.fetch_and_op(1.5, after)
        if kind is float and dtype != "float64":  # a finite number must not become infinite
            with pytest.raises(errors.ArgumentError, match=r"value=1e\+300 does not fit"):
                window.fetch_and_op(1e300, after)
            with pytest.raises(errors.ArgumentError, match=r"expected=-1e\+300 does not fit"):
                window.compare_and_swap(-1e300, 0.0, after)
            assert window.fetch_and_op(float("inf"), after, Window.NO_OP) is not None
        if kind is not bool:
            with pytest.raises(errors.DtypeError, match="expected=x is no number"):
                window.compare_and_swap("x", 1, after)
        window.fence()


def boxes() -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...], Any]]:
    """Targets in a window of 6 x 7 x 8, and what NumPy calls them."""
    yield 0, (6, 7, 8), (56, 8, 1), np.s_[:, :, :]
    yield 0, (3, 7, 3), (112, 8, 3), np.s_[::2, :, ::3]
    yield 335, (6, 7, 8), (-56, -8, -1), np.s_[::-1, ::-1, ::-1]
    yield 67, (2, 3), (112, 16), np.s_[1:5:2, 1:6:2, 3]
    yield 17, (), (), np.s_[0, 2, 1]
    yield 20, (0, 5), (1, 1), np.s_[0:0, 2, :5]


def test_boxes(dist: ModuleType, neighbours: tuple[int, int], rank: int) -> None:
    after, before = neighbours
    for dtype in ("uint8", "float16", "float64", "complex128"):
        for offset, shape, strides, index in boxes():
            with Window((6, 7, 8), dtype=dtype) as window:
                given, theirs = (
                    numbers(dtype, 336, r).reshape(6, 7, 8)[index] for r in (rank, before)
                )
                wanted = np.zeros((6, 7, 8), numpy_dtype(dtype))
                wanted[index] = theirs
                window._put_at(given, after, offset, shape, strides)
                np.testing.assert_array_equal(memory_of(window), wanted)
                window._accumulate_at(given, after, ReduceOp.SUM, offset, shape, strides)
                wanted[index] = combined(ReduceOp.SUM, theirs, theirs)
                np.testing.assert_array_equal(memory_of(window), wanted)
                out, old = np.zeros(shape, given.dtype), np.zeros(shape, given.dtype)
                window._get_at(out, after, offset, shape, strides)
                np.testing.assert_array_equal(out, combined(ReduceOp.SUM, given, given))
                window._get_accumulate_at(given, old, after, Window.REPLACE, offset, shape, strides)
                np.testing.assert_array_equal(out, old)
                wanted[index] = theirs
                np.testing.assert_array_equal(memory_of(window), wanted)


def test_large(dist: ModuleType, neighbours: tuple[int, int], rank: int) -> None:
    """Several pieces, also of boxes whose rows are longer than one."""
    after, before = neighbours
    with Window((5, 300_000), dtype="int32") as window:
        given, theirs = (numbers("int32", 1_500_000, r).reshape(5, -1) for r in (rank, before))
        window.put(given, after)
        np.testing.assert_array_equal(memory_of(window), theirs)
        window._accumulate_at(given[::2, 1::2], after, ReduceOp.SUM, 1, (3, 150_000), (600_000, 2))
        wanted = theirs.copy()
        wanted[::2, 1::2] *= 2
        np.testing.assert_array_equal(memory_of(window), wanted)
        out = np.empty((150_000, 3), "int32").T
        window._get_at(out, after, 1, (3, 150_000), (600_000, 2))
        np.testing.assert_array_equal(out, 2 * given[::2, 1::2])


def test_sizes_differ(dist: ModuleType, rank: int, size: int) -> None:
    with Window((rank, 2), dtype="int16") as window:
        assert [window.shape_of(r) for r in range(size)] == [(r, 2) for r in range(size)]
        for r in range(size):
            window.accumulate(np.full(2 * r, r, "int16"), r)
            with pytest.raises(errors.ArgumentError, match=f"the {2 * r} elements of rank {r}"):
                window.put(np.ones(1, "int16"), r, offset=2 * r)
        window.fence()
        assert (window.local == rank * size).all()


def test_wrong_arguments(dist: ModuleType, rank: int, size: int) -> None:
    with Window(8, dtype="float32") as window:
        x: Any = np.ones(3, "float32")
        target, put = size - 1, window.put
        nothing: Any = None
        number: Any = 3
        both: Any = [x, x]
        text: Any = "0"
        wrong: list[tuple[type[Exception], str, Any]] = [
            (errors.ArgumentError, "put: rank=-1 is no rank", lambda: put(x, -1)),
            (errors.ArgumentError, f"get: rank={size} is no", lambda: window.get(x, size)),
            (errors.ArgumentError, "offset=6 and the 3 elements of x", lambda: put(x, target, 6)),
            (errors.ArgumentError, "offset=-1 and the 3", lambda: window.get(x, target, -1)),
            (errors.ArgumentError, "rank=9 is no rank", lambda: window.flush(9)),
            (errors.ArgumentError, "rank=-2 is no rank", lambda: window.flush(-2)),
            (errors.ArgumentError, "op=AVG", lambda: window.accumulate(x, target, ReduceOp.AVG)),
            (errors.ArgumentError, "is read-only", lambda: window.get(frozen, target)),
            (errors.ArgumentError, "shape_of: rank=7", lambda: window.shape_of(7)),
            (errors.DtypeError, "x is of float64", lambda: put(np.ones(3), target)),
            (errors.DtypeError, "None is no tensor", lambda: put(nothing, target)),
            (errors.DtypeError, "a value of type int", lambda: put(number, target)),
            (errors.DtypeError, "a list is no tensor", lambda: put(both, target)),
            (errors.DtypeError, "rank, offset and index", lambda: put(x, text)),
            (errors.DtypeError, "op=LAND", lambda: window.accumulate(x, target, Window.LAND)),
            (errors.DtypeError, "op=reduce op 77", lambda: window.accumulate(x, target, 77)),
            (errors.ArgumentError, "timeout=-1", lambda: window.wait_signal(target, timeout=-1)),
        ]
        frozen = x.copy()
        frozen.flags.writeable = False
        for kind, words, call in wrong:
            with pytest.raises(kind, match=words):
                call()
        window.fence()
        assert not window.local.any()


def test_refused_memory(dist: ModuleType, rank: int, size: int) -> None:
    """What is wrong on one rank is refused on the others, and the group stays usable."""
    cases: list[tuple[type[Exception], str, Any]] = [
        (errors.UnsupportedError, "is in no heap", lambda: Window(np.zeros(4))),
        (errors.ArgumentError, "not contiguous", lambda: Window(dist.empty((4, 4)).T[1:])),
        (errors.ArgumentError, "negative", lambda: Window((2, -1))),
        (errors.ArgumentError, "the tensor is of float32", lambda: Window(dist.empty(4), "int8")),
        (errors.DtypeError, "no tensor", lambda: Window("memory")),  # type: ignore[arg-type]
        (errors.DtypeError, "float7", lambda: Window(3, dtype="float7")),
    ]
    for kind, text, make in cases:
        if rank == 0:
            with pytest.raises(kind, match=text):
                make()
        else:
            with pytest.raises(errors.RefusedError, match="Window"):
                Window(4)
    with pytest.raises(errors.MismatchError, match="another dtype"):
        Window(4, dtype=["int8", "int16", "int32"][rank])
    memory = dist.zeros((3, 4), "int32")
    with Window(memory) as window:
        assert window.local is memory
        assert window.dtype == "int32"
        window.accumulate(np.ones(1, "int32"), 0, offset=11)
        window.fence()
        assert memory.sum() == (size if rank == 0 else 0)


def test_frameworks(dist: ModuleType, neighbours: tuple[int, int]) -> None:
    """A dtype of a framework makes a tensor of the framework."""
    torch = pytest.importorskip("torch")
    after, _ = neighbours
    with Window((2, 3), dtype=torch.bfloat16) as window:
        assert window.local.dtype is torch.bfloat16
        x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        window.put(x.T, after)
        window.fence()
        assert torch.equal(window.local.flatten(), x.T.flatten())
        version = x._version
        window.get(x, after)
        assert x._version > version


def test_signals(dist: ModuleType, rank: int, size: int, neighbours: tuple[int, int]) -> None:
    """What was put before a signal is there after the wait for it. Signals are counted."""
    after, before = neighbours
    with Window(1000, dtype="int64") as window:
        for turn in range(30):
            window.put(np.full(1000, 100 * turn + rank), after)
            window.signal(after)
            window.wait_signal(before)
            assert (window.local == 100 * turn + before).all()
            window.signal(before)
            window.wait_signal(after)
        for _ in range(3):
            window.signal(after)
        window.fence()
        for _ in range(3):
            window.wait_signal(before, timeout=10)
        with raises(errors.TimeoutError, "Window.wait_signal", ranks=[before], least=0.1, most=1.0):
            window.wait_signal(before, timeout=0.1)


def test_locks(dist: ModuleType, rank: int, size: int) -> None:
    with Window(1, dtype="int64") as window:
        value = np.zeros(1, "int64")
        for _ in range(20):
            with window.lock(0):
                window.get(value, 0)
                value += 1
                window.put(value, 0)
            with window.lock_all():
                window.get(value, 0)
        window.fence()  # else a rank that holds it here would wait for one that wants it alone
        with window.lock(0, shared=True):
            window.fence()  # all ranks hold it
            with (
                pytest.raises(errors.ArgumentError, match="rank=0 is locked already"),
                window.lock(0),
            ):
                pass
        window.fence()
        assert window.fetch_and_op(0, 0) == 20 * size


def test_a_window_that_is_locked_is_not_freed(dist: ModuleType, rank: int) -> None:
    window = Window(1)
    with window.lock(0, shared=True):
        window.fence()
        with pytest.raises(errors.ArgumentError, match="holds the lock of rank 0"):
            window.free()
    window.fence()
    window.free()


def test_after_free(dist: ModuleType, rank: int) -> None:
    window = Window(3)
    window.free()
    window.free()
    assert repr(window) == "Window(freed)"
    for call in (
        lambda: window.put(np.ones(1, "float32"), 0),
        lambda: window.fence(),
        lambda: window.fetch_and_op(1, 0),
    ):
        with pytest.raises(errors.Error, match="window"):
            call()


def test_the_memory_goes_when_the_window_is_freed(dist: ModuleType, rank: int, size: int) -> None:
    """A window that the program has dropped keeps its memory, because other ranks may write there.

    One that is freed does not.
    """
    memory = [zeros(4, "int32") for _ in range(2)]
    freed, dropped = (weakref.ref(array) for array in memory)
    windows = [Window(array) for array in memory]
    memory.clear()
    windows.pop()
    window = windows.pop()
    gc.collect()
    assert freed() is not None
    assert dropped() is not None
    window.free()
    del window
    gc.collect()
    assert freed() is None
    assert dropped() is not None


def test_many_windows(dist: ModuleType, rank: int, size: int) -> None:
    """More windows than an MPI has communicators."""
    for turn in range(1100):
        with Window(1, dtype="int32") as window:
            if turn % 100 == 0:
                window.accumulate(np.ones(1, "int32"), turn % size)
    windows = [Window(1, dtype="int32") for _ in range(50)]
    for i, window in enumerate(windows):
        window.accumulate(np.full(1, i, "int32"), 0)
    for window in windows:
        window.fence()
    if rank == 0:
        assert [int(window.local[0]) for window in windows] == [size * i for i in range(50)]
    for window in windows:
        window.free()


def test_a_group(dist: ModuleType, rank: int, size: int) -> None:
    """Ranks are those of the window's group."""
    group = dist.new_group(list(range(size))[::-1])
    with Window(1, dtype="int64", group=group) as window:
        assert window.size() == size
        assert window.rank() == size - 1 - rank
        window.put(np.array([rank + 10]), window.rank())
        out = np.zeros(1, "int64")
        window.fence()
        window.get(out, 0)
        assert out[0] == size - 1 + 10
    left = Window(1, group=group)
    dist.destroy_process_group(group)
    with pytest.raises(errors.GroupDestroyedError):
        left.put(np.ones(1, "float32"), 0)
    left.free()


def test_memory_of_a_rank_is_mapped(dist: ModuleType, rank: int, size: int) -> None:
    window = Window(4, dtype="int32")
    maps = [window._map(r) for r in range(size)]
    assert maps[rank] is not None
    window.put(np.arange(4, dtype="int32") + rank, rank)
    window.fence()
    for r, memory in enumerate(maps):
        if memory is not None:
            assert np.frombuffer(memory, "int32").tolist() == [r, r + 1, r + 2, r + 3]
    window.fence()
    window.free()
    assert all(memory is None or len(bytes(memory)) == 16 for memory in maps)


def test_ops_are_pickled(dist: ModuleType) -> None:
    import pickle

    op = pickle.loads(pickle.dumps(Window.LXOR))
    assert isinstance(op, WindowOp)
    assert op == Window.LXOR
    assert repr(op) == "Window.LXOR"
