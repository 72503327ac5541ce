"""Prepared calls on torch's tensors: versions of autograd, changed tensors, a training loop."""

from __future__ import annotations

from types import ModuleType

import paddlempi
import pytest
import torch
from models import Net, loss_of, seeded
from paddlempi import errors


def test_version(dist: ModuleType, rank: int, size: int) -> None:
    """A call bumps the version of what it writes, as a plain call does, and only of that."""
    x, y = torch.ones(3), torch.ones(3 * size)
    calls = {
        "all_reduce": paddlempi.prepare("all_reduce", x),
        "broadcast": paddlempi.prepare("broadcast", x, 0),
        "gather": paddlempi.prepare("all_gather_into_tensor", y, x),
    }
    plain = torch.ones(3)
    for name, call in calls.items():
        before, other = x._version, y._version
        call()
        wrote_x = name == "all_reduce" or (name == "broadcast" and rank != 0)
        assert (x._version > before) == wrote_x, name
        assert (y._version > other) == (name == "gather"), name
    w = torch.ones(3, requires_grad=True)
    loss = (w * x).sum()
    for use in (calls["all_reduce"], lambda: paddlempi.all_reduce(plain)):
        use()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = (w * x).sum()
    calls["all_reduce"].start()
    calls["all_reduce"].wait()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_changed(dist: ModuleType, size: int) -> None:
    """A tensor of another length is refused, on all ranks here; other memory is used."""
    x = torch.ones(4)
    call = paddlempi.prepare("all_reduce", x)
    x.resize_(9)
    with pytest.raises((errors.ArgumentError, errors.RefusedError), match=r"9 elements|refused"):
        call()
    paddlempi.barrier()
    x.set_(torch.ones(2, 2))
    call()
    assert (x == size).all()
    x.data = torch.full((4,), 3.0)
    call()
    assert (x == 3 * size).all()
    x.data = torch.ones(4, dtype=torch.float64)
    with pytest.raises((errors.DtypeError, errors.RefusedError), match=r"dtype|refused"):
        call()
    paddlempi.barrier()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_kinds_of_memory(dist: ModuleType, rank: int, size: int, dtype: torch.dtype) -> None:
    for x in (
        torch.zeros(5, dtype=dtype),
        torch.zeros(4, 5, dtype=dtype)[::2, 1:3],
        torch.zeros((), dtype=dtype),
        paddlempi.zeros(3000, dtype, "torch"),
    ):
        call = paddlempi.prepare("all_reduce", x)
        for step in range(3):
            x.fill_(step + 1)
            call()
            assert (x == size * (step + 1)).all()


def test_training(dist: ModuleType, rank: int, size: int) -> None:
    """Gradients that are averaged by calls prepared once give what plain calls give."""

    def trained(prepared: bool) -> list[torch.Tensor]:
        model = seeded(Net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        calls = []
        for step in range(4):
            # Gradients stay where they are, so that nothing has to be prepared again.
            optimizer.zero_grad(set_to_none=False)
            loss_of(size)(model, step, rank).backward()
            gradients = [p.grad for p in model.parameters()]
            if not prepared:
                for gradient in gradients:
                    paddlempi.all_reduce(gradient, paddlempi.ReduceOp.AVG)
            else:
                if not calls:
                    calls = [
                        paddlempi.prepare("all_reduce", g, paddlempi.ReduceOp.AVG)
                        for g in gradients
                    ]
                for call in calls:
                    call.start()
                for call in calls:
                    call.wait()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for plain, prepared in zip(trained(False), trained(True), strict=True):
        assert torch.equal(plain, prepared)
