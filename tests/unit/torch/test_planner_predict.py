"""What a plan is made of: collectives and bytes as torch's wrappers call them, without a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from paddlempi.cli import main
from paddlempi.errors import ArgumentError
from paddlempi.planner import machine as machines
from paddlempi.planner.machine import Collective, Compute, Machine, Range, Step
from paddlempi.planner.plans import Plan
from paddlempi.torch import plan
from paddlempi.torch.planner import imagined, scripts, traced
from paddlempi.torch.planner.fake_world import fake_world
from paddlempi.torch.planner.recorded import Call
from torch import nn
from torch.nn.functional import mse_loss

WIDTH = 64
WEIGHT, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH
LOSS = 4  # bytes of the loss, which step() adds up


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "_STEPS", 3)


def mlp(width: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(rows: int = 8, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, width), torch.randn(rows, width)


def known(nodes: int = 2, ranks: int = 2, memory: int = 8 << 30) -> Machine:
    def of(middle: float) -> Range:
        return Range(middle, 0.9 * middle, 1.1 * middle)

    names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send")
    shapes = [(n, r) for n, r in ((1, 2), (2, 1), (2, 2)) if n <= nodes and r <= ranks]
    collectives = [
        Collective(name, n, r, size, of(1e-5 * n + size / 1e9), of(1e-6))
        for name in names
        for n, r in shapes
        for size in (8, 1 << 16, 1 << 24)
    ]
    steps = [
        Step(kind, "m", nodes, ranks, 2, 8, of(0.010), of(0.011), of(0.021), of(0.010))
        for kind in ("ddp", "fsdp2", "hsdp", "tp")
    ]
    rates = Compute(of(4e10), of(1e10), of(50))
    return Machine(
        "2026-12-01T00:00:00+00:00",
        "0",
        machines.processor(),
        2,
        memory,
        "an MPI",
        nodes,
        ranks,
        1,
        100 << 20,
        rates,
        rates,
        tuple(collectives),
        tuple(steps),
    )


def trace(one: Plan, model: nn.Module | None = None) -> traced.Traced:
    model = mlp() if model is None else model
    return traced.trace(model, torch.optim.AdamW(model.parameters()), mse_loss, batch(), one, 1)


DDP = Plan("ddp", {"replicate": 4}, 2, 2)
FSDP = Plan("fsdp2", {"shard": 4}, 2, 2)
HSDP = Plan("hsdp", {"replicate": 2, "shard": 2}, 2, 2)
TENSOR = Plan("tp", {"tensor": 4}, 2, 2)
ALL = 2 * (WEIGHT + BIAS)


def test_ddp_sums_its_bucket() -> None:
    seen = trace(DDP)
    assert seen.calls == (
        Call("all_reduce", ALL, 2, 2, waits=False),
        Call("all_reduce", LOSS, 2, 2, waits=True),
    )
    assert (seen.parameters, seen.gradients) == (ALL, ALL)
    assert 2 * ALL <= seen.optimizer <= 2 * ALL + 64  # and the number of steps
    assert seen.seconds.low > 0


def test_ddp_sends_the_buffers_of_a_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    assert "broadcast" in {call.operation for call in trace(DDP, model).calls}


def test_fsdp_gathers_twice_and_scatters_once() -> None:
    unit = WEIGHT + BIAS
    calls = trace(FSDP).calls
    assert [c.bytes for c in calls if c.operation == "all_gather"] == [unit] * 4
    assert [c.bytes for c in calls if c.operation == "reduce_scatter"] == [unit] * 2


def test_hsdp_has_a_side_within_nodes_and_one_over_them() -> None:
    calls = trace(HSDP).calls
    shapes = {c.operation: (c.nodes, c.ranks) for c in calls if not c.waits}
    assert shapes == {"all_gather": (1, 2), "reduce_scatter": (1, 2), "all_reduce": (2, 1)}


def test_tensor_parallelism_sums_and_computes_a_part() -> None:
    seen = trace(TENSOR)
    assert seen.calls == (Call("all_reduce", 8 * WIDTH * 4, 2, 2, waits=True),)
    assert seen.parameters == 2 * WEIGHT // 4 + BIAS // 4 + BIAS


def test_the_model_stays_as_it_is() -> None:
    model = mlp()
    before = [p.clone() for p in model.parameters()]
    trace(FSDP, model)
    assert not dist.is_initialized()
    for parameter, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, was)
        assert parameter.grad is None


GATHER = torch.ops.c10d._allgather_base_.default
OLD = not GATHER.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta)


@pytest.mark.parametrize("one", [DDP, FSDP, HSDP, TENSOR], ids=lambda one: one.kind)
def test_a_model_without_values_calls_and_holds_the_same(one: Plan) -> None:
    if OLD and one is not DDP:
        pytest.skip("this torch has no collectives without values")
    real = trace(one)
    with torch.device("meta"):
        model, example = mlp(), batch()
    seen = imagined.imagine(
        model, torch.optim.AdamW(model.parameters()), mse_loss, example, one, known()
    )
    of_loss = [call for call in real.calls if call.bytes != LOSS]
    assert [call for call in seen.calls if call.bytes != LOSS] == of_loss
    assert (seen.parameters, seen.gradients) == (real.parameters, real.gradients)
    assert seen.optimizer == pytest.approx(real.optimizer, rel=0.05)
    # Three products of two layers, but none for the gradient of the input.
    rows = 8 if one is TENSOR else 2
    assert seen.flops == real.flops == 2 * rows * WIDTH * WIDTH * 5 // (4 if one is TENSOR else 1)


def test_plans_of_a_job() -> None:
    model, example = nn.Sequential(mlp(), nn.Dropout()), batch()
    random = torch.get_rng_state()
    plans = plan(model, example, nodes=2, ranks=2, machine=known(), loss=mse_loss)
    assert torch.equal(random, torch.get_rng_state())
    assert {one.name for one in plans.possible} == {
        "ddp replicate 4",
        "fsdp2 shard 4",
        "hsdp replicate 2 x shard 2",
        "tp tensor 4",
        "fsdp2+tp shard 2 x tensor 2",
    }
    for one in plans.possible:
        assert one.seconds is not None
        assert 0 < one.seconds.low < one.seconds.middle < one.seconds.high
        parts = one.compute + one.overhead + one.communication
        assert parts == pytest.approx(one.seconds.middle)
        assert one.wire > 0


def test_why_plans_are_refused() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    plans = plan(model, batch(6), nodes=2, ranks=2, machine=known(), loss=mse_loss)
    reasons = {one.kind: one.refused for one in plans}
    assert reasons["ddp"] == "a batch of 6 does not divide into 4 parts"
    assert "no two Linear layers" in reasons["tp"]
    assert "is not a torch.nn.Sequential" in reasons["pipeline"]


def test_a_pipeline_where_nothing_else_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "process", lambda model: 0)
    with torch.device("meta"):
        layers = [(nn.Linear(4096, 4096), nn.LayerNorm(4096)) for _ in range(8)]
        model = nn.Sequential(*[part for pair in layers for part in pair])
        example = batch(8, 4096)
    sgd = torch.optim.SGD(model.parameters())
    limit = known(memory=2 * (100 << 20) + 2 * (420 << 20))
    plans = plan(model, example, nodes=2, ranks=2, machine=limit, optimizer=sgd, loss=mse_loss)
    assert "a rank takes" in {one.kind: one.refused for one in plans}["ddp"]
    assert plans.best.kind == "pipeline"
    assert plans.best.mesh == {"replicate": 1, "stage": 4}


class Counting(nn.Module):
    """Looks at values, which a model without values does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given) if float(given.sum()) > 0 else given


