"""win[rank] and its parts: what they read, put and accumulate is what NumPy does with an array."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

INDICES: list[Any] = [
    (),
    ...,
    1,
    (0, 2),
    (slice(1, 3), slice(None, None, 3)),
    (slice(None, None, -1), slice(5, None, -2)),
    (..., -1),
    (None, 2, None, slice(2)),
    (slice(2, 2), slice(None)),
    (slice(-1, 0, -1), 1),
]


def shape_of(rank: int) -> tuple[int, int]:
    """Return the shape of a rank's window, another one for every rank."""
    return (4 + rank, 6 + 2 * rank)


def content_of(rank: int, dtype: Any = "float32") -> Any:
    rows, columns = shape_of(rank)
    return (100 * rank + np.arange(rows * columns)).reshape(rows, columns).astype(dtype)


@pytest.fixture
def window(dist: ModuleType, rank: int) -> Any:
    """A window of every rank with other elements and another size."""
    made = dist.Window(shape_of(rank))
    made.local[...] = content_of(rank)
    made.fence()
    yield made
    made.free()


def test_what_a_proxy_is(window: Any, rank: int, size: int) -> None:
    for other in range(size):
        proxy = window[other]
        assert (proxy.rank, proxy.shape, proxy.ndim) == (other, shape_of(other), 2)
        assert (proxy.size, proxy.dtype, len(proxy)) == (
            content_of(other).size,
            "float32",
            shape_of(other)[0],
        )
        assert f"rank {other}" in repr(proxy[1]) and str(proxy[1].shape) in repr(proxy[1])


def test_it_is_no_array(dist: ModuleType, window: Any) -> None:
    proxy = window[0]
    for use in (
        lambda: bool(proxy),
        lambda: proxy == 1,
        lambda: proxy != np.ones(6),
        lambda: np.ones(6) < proxy,
        lambda: iter(proxy),
        lambda: proxy + 1,
        lambda: 1 + proxy,
        lambda: proxy[0] - np.ones(6),
        lambda: np.ones(6) - proxy[0],
        lambda: np.add(proxy[0], np.ones(6)),
        lambda: len(proxy[0, 0]),
        lambda: hash(proxy),
    ):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(TypeError):
        proxy[0] /= 2  # no reduce op: it must not read, divide and put
    with pytest.raises(ValueError, match="copy"):
        np.asarray(proxy, copy=False)
    assert np.array_equal(proxy.get(), content_of(0))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_get(window: Any, size: int, index: Any) -> None:
    for other in range(size):
        wanted = content_of(other)[index]
        proxy = window[other][index]
        assert proxy.shape == wanted.shape
        for found in (proxy.get(), np.asarray(proxy)):
            assert type(found) is np.ndarray and found.dtype == np.float32
            assert np.array_equal(found, wanted)
        assert np.asarray(proxy, np.float64).dtype == np.float64


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_put(window: Any, rank: int, size: int, index: Any) -> None:
    """Every rank puts into the next one; what lies between the elements stays."""
    target, model = (rank + 1) % size, content_of(rank)
    given = 1000.0 + np.arange(model[index].size, dtype="float32").reshape(model[index].shape)
    other = content_of(target)
    values = 1000.0 + np.arange(other[index].size, dtype="float32").reshape(other[index].shape)
    window[target][index] = values
    window.fence()
    model[index] = given
    assert np.array_equal(window.local, model)


def test_put_into_all(window: Any, rank: int, size: int) -> None:
    target = (rank + 1) % size
    window[target] = 7
    window.fence()
    assert (window.local == 7).all()


def test_what_is_put_is_broadcast(window: Any, rank: int) -> None:
    model = content_of(0)
    row, column = np.arange(6, dtype="float32"), np.arange(4, dtype="float32").reshape(4, 1)
    cases = [
        (..., 5),
        (1, row),
        (slice(None, None, -2), row[::-1]),
        (slice(1, 4), column[1:]),
        ((..., slice(4)), column.T),
        ((2, 3), np.float32(9)),
        (0, [6, 5, 4, 3, 2, 1]),
        (3, row.reshape(1, 1, 6)),
        (3, True),
        ((slice(4, None), slice(None)), 1),
    ]
    for index, values in cases:
        if rank == 0:
            window[0][index] = values
            model[index] = values
            assert np.array_equal(window.local, model), index
    window.fence()


