"""What a training step of Paddle costs over MPI, over gloo, and without communication.

    mpirun -np 2 python benchmarks/paddle_step.py [--json FILE]    # or: make bench-paddle

Four wrappings of each model are trained in the same processes, in turn: paddlempi's DataParallel,
the same with ``overlap_next_forward``, Paddle's DataParallel over gloo, and no wrapper. A round has
one block of steps for each of them, in changing order. The program prints (ratios round by round,
with their quartiles):

* the median time of a step;
* how many times as long gloo takes as paddlempi;
* how many times as long a step takes without the overlap with the next forward as with it;
* which part of the communication is hidden behind backward: it compares the time of the gradients'
  all_reduces alone with the time that a step takes longer than one without communication.

Then it measures ``paddle.distributed.all_reduce`` of several sizes, and which part of a call is
Python's.

Before any measurement the gradients of each wrapper are compared with the mean of the gradients
that the ranks compute without one.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message="No ccache found")  # from Paddle; harmless here
import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402

PaddleDataParallel = paddle.DataParallel  # the import of paddlempi.paddle replaces it

import paddlempi.paddle  # noqa: E402
from paddle.base import core as paddle_core  # noqa: E402
from paddlempi import _native  # noqa: E402
from sampling import Call, quartiles, sample  # noqa: E402

SIZES = (4, 64 << 10, 1 << 20, 32 << 20)
AIMS = {4: 20.0, 64 << 10: 8.0}
"""The aims: how many times as long as ours gloo's all_reduce should take, by the bytes."""
AIM_US = 3.0
"""The aim: what Python's part of an all_reduce may take."""


def gloo_group() -> Any:
    """Make a process group of Paddle over gloo, of all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = paddle_core.create_or_get_global_tcp_store()
    group = paddle_core.ProcessGroupGloo.create(store, rank, size, 1000)
    return dist.communication.group.Group(rank, 1000, list(range(size)), group, "gloo")


# The models: each function returns a model and a function that makes a batch of one rank


class Block(paddle.nn.Layer):
    """Two convolutions and a shortcut around them, as in ResNet-18."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        step = 1 if inner == outer else 2
        self.first = paddle.nn.Conv2D(inner, outer, 3, step, 1, bias_attr=False)
        self.second = paddle.nn.Conv2D(outer, outer, 3, 1, 1, bias_attr=False)
        self.norms = paddle.nn.LayerList([paddle.nn.BatchNorm2D(outer) for _ in range(2)])
        self.shortcut = None if step == 1 else paddle.nn.Conv2D(inner, outer, 1, 2, bias_attr=False)

    def forward(self, x: Any) -> Any:
        y = paddle.nn.functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return paddle.nn.functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def mlp() -> tuple[Any, Any]:
    layers = [paddle.nn.Linear(512, 512) for _ in range(4)]
    model = paddle.nn.Sequential(*(m for layer in layers for m in (layer, paddle.nn.ReLU())))
    return model, lambda: paddle.randn([32, 512])


def resnet() -> tuple[Any, Any]:
    """ResNet-18 (He et al. 2015) for images of 32 x 32: 11.2 million parameters."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
    head = (paddle.nn.AdaptiveAvgPool2D(1), paddle.nn.Flatten(), paddle.nn.Linear(512, 10))
    model = paddle.nn.Sequential(paddle.nn.Conv2D(3, 64, 3, 1, 1), *blocks, *head)
    return model, lambda: paddle.randn([2, 3, 32, 32])


def embedding() -> tuple[Any, Any]:
    """A table of 50,000 rows; a step uses a few hundred of them."""
    model = paddle.nn.Sequential(
        paddle.nn.Embedding(50_000, 64, sparse=False),
        paddle.nn.Flatten(),
        paddle.nn.Linear(8 * 64, 64),
    )
    return model, lambda: paddle.randint(0, 50_000, [32, 8])


def sparse_embedding() -> tuple[Any, Any]:
    """The same with sparse gradients, which Paddle's DataParallel over gloo cannot send."""
    model, batch = embedding()
    model[0] = paddle.nn.Embedding(50_000, 64, sparse=True)
    return model, batch


MODELS = {
    "MLP": mlp,
    "ResNet-18": resnet,
    "embedding": embedding,
    "embedding, sparse": sparse_embedding,
}


