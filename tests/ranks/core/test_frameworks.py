"""What only a framework has: version counters, devices, special kinds of tensors."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return importlib.import_module("torch")


@pytest.fixture
def paddle() -> Any:
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("paddle is not installed")
    return importlib.import_module("paddle")


def _exscan(dist: ModuleType, rank: int, tensor: Any) -> None:
    """Write to the tensor on every rank. exscan does not write to rank 0's, so add_ does there."""
    before = tensor._version
    dist.exscan(tensor)
    if rank == 0:
        assert tensor._version == before
        tensor.add_(1)


def test_torch_s_autograd_notices(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    for write in (
        lambda t: dist.all_reduce(t),
        lambda t: dist.all_reduce(t, async_op=True).wait(),
        lambda t: dist.all_reduce_coalesced([t]),
        lambda t: dist.all_gather_into_tensor(t[:0], torch.ones(0)) or dist.scan(t),
        lambda t: (
            dist.all_to_all_single(t, t.clone(), [3] + [0] * (size - 1), None)
            if size == 1
            else _exscan(dist, rank, t)
        ),
    ):
        saved = torch.full((3,), 2.0)
        loss = (weight * saved).sum()
        write(saved)
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()
    untouched = torch.full((3,), 2.0)
    loss = (weight * untouched).sum()
    dist.all_gather([torch.zeros(3) for _ in range(size)], untouched)
    if rank == 0:
        dist.broadcast(untouched, 0)
    else:
        dist.broadcast(torch.zeros(3), 0)
    loss.backward()


def test_a_receive_bumps(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    taken = torch.zeros(3)
    before = taken._version
    dist.sendrecv(torch.ones(3), (rank + 1) % size, taken, (rank - 1) % size)
    assert taken._version > before
    assert (taken == 1).all()


def test_paddle_s_autograd_notices(dist: ModuleType, paddle: Any) -> None:
    weight = paddle.ones([3])
    weight.stop_gradient = False
    for asynchronous in (False, True):
        saved = paddle.full([3], 2.0)
        loss = (weight * saved).sum()
        work = dist.all_reduce(saved, async_op=asynchronous)
        if work is not None:
            work.wait()
        with pytest.raises(RuntimeError, match="version"):
            loss.backward()


def test_gradients_and_parameters(dist: ModuleType, torch: Any, paddle: Any, size: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    dist.all_reduce(parameter)
    assert (parameter == size).all()
    layer = paddle.nn.Linear(3, 2)
    layer.weight.set_value(paddle.ones([3, 2]))
    layer(paddle.ones([1, 3])).sum().backward()
    dist.all_reduce(layer.weight.grad)
    assert (layer.weight.grad.numpy() == size).all()
    dist.broadcast(layer.weight, 0)


def test_torch_tensors_that_cannot_be_sent(dist: ModuleType, torch: Any) -> None:
    for bad in (
        torch.zeros(3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    ):
        with pytest.raises(dist.errors.DtypeError, match="torch"):
            dist.all_reduce(bad)
    dist.barrier()


def test_memory_that_has_other_values(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    """torch's lazy conjugates and negatives are sent as they are, and not written to."""
    for lazy in (
        torch.tensor([1 + 2j, 3 + 4j]).conj(),
        torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
        torch.tensor([1 + 2j]).conj().imag[0].reshape(1),  # contiguous
        torch._neg_view(torch.ones(4)),
    ):
        wanted = lazy.resolve_conj().resolve_neg()
        assert lazy.data_ptr() != wanted.data_ptr()
        target = torch.zeros_like(wanted)
        work = dist.isend(lazy, (rank + 1) % size, tag=3)
        dist.recv(target, (rank - 1) % size, tag=3)
        work.wait()
        assert torch.equal(target, wanted)
        all_of_them = torch.zeros((size, *wanted.shape), dtype=wanted.dtype)
        dist.all_gather_into_tensor(all_of_them, lazy)
        assert torch.equal(all_of_them, wanted.expand(size, *wanted.shape))
        with pytest.raises(dist.errors.DtypeError, match=r"recv tensor 0 .*resolve_neg"):
            dist.all_reduce(lazy)
    dist.barrier()


def test_masked_arrays_cannot_be_sent(dist: ModuleType, rank: int, size: int) -> None:
    masked = np.ma.MaskedArray([1.0, 100.0], mask=[False, True])
    for call in (
        lambda: dist.all_reduce(masked),
        lambda: dist.all_reduce([np.ones(2), masked]),
        lambda: dist.all_gather_into_tensor(np.zeros(2 * size), masked),
        lambda: dist.send(masked, 0),
    ):
        with pytest.raises(dist.errors.DtypeError, match="masked array"):
            call()
    plain = masked.filled(7.0)
    dist.all_reduce(plain)
    assert plain.tolist() == [size, 7.0 * size]
    dist.barrier()


def test_paddle_tensors_that_cannot_be_sent(dist: ModuleType, paddle: Any) -> None:
    with pytest.raises(dist.errors.DtypeError, match="sparse"):
        dist.all_reduce(paddle.sparse.sparse_coo_tensor([[0], [1]], [1.0], [2, 2]))
    dist.barrier()


def test_memory_of_other_devices_is_refused(dist: ModuleType) -> None:
    class OnMetal:
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0

    with pytest.raises(dist.errors.UnsupportedError, match="Metal memory"):
        dist.all_reduce(OnMetal())
    dist.barrier()


def test_a_data_loader_s_workers(dist: ModuleType, torch: Any, size: int) -> None:
    class Numbers(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            # A call in a forked process raises an error and never hangs.
            try:
                dist.all_reduce(torch.zeros(1))
            except dist.errors.ForkError:
                return torch.tensor(float(index))
            raise AssertionError("no ForkError")

    work = dist.all_reduce(torch.ones(1000), async_op=True)  # under way during the forks
    for _ in range(2):
        sums = []
        for batch in torch.utils.data.DataLoader(Numbers(), 4, num_workers=2):
            part = batch.sum()
            dist.all_reduce(part)
            sums.append(part.item())
        assert sums == [6 * size, 22 * size]
    work.wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def test_a_paddle_data_loader_s_workers(dist: ModuleType, paddle: Any, size: int) -> None:
    class Numbers(paddle.io.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            try:
                dist.barrier()
            except dist.errors.ForkError:
                return float(index)
            raise AssertionError("no ForkError")

    loader = paddle.io.DataLoader(Numbers(), batch_size=4, num_workers=2, use_shared_memory=False)
    sums = []
    for batch in loader:
        part = (batch[0] if isinstance(batch, (list, tuple)) else batch).sum()
        dist.all_reduce(part)
        sums.append(float(part))
    assert sums == [6 * size, 22 * size]
