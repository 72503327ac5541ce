"""DDP's buckets move into memory that other ranks can map: when, and when not."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import paddlempi
import pytest
import torch
from paddlempi import _native
from paddlempi.torch import ddp_buckets
from torch.nn.parallel import DistributedDataParallel

# Each rank moves its own buckets. tests/ranks/core sums such memory on three ranks, too.
pytestmark = pytest.mark.mpi(ranks=2)

WIDTH = 64  # 4 layers of 64 x 65 elements: buckets of 66,560 bytes


def adopted() -> int:
    """The bytes of this rank that were moved."""
    return int(_native.control("info")["heap"]["adopted"])


@pytest.fixture(autouse=True)
def _nothing_before(dist: ModuleType) -> Iterator[None]:
    gc.collect()
    if not _native.control("info")["heap"]["adopts"]:
        pytest.skip("the ranks of this node cannot open each other's files")
    before = adopted()
    yield
    gc.collect()
    assert adopted() == before  # a bucket ends with its model


def wrapped(**options: Any) -> tuple[torch.nn.Module, DistributedDataParallel]:
    """A model and the same model in DDP."""
    torch.manual_seed(5)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    plain = torch.nn.Sequential(*layers)
    torch.manual_seed(5)
    twin = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    return plain, DistributedDataParallel(twin, **options)


def step(model: torch.nn.Module, seed: int, rank: int) -> None:
    """One forward and backward on inputs that differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    model.zero_grad()
    model(torch.randn(8, WIDTH, generator=generator)).pow(2).sum().backward()


def check(plain: torch.nn.Module, model: DistributedDataParallel, seed: int) -> None:
    """DDP's gradients are the mean of what every rank computes alone."""
    mean = [torch.zeros_like(parameter) for parameter in plain.parameters()]
    for rank in range(torch.distributed.get_world_size()):
        step(plain, seed, rank)
        for total, parameter in zip(mean, plain.parameters(), strict=True):
            total += parameter.grad / torch.distributed.get_world_size()
    for total, parameter in zip(mean, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.02},
    ],
    ids=str,
)
def test_a_bucket_moves(options: dict[str, Any]) -> None:
    before = adopted()
    plain, model = wrapped(**options)
    rank = torch.distributed.get_rank()
    for seed in range(6):
        step(model, seed, rank)
        check(plain, model, seed)
    if torch.distributed.get_world_size() > 1:
        assert adopted() - before >= 4 * WIDTH * WIDTH * 4


def test_gradients_follow_their_bucket() -> None:
    _, model = wrapped(gradient_as_bucket_view=True)
    for seed in range(6):
        step(model, seed, torch.distributed.get_rank())
    if torch.distributed.get_world_size() > 1:
        assert all(p.grad.untyped_storage().is_shared() for p in model.parameters())


to_dlpack = torch.utils.dlpack.to_dlpack  # bound before a group exists


class Pair(ctypes.Structure):
    _fields_: ClassVar = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI, up to the function that exports a tensor."""

    _fields_: ClassVar = [
        ("version", Pair),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        (
            "export",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p)),
        ),
    ]


class Shared(ctypes.Structure):
    """DLManagedTensorVersioned, up to the address of the data."""

    _fields_: ClassVar = [
        ("version", Pair),
        ("context", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
    ]


def exchanged(tensor: torch.Tensor) -> Any:
    """An export by DLPack's C exchange API, which no function of Python sees."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    api = Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    made = ctypes.c_void_p()
    assert api.export(tensor, ctypes.byref(made)) == 0 and made.value
    shared = Shared.from_address(made.value)
    memory = (ctypes.c_float * tensor.numel()).from_address(shared.data)
    delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(shared.delete)
    weakref.finalize(memory, delete, made.value).atexit = False  # torch keeps the tensor until then
    return np.frombuffer(memory, dtype=np.float32).reshape(tensor.shape)


def from_paddle(tensor: torch.Tensor) -> Any:
    import paddle

    return paddle.utils.dlpack.from_dlpack(to_dlpack(tensor))


EXPORTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "dlpack": np.from_dlpack,
    "bound-before": lambda tensor: torch.from_dlpack(to_dlpack(tensor)),
    "exchange": exchanged,
}
if find_spec("paddle") is not None:
    EXPORTS["paddle"] = from_paddle


