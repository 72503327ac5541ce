"""``paddlempi.torch.apply``: the losses of every plan are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import paddlempi.torch
import pytest
import torch
from paddlempi.errors import ArgumentError, DtypeError
from paddlempi.planner.machine import Range
from paddlempi.planner.plans import Plan, Plans
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

apply = paddlempi.torch.apply
mse = nn.functional.mse_loss
STEPS, ROWS, WIDTH = 20, 24, 8

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def layers(blocks: int) -> nn.Sequential:
    """Return blocks of which each is a pair for tensor parallelism and may be a stage."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, WIDTH))

    return nn.Sequential(*(block() for _ in range(blocks)), nn.LayerNorm(WIDTH))


def batch(step: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, torch.randn(rows, WIDTH, generator=generator)


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def alone(
    model: nn.Module, optimizer: Any, loss_of: Callable[[int], Any], steps: int = STEPS
) -> list[float]:
    """Return the losses of one process on the whole batches."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plan_of(kind: str, size: int, **mesh: int) -> Plan:
    """Return a plan of ranks that are all on this node."""
    return Plan(kind, mesh, 1, size)


def plans(size: int) -> list[Plan]:
    """Return the plans of so many ranks: with 4, those whose meshes fewer ranks cannot have."""
    if size == 4:
        return [
            plan_of("hsdp", 4, replicate=2, shard=2),
            plan_of("fsdp2+tp", 4, shard=2, tensor=2),
            plan_of("pipeline", 4, replicate=2, stage=2),
        ]
    return [
        plan_of("ddp", size, replicate=size),
        plan_of("fsdp2", size, shard=size),
        plan_of("tp", size, tensor=size),
        plan_of("pipeline", size, replicate=1, stage=size),
        plan_of("hsdp", size, replicate=size, shard=1),
        plan_of("fsdp2+tp", size, shard=1, tensor=size),
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_one_process(dist: ModuleType, rank: int, size: int, name: str) -> None:
    make = OPTIMIZERS[name]
    start = lambda: layers(min(size, 3))  # noqa: E731
    single = seeded(start)
    wanted = alone(
        single, make(single.parameters()), lambda s: mse(single(batch(s)[0]), batch(s)[1])
    )
    for plan in plans(size):
        model = seeded(start, 7 + rank)  # rank 0's parameters replace the others
        model, step, shard_batch = apply(model, make(model.parameters()), plan, loss=mse)
        losses = [float(step(shard_batch(batch(s)))) for s in range(STEPS)]
        assert losses == pytest.approx(wanted, abs=1e-5), plan.name


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tp", "pipeline", "fsdp2+tp", "hsdp"])
def test_a_kind_by_its_name(dist: ModuleType, size: int, kind: str) -> None:
    """It gets the mesh of this job, which is one node."""
    model = layers(size)
    if kind == "hsdp" or (kind == "fsdp2+tp" and size < 4):
        with pytest.raises(ArgumentError, match=r"'hsdp': it repl|needs more ranks than this job"):
            apply(model, sgd(model), kind, loss=mse)
        return
    applied = apply(model, sgd(model), kind, loss=mse)
    meshes = {
        "ddp": {"replicate": size},
        "fsdp2": {"shard": size},
        "tp": {"tensor": size},
        "pipeline": {"replicate": 1, "stage": size},
        "fsdp2+tp": {"shard": 2, "tensor": 2},
    }
    assert (applied.plan.mesh, applied.plan.nodes, applied.tried) == (meshes[kind], 1, {})
    x, y = applied.shard_batch(batch(0))
    assert (
        len(x)
        == len(y)
        == ROWS // (applied.plan.mesh.get("replicate", 1) * applied.plan.mesh.get("shard", 1))
    )
    assert applied.step((x, y)).shape == ()


class Worded(nn.Module):
    """It is called by keywords, has attention, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.blocks = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(12, 20)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.embed(words)
        for block in self.blocks:
            x = x + block(x)
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return SimpleNamespace(loss=loss)


class Attention(nn.Module):
    """Self-attention of 6 heads of 2 features."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 6
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(12, 12) for _ in "qkvo")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = [
            layer(x).unflatten(-1, (self.num_heads, 2)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*split)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def words(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    one = torch.randint(0, 20, (12, 5), generator=generator)
    return {"words": one, "labels": (one + 1) % 20}


def test_a_model_of_keywords(dist: ModuleType, size: int) -> None:
    """With tied parameters, and groups with options of their own."""

    def groups(model: Any) -> torch.optim.Optimizer:
        rest = [p for name, p in model.named_parameters() if not name.startswith("embed")]
        embed = {"params": model.embed.parameters(), "lr": 0.03, "weight_decay": 0.0}
        both = [embed, {"params": rest, "foreach": True}]
        return torch.optim.AdamW(both, lr=0.01, betas=(0.8, 0.9))

    single = seeded(Worded)
    wanted = alone(single, groups(single), lambda s: single(**words(s)).loss, 5)
    chosen = [plan_of("ddp", size, replicate=size), plan_of("fsdp2", size, shard=size)]
    if size < 4:  # which do not divide the heads
        chosen.append(plan_of("tp", size, tensor=size))
    else:
        chosen = [plan_of("fsdp2+tp", 4, shard=2, tensor=2)]
    for plan in chosen:
        model = seeded(Worded)
        model, step, cut = apply(model, groups(model), plan, example=words(0))
        losses = [float(step(cut(words(number)))) for number in range(5)]
        assert losses == pytest.approx(wanted, abs=1e-5), plan.name
        first, second = step.optimizer.param_groups
        assert (first["lr"], first["weight_decay"], first["betas"]) == (0.03, 0.0, (0.8, 0.9))
        assert (len(first["params"]), second["lr"]) == (1, 0.01)


def test_a_batch_that_is_a_tensor(dist: ModuleType, size: int) -> None:
    x = batch(0)[0]
    whole = seeded(lambda: layers(size))
    expected = float(whole(x).square().mean())
    for plan in (
        plan_of("ddp", size, replicate=size),
        plan_of("pipeline", size, replicate=1, stage=size),
    ):
        model = seeded(lambda: layers(size))
        model, step, cut = apply(model, sgd(model), plan, loss=lambda out: out.square().mean())
        assert float(step(cut(x))) == pytest.approx(expected, abs=1e-6)


def test_microbatches(dist: ModuleType, size: int) -> None:
    """Batches of another length get another schedule, and the steps go on."""
    single = seeded(lambda: layers(size))
    lengths = [ROWS, 2 * ROWS, ROWS]
    data = [batch(number, rows) for number, rows in enumerate(lengths)]
    wanted = alone(single, sgd(single), lambda s: mse(single(data[s][0]), data[s][1]), 3)
    few = [] if torch.__version__.startswith("2.8.") else [1]  # which wants as many as stages
    for count in (*few, 12):  # GPipe and 1F1B
        model = seeded(lambda: layers(size))
        _, step, cut = apply(model, sgd(model), "pipeline", loss=mse, microbatches=count)
        assert [float(step(cut(one))) for one in data] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ArgumentError, match="which cannot be cut into microbatches=12"):
        step(cut(batch(0, 18)))


class Summing(nn.Module):
    """Between its layers it sums over all features, which no name says."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.softmax(self.fc1(x), -1))


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_a_cut_that_changes_the_loss_is_refused(dist: ModuleType, size: int) -> None:
    model = seeded(Summing)
    with pytest.raises(
        ArgumentError, match=r"the loss of the example is .* when the layers are cut"
    ):
        apply(model, sgd(model), plan_of("tp", size, tensor=size), loss=mse, example=batch(0))


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_auto(dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries the best three on copies. One of them fails on one rank, and is left out on all."""
    from paddlempi.torch.planner import auto, predict

    def predicted(model: Any, example: Any, nodes: int, ranks: int, *_: Any, **__: Any) -> Plans:
        assert (nodes, ranks) == (1, size)
        found = [
            Plan(kind, mesh, 1, size, Range(seconds, seconds, seconds))
            for kind, mesh, seconds in (
                ("fsdp2", {"shard": size}, 1.0),
                ("ddp", {"replicate": size}, 2.0),
                ("tp", {"tensor": size}, 3.0),
                ("pipeline", {"replicate": 1, "stage": size}, 4.0),
            )
        ]
        return Plans(tuple(found))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if rank == size - 1 and len(output) == ROWS and output.requires_grad:
            raise ZeroDivisionError("of the whole batch")
        return mse(output, target)

    monkeypatch.setattr(predict, "of_job", predicted)
    monkeypatch.setattr(auto, "of_rank_0", lambda machine, function: machine)
    single, model = (seeded(lambda: layers(size)) for _ in range(2))
    wanted = alone(single, sgd(single), lambda s: mse(single(batch(s)[0]), batch(s)[1]), 3)
    before = torch.get_rng_state()
    applied = apply(model, sgd(model), "auto", loss=loss, example=batch(0), machine="a file")
    assert torch.equal(before, torch.get_rng_state())
    assert applied.tried.keys() == {f"fsdp2 shard {size}", f"ddp replicate {size}"}
    assert applied.plan.name == min(applied.tried, key=lambda name: applied.tried[name])
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (applied.plan.name, applied.tried))
    assert everyone == [everyone[0]] * size
    losses = [float(applied.step(applied.shard_batch(batch(s)))) for s in range(3)]
    assert losses == pytest.approx(wanted, abs=1e-5)


def test_auto_cannot_go_on(dist: ModuleType, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from paddlempi.torch.planner import auto, predict

    def predicted(*_: Any, **__: Any) -> Plans:
        if rank == 0:
            raise KeyError("of rank 0")
        return Plans()

    model = layers(1)
    with pytest.raises(ArgumentError, match="plan='auto' needs machine="):
        apply(model, sgd(model), "auto", loss=mse, example=batch(0))
    with pytest.raises(ArgumentError, match="nowhere: No such file"):
        apply(model, sgd(model), "auto", loss=mse, example=batch(0), machine="/nowhere")
    monkeypatch.setattr(predict, "of_job", predicted)
    monkeypatch.setattr(auto, "of_rank_0", lambda machine, function: machine)
    with pytest.raises(KeyError if rank == 0 else ArgumentError, match="of rank 0"):
        apply(model, sgd(model), "auto", loss=mse, example=batch(0), machine="a file")


def refused_plans(size: int) -> list[tuple[Any, str]]:
    return [
        ("zero3", "plan='zero3': it must be a Plan"),
        (plan_of("zero", size, shard=size), "plan.kind='zero'"),
        (plan_of("ddp", size, shard=size), r"must have the dimensions \('replicate',\)"),
        (plan_of("fsdp2", size, shard=2 * size), f"a mesh of {2 * size} ranks, and this job has"),
        (Plan("fsdp2", {"shard": size}, 2 * size, 1), "is for . nodes with 1 ranks each"),
        (Plans(()), "no way to cut this model can be taken"),
        (plan_of("tp", size, tensor=size), "Bilinear cannot be cut over"),
        (plan_of("pipeline", size, replicate=1, stage=size), "Bilinear is not a torch"),
    ]


def test_plans_that_do_not_fit(dist: ModuleType, size: int) -> None:
    for plan, error in refused_plans(size):
        model = nn.Bilinear(2, 2, 2)
        with pytest.raises(ArgumentError, match=error):
            apply(model, sgd(model), plan)


def test_optimizers_that_do_not_fit(dist: ModuleType, rank: int, size: int) -> None:
    model = layers(1)
    stepped = sgd(model)
    model(batch(0)[0]).sum().backward()
    stepped.step()
    scheduled = sgd(model)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    for optimizer, error in (
        (stepped, "before the first step"),
        (scheduled, "make the scheduler of step.optimizer"),
        (torch.optim.LBFGS(model.parameters()), "needs a closure"),
        (sgd(layers(1)), r"parameter 0 of group 0 of the optimizer, of shape \(12, 8\)"),
    ):
        with pytest.raises(ArgumentError, match=error):
            apply(model, optimizer, "ddp")
    with pytest.raises(DtypeError, match="optimizer=int"):
        apply(model, 3, "ddp")
    if size > 1:
        with pytest.raises(ArgumentError, match="before the first step"):
            apply(model, sgd(model) if rank else stepped, "ddp")


def test_models_and_arguments_that_do_not_fit(dist: ModuleType, rank: int, size: int) -> None:
    for model, error in (
        (nn.Linear(2, 2, device="meta"), "parameter weight is on the device 'meta'"),
        (nn.LazyLinear(2), "parameter weight has no shape yet"),
        (nn.Sequential(), "parameters are on none"),
    ):
        with pytest.raises(ArgumentError, match=error):
            apply(model, sgd(nn.Linear(2, 2)), "ddp")
    model = layers(1)
    with pytest.raises(ArgumentError, match="microbatches=0"):
        apply(model, sgd(model), "ddp", microbatches=0)
    if size == 1:
        return
    other = layers(2 if rank else 1)
    with pytest.raises(ArgumentError, match="rank 1 has another parameter than rank 0"):
        apply(other, sgd(other), "ddp")
    with pytest.raises(ArgumentError, match="rank 1 has another plan than rank 0: fsdp2"):
        apply(model, sgd(model), "fsdp2" if rank else "ddp")
    with pytest.raises(ArgumentError, match="rank 1 has another optimizer than rank 0"):
        apply(model, torch.optim.SGD(model.parameters(), lr=0.1 + rank), "ddp")


def test_batches_that_do_not_fit(dist: ModuleType, size: int) -> None:
    model = layers(1)
    _, step, cut = apply(model, sgd(model), "ddp")
    x, y = cut(batch(0))
    for wrong, error in (
        ((x, y), "apply had no loss"),
        ((x, y, y), "batch has 3 members"),
        (x, "the loss has shape"),
        ({"input": x}, "returned no loss"),
    ):
        with pytest.raises(ArgumentError, match=error):
            step(wrong)
    with pytest.raises(DtypeError, match="batch is a int"):
        step(3)
    with pytest.raises(ArgumentError, match="holds no tensor that could be cut"):
        cut([3])
    if size > 1:
        rows = ROWS + 1
        with pytest.raises(ArgumentError, match=rf"batch\[0\] of shape \({rows}, 8\) has {rows} r"):
            cut(batch(0, rows))


def test_without_a_group(no_world: None) -> None:
    model = layers(1)
    with pytest.raises(
        ArgumentError, match=r"call torch\.distributed\.init_process_group\('mpi'\)"
    ):
        apply(model, sgd(model), "ddp")
