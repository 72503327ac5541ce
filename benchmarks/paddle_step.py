"""What a training step of Paddle costs over MPI, over its own gloo, and with no communication.

    mpirun -np 2 python benchmarks/paddle_step.py [--json FILE]    # or: make bench-paddle

In the same processes three models are trained in turn, a block of steps each in changing
order: wrapped in paddlempi's DataParallel, in the same with ``overlap_next_forward``, in Paddle's
own over gloo, and in nothing. Printed are the medians of a step and, round by round, how many
times as long gloo takes, with the quartiles; how many times as long a step takes without the
overlap with the next forward as with it; and how much of the communication is hidden behind
backward: what the gradients' all_reduces take by themselves, against what a step takes more than
one without. Then ``paddle.distributed.all_reduce`` of several sizes, and what Python's part of
a call is.

The gradients of both wrappers are compared with those of one process before anything is timed.
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

warnings.filterwarnings("ignore", message="No ccache found")  # Paddle's, of no concern here
import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402

PaddleDataParallel = paddle.DataParallel  # before it is replaced

import paddlempi.paddle  # noqa: E402
from paddle.base import core as paddle_core  # noqa: E402
from paddlempi import _native  # noqa: E402
from sampling import Call, quartiles, sample  # noqa: E402

SIZES = (4, 64 << 10, 1 << 20, 32 << 20)
AIMS = {4: 20.0, 64 << 10: 8.0}
"""How many times as long gloo's all_reduce has to take, by the bytes."""
SHARE_AIM_US = 3.0


def gloo_group() -> Any:
    """Paddle's own process group over gloo, of all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = paddle_core.create_or_get_global_tcp_store()
    group = paddle_core.ProcessGroupGloo.create(store, rank, size, 1000)
    return dist.communication.group.Group(rank, 1000, list(range(size)), group, "gloo")


# The models, with a batch of one rank


class Block(paddle.nn.Layer):
    """Two convolutions and what goes round them, as in ResNet-18."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        step = 1 if inner == outer else 2
        self.first = paddle.nn.Conv2D(inner, outer, 3, step, 1, bias_attr=False)
        self.second = paddle.nn.Conv2D(outer, outer, 3, 1, 1, bias_attr=False)
        self.norms = paddle.nn.LayerList([paddle.nn.BatchNorm2D(outer) for _ in range(2)])
        self.round = None if step == 1 else paddle.nn.Conv2D(inner, outer, 1, 2, bias_attr=False)

    def forward(self, x: Any) -> Any:
        y = paddle.nn.functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return paddle.nn.functional.relu(y + (x if self.round is None else self.round(x)))


def mlp() -> tuple[Any, Any]:
    layers = [paddle.nn.Linear(512, 512) for _ in range(4)]
    model = paddle.nn.Sequential(*(m for one in layers for m in (one, paddle.nn.ReLU())))
    return model, lambda: paddle.randn([32, 512])


def resnet() -> tuple[Any, Any]:
    """ResNet-18 (He et al. 2015) for images of 32 x 32: 11.2 million parameters."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
    head = (paddle.nn.AdaptiveAvgPool2D(1), paddle.nn.Flatten(), paddle.nn.Linear(512, 10))
    model = paddle.nn.Sequential(paddle.nn.Conv2D(3, 64, 3, 1, 1), *blocks, *head)
    return model, lambda: paddle.randn([2, 3, 32, 32])


def embedding() -> tuple[Any, Any]:
    """A table of 50,000 rows of which a step touches some hundred."""
    model = paddle.nn.Sequential(
        paddle.nn.Embedding(50_000, 64, sparse=False),
        paddle.nn.Flatten(),
        paddle.nn.Linear(8 * 64, 64),
    )
    return model, lambda: paddle.randint(0, 50_000, [32, 8])


def sparse_embedding() -> tuple[Any, Any]:
    """The same with gradients as rows, which Paddle's own over gloo cannot send."""
    model, batch = embedding()
    model[0] = paddle.nn.Embedding(50_000, 64, sparse=True)
    return model, batch


MODELS = {
    "MLP": mlp,
    "ResNet-18": resnet,
    "embedding": embedding,
    "embedding, sparse": sparse_embedding,
}


def wrapped(name: str, how: str, gloo: Any) -> tuple[Any, Any, Any]:
    """A model as a contender trains it, its optimizer and this rank's batch."""
    paddle.seed(0)
    model, make = MODELS[name]()
    paddle.seed(1 + dist.get_rank())
    batch = make()
    if how in ("paddlempi", "overlap"):
        late = how == "overlap"
        model = paddlempi.paddle.DataParallel(model, overlap_next_forward=late)
    elif how == "gloo":
        model = PaddleDataParallel(model, group=gloo)
    return model, paddle.optimizer.SGD(0.0, parameters=model.parameters()), batch


def backward(model: Any, batch: Any) -> None:
    model(batch).square().mean().backward()


