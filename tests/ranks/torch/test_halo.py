"""Cartesian.halo_exchange of tensors that need a gradient: convolutions of images in blocks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import paddlempi
import pytest
import torch
from torch.nn import functional


def block(length: int, ranks: int, place: int) -> slice:
    return slice(length * place // ranks, length * (place + 1) // ranks)


def parts(cart: Any, lengths: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(block(*x) for x in zip(lengths, cart.dims, cart.coords, strict=True))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kernel", [3, (5, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution(dist: ModuleType, asynchronous: bool, kernel: Any, stride: int) -> None:
    """A convolution of blocks is that of the whole images, forward and backward."""
    cart = paddlempi.Cartesian([0, 0])
    lengths = (8 * cart.dims[0], 12 * cart.dims[1])
    mine = parts(cart, lengths)
    torch.manual_seed(1)
    images = torch.randn(2, 3, *lengths, dtype=torch.float64)
    weight = torch.randn(4, 3, *torch.nn.modules.utils._pair(kernel), dtype=torch.float64)
    border = [n // 2 for n in weight.shape[2:]]

    whole, kernel_alone = images.clone().requires_grad_(), weight.clone().requires_grad_()
    wanted = functional.conv2d(whole, kernel_alone, stride=stride, padding=border)
    factors = torch.randn(wanted.shape, dtype=torch.float64)
    (wanted * factors).sum().backward()

    part = images[(..., *mine)].clone().requires_grad_()
    kernel_here = weight.clone().requires_grad_()
    padded = functional.pad(part, [border[1]] * 2 + [border[0]] * 2)
    work = cart.halo_exchange(padded, border, async_op=asynchronous)
    if asynchronous:
        work.wait()
    result = functional.conv2d(padded, kernel_here, stride=stride)
    out = tuple(slice(s.start // stride, s.stop // stride) for s in mine)
    torch.testing.assert_close(result, wanted[(..., *out)])
    (result * factors[(..., *out)]).sum().backward()
    torch.testing.assert_close(part.grad, whole.grad[(..., *mine)])
    dist.all_reduce(kernel_here.grad)
    torch.testing.assert_close(kernel_here.grad, kernel_alone.grad)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradient_is_the_transposed_exchange(dist: ModuleType, n: int) -> None:
    """<exchange(x), y> = <x, gradient(y)> over all ranks, for uneven widths and periodic grids."""
    cart = paddlempi.Cartesian([0] * n, periodic=[k % 2 == 0 for k in range(n)])
    widths = [(1, 2), (2, 0), (1, 1)][:n]
    torch.manual_seed(paddlempi.get_rank())
    x = torch.randn([7, 6, 5][:n], dtype=torch.float64).requires_grad_()
    y = torch.randn(x.shape, dtype=torch.float64)
    moved = x * 1
    cart.halo_exchange(moved, widths)
    moved.backward(y)
    sums = torch.stack([(moved * y).sum(), (x * x.grad).sum()]).detach()
    dist.all_reduce(sums)
    torch.testing.assert_close(sums[0], sums[1])


def test_a_gradient_with_strides_of_zero(dist: ModuleType) -> None:
    """sum() gives a gradient that is one number."""
    cart = paddlempi.Cartesian([0], periodic=True)
    x = torch.ones(6).requires_grad_()
    y = x * 2
    cart.halo_exchange(y)
    y.sum().backward()
    assert x.grad.tolist() == [0, 4, 2, 2, 4, 0]


def test_without_a_gradient(dist: ModuleType) -> None:
    cart = paddlempi.Cartesian([0], periodic=True)
    leaf = torch.ones(6).requires_grad_()
    with torch.no_grad():
        cart.halo_exchange(leaf)
    version = leaf._version
    plain = torch.ones(6)
    cart.halo_exchange(plain)
    assert version == 1 and plain._version == 1
    with pytest.raises(paddlempi.errors.ArgumentError, match="leaf"):
        cart.halo_exchange(leaf)


def test_what_was_saved_before_is_stale(dist: ModuleType) -> None:
    """An exchange is a change in place, which torch's autograd sees."""
    cart = paddlempi.Cartesian([0], periodic=True)
    x = torch.ones(6).requires_grad_()
    y = x * 2
    square = y.square()  # keeps y
    cart.halo_exchange(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
