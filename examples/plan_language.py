"""A small language model of PyTorch; how it is cut over the ranks is an option.

    mpirun -np 2 python examples/plan_language.py              # DistributedDataParallel
    mpirun -np 2 python examples/plan_language.py --plan tp    # or fsdp2, hsdp, fsdp2+tp, pipeline
    mpirun -np 2 python examples/plan_language.py --plan auto --machine machine.json
    python -m paddlempi plan examples/plan_language.py --nodes 64 --ranks 8 --machine machine.json

examples/plan_mlp.py says where machine.json comes from. The text is the source of Python's argparse
and some other modules of its library, character by character; a decoder guesses the next one.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import tokenize
from pathlib import Path

import paddlempi.torch
import torch
import torch.distributed as dist
from torch import nn

CHARACTERS = 128


class Embedding(nn.Module):
    """What a character is, and where it stands."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Embedding(length, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.characters(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))


class Attention(nn.Module):
    """Causal attention. Tensor parallelism finds it by the names of its layers and of n_heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim = heads, width // heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in layers)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


def build(width: int, layers: int, length: int) -> nn.Sequential:
    """Return a decoder, as a Sequential: so it can also be cut into the stages of a pipeline."""
    return nn.Sequential(
        Embedding(width, length),
        *(Block(width, heads=max(1, width // 32)) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, CHARACTERS),
    )


def text() -> torch.Tensor:
    """Return the numbers of the characters, the same on all ranks with one Python."""
    read = "".join(Path(module.__file__).read_text() for module in (argparse, ast, tokenize))
    return torch.tensor([min(ord(character), CHARACTERS - 1) for character in read])


def whole_batch(step: int, rows: int, length: int, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return pieces of the text, and the same pieces one character further on."""
    generator = torch.Generator().manual_seed(step)
    begins = torch.randint(len(ids) - length, (rows, 1), generator=generator)
    pieces = ids[begins + torch.arange(length + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--plan", default="ddp", help="ddp, fsdp2, hsdp, tp, fsdp2+tp, pipeline or auto; ddp"
    )
    parser.add_argument("--machine", metavar="FILE", help="of bench --calibrate; for --plan auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=32, help="of the batch of all ranks")
    parser.add_argument("--length", type=int, default=64, help="characters of a row")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write them as JSON")
    chosen = parser.parse_args()

    dist.init_process_group("mpi")
    torch.manual_seed(1)
    ids = text()
    model = build(chosen.width, chosen.layers, chosen.length)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batch = whole_batch(0, chosen.rows, chosen.length, ids)
    applied = paddlempi.torch.apply(
        model, optimizer, chosen.plan, loss=loss_of, example=batch, machine=chosen.machine
    )
    model, step, shard_batch = applied

    first = dist.get_rank() == 0
    if first:
        for name, seconds in applied.tried.items():
            print(f"tried {name}: {1e3 * seconds:.1f} ms a step")
        print(f"{dist.get_world_size()} rank(s): {applied.plan.name}", flush=True)
    losses = []
    for number in range(chosen.steps):
        batch = whole_batch(number, chosen.rows, chosen.length, ids)
        losses.append(float(step(shard_batch(batch))))
        if first and (number % 20 == 0 or number == chosen.steps - 1):
            perplexity = math.exp(losses[-1])
            print(
                f"step {number:4}  loss {losses[-1]:.4f}  perplexity {perplexity:.1f}", flush=True
            )
    if first and chosen.losses:
        chosen.losses.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
