"""A spatially parallel network of torch: each rank has a part of every image.

    mpirun -np 2 python examples/convolve_torch.py        # any number of ranks, also one

Images that are too large for one process are cut into blocks. A convolution needs some pixels
around a block: the block gets a border of zeros, and halo_exchange fills it with the pixels of the
neighbours. Where the image ends, the zeros stay, as the padding of the convolution. In the backward
pass the gradients of the border go back to the ranks that the pixels came from. Weights are the
same on all ranks, and their gradients are summed up.

At the end every rank also computes the whole images by itself, and compares the results, the
gradients of its pixels, and those of the weights.
"""

from __future__ import annotations

import argparse

import paddlempi as dist
import torch
from torch.nn import functional


class SpatialConv2d(torch.nn.Conv2d):
    """A Conv2d with padding="same" of images that are cut into blocks on a grid."""

    def __init__(self, cart: dist.Cartesian, channels: int, filters: int, kernel: int) -> None:
        super().__init__(channels, filters, kernel, dtype=torch.float64)
        self.cart = cart
        self.border = kernel // 2

    def forward(self, block: torch.Tensor) -> torch.Tensor:
        block = functional.pad(block, [self.border] * 4)
        self.cart.halo_exchange(block, self.border)
        return super().forward(block)


def network(cart: dist.Cartesian) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [
        SpatialConv2d(cart, 3, 8, 5),
        torch.nn.Tanh(),
        SpatialConv2d(cart, 8, 4, 3),
        torch.nn.Tanh(),
    ]
    return torch.nn.Sequential(*layers)


def block(length: int, ranks: int, place: int) -> slice:
    """Return which part of a dimension a rank has."""
    return slice(length * place // ranks, length * (place + 1) // ranks)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=(48, 37))
    options = parser.parse_args()

    dist.init_process_group("mpi")
    cart = dist.Cartesian([0, 0])
    images = torch.randn(2, 3, *options.size, dtype=torch.float64, generator=torch.manual_seed(5))
    rows, columns = (
        block(n, d, x) for n, d, x in zip(options.size, cart.dims, cart.coords, strict=True)
    )

    model = network(cart)
    mine = images[:, :, rows, columns].clone().requires_grad_()
    result = model(mine)
    result.square().sum().backward()
    weights = [p.grad for p in model.parameters()]
    for gradient in weights:
        dist.all_reduce(gradient)

    alone = dist.Cartesian([1, 1], group=dist.new_group([dist.get_rank()]))
    reference = network(alone)
    whole = images.clone().requires_grad_()
    wanted = reference(whole)
    wanted.square().sum().backward()
    far = max(
        difference(result, wanted[:, :, rows, columns]),
        difference(mine.grad, whole.grad[:, :, rows, columns]),
        *(difference(a, b.grad) for a, b in zip(weights, reference.parameters(), strict=True)),
    )
    most = torch.tensor([far], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"{cart.dims[0]} x {cart.dims[1]} blocks")
        print(f"results and gradients differ from one process by up to {float(most):.1e}")
        print(f"equal: {'yes' if float(most) < 1e-12 else 'no'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