def exporting(way: str) -> Callable[[torch.Tensor], Any]:
    if way == "exchange" and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip(f"torch {torch.__version__} has no C exchange API")
    return EXPORTS[way]


@pytest.mark.parametrize("way", EXPORTS)
def test_aliases_follow(way: str) -> None:
    """Whoever exports the gradients after a backward sees, and changes, those of the next ones."""
    export = exporting(way)
    plain, model = wrapped(gradient_as_bucket_view=True)
    rank = torch.distributed.get_rank()
    aliases: list[Any] = []
    for seed in range(6):
        model(torch.ones(8, WIDTH)).sum().backward()  # zero_grad() would drop the gradients
        for parameter, alias in zip(model.parameters(), aliases, strict=False):
            assert np.array_equal(np.asarray(alias), parameter.grad.numpy())
        for parameter in model.parameters():
            parameter.grad.zero_()
        step_into(model, seed, rank)
        check(plain, model, seed)
        if seed == 1:  # the Reducer has replaced its first buckets
            aliases = [export(p.grad) for p in model.parameters()]
    assert len(aliases) == 8
    del aliases


def step_into(model: torch.nn.Module, seed: int, rank: int) -> None:
    """Do as :func:`step`, and keep the tensors of the gradients."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    model(torch.randn(8, WIDTH, generator=generator)).pow(2).sum().backward()


@pytest.mark.parametrize("way", EXPORTS)
def test_an_alias_forbids_the_move(way: str) -> None:
    """A hook exports gradients between the first use of a bucket and its all_reduce."""
    export = exporting(way)
    before = adopted()
    plain, model = wrapped(gradient_as_bucket_view=True)
    rank = torch.distributed.get_rank()
    kept: list[tuple[Any, torch.Tensor]] = []

    def look(_: torch.Tensor) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                kept.append((export(parameter.grad), parameter.grad))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    for seed in range(4):
        step(model, seed, rank)
        for alias, gradient in kept:
            assert np.array_equal(np.asarray(alias), gradient.numpy())
        kept.clear()
        check(plain, model, seed)
    assert adopted() == before


def test_only_the_reducers_buckets_move() -> None:
    before = adopted()
    layer = torch.nn.Linear(WIDTH, WIDTH)
    kept = torch.zeros(WIDTH * WIDTH)
    works = []
    layer.weight.register_hook(
        lambda grad: works.append(torch.distributed.all_reduce(kept, async_op=True)) or grad
    )
    for _ in range(4):
        layer(torch.ones(2, WIDTH)).sum().backward()
        torch.distributed.all_reduce(kept, async_op=True).wait()
    for work in works:
        work.wait()
    assert adopted() == before
    assert not kept.untyped_storage().is_shared()


def test_a_forked_child_writes_to_a_copy() -> None:
    plain, model = wrapped(gradient_as_bucket_view=True)
    rank = torch.distributed.get_rank()
    for seed in range(5):
        step(model, seed, rank)
    before = [p.grad.clone() for p in model.parameters()]
    child = os.fork()
    if child == 0:
        saw = all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
        for p in model.parameters():
            p.grad.fill_(7)
        os._exit(0 if saw else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
    step(model, 6, rank)
    check(plain, model, 6)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    before = adopted()
    monkeypatch.setattr(ddp_buckets, "_on", False)
    plain, model = wrapped()
    for seed in range(4):
        step(model, seed, torch.distributed.get_rank())
        check(plain, model, seed)
    assert adopted() == before


def test_a_thread_of_the_engine_has_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of a GPU come on such threads, so no frame of Python called allreduce."""
    monkeypatch.setattr(ddp_buckets, "_in_graph_task", lambda: 0)
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    over, tensor = threading.Event(), torch.zeros(1000)
    weakref.finalize(tensor, over.set)
    _thread.start_new_thread(ddp_buckets.consider, (None, tensor))
    del tensor
    assert over.wait(10)
    assert not errors


def test_a_heap_tensor_is_reduced_in_place() -> None:
    x = paddlempi.empty((3, 5000), "bfloat16", "torch")
    x.fill_(torch.distributed.get_rank() + 1)
    torch.distributed.all_reduce(x)
    assert (x == sum(range(1, torch.distributed.get_world_size() + 1))).all()
