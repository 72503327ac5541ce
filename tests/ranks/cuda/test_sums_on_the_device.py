"""PADDLEMPI_CUDA_REDUCE: kernels add staged tensors up, with the host's results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from kinds import long_pieces, side_stream
from paddlempi import ReduceOp
from tensors import assert_reduced, numbers, numpy_dtype, reducible
from test_all_reduce import OPS
from test_pieces import flat, put, room, rows

COUNT = 3000


@pytest.fixture(scope="module", autouse=True)
def on_the_device(mpi_world: Any) -> Iterator[None]:
    """The world is initialised again under the setting, for the tests of this module."""
    set_to(mpi_world.dist, "device")
    yield
    set_to(mpi_world.dist, "")


def set_to(dist: ModuleType, value: str) -> None:
    """Initialise the world again under a value of the setting."""
    os.environ["PADDLEMPI_CUDA_REDUCE"] = value
    dist.destroy_process_group()
    dist.init_process_group()


@pytest.mark.parametrize("op", OPS, ids=str)
def test_all_reduce(dist: ModuleType, rank: int, size: int, op: ReduceOp, run: Any) -> None:
    for dtype in reducible(op):
        parts = [numbers(dtype, COUNT, "sums", r) for r in range(size)]
        for layout in (flat(COUNT), rows(COUNT)):
            tensor = put(parts[rank], layout)
            run(dist.all_reduce, tensor.given, op)
            assert_reduced(tensor.values(), op, parts)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_reduce_scatter(dist: ModuleType, rank: int, size: int, op: ReduceOp, run: Any) -> None:
    for dtype in reducible(op):
        parts = [numbers(dtype, size * COUNT, "scattered", r) for r in range(size)]
        out = room(dtype, flat(COUNT))
        run(dist.reduce_scatter_tensor, out.given, put(parts[rank], flat(size * COUNT)).given, op)
        assert_reduced(out.values(), op, [part.reshape(size, -1)[rank] for part in parts])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_rounded_once(dist: ModuleType, rank: int, size: int, dtype: str) -> None:
    random = np.random.default_rng(7)
    parts = list(random.normal(0, 100, (size, 9001)).astype(numpy_dtype(dtype)))
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.PREMUL_SUM(0.3), ReduceOp.AVG):
        tensor = put(parts[rank], flat(9001))
        dist.all_reduce(tensor.given, op)
        assert_reduced(tensor.values(), op, parts)


def test_all_ranks_have_the_same_bits(dist: ModuleType, rank: int, size: int) -> None:
    parts = list(np.random.default_rng(3).normal(0, 1, (size, 9001)).astype(np.float32))
    tensor = put(parts[rank], flat(9001))
    dist.all_reduce(tensor.given)
    everyone = [np.zeros(9001, np.float32) for _ in range(size)]
    dist.all_gather(everyone, tensor.values())
    for other in everyone:
        assert other.tobytes() == everyone[0].tobytes()


@pytest.mark.fake_driver
@pytest.mark.mpi(min=2)
def test_kernels_do_it(dist: ModuleType, rank: int, size: int) -> None:
    parts = [numbers("float32", 10 * 1024, "counted", r) for r in range(size)]
    tensor = put(parts[rank], flat(10 * 1024))
    before = device.calls("cuLaunchKernel")
    dist.all_reduce(tensor.given)
    assert device.calls("cuLaunchKernel") > before
    assert device.calls("cuIpcOpenMemHandle_v2") == 0
    assert_reduced(tensor.values(), ReduceOp.SUM, parts)


@pytest.mark.fake_driver
@pytest.mark.mpi(min=2)
def test_by_default_kernels_do_it_from_4_mib(dist: ModuleType, rank: int, size: int) -> None:
    def launches(count: int) -> int:
        tensor = put(np.full(count, rank + 1, np.float32), flat(count))
        before = device.calls("cuLaunchKernel")
        dist.all_reduce(tensor.given)
        assert (tensor.values() == size * (size + 1) / 2).all()
        return device.calls("cuLaunchKernel") - before

    set_to(dist, "")
    with long_pieces(dist):
        assert launches((1 << 20) - 1) == 0
        assert launches(1 << 20) > 0
    set_to(dist, "device")


@pytest.mark.mpi(min=2)
def test_a_rank_without_a_device(dist: ModuleType, rank: int, size: int) -> None:
    """If some ranks have host tensors, all ranks make the sums on the host."""
    values = np.full(COUNT, rank + 1, np.float32)
    tensor = device.DeviceTensor(values, stream=side_stream()) if rank % 2 else values
    dist.all_reduce(tensor)
    got = tensor.numpy() if rank % 2 else values
    assert (got == size * (size + 1) / 2).all()