def dense(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient.is_selected_rows():
        whole = paddle.zeros(parameter.shape)
        rows = gradient.rows()
        values = paddle.to_tensor(gradient.get_selected_rows().get_tensor())
        return paddle.scatter_nd_add(whole, paddle.to_tensor(rows).unsqueeze(1), values)
    return gradient.detach().clone()


def right(name: str, model: Any, batch: Any) -> bool:
    """Whether the wrapper's gradients are the mean of the ranks' own."""
    for _ in range(2):  # the second backward is in buckets as learnt from the first
        backward(model, batch)
        found = [dense(p) for p in model.parameters() if not p.stop_gradient]
        for parameter in model.parameters():
            parameter.clear_gradient(False)
    alone, _, _ = wrapped(name, "nothing", None)
    backward(alone, batch)
    trained = [p for p in alone.parameters() if not p.stop_gradient]
    for mine, parameter in zip(found, trained, strict=True):
        wanted = dense(parameter)
        paddlempi.all_reduce(wanted, paddlempi.ReduceOp.AVG)
        if float((mine - wanted).abs().max()) > 1e-4 * float(wanted.abs().max()) + 1e-7:
            return False
    return True


def stepper(model: Any, optimizer: Any, batch: Any) -> Call:
    def step() -> None:
        backward(model, batch)
        optimizer.step()
        optimizer.clear_grad()

    return step


def exchange(model: Any) -> Call:
    """The gradients' all_reduces by themselves, in pieces of 25 MiB as the wrapper sends them."""
    count = sum(int(p.size) for p in model.parameters() if not p.stop_gradient)
    piece = (25 << 20) // 4
    buffers = [paddle.zeros([min(piece, count - at)]) for at in range(0, count, piece)]
    return lambda: [paddlempi.all_reduce(one, paddlempi.ReduceOp.AVG) for one in buffers]


# Measuring


def measure_step(name: str, gloo: Any, rounds: int, times: int) -> dict[str, Any]:
    contenders: dict[str, Call] = {}
    absent: dict[str, str] = {}
    ends: dict[str, Call] = {}
    for how in ("paddlempi", "overlap", "gloo", "nothing"):
        try:
            model, optimizer, batch = wrapped(name, how, gloo)
            if how != "nothing" and not right(name, model, batch):
                raise RuntimeError("its gradients are not the mean over the ranks")
        except Exception as error:
            if how in ("paddlempi", "overlap"):
                raise
            absent[how] = str(error).strip().splitlines()[-1][:120]
            continue
        contenders[how] = stepper(model, optimizer, batch)
        if how == "paddlempi":
            contenders["exchange"] = exchange(model)
        if how == "overlap":
            ends[how] = model.synchronize
    samples = sample(contenders, times, rounds, paddlempi.barrier, ends=ends)
    row: dict[str, Any] = {"step": name, "rounds": rounds, "absent": absent}
    row["ms"] = {who: statistics.median(values) / 1000 for who, values in samples.items()}
    if "gloo" in samples:
        pairs = zip(samples["gloo"], samples["paddlempi"], strict=True)
        row["gloo_ratio"] = quartiles([gloo / ours for gloo, ours in pairs])
    pairs = zip(samples["paddlempi"], samples["overlap"], strict=True)
    row["overlap_ratio"] = quartiles([plain / late for plain, late in pairs])
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
    row["us"] = {who: statistics.median(values) for who, values in samples.items()}
    pairs = zip(samples["gloo"], samples["paddlempi"], strict=True)
    row["gloo_ratio"] = quartiles([gloo / ours for gloo, ours in pairs])
    pairs = zip(samples["paddlempi"], samples["core"], strict=True)
    row["share_us"] = quartiles([ours - core for ours, core in pairs])
    return row


def spread(values: list[float]) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def show_step(row: dict[str, Any]) -> None:
    times = "".join(f"{row['ms'].get(who, float('nan')):12.2f}" for who in STEPS)
    text = f"{row['step']:20}{times}"
    if "gloo_ratio" in row:
        reached = "reached" if row["gloo_ratio"][1] >= 1 else "not reached"
        text += f"  {spread(row['gloo_ratio'])}  aim 1: {reached}"
    if "hidden" in row:
        text += f"  hidden {spread(row['hidden'])}"
    text += f"  paddlempi : overlap {spread(row['overlap_ratio'])}"
    print(text, flush=True)
    for who, reason in row["absent"].items():
        print(f"    not measured: {who}: {reason}")


def show_all_reduce(row: dict[str, Any]) -> None:
    times = "".join(f"{row['us'][who]:12.2f}" for who in CALLS)
    aim = AIMS.get(row["bytes"])
    text = f"{row['bytes']:<20}{times}  {spread(row['gloo_ratio'])}"
    if aim:
        text += f"  aim {aim:g}: {'reached' if row['gloo_ratio'][1] >= aim else 'not reached'}"
    if row["bytes"] == SIZES[0]:
        reached = "reached" if row["share_us"][1] <= SHARE_AIM_US else "not reached"
        text += f"\n    Python's part {spread(row['share_us'])} us; aim {SHARE_AIM_US:g}: {reached}"
    print(text, flush=True)


STEPS = ("paddlempi", "overlap", "gloo", "nothing", "exchange")
CALLS = ("paddlempi", "gloo", "core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="few rounds of the small ones")
    parser.add_argument("--rounds", type=int, help="default 20; fewer are made of large sizes")
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
        heads = "".join(f"{who:>12}" for who in STEPS)
        print(f"{'ms a step':20}{heads}  gloo : paddlempi (quartiles)")
    gc.disable()
    steps = []
    for name in list(MODELS)[:1] if options.quick else MODELS:
        steps.append(measure_step(name, gloo, rounds, 1 if options.quick else 3))
        gc.collect()
        if rank == 0:
            show_step(steps[-1])
    if rank == 0:
        heads = "".join(f"{who:>12}" for who in CALLS)
        print(f"{'us an all_reduce':20}{heads}  gloo : paddlempi (quartiles)")
    calls = []
    for nbytes in SIZES[:2] if options.quick else SIZES:
        some = max(2, min(rounds, rounds * (8 << 20) // nbytes))
        times = 5 if options.quick else max(1, min(100, (2 << 20) // nbytes))
        calls.append(measure_all_reduce(nbytes, gloo, some, times))
        if rank == 0:
            show_all_reduce(calls[-1])
    if rank == 0 and options.json:
        record = {"paddle": paddle.__version__, "mpi": mpi, "steps": steps, "all_reduce": calls}
        Path(options.json).write_text(json.dumps(record, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
