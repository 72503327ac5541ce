"""dist._new_window: torch's windows over MPI, and paddlempi.Window of torch's tensors."""

from __future__ import annotations

import gc
import time
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import paddlempi
import pytest
import torch
from paddlempi import errors
from paddlempi.torch import window as windows

SUPPORTED = windows.supported()
needs_windows = pytest.mark.skipif(
    not SUPPORTED, reason=f"torch {torch.__version__} has no windows that paddlempi knows"
)


@pytest.fixture
def window(dist: ModuleType, rank: int) -> Any:
    """A window of torch over a tensor of 8 + rank elements in the heap."""
    tensor = paddlempi.zeros(8 + rank, "float32", "torch")
    made = dist._new_window(tensor)
    made.tensor = tensor
    yield made
    made.tensor_deregister()


def test_support_is_told(dist: ModuleType) -> None:
    group = dist.group.WORLD
    assert group.supports_window is SUPPORTED
    assert group._get_backend(torch.device("cpu")).supports_window is SUPPORTED
    if hasattr(dist, "_supports_window"):
        assert dist._supports_window() is SUPPORTED
        assert dist._supports_window(group) is SUPPORTED


def test_another_torch_is_refused_by_its_name(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    assert not dist.group.WORLD.supports_window
    with pytest.raises(errors.UnsupportedError, match=r"torch 2\.16\.0.*2\.14 and 2\.15"):
        dist.group.WORLD.new_window()


@needs_windows
def test_a_torch_without_a_name_is_refused(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(windows.c10d, "WindowAttr")
    with pytest.raises(errors.UnsupportedError, match="has no WindowAttr"):
        dist._new_window()


@needs_windows
@pytest.mark.parametrize("asynchronous", [False, True])
def test_put_and_signal(
    dist: ModuleType, window: Any, rank: int, size: int, asynchronous: bool
) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(20):
        given = torch.full((4,), 100.0 * step + rank)
        work = window.put(given, after, 2, asynchronous)
        assert work.wait() and work.is_completed()
        given.fill_(-1)  # it may be used again
        assert window.signal(after, asynchronous).wait()
        assert window.wait_signal(before, asynchronous).wait()
        wanted = torch.zeros(8 + rank)
        wanted[2:6] = 100.0 * step + before
        assert torch.equal(window.tensor, wanted)
        dist.barrier()  # the next put would write while this rank compares


@needs_windows
def test_names_of_arguments_are_torch_s(dist: ModuleType, window: Any, rank: int) -> None:
    c10d = windows.c10d
    window.put(
        tensor=torch.ones(2),
        dst_rank=rank,
        target_offset_nelems=0,
        async_op=False,
        opts=c10d.PutOptions(),
    ).wait()
    window.signal(peer_rank=rank, async_op=False, opts=c10d.SignalOptions()).wait()
    window.wait_signal(peer_rank=rank, async_op=False, opts=c10d.WaitSignalOptions()).wait()
    assert window.tensor[:3].tolist() == [1, 1, 0]
    assert window.get_attr(peer_rank=rank).access_type == c10d.WindowAccessType.UNIFIED


@needs_windows
def test_the_methods_are_those_of_torch() -> None:
    theirs = {name for name in vars(windows.c10d.Window) if not name.startswith("_")}
    ours = {name for name in vars(windows.Window) if not name.startswith("_")}
    assert theirs == ours


@needs_windows
@pytest.mark.mpi(min=2)
def test_a_put_raises_no_signal(dist: ModuleType, window: Any, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    window.put(torch.ones(1), after, 0, False)
    options = windows.c10d.WaitSignalOptions()
    options.timeout = timedelta(seconds=0.2)
    began = time.monotonic()
    with pytest.raises(errors.TimeoutError):
        window.wait_signal(before, False, options)
    assert time.monotonic() - began >= 0.2
    dist.barrier()
    window.signal(after, False)
    window.wait_signal(before, False)  # the window works on


@needs_windows
@pytest.mark.mpi(min=2)
def test_each_wait_takes_one_signal(dist: ModuleType, window: Any, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    works = [window.wait_signal(before, True) for _ in range(3)]
    dist.barrier()  # nobody has raised one
    assert not any(work.is_completed() for work in works)
    dist.barrier()
    window.signal(after, False)
    window.signal(after, False)
    dist.barrier()
    assert works[1].wait()
    assert works[0].is_completed() and works[0].is_success()
    assert not works[2].is_completed()
    with pytest.raises(errors.NotReadyError):
        works[2].wait(timedelta(seconds=0.1))
    dist.barrier()
    window.signal(after, False)
    assert works[2].wait()
    assert all(work.is_completed() for work in works)


@needs_windows
def test_tensors_of_other_ranks_are_mapped(
    dist: ModuleType, window: Any, rank: int, size: int
) -> None:
    assert window.map_remote_tensor(rank) is window.tensor
    window.tensor[0] = 10 + rank
    dist.barrier()
    for other in range(size):
        there = window.map_remote_tensor(other)
        assert (there.shape, there.dtype) == ((8 + other,), torch.float32)
        assert there[0] == 10 + other
        attr = window.get_attr(other)
        assert attr.access_type == windows.c10d.WindowAccessType.UNIFIED
    dist.barrier()
    window.map_remote_tensor((rank + 1) % size)[1] = 20 + rank  # a store, as any other
    dist.barrier()
    assert window.tensor[1] == 20 + (rank - 1) % size


@needs_windows
def test_tensors_of_other_nodes_are_not_mapped(
    dist: ModuleType, window: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddlempi.Window, "_map", lambda self, rank: None)  # as on another node
    other = (rank + 1) % size
    assert window.get_attr(other).access_type == windows.c10d.WindowAccessType.SEPARATE
    if other != rank:
        with pytest.raises(errors.UnsupportedError, match=f"rank {other} cannot be mapped"):
            window.map_remote_tensor(other)


@needs_windows
def test_a_mapped_tensor_outlives_the_window(dist: ModuleType, rank: int, size: int) -> None:
    tensor = paddlempi.zeros(4, "int64", "torch").fill_(rank)
    window = dist._new_window(tensor)
    dist.barrier()
    there = window.map_remote_tensor((rank + 1) % size)
    window.tensor_deregister()
    del window
    gc.collect()
    assert there.tolist() == [(rank + 1) % size] * 4
    dist.barrier()


@needs_windows
def test_registered_later_and_again(dist: ModuleType, rank: int, size: int) -> None:
    window = dist._new_window()
    for use in (
        lambda: window.put(torch.ones(1), 0, 0, False),
        lambda: window.signal(0, False),
        lambda: window.wait_signal(0, False),
        lambda: window.map_remote_tensor(0),
        lambda: window.get_attr(0),
        window.tensor_deregister,
    ):
        with pytest.raises(errors.ArgumentError, match="tensor_register"):
            use()
    for length in (3, 5):
        tensor = paddlempi.zeros(length, "float64", "torch")
        window.tensor_register(tensor, owning=length == 3)
        with pytest.raises(errors.ArgumentError, match="tensor_deregister"):
            window.tensor_register(tensor)
        window.put(torch.full((length,), 1.0, dtype=torch.float64), (rank + 1) % size, 0, False)
        window.signal((rank + 1) % size, False)
        window.wait_signal((rank - 1) % size, False)
        assert tensor.sum() == length
        window.tensor_deregister()


@needs_windows
def test_wrong_arguments(dist: ModuleType, window: Any, rank: int, size: int) -> None:
    with pytest.raises(errors.ArgumentError, match="rank"):
        window.put(torch.ones(1), size, 0, False)
    with pytest.raises(errors.ArgumentError, match="rank"):
        window.signal(-1, False)
    with pytest.raises(errors.ArgumentError):
        window.put(torch.ones(1), 0, -1, False)
    with pytest.raises(errors.ArgumentError):
        window.put(torch.ones(9), 0, 0, False)
    with pytest.raises(errors.DtypeError, match="float64"):
        window.put(torch.ones(1, dtype=torch.float64), 0, 0, False)
    dist.barrier()
    assert not window.tensor.any()


@needs_windows
def test_what_is_no_tensor_is_refused(dist: ModuleType, rank: int, size: int) -> None:
    """On one rank only: the others are told."""
    given = 5 if rank == 0 else paddlempi.zeros(5, "float32", "torch")
    with pytest.raises(errors.DtypeError if rank == 0 else errors.RefusedError):
        dist._new_window(given)
    dist.barrier()


@needs_windows
def test_lazy_views_are_put_as_their_values(dist: ModuleType, rank: int, size: int) -> None:
    tensor = paddlempi.zeros(3, "complex64", "torch")
    window = dist._new_window(tensor)
    values = torch.tensor([1 + 2j, 3 - 1j, 5j]).to(torch.complex64)
    window.put(values.conj(), (rank + 1) % size, 0, False)
    window.signal((rank + 1) % size, False)
    window.wait_signal((rank - 1) % size, False)
    assert torch.equal(tensor, values.conj().resolve_conj())
    window.tensor_deregister()


@needs_windows
def test_in_a_group(dist: ModuleType, teams: list[Any]) -> None:
    for team in teams:
        me, count = team.rank, team.size
        tensor = paddlempi.zeros(2, "int32", "torch")
        window = dist._new_window(tensor, team.group)
        window.put(torch.full((2,), me, dtype=torch.int32), (me + 1) % count, 0, False)
        window.signal((me + 1) % count, False)
        window.wait_signal((me - 1) % count, False)
        assert tensor.tolist() == [(me - 1) % count] * 2
        window.tensor_deregister()


# paddlempi.Window of torch's tensors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "complex64"])
def test_proxies_give_torch_s_tensors(dist: ModuleType, rank: int, size: int, dtype: str) -> None:
    kind = getattr(torch, dtype)
    window = paddlempi.Window((3, 4), kind)
    assert isinstance(window.local, torch.Tensor) and window.local.dtype == kind
    target = (rank + 1) % size
    window[target][1:, ::2] = torch.ones(2, 2, dtype=kind)
    window[target][0, 1] = True
    window.fence()
    wanted = torch.zeros(3, 4, dtype=kind)
    wanted[1:, ::2] = 1
    wanted[0, 1] = 1
    assert torch.equal(window.local, wanted)
    found = window[target].get()
    assert isinstance(found, torch.Tensor) and torch.equal(found, wanted)
    assert torch.equal(window[target][:, -1:0:-1].get(), wanted.flip(1)[:, :3])
    if dtype not in ("bfloat16", "bool"):
        assert np.array_equal(np.asarray(window[target]), wanted.numpy())
        window.fence()  # all have compared
        window[target][2] = np.zeros(4, dtype)
        assert not window[target][2].get().any()
    window.free()


def test_numbers_are_converted_for_torch(dist: ModuleType) -> None:
    window = paddlempi.Window(4, torch.int8)
    window[0][...] = [1, 2, 3, 4]
    window[0][0] += 1
    with pytest.raises(errors.DtypeError):
        window[0][0] = 0.5
    with pytest.raises(errors.ArgumentError):
        window[0][0] = 300
    with pytest.raises(errors.DtypeError):
        window[0][0] = torch.tensor(1.0)
    window.free()


def test_an_ordinary_tensor_is_moved_into_shared_memory(
    dist: ModuleType, rank: int, size: int
) -> None:
    tensor = torch.arange(1000.0) + rank
    window = paddlempi.Window(tensor)
    assert window.local is tensor and tensor.is_shared()
    assert torch.equal(tensor, torch.arange(1000.0) + rank)  # the values stay
    window.fence()
    assert torch.equal(window[(rank + 1) % size].get(), torch.arange(1000.0) + (rank + 1) % size)
    window.fence()
    window[(rank + 1) % size][5] = -1
    window.fence()
    assert tensor[5] == -1
    again = paddlempi.Window(tensor)  # it lies in a heap now
    again.free()
    window.free()


@pytest.mark.parametrize("way", ["numpy", "dlpack", "view", "from_numpy", "shared"])
def test_a_tensor_whose_address_others_know_stays(
    dist: ModuleType, rank: int, size: int, way: str
) -> None:
    """On one rank only: the others raise too, and the next window can be made."""
    tensor = torch.zeros(1000)
    kept: Any = None
    if rank == 0:
        if way == "numpy":
            kept = tensor.numpy()
        elif way == "dlpack":
            kept = torch.utils.dlpack.to_dlpack(tensor)
        elif way == "view":
            kept = tensor[2:]
        elif way == "from_numpy":
            kept = np.zeros(1000, "float32")
            tensor = torch.from_numpy(kept)
        else:
            tensor.share_memory_()
    address = tensor.data_ptr()
    with pytest.raises(errors.Error) as caught:
        paddlempi.Window(tensor)
    if rank == 0:
        assert isinstance(caught.value, errors.UnsupportedError), caught.value
        assert "paddlempi.empty" in str(caught.value)
        assert tensor.data_ptr() == address
    else:
        assert isinstance(caught.value, errors.RefusedError), caught.value
    del kept
    paddlempi.Window(4).free()


class StandsFor(torch.Tensor):
    """A tensor that holds another one, and has no memory itself."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def test_a_tensor_without_memory_is_refused(rank: int, size: int) -> None:
    """A subclass that stands for another tensor has an address of 0."""
    wrapped = torch.Tensor._make_wrapper_subclass(StandsFor, (3,), dtype=torch.float32)
    with paddlempi.Window(3, dtype="float32") as made:
        for call in (made.put, made.accumulate, made.get):
            with pytest.raises(errors.DtypeError, match="no memory"):
                call(wrapped, (rank + 1) % size)
