"""Tensors of CuPy, JAX and Paddle on the GPU. A framework that is not installed is skipped."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pytest

COUNT = 100_003


def framework(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return importlib.import_module(name)


def test_cupy(dist: ModuleType, rank: int, size: int) -> None:
    cupy = framework("cupy")
    cupy.cuda.Device(dist.get_local_rank() % cupy.cuda.runtime.getDeviceCount()).use()
    for dtype in ("float32", "float16", "int64"):
        x = cupy.full(COUNT, rank + 1, dtype)
        dist.all_reduce(x)
        assert bool((x == size * (size + 1) // 2).all())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(COUNT, "float32")
        for _ in range(200):
            x += 1
        dist.all_reduce(x)
        wrong = int((x != 200 * size).sum())
    assert wrong == 0


def test_jax(dist: ModuleType, rank: int, size: int) -> None:
    jax = framework("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax has no CUDA")
    x = jax.numpy.full(COUNT, rank + 1.0)
    # JAX's arrays are immutable: they can be sent, but the results need other arrays.
    with pytest.raises(dist.errors.ArgumentError, match="read-only"):
        dist.all_reduce(x)
    taken = [np.zeros(COUNT, np.float32) for _ in range(size)]
    dist.all_gather(taken, x)
    for other in range(size):
        assert (taken[other] == other + 1).all()


def test_paddle(dist: ModuleType, rank: int, size: int) -> None:
    paddle = framework("paddle")
    if not paddle.is_compiled_with_cuda():
        pytest.skip("paddle has no CUDA")
    paddle.set_device(f"gpu:{dist.get_local_rank() % paddle.device.cuda.device_count()}")
    for dtype in ("float32", "bfloat16", "int64"):
        x = paddle.full([COUNT], rank + 1, dtype)
        dist.all_reduce(x)
        assert bool((x.astype("int64") == size * (size + 1) // 2).all())
    with paddle.device.stream_guard(paddle.device.Stream()):
        x = paddle.zeros([COUNT])
        for _ in range(200):
            x += 1
        dist.all_reduce(x)
        wrong = int((x != 200.0 * size).sum())
    assert wrong == 0
