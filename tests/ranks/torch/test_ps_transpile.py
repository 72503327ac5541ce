"""A single-machine program of torch that is spread over trainers and servers is what it was."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from paddlempi import barrier, errors, ps
from paddlempi.testing import World
from ps_roles import BOTH, ONE_SERVER, ONE_TRAINER, layouts

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM, STEPS, EACH = 40, 6, 4, 5
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    ps.shutdown()


class Net(torch.nn.Module):
    """Two embeddings with sparse gradients, one without, and dense layers of several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(ROWS, DIM, padding_idx=3, sparse=True)
        self.bags = torch.nn.ModuleList([torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)])
        self.plain = torch.nn.Embedding(4, DIM)
        self.up = torch.nn.Linear(3 * DIM, 700)
        self.norm = torch.nn.LayerNorm(700)
        self.register_buffer("shift", torch.rand(700))
        self.down = torch.nn.Linear(700, 1)
        self.frozen = torch.nn.Parameter(torch.rand(3), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = [self.words(ids).sum(1), self.bags[0](ids), self.plain(ids[:, 0] % 4)]
        return self.down(torch.tanh(self.norm(self.up(torch.cat(rows, 1)))) * self.shift)


def batch(step: int, trainer: int) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(1000 * step + trainer)
    return torch.randint(0, ROWS, (EACH, 3), generator=make), torch.rand(EACH, 1, generator=make)


def train(model: Any, optimizers: list[Any], ids: torch.Tensor, target: torch.Tensor) -> None:
    torch.nn.functional.mse_loss(model(ids), target).backward()


def sgd(model: Net) -> list[Any]:
    return [torch.optim.SGD(model.parameters(), 0.001)]


def momentum(model: Net) -> list[Any]:
    sparse = [model.words.weight, model.bags[0].weight]
    rest = [p for p in model.parameters() if p.requires_grad and all(p is not q for q in sparse)]
    return [
        torch.optim.SGD([{"params": rest, "lr": 0.002}], 0.001, momentum=0.9, nesterov=True),
        torch.optim.Adagrad(sparse, 0.01),
    ]


def momentum_of_dense(model: Net) -> list[Any]:
    """Optimizers that geo takes without a limit of memory: tables have no states."""
    sparse = [model.words.weight, model.bags[0].weight]
    rest = [p for p in model.parameters() if p.requires_grad and all(p is not q for q in sparse)]
    return [torch.optim.SGD(rest, 0.001, momentum=0.9), torch.optim.SGD(sparse, 0.01)]


def adam(model: Net) -> list[Any]:
    sparse = [model.words.weight, model.bags[0].weight]
    rest = [p for p in model.parameters() if p.requires_grad and all(p is not q for q in sparse)]
    return [torch.optim.AdamW(rest, 1e-4), torch.optim.SparseAdam(sparse, 0.001)]


def one_process(make: Any, trainers: int, average: bool, first: int = 0) -> dict[str, torch.Tensor]:
    """The state after STEPS steps of one process, which adds the gradients in order."""
    torch.manual_seed(7)
    model = Net()
    optimizers = make(model)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in optimizers]
    for step in range(STEPS):
        for one in optimizers:
            one.zero_grad()
        for trainer in range(first, first + trainers):
            train(model, optimizers, *batch(step, trainer))
        for parameter in model.parameters():
            if parameter.grad is not None and average:
                parameter.grad = parameter.grad / trainers
        for one in (*optimizers, *schedules):
            one.step()
    return model.state_dict()


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("make", [sgd, momentum, adam], ids=lambda make: make.__name__)
def test_it_is_like_one_process(rank: int, roles: str, make: Any, average: bool) -> None:
    torch.manual_seed(7 if rank == 0 or roles == ONE_TRAINER else rank)  # the first trainer's count
    model = Net()
    optimizers = make(model)
    # Schedules may be made before, or after.
    before = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in optimizers[:1]]
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    try:
        plan = ps.transpile(model, given, roles, average=average, placement="hash_name")
    except SystemExit as ended:  # this rank has served
        assert ended.code == 0
        return
    trainers, me = len(ps.trainers()), ps.trainers().index(rank)
    made = plan.optimizer if len(optimizers) > 1 else [plan.optimizer]
    schedules = [*before, *(torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in made[1:])]
    assert plan.model is model and isinstance(model.words, ps.Embedding)
    for step in range(STEPS):
        for one in made:
            one.zero_grad()
        train(plan.model, made, *batch(step, me))
        for one in (*made, *schedules):
            one.step()
    ps.barrier()
    wanted, found = one_process(make, trainers, average), plan.state_dict()
    ps.shutdown()  # servers wait for it, in transpile
    assert list(wanted) == list(found)
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        torch.testing.assert_close(
            found[name], value, **CLOSE, msg=lambda text, n=name: f"{n}: {text}"
        )