def test_from_proxy_to_proxy(window: Any, rank: int, size: int) -> None:
    last = size - 1
    if rank == 0:
        window[last][0, :6] = window[0][1]
        window.flush()
        window[last][1:] = window[last][:-1]  # they overlap: all is read before
        window[last][0] = window[last][0]  # does nothing
    window.fence()
    model = content_of(last)
    model[0, :6] = content_of(0)[1] if last else model[1]
    model[1:] = model[:-1].copy()
    if rank == last:
        assert np.array_equal(window.local, model)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "float16"])
def test_all_ranks_add_at_the_same_time(dist: ModuleType, rank: int, size: int, dtype: str) -> None:
    times = 50
    window = dist.Window((4, 6), dtype)
    for i in range(times):
        for target in range(size):
            window[target][1:3, ::-2] += np.full((2, 3), 1, dtype)
            part = window[target][0]
            part += 1
            window[target] += i % 2
    window.fence()
    wanted = np.full((4, 6), times // 2 * size, dtype)
    wanted[1:3, ::-2] += times * size
    wanted[0] += times * size
    assert np.array_equal(window.local, wanted)
    window.free()


def test_what_operators_accumulate(dist: ModuleType, rank: int, size: int) -> None:
    window = dist.Window((2, 4), "uint8")
    window.local[...] = 255 if rank == 0 else 0
    window.fence()
    window[0][0, 0] -= 1
    window[0][0, 1] *= 3
    window[0][0, 2] &= ~np.uint8(1 << rank)
    window[0][0, 3] ^= 1 << rank
    window[0][1] |= np.zeros(4, "uint8")
    window.fence()
    if rank == 0:
        bits = (1 << size) - 1
        wanted = [255 - size, 255 * 3**size % 256, 255 - bits, 255 ^ bits]
        assert window.local.tolist() == [wanted, [255] * 4]
    window.free()


def test_after_an_accumulate_nothing_is_put(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python assigns the proxy to itself after +=, while others add to the same element."""
    calls = []
    real = type(window)._put_at

    def counted(*arguments: Any) -> None:
        calls.append(arguments)
        real(*arguments)

    monkeypatch.setattr(type(window), "_put_at", counted)
    window[0][0, 0] += 1
    window[0] += 1
    assert not calls
    window[0][0, 1] = 1
    assert len(calls) == 1
    window.fence()


def test_wrong_values_are_refused(dist: ModuleType, window: Any, rank: int) -> None:
    errors = dist.errors
    with pytest.raises(errors.ArgumentError, match=r"\(5,\).*\(6,\)"):
        window[0][0] = np.zeros(5, "float32")
    with pytest.raises(errors.DtypeError, match="float64"):
        window[0][0] = np.zeros(6)
    with pytest.raises(errors.DtypeError):
        window[0][0] = "text"
    with pytest.raises(errors.DtypeError):
        window[0][0] = 1j
    with pytest.raises(errors.DtypeError):
        window[0][0] = None
    with pytest.raises(errors.DtypeError, match="index of a window"):
        window[0][[0, 1]] = 1
    with pytest.raises(errors.ArgumentError, match="rank"):
        window[-1].get()
    with pytest.raises(errors.ArgumentError, match="rank"):
        window[dist.get_world_size()] = 1
    window.fence()
    assert np.array_equal(window.local, content_of(rank))


def test_an_index_out_of_range_ends_a_loop(dist: ModuleType, window: Any, size: int) -> None:
    for index in (4, -5, (0, 6), (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError, match="index of a window") as caught:
            window[0][index]
        assert isinstance(caught.value, dist.errors.ArgumentError)
    assert [proxy.rank for proxy in window] == list(range(size))
    window.fence()


def test_numbers_that_do_not_fit_are_refused(dist: ModuleType) -> None:
    window = dist.Window(3, "uint8")
    for value in (256, -1, [1, 2, 300]):
        with pytest.raises(dist.errors.ArgumentError):
            window[0][...] = value
    with pytest.raises(dist.errors.DtypeError):
        window[0][...] = 0.5
    window[0][...] = [1, 2, 255]
    for dtype, value in (("float32", 1e300), ("float16", 1e5), ("complex64", -1e300j)):
        with dist.Window(3, dtype) as narrow:
            for wrong in (value, [1.0, 2.0, value]):  # it would become infinite
                with pytest.raises(dist.errors.ArgumentError, match=f"range of {dtype}"):
                    narrow[0][...] = wrong
            narrow.fence()
            narrow[0][1] = float("inf")
            narrow.fence()
    assert window[0].get().tolist() == [1, 2, 255]
    window.free()


@pytest.mark.mpi(min=2)
def test_a_part_of_more_than_a_piece(dist: ModuleType, rank: int, size: int) -> None:
    """Strided elements of some MiB, which travel in pieces between nodes."""
    window = dist.Window((600, 1000) if rank == 0 else (1, 1), "float64")
    window.fence()
    if rank == size - 1:
        values = np.random.default_rng(0).standard_normal((300, 333))
        window[0][::2, 1::3] = values
        window[0][::-2, 1::3] += 1
        window.flush()
        found = window[0][::2, 1::3].get()
        assert np.array_equal(found, values)
    window.fence()
    if rank == 0:
        wanted = np.zeros((600, 1000))
        wanted[::2, 1::3] = np.random.default_rng(0).standard_normal((300, 333))
        wanted[::-2, 1::3] += 1
        assert np.array_equal(window.local, wanted)
    window.free()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_of_paddle(dist: ModuleType, rank: int, size: int, dtype: str) -> None:
    paddle = pytest.importorskip("paddle", reason="paddle is not installed")
    window = dist.Window((3, 4), getattr(paddle, dtype))
    assert isinstance(window.local, paddle.Tensor) and window.local.shape == [3, 4]
    target = (rank + 1) % size
    window[target][1:, ::2] = paddle.full([2, 1], 2, dtype)
    window[target][0] = [1, 2, 3, 4]
    window[target][2, ::-1] += 1
    window.fence()
    wanted = paddle.to_tensor([[1, 2, 3, 4], [2, 0, 2, 0], [3, 1, 3, 1]], dtype)
    assert bool((window.local == wanted).all())
    found = window[target][:, 1:].get()
    assert isinstance(found, paddle.Tensor) and found.dtype == wanted.dtype
    assert bool((found == wanted[:, 1:]).all())
    with pytest.raises(dist.errors.ArgumentError, match=r"\[?\(?5"):
        window[target][0] = paddle.zeros([5], dtype)
    window.fence()
    window.free()


@pytest.mark.parametrize("dtype", ["int64", "complex128"])
def test_source_and_target_overlap_on_the_own_rank(dist: ModuleType, rank: int, dtype: str) -> None:
    rng = np.random.default_rng(7 + rank)

    def part(length: int) -> slice:
        """A slice with ``length`` elements, forwards or backwards, of 60."""
        step = int(rng.choice([-3, -2, -1, 1, 1, 2]))
        reach = (length - 1) * abs(step) + 1
        low = int(rng.integers(0, 60 - reach + 1))
        if step > 0:
            return slice(low, low + reach, step)
        return slice(low + reach - 1, low - 1 if low else None, step)

    with dist.Window(60, dtype=dtype) as window:
        local = window.local
        local[:] = np.arange(60)
        wanted = local.copy()
        for number in range(300):
            length = int(rng.integers(1, 20))
            to, source = part(length), part(length)
            if number % 4 == 0:
                wanted[to] = wanted[source].copy()  # NumPy itself is wrong for some overlaps
                window[rank][to] = local[source]
            elif number % 4 == 1:
                wanted[to] += wanted[source].copy()
                window[rank][to] += local[source]
            elif number % 4 == 2:  # what is got lies in the own memory
                begin, other = (int(one) for one in rng.integers(0, 60 - length, 2))
                wanted[begin : begin + length] = wanted[other : other + length].copy()
                window.get(local[begin : begin + length], rank, other)
            else:
                begin, other = (int(one) for one in rng.integers(0, 60 - length, 2))
                wanted[other : other + length] += wanted[begin : begin + length].copy()
                window.accumulate(local[begin : begin + length], rank, offset=other)
            if number % 10 == 0:  # so that numbers stay small
                wanted[:] = local[:] = np.arange(60)
            assert local.tolist() == wanted.tolist(), (number, to, source)
        dist.barrier()