def test_a_model_that_cannot_be_traced() -> None:
    with torch.device("meta"):
        model, example = Counting(), batch()
    plans = plan(model, example, nodes=1, ranks=2, machine=known(), loss=mse_loss)
    assert "it cannot be traced" in {one.kind: one.refused for one in plans}["fsdp2"]
    assert not plans.possible


def test_wrong_arguments() -> None:
    model = mlp()
    with pytest.raises(ArgumentError, match="nodes is 0: it must be a number above 0"):
        plan(model, batch(), nodes=0, ranks=2, machine=known(), loss=mse_loss)
    with pytest.raises(ArgumentError, match=r"bench --calibrate writes it"):
        plan(model, batch(), nodes=1, ranks=2, machine="/nowhere/machine.json", loss=mse_loss)
    other = Machine(**{**known().__dict__, "processor": "another"})
    with pytest.raises(ArgumentError, match="its processor is 'another'"):
        plan(model, batch(), nodes=1, ranks=2, machine=other, loss=mse_loss)
    plans = plan(model, batch(), nodes=4, ranks=2, machine=known(nodes=1), loss=mse_loss)
    assert "nothing is known of all_reduce over a network" in plans[0].refused


def test_a_fake_world_leaves_nothing_behind() -> None:
    hook = sys.excepthook
    for size in (2, 512):
        with fake_world(size):
            assert dist.get_world_size() == size
        assert not dist.is_initialized()
    assert sys.excepthook is hook


HEAD = """
import sys, torch, torch.distributed as dist, paddlempi.torch
from torch import nn
dist.init_process_group("mpi")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
adam = torch.optim.Adam(model.parameters())
"""
DDP_SCRIPT = """
wrapped = nn.parallel.DistributedDataParallel(model)
wrapped(torch.randn(2, 64)).sum().backward()
"""
APPLY = """
mse = nn.functional.mse_loss
batch = torch.randn(8, 64), torch.randn(8, 64)
model, step, shard_batch = paddlempi.torch.apply(model, adam, sys.argv[1], loss=mse)
step(shard_batch(batch))
"""


def written(folder: Path, text: str) -> str:
    file = folder / "train.py"
    file.write_text(HEAD + text)
    return str(file)


def test_a_script_says_what_it_trains(tmp_path: Path) -> None:
    found = scripts.of_script(written(tmp_path, DDP_SCRIPT), [], 2, 4)
    assert found.example.shape == (8, 64)
    assert found.optimizer is None
    found = scripts.of_script(written(tmp_path, APPLY), ["tp"], 2, 4)
    assert isinstance(found.optimizer, torch.optim.Adam)
    assert found.loss is mse_loss
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "did not say what it trains"),
        ("raise KeyError('x')", "failed: KeyError: 'x'"),
        ("sys.exit('no data')", "ended with 'no data'"),
    ],
)
def test_a_script_that_does_not(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        scripts.of_script(written(tmp_path, text), [], 2, 4)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = str(tmp_path / "machine.json"), tmp_path / "plans.svg"
    known().write(file)
    words = ["--nodes", "2", "--ranks", "2", "--machine", file, "--plot", str(picture)]
    words += ["--json", str(tmp_path / "plans.json"), "--arguments=tp"]
    assert main(["plan", written(tmp_path, APPLY), *words]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# 2 nodes x 2, as predicted from 2 x 2 of 2026-12-01")
    assert "fsdp2+tp shard 2 x tensor 2" in printed
    assert picture.read_text().startswith("<svg")
    assert main(["plan", "/nowhere/train.py", *words]) == 2
    assert "No such file" in capsys.readouterr().err
