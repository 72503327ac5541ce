"""Functions for the programs of ``test_ipc.py``: ranks, values, and the path of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import device
import ml_dtypes
import numpy as np
import paddlempi as dist

FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]

Array = np.ndarray[Any, Any]

_stream: dict[int, int] = {}


def start() -> tuple[int, int]:
    """Initialise the world; return the rank and the number of ranks."""
    dist.init_process_group("mpi", timeout=60)
    return dist.get_rank(), dist.get_world_size()


def done() -> None:
    """Tell the test that this rank came to the end of its program."""
    sys.stdout.write("done\n")
    sys.stdout.flush()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, also if NumPy lacks that dtype."""
    return np.dtype(getattr(ml_dtypes, name, name))


def values(dtype: str, count: int, seed: int) -> Array:
    """Return small whole numbers. A sum or product of a few of them is exact in every dtype."""
    few = np.random.default_rng(seed).integers(0 if dtype[0] in "bu" else -3, 4, count)
    if dtype == "bool":
        few = few // 2
    if dtype.startswith("complex"):
        few = few + 1j * np.random.default_rng(seed + 1000).integers(-3, 4, count)
    return few.astype(numpy_dtype(dtype))


def stream(on: int = 0) -> int:
    """Return the stream that all tensors of this module use on a device."""
    on %= device.device_count()
    if on not in _stream:
        _stream[on] = device.new_stream(on)
    return _stream[on]


def tensor(array: Array, on: int = 0, **how: Any) -> device.DeviceTensor:
    """Return a tensor with these values, which arrive late. If there is one device, it is there."""
    on %= device.device_count()
    name = array.dtype.name
    bits = array.view(f"u{array.dtype.itemsize}") if hasattr(ml_dtypes, name) else array
    return device.DeviceTensor(
        bits, dtype=name, device=on, **{"offset": 256, "stream": stream(on), **how}
    )


def read(t: device.DeviceTensor) -> Array:
    """Return the values of a contiguous tensor, after what its stream waits for."""
    size = t.numpy_dtype.itemsize * int(np.prod(t.shape))
    return t.numpy().view(np.uint8).reshape(-1)[:size].view(numpy_dtype(t.dtype))


def same(t: device.DeviceTensor, expected: Array, *what: object) -> None:
    """Check that a tensor has exactly these values and their dtype."""
    got = read(t)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    wrong = np.flatnonzero(got != expected)
    assert not len(wrong), (dist.get_rank(), *what, wrong[:5], got[wrong[:5]], expected[wrong[:5]])


def reduced(op: Any, parts: list[Array]) -> Array:
    """Return what ``op`` makes of the arrays of all ranks. The arrays come from :func:`values`."""
    dtype = parts[0].dtype
    name = op.name
    if dtype.kind == "b":
        fold: Any = {
            "SUM": np.logical_or,
            "MAX": np.logical_or,
            "BOR": np.logical_or,
            "PRODUCT": np.logical_and,
            "MIN": np.logical_and,
            "BAND": np.logical_and,
            "BXOR": np.logical_xor,
        }[name]
        return np.asarray(fold.reduce(np.stack(parts)), bool)
    if name in ("BAND", "BOR", "BXOR"):
        fold = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[name]
        return np.asarray(fold.reduce(np.stack(parts)), dtype)
    wide_enough = {"c": complex, "i": int, "u": int}.get(dtype.kind, float)
    exact = np.stack([p.astype(wide_enough) for p in parts])
    if name == "PRODUCT":
        whole = np.prod(exact, axis=0)
    elif name in ("MIN", "MAX"):
        whole = (np.min if name == "MIN" else np.max)(exact, axis=0)
    else:
        whole = np.sum(exact, axis=0) * (op.scale if name == "PREMUL_SUM" else 1)
    if name == "AVG" and dtype.kind in "iu":  # of the sum, which may wrap; rounded toward zero
        return np.asarray(np.trunc(whole.astype(dtype).astype(float) / len(parts)), dtype)
    if name == "AVG":  # divided in the type of the sum, which is the tensor's or wider
        wide = {2: "f4", 4: "f4", 8: "f8"}[dtype.itemsize // (2 if dtype.kind == "c" else 1)]
        halves = [
            (h.astype(wide) / np.dtype(wide).type(len(parts))) for h in (whole.real, whole.imag)
        ]
        return (
            halves[0].astype(dtype)
            if dtype.kind != "c"
            else (halves[0] + 1j * halves[1]).astype(dtype)
        )
    return np.asarray(whole).astype(dtype)


def ops_of(dtype: str) -> list[Any]:
    """Return the reduce ops that docs/ops.md defines for a dtype."""
    r = dist.ReduceOp
    if dtype in FLOATS:
        both = [r.SUM, r.PRODUCT, r.AVG, r.PREMUL_SUM(0.5)]
        return both if dtype.startswith("complex") else [*both, r.MIN, r.MAX]
    both = [r.SUM, r.PRODUCT, r.MIN, r.MAX, r.BAND, r.BOR, r.BXOR]
    return both if dtype == "bool" else [*both, r.AVG]


def opens() -> int:
    """Return how often this rank mapped memory of another one, as the fake driver counts it."""
    return device.calls("cuIpcOpenMemHandle_v2") if device.is_fake() else 0


@contextmanager
def went(by: str) -> Iterator[None]:
    """Check that the collectives of the block go over "ipc", or "staged" through host memory.

    A GPU's driver does not count calls, so there only the values are checked.
    """
    if not device.is_fake():
        yield
        return

    def staged() -> int:
        return device.calls("cuMemHostAlloc") + device.calls("cuEventQuery")

    already, before = opens(), staged()
    yield
    opened = opens() - already
    if by == "staged":
        assert opened == 0, f"{opened} allocations were mapped"
        assert staged() > before, "nothing was staged"
    else:
        assert staged() == before, "something was staged"


def call(asynchronous: bool, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Run a collective, as a synchronous call or as a work that is waited for."""
    if not asynchronous:
        assert function(*arguments, **named) is None
        return
    assert function(*arguments, async_op=True, **named).wait()
