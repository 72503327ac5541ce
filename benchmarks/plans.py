"""How far predicted steps are from measured ones: the planner's errors (docs/plan.md).

    python benchmarks/plans.py predict --nodes 1 --ranks 2 --machine machine.json --out FILE
    mpirun -np 2 python benchmarks/plans.py measure FILE

The first command predicts in one process, without a job. The second one applies every plan that can
be taken, measures its steps in turn with the others, and prints both times, the memory of a rank,
and how the errors lie. On several hosts: ``benchmarks/on_hosts.py --shape 2x1 --program
benchmarks/plans.py -- measure FILE``. The machine is calibrated with mlp-16M; the models here are
others.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS = 20


def transformer() -> tuple[nn.Module, Any, Any]:
    """transformer-50M of ``bench step``: four layers of 512."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return model, (torch.randn(8, 16, 512), torch.randn(8, 16, 512)), nn.functional.mse_loss


class Block(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(given) + self.past(given))


def resnet() -> tuple[nn.Module, Any, Any]:
    """A ResNet of 18 layers for images of 32 x 32."""
    torch.manual_seed(0)
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU(), *blocks, *head)
    batch = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return model, batch, nn.functional.cross_entropy


def llama() -> tuple[nn.Module, Any, Any]:
    """A Llama of transformers with four layers of 512."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    words = torch.randint(0, 4096, (8, 64))
    return model, {"input_ids": words, "labels": words}, None


MODELS: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "transformer-50M": transformer,
    "resnet-18": resnet,
    "llama": llama,
}


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def predict(chosen: argparse.Namespace) -> None:
    """Predict the steps of all models, and write them down."""
    import paddlempi.torch

    found = {}
    for name in chosen.models:
        model, batch, loss = MODELS[name]()
        plans = paddlempi.torch.plan(
            model,
            batch,
            nodes=chosen.nodes,
            ranks=chosen.ranks,
            machine=chosen.machine,
            optimizer=optimizer(model),
            loss=loss,
        )
        found[name] = json.loads(plans.json())
        for plan in found[name]:
            print(name, plan["kind"], plan["mesh"], plan["seconds"], plan["refused"], flush=True)
    with open(chosen.out, "w") as stream:
        json.dump(found, stream, indent=1)


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(chosen: argparse.Namespace) -> None:
    """Measure the plans of the file on all ranks, and print the errors on rank 0."""
    import paddlempi.torch
    import torch.distributed as calls
    from paddlempi.planner.plans import Plan

    calls.init_process_group("mpi")
    first = calls.get_rank() == 0
    with open(chosen.file) as stream:
        predicted = json.load(stream)
    errors: list[float] = []
    right = pairs = 0
    for name, plans in predicted.items():
        possible = [plan for plan in plans if not plan["refused"]]
        steps: list[Callable[[], object]] = []
        for plan in possible:
            model, batch, loss = MODELS[name]()
            given = Plan(plan["kind"], plan["mesh"], plan["nodes"], plan["ranks"])
            before = resident()
            _, step, shard_batch = paddlempi.torch.apply(model, optimizer(model), given, loss=loss)
            part = shard_batch(batch)
            steps.append(lambda step=step, part=part: step(part))
            for _ in range(3):
                steps[-1]()
            plan["grown"] = resident() - before
        took: list[list[float]] = [[] for _ in possible]
        gc.collect()
        gc.disable()
        for _ in range(STEPS):
            for step, times in zip(steps, took, strict=True):
                calls.barrier()
                began = time.perf_counter()
                step()
                slowest = torch.tensor(time.perf_counter() - began)
                calls.all_reduce(slowest, calls.ReduceOp.MAX)
                times.append(float(slowest))
        gc.enable()
        measured = [statistics.median(times) for times in took]
        for plan, seconds, times in zip(possible, measured, took, strict=True):
            middle, low, high = plan["seconds"]
            errors.append(middle / seconds - 1)
            quarter = statistics.quantiles(times, n=4)
            if first:
                print(
                    f"{name:<16} {plan['kind']:<9} {' x '.join(map(str, plan['mesh'].values())):<6}"
                    f" predicted {1e3 * middle:7.1f} ({1e3 * low:.1f} to {1e3 * high:.1f}) ms,"
                    f" measured {1e3 * seconds:7.1f} ({1e3 * quarter[0]:.1f} to"
                    f" {1e3 * quarter[2]:.1f}), {100 * errors[-1]:+.0f} %",
                    flush=True,
                )
        for one, other in itertools.combinations(range(len(possible)), 2):
            if max(measured[one], measured[other]) > 1.1 * min(measured[one], measured[other]):
                pairs += 1
                faster = measured[one] < measured[other]
                middles = possible[one]["seconds"][0], possible[other]["seconds"][0]
                right += faster == (middles[0] < middles[1])
    if first:
        sizes = sorted(map(abs, errors))
        print(
            f"errors: median {100 * statistics.median(sizes):.0f} %, worst {100 * sizes[-1]:.0f} %;"
            f" {right} of {pairs} pairs that differ by more than 10 % in the right order"
        )
    calls.destroy_process_group()


def main() -> None:
    """Predict or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("predict")
    first.add_argument("--nodes", type=int, required=True)
    first.add_argument("--ranks", type=int, required=True)
    first.add_argument("--machine", required=True)
    first.add_argument("--out", required=True)
    first.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    second = commands.add_parser("measure")
    second.add_argument("file")
    chosen = parser.parse_args()
    (predict if chosen.command == "predict" else measure)(chosen)


if __name__ == "__main__":
    main()