def wrapped(name: str, wrapper: str, gloo: Any) -> tuple[Any, Any, Any]:
    """Return a model in a wrapper or in "nothing", its optimizer and this rank's batch."""
    paddle.seed(0)
    model, make = MODELS[name]()
    paddle.seed(1 + dist.get_rank())
    batch = make()
    if wrapper in ("paddlempi", "overlap"):
        overlap = wrapper == "overlap"
        model = paddlempi.paddle.DataParallel(model, overlap_next_forward=overlap)
    elif wrapper == "gloo":
        model = PaddleDataParallel(model, group=gloo)
    return model, paddle.optimizer.SGD(0.0, parameters=model.parameters()), batch


def backward(model: Any, batch: Any) -> None:
    model(batch).square().mean().backward()


def dense(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient.is_selected_rows():
        table = paddle.zeros(parameter.shape)
        rows = gradient.rows()
        values = paddle.to_tensor(gradient.get_selected_rows().get_tensor())
        return paddle.scatter_nd_add(table, paddle.to_tensor(rows).unsqueeze(1), values)
    return gradient.detach().clone()


def is_right(name: str, model: Any, batch: Any) -> bool:
    """Return whether a wrapper's gradients are the mean of those that the ranks compute alone."""
    for _ in range(2):  # the first backward shows the order for the buckets of the second
        backward(model, batch)
        found = [dense(p) for p in model.parameters() if not p.stop_gradient]
        for parameter in model.parameters():
            parameter.clear_gradient(False)
    alone, _, _ = wrapped(name, "nothing", None)
    backward(alone, batch)
    trained = [p for p in alone.parameters() if not p.stop_gradient]
    for gradient, parameter in zip(found, trained, strict=True):
        wanted = dense(parameter)
        paddlempi.all_reduce(wanted, paddlempi.ReduceOp.AVG)
        if float((gradient - wanted).abs().max()) > 1e-4 * float(wanted.abs().max()) + 1e-7:
            return False
    return True


def stepper(model: Any, optimizer: Any, batch: Any) -> Call:
    def step() -> None:
        backward(model, batch)
        optimizer.step()
        optimizer.clear_grad()

    return step


def exchange(model: Any) -> Call:
    """Return a call of the gradients' all_reduces alone, in buckets of 25 MiB as the wrapper's."""
    count = sum(int(p.size) for p in model.parameters() if not p.stop_gradient)
    limit = (25 << 20) // 4
    buckets = [paddle.zeros([min(limit, count - at)]) for at in range(0, count, limit)]
    return lambda: [paddlempi.all_reduce(bucket, paddlempi.ReduceOp.AVG) for bucket in buckets]


# Measuring


def measure_step(name: str, gloo: Any, rounds: int, times: int) -> dict[str, Any]:
    contenders: dict[str, Call] = {}
    absent: dict[str, str] = {}
    ends: dict[str, Call] = {}
    for wrapper in ("paddlempi", "overlap", "gloo", "nothing"):
        try:
            model, optimizer, batch = wrapped(name, wrapper, gloo)
            if wrapper != "nothing" and not is_right(name, model, batch):
                raise RuntimeError("its gradients are not the mean over the ranks")
        except Exception as error:
            if wrapper in ("paddlempi", "overlap"):
                raise
            absent[wrapper] = str(error).strip().splitlines()[-1][:120]
            continue
        contenders[wrapper] = stepper(model, optimizer, batch)
        if wrapper == "paddlempi":
            contenders["exchange"] = exchange(model)
        if wrapper == "overlap":
            ends[wrapper] = model.synchronize
    samples = sample(contenders, times, rounds, paddlempi.barrier, ends=ends)
    row: dict[str, Any] = {"step": name, "rounds": rounds, "absent": absent}
    row["ms"] = {name: statistics.median(values) / 1000 for name, values in samples.items()}
    if "gloo" in samples:
        pairs = zip(samples["gloo"], samples["paddlempi"], strict=True)
        row["gloo_ratio"] = quartiles([gloo / ours for gloo, ours in pairs])
    pairs = zip(samples["paddlempi"], samples["overlap"], strict=True)
    row["overlap_ratio"] = quartiles([plain / overlap for plain, overlap in pairs])
    if "nothing" in samples:
        triples = zip(samples["paddlempi"], samples["nothing"], samples["exchange"], strict=True)
        row["hidden"] = quartiles([1 - (ours - bare) / alone for ours, bare, alone in triples])
    return row


def measure_all_reduce(nbytes: int, gloo: Any, rounds: int, times: int) -> dict[str, Any]:
    x = paddle.zeros([max(1, nbytes // 4)])
    size = dist.get_world_size()
    for group in (None, gloo):
        x.fill_(dist.get_rank() + 1.0)
        dist.all_reduce(x, group=group)
        if float(x[0]) != size * (size + 1) / 2:
            raise SystemExit(f"all_reduce of {nbytes} bytes gave a wrong result on {group}")
    x.zero_()
    submit = _native.submit
    calls: dict[str, Call] = {
        "paddlempi": lambda: dist.all_reduce(x),
        "gloo": lambda: dist.all_reduce(x, group=gloo),
        "core": lambda: submit(3, 0, None, x, 1),
    }
    samples = sample(calls, times, rounds, paddlempi.barrier)
    row: dict[str, Any] = {"bytes": nbytes, "rounds": rounds}
    row["us"] = {name: statistics.median(values) for name, values in samples.items()}
    pairs = zip(samples["gloo"], samples["paddlempi"], strict=True)
    row["gloo_ratio"] = quartiles([gloo / ours for gloo, ours in pairs])
    pairs = zip(samples["paddlempi"], samples["core"], strict=True)
    row["share_us"] = quartiles([ours - core for ours, core in pairs])
    return row


def spread(values: list[float]) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def show_step(row: dict[str, Any]) -> None:
    times = "".join(f"{row['ms'].get(name, float('nan')):12.2f}" for name in STEPS)
    text = f"{row['step']:20}{times}"
    if "gloo_ratio" in row:
        reached = "reached" if row["gloo_ratio"][1] >= 1 else "not reached"
        text += f"  {spread(row['gloo_ratio'])}  aim 1: {reached}"
    if "hidden" in row:
        text += f"  hidden {spread(row['hidden'])}"
    text += f"  paddlempi : overlap {spread(row['overlap_ratio'])}"
    print(text, flush=True)
    for name, reason in row["absent"].items():
        print(f"    not measured: {name}: {reason}")


def show_all_reduce(row: dict[str, Any]) -> None:
    times = "".join(f"{row['us'][name]:12.2f}" for name in CALLS)
    aim = AIMS.get(row["bytes"])
    text = f"{row['bytes']:<20}{times}  {spread(row['gloo_ratio'])}"
    if aim:
        text += f"  aim {aim:g}: {'reached' if row['gloo_ratio'][1] >= aim else 'not reached'}"
    if row["bytes"] == SIZES[0]:
        reached = "reached" if row["share_us"][1] <= AIM_US else "not reached"
        text += f"\n    Python's part {spread(row['share_us'])} us; aim {AIM_US:g}: {reached}"
    print(text, flush=True)


STEPS = ("paddlempi", "overlap", "gloo", "nothing", "exchange")
CALLS = ("paddlempi", "gloo", "core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="few rounds, one model, small sizes")
    parser.add_argument("--rounds", type=int, help="default 20; large sizes have fewer")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 20)

    dist.init_parallel_env()
    gloo = gloo_group()
    rank = dist.get_rank()
    if rank == 0:
        mpi = _native.control("info")["mpi"]
        print(
            f"Paddle {paddle.__version__}, {mpi['name']}, {dist.get_world_size()} ranks, "
            f"{os.cpu_count()} CPUs; medians"
        )
        heads = "".join(f"{name:>12}" for name in STEPS)
        print(f"{'ms a step':20}{heads}  gloo : paddlempi (quartiles)")
    gc.disable()
    steps = []
    for name in list(MODELS)[:1] if options.quick else MODELS:
        steps.append(measure_step(name, gloo, rounds, 1 if options.quick else 3))
        gc.collect()
        if rank == 0:
            show_step(steps[-1])
    if rank == 0:
        heads = "".join(f"{name:>12}" for name in CALLS)
        print(f"{'us an all_reduce':20}{heads}  gloo : paddlempi (quartiles)")
    calls = []
    for nbytes in SIZES[:2] if options.quick else SIZES:
        some_rounds = max(2, min(rounds, rounds * (8 << 20) // nbytes))
        times = 5 if options.quick else max(1, min(100, (2 << 20) // nbytes))
        calls.append(measure_all_reduce(nbytes, gloo, some_rounds, times))
        if rank == 0:
            show_all_reduce(calls[-1])
    if rank == 0 and options.json:
        record = {"paddle": paddle.__version__, "mpi": mpi, "steps": steps, "all_reduce": calls}
        Path(options.json).write_text(json.dumps(record, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