def of_a_mode(rank: int, roles: str, make: Any, **how: Any) -> dict[str, torch.Tensor] | None:
    """The state after STEPS steps in a mode; None on a rank that has served."""
    torch.manual_seed(7)
    model = Net()
    try:
        plan = ps.transpile(model, make(model), roles, **how)
    except SystemExit as ended:
        assert ended.code == 0
        return None
    assert f"mode {how['mode']}:" in str(plan)
    if how["mode"] == "geo":
        assert f"every {how['geo_step']} steps: mpi_send(" in str(plan)
        assert "    add(plan.words.weight)" in plan.server_program()
        assert "sgd(plan.words.weight) of the copy" in plan.trainer_program()
    else:
        assert "    sgd(plan.words.weight)" in plan.server_program()
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in plan.optimizer]
    for step in range(STEPS):
        for one in plan.optimizer:
            one.zero_grad()
        train(plan.model, plan.optimizer, *batch(step, ps.trainers().index(rank)))
        for one in (*plan.optimizer, *schedules):
            one.step()
    barrier(ps.trainer_group())  # of a trainer that is faster nobody has seen anything
    ps.barrier()
    for one in plan.optimizer:
        one.refresh()
    found = plan.state_dict()
    ps.shutdown()
    return found


@pytest.mark.parametrize("mode", ["async", "ssp", "geo", "dc_asgd"])
def test_one_trainer_in_any_mode_is_like_one_process(rank: int, mode: str) -> None:
    """What it pulls is always the newest: nothing is stale, and there is nothing to average."""
    found = of_a_mode(rank, ONE_TRAINER, sgd, mode=mode, geo_step=3)
    for name, value in {} if found is None else one_process(sgd, 1, False).items():
        torch.testing.assert_close(found[name], value, **CLOSE)


@pytest.mark.parametrize("make", [sgd, momentum_of_dense], ids=lambda make: make.__name__)
def test_geo_averages_what_each_trainer_has_trained_by_itself(
    rank: int, size: int, make: Any
) -> None:
    found = of_a_mode(rank, BOTH, make, mode="geo", geo_step=100)
    assert found is not None
    alone = [one_process(make, 1, False, trainer) for trainer in range(size)]
    for name, value in found.items():
        wanted = torch.stack([one[name] for one in alone]).mean(0)
        torch.testing.assert_close(value, wanted, **CLOSE)


def test_sgd_has_the_bits_of_one_process(rank: int) -> None:
    """w - r g, with g added in the order of ranks."""
    torch.manual_seed(3)
    model = torch.nn.Linear(200, 130)
    start = copy.deepcopy(model.state_dict())
    try:
        plan = ps.transpile(model, torch.optim.SGD(model.parameters(), 0.1), BOTH, average=False)
    except SystemExit:
        raise AssertionError("this rank trains") from None
    inputs = [torch.rand(4, 200, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    me, trainers = ps.trainers().index(rank), len(ps.trainers())
    w, b = start["weight"], start["bias"]
    for step in range(3):
        plan.optimizer.zero_grad()
        plan.model(inputs[me] * (step + 1)).square().sum().backward()
        plan.optimizer.step()
        total = None
        for k in range(trainers):
            one = torch.nn.Linear(200, 130)
            one.load_state_dict({"weight": w, "bias": b})
            one(inputs[k] * (step + 1)).square().sum().backward()
            grads = [one.weight.grad, one.bias.grad]
            total = grads if total is None else [x + y for x, y in zip(total, grads, strict=True)]
        w, b = w - 0.1 * total[0], b - 0.1 * total[1]
        w, b = w.detach(), b.detach()
        assert torch.equal(plan.model.weight, w) and torch.equal(plan.model.bias, b), step
    text = str(plan)
    assert f"{trainers} trainers, {trainers} servers, mode sync: 2 parameters" in text
    assert "weight     130x200  4 blocks" in text and "bias       130      1 block " in text
    assert "server: mpi_listenandserve( sgd(plan.weight) sgd(plan.bias) )" in text
    assert "mpi_send(plan.weight@GRAD, plan.bias@GRAD); mpi_recv(plan.weight, plan.bias)" in text
    with pytest.raises(errors.ArgumentError, match="called before"):
        other = torch.nn.Linear(2, 2)
        ps.transpile(other, torch.optim.SGD(other.parameters(), 0.1), ONE_SERVER)


def test_buffers_are_those_of_the_first_trainer(rank: int) -> None:
    """Also expanded ones, and those in another order of memory."""
    made = torch.full((3,), rank + 1.0)
    buffers = {
        "expanded": made.expand(4, 3),
        "in a column": (made * 2)[:, None].expand(3, 2),
        "turned": (made.expand(2, 3) * 3).contiguous().t(),
        "complex": made.to(torch.complex64),
        "flags": made > 1,
        "number": torch.tensor(rank + 1),
    }
    model = torch.nn.Linear(2, 2)
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    model.frozen = torch.nn.Parameter((made * 5).expand(2, 3), requires_grad=False)
    plan = ps.transpile(model, torch.optim.SGD([model.weight, model.bias], 0.1), BOTH)
    for name, factor in {"expanded": 1, "in a column": 2, "turned": 3, "complex": 1}.items():
        assert (model.get_buffer(name) == factor).all(), name
    assert not model.get_buffer("flags").any() and model.get_buffer("number") == 1
    assert (model.frozen == 5).all() and len(plan.frozen()) == len(buffers) + 1


def against(model: Any, a: Any, b: Any, ranks: Iterable[int]) -> None:
    """Two that are trained in turn, one of them more often. A loss has gradients of both."""
    for step in range(6):
        for one, other in ((a, b), (b, a)) if step % 3 == 0 else ((b, a),):
            a.zero_grad()
            b.zero_grad()
            for rank in ranks:
                ids = torch.tensor([rank, 2, step % 4])
                pair = model["a"](ids), model["b"](ids + 1)
                torch.tanh(
                    (pair[0] * pair[1]) if one is a else (pair[0] - pair[1])
                ).sum().backward()
            other.zero_grad()
            one.step()


@pytest.mark.parametrize("mode", ["sync", "half_async"])
def test_values_are_set_between_steps_of_several_optimizers(
    rank: int, size: int, mode: str
) -> None:
    torch.manual_seed(3)
    of = torch.nn
    alone = of.ModuleDict(
        {name: of.Sequential(of.Embedding(6, 3, sparse=True), of.Linear(3, 1)) for name in "ab"}
    )
    model = copy.deepcopy(alone)

    def optimizers(one: Any) -> list[Any]:
        rates = {"lr": 0.1, "initial_accumulator_value": 0.1}
        return [
            torch.optim.Adagrad(one["a"].parameters(), **rates),
            torch.optim.SGD(one["b"].parameters(), 0.1),
        ]

    theirs = optimizers(alone)
    roles = BOTH if mode == "sync" else ONE_TRAINER
    try:
        plan = ps.transpile(model, optimizers(model), roles, average=False, mode=mode, merge=1)
    except SystemExit as ended:
        assert ended.code == 0
        return
    mine = [ps.trainers().index(rank)]
    for _ in range(2):
        if mode == "sync":  # else rows are older ones
            against(plan.model, *plan.optimizer, mine)
            against(alone, *theirs, range(len(ps.trainers())))
        state = {name: value.clone() for name, value in plan.state_dict().items()}
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(state[name], value, **CLOSE, msg=name)
        changed = {name: value * 1.5 for name, value in state.items()}
        plan.set_state_dict(changed if rank == ps.trainers()[0] else state)
        alone.load_state_dict(changed)
        with torch.no_grad():
            for one in (plan.model, alone):
                one["a"][1].weight.mul_(0.5)
        plan.optimizer[0].publish()
    ps.barrier()
    ps.shutdown()


def refused(model: Any, optimizer: Any, kind: type[BaseException], text: str) -> None:
    with pytest.raises(kind, match=text):
        ps.transpile(model, optimizer, BOTH)


def test_what_cannot_be(rank: int) -> None:
    """All of it is seen before ranks talk to each other, so it may differ between them."""
    two = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    sgd_of = lambda params: torch.optim.SGD(params, 0.1)  # noqa: E731
    refused(two, sgd_of(two[0].parameters()), errors.ArgumentError, "'1.weight' belongs to nobody")
    both = [sgd_of(two.parameters()), sgd_of(two[1].parameters())]
    refused(
        two, both, errors.ArgumentError, "'1.weight' belongs to two: optimizer 0 and optimizer 1"
    )
    other = torch.nn.Linear(3, 5)
    refused(
        two,
        sgd_of([*two.parameters(), *other.parameters()]),
        errors.ArgumentError,
        "none of the model",
    )
    refused(two, torch.optim.LBFGS(two.parameters()), errors.UnsupportedError, "no LBFGS")
    refused(
        two, torch.optim.Adam(two.parameters(), amsgrad=True), errors.UnsupportedError, "amsgrad"
    )
    refused(two, [], errors.ArgumentError, "no optimizer")
    refused(two, 3, errors.DtypeError, "int is no optimizer")
    refused(3, 3, errors.DtypeError, "int is no torch.nn.Module")
    with pytest.raises(errors.ArgumentError, match="placement='odd'"):
        ps.transpile(two, sgd_of(two.parameters()), BOTH, placement="odd")
    for settings, text in (
        ({"max_norm": 1.0}, "max_norm"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        ({"dtype": torch.float64}, "float64"),
    ):
        rows = torch.nn.Embedding(4, 2, sparse=True, **settings)
        refused(rows, sgd_of(rows.parameters()), errors.UnsupportedError, f"'weight'.*{text}")
    tied = torch.nn.Sequential(
        torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 4, bias=False)
    )
    tied[1].weight = tied[0].weight
    refused(tied, sgd_of(tied.parameters()), errors.UnsupportedError, "'0.weight'.*'1' too")
    rows = torch.nn.Embedding(4, 2, sparse=True)
    for one, text in (
        (torch.optim.Adam(rows.parameters()), "not Adam: give"),
        (torch.optim.SGD(rows.parameters(), 0.1, momentum=0.9), "SGD with momentum"),
        (torch.optim.SGD(rows.parameters(), 0.1, weight_decay=0.9), "SGD with weight_decay"),
    ):
        refused(rows, one, errors.UnsupportedError, text)
    dense = torch.nn.Linear(2, 2)
    refused(
        dense,
        torch.optim.SparseAdam(list(dense.parameters())),
        errors.UnsupportedError,
        "SparseAdam",
    )
