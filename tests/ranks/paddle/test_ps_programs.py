"""Programs of Paddle on trainers and servers have the numbers of one process.

Each case is a program. One process runs the trainers' batches one after another in the order of
ranks, each with a layer that has buffers and random numbers of its own, and adds their gradients:
with plain SGD bit for bit, else with Paddle's optimizers in float64 to 1e-6, in float32 to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.amp.grad_scaler import OptimizerState
from paddlempi import errors, ps
from paddlempi.testing import World
from ps_roles import BOTH

pytestmark = pytest.mark.mpi(ranks=[2])

ROWS, DIM, EACH, STEPS = 12, 4, 5, 5
ONE_OF_TWO = "trainer+pserver,trainer"  # two trainers, one server
nn, optim, lr = paddle.nn, paddle.optimizer, paddle.optimizer.lr


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    yield
    paddle.set_default_dtype("float32")
    ps.shutdown()


def batch(step: int, trainer: int) -> tuple[Any, Any]:
    random = np.random.default_rng(1000 * step + trainer)
    ids = random.integers(0, ROWS, (EACH, 3))
    return paddle.to_tensor(ids), paddle.to_tensor(random.random((EACH, 1), np.float32))


class Net(nn.Layer):
    """Rows, a dense layer, and whatever a case puts in between."""

    def __init__(self, sparse: bool, middle: Any = None, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM, padding, sparse=sparse)
        self.up = nn.Linear(DIM, 8)
        self.middle = nn.Tanh() if middle is None else middle
        self.down = nn.Linear(8, 1)

    def forward(self, ids: Any) -> Any:
        return self.down(self.middle(self.up(self.words(ids).mean(1))))


def loss_of(model: Any, step: int, trainer: int) -> Any:
    ids, target = batch(step, trainer)
    return F.mse_loss(model(ids), target)


class Case:
    """Net, with plain SGD for all of it. What is compared bit for bit looks up rows once."""

    average, exact = True, True

    def model(self, sparse: bool) -> Any:
        return Net(sparse)

    def optimizers(self, model: Any) -> list[Any]:
        return [optim.SGD(0.1, parameters=model.parameters())]

    def backward(self, model: Any, step: int, trainer: int) -> None:
        loss_of(model, step, trainer).backward()

    def clip(self, model: Any) -> None:
        """Change the gradients of one process before a step."""

    def clip_on_servers(self, plan: Any) -> None:
        """Change the gradients of all trainers so, too."""

    def update(self, model: Any, optimizers: list[Any], step: int) -> None:
        for one in optimizers:
            one.step()

    def advance(self, optimizers: list[Any], step: int) -> None:
        """What a schedule does after a step."""

    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        """One step of a program on servers."""
        self.backward(plan.model, step, trainer)
        self.clip_on_servers(plan)
        self.update(plan.model, optimizers, step)
        for one in optimizers:
            one.clear_grad()

    def between(self, plan: Any, step: int) -> None:
        """What trainers do after a step that one process has no need of."""


def begun(case: Case, sparse: bool) -> Any:
    paddle.seed(7)
    return case.model(sparse)


def on_servers(case: Case, roles: str) -> Any:
    """Run a program on the trainers of this job. Every rank trains. Return its plan."""
    model = begun(case, True)
    optimizers = case.optimizers(model)
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    plan = ps.transpile(model, given, roles, average=case.average)
    mine = plan.optimizer if len(optimizers) > 1 else [plan.optimizer]
    me = ps.trainers().index(ps.session.current("a test").rank)
    paddle.seed(100 + me)
    for step in range(STEPS):
        case.train(plan, mine, step, me)
        case.advance(mine, step)
        case.between(plan, step)
    ps.barrier()
    return plan


def one_process(case: Case, count: int, trainer: int, kind: str) -> dict[str, Any]:
    """The state of a trainer after all steps of one process; kind: "bits", "float32", "float64"."""
    trainers = [begun(case, False) for _ in range(count)]
    model = begun(case, False)
    if kind == "float64":
        model.to(dtype="float64")
    optimizers = case.optimizers(model)
    random = []
    for k in range(count):
        paddle.seed(100 + k)
        random.append(paddle.get_rng_state())
    for step in range(STEPS):
        for k, one in enumerate(trainers):
            one.clear_gradients(set_to_zero=False)
            paddle.set_rng_state(random[k])
            case.backward(one, step, k)
            random[k] = paddle.get_rng_state()
        own = [one.parameters() for one in trainers]
        for place, parameter in enumerate(model.parameters()):
            found = [mine[place].grad for mine in own]
            parts = [np.array(one.numpy()) for one in found if one is not None]
            parts = [part / np.float32(count if case.average else 1) for part in parts]
            parameter.clear_gradient(False)
            if parts:
                parameter.grad = paddle.to_tensor(sum(parts[1:], parts[0])).astype(parameter.dtype)
        case.clip(model)
        if kind == "bits":
            case.update(model, [Sgd(one) for one in optimizers], step)
        else:
            case.update(model, optimizers, step)
        case.advance(optimizers, step)
        for mine in own:
            for one, new in zip(mine, model.parameters(), strict=True):
                if not new.stop_gradient:  # the statistics of BatchNorm are parameters, too
                    one.set_value(new.astype("float32"))
    there = model.state_dict()
    return {
        name: np.array((mine if mine.stop_gradient else there[name]).numpy())
        for name, mine in trainers[trainer].state_dict().items()
    }


class Sgd:
    """SGD as the servers have it: each operation is rounded to float32."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def step(self) -> None:
        for parameter in self._of._parameter_list:
            if parameter.grad is not None and not parameter.stop_gradient:
                gradient = np.float32(self._of.get_lr()) * parameter.grad.numpy()
                parameter.set_value(parameter.numpy() - gradient)


# What models have


class Norms(Case):
    """BatchNorm has the statistics of its trainer."""

    def model(self, sparse: bool) -> Any:
        return Net(sparse, nn.Sequential(nn.BatchNorm1D(8), nn.ReLU(), nn.LayerNorm(8)))


class Dropout(Case):
    def model(self, sparse: bool) -> Any:
        return Net(sparse, nn.Dropout(0.5))


class Padding(Case):
    def model(self, sparse: bool) -> Any:
        return Net(sparse, padding=-2)


class TiedDense(Case):
    """An embedding without sparse gradients whose weight is that of an output, too."""

    exact = False

    def model(self, sparse: bool) -> Any:
        made = nn.LayerDict({"a": nn.Embedding(ROWS, DIM), "b": nn.Linear(ROWS, DIM)})
        made["b"]._parameters["weight"] = made["a"].weight
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, _ = batch(step, trainer)
        out = paddle.matmul(model["a"](ids).mean(1) + model["b"].bias, model["b"].weight.T)
        F.cross_entropy(out, ids[:, 0]).backward()


class Shared(Case):
    """A layer with rows at two places, which a forward calls twice."""

    exact = False

    def model(self, sparse: bool) -> Any:
        made = Net(sparse)
        made.more = nn.LayerList([made.words, made.up])
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        other = paddle.tanh(model.more[1](model.more[0](ids[1:]).mean(1))).mean()
        F.mse_loss(model(ids) * other, target).backward()


class Aliased(Case):
    """An embedding that a program has in a list, too, which is no layer."""

    exact = False

    def model(self, sparse: bool) -> Any:
        made = Net(sparse)
        object.__setattr__(made, "plain", [made.words])
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        found = model.plain[0](ids) - model.words(ids.flip(0))
        F.mse_loss(model.down(model.up(found.mean(1))), target).backward()


class Frozen(Case):
    def model(self, sparse: bool) -> Any:
        made = Net(sparse)
        made.fixed = nn.Embedding(ROWS, DIM, sparse=sparse)
        made.fixed.weight.stop_gradient = made.up.weight.stop_gradient = True
        return made

    def backward(self, model: Any, step: int, trainer: int) -> None:
        ids, target = batch(step, trainer)
        F.mse_loss(model(ids) + model.fixed(ids).sum([1, 2]).unsqueeze(1), target).backward()


class Hooks(Case):
    """Hooks of parameters and of layers, also of the embedding."""

    def model(self, sparse: bool) -> Any:
        made = Net(sparse)
        made.up.weight.register_hook(lambda gradient: gradient * 2)
        made.words.register_forward_post_hook(lambda layer, ids, out: out * 3)
        made.words.register_forward_pre_hook(lambda layer, ids: (ids[0].flip(0),))
        return made


# What programs do before a step


class Accumulation(Case):
    exact = False  # rows are added up in another order

    def backward(self, model: Any, step: int, trainer: int) -> None:
        for part in range(3):
            (loss_of(model, 10 * step + part, trainer) / 3).backward()


class Evaluation(Case):
    """Forwards without gradients, in between; and one without a backward."""

    def model(self, sparse: bool) -> Any:
        return Net(sparse, nn.BatchNorm1D(8))

    def backward(self, model: Any, step: int, trainer: int) -> None:
        with paddle.no_grad():
            model(batch(99, trainer)[0])
            model.eval()
            model(batch(98, trainer)[0])
        model.train()
        loss_of(model, 50 + step, trainer)
        loss_of(model, step, trainer).backward()


class Dropped(Case):
    """Gradients that clear_grad drops: of the optimizer, and of the layer."""

    def backward(self, model: Any, step: int, trainer: int) -> None:
        if step % 2:
            loss_of(model, 60, trainer).backward()
            model.clear_gradients(set_to_zero=step > 1)
            loss_of(model, 61, trainer).backward()
            model.words.clear_gradients()
            model.clear_gradients()
        loss_of(model, step, trainer).backward()

    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        loss_of(plan.model, 70 + step, trainer).backward()
        optimizers[0].clear_grad(set_to_zero=bool(step % 2))
        super().train(plan, optimizers, step, trainer)


class Unused(Case):
    """Parameters and rows that a step, or a trainer, does not use."""

    def model(self, sparse: bool) -> Any:
        made = Net(sparse)
        made.other = Net(sparse)
        return made

    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        super().train(plan, optimizers, step, trainer)
        optimizers[0].clear_grad(set_to_zero=False)

    def backward(self, model: Any, step: int, trainer: int) -> None:
        if step == 0 and trainer == 1:
            return  # no backward at all
        loss_of(model.other if (step + trainer) % 2 else model, step, trainer).backward()


class Minimized(Case):
    def train(self, plan: Any, optimizers: list[Any], step: int, trainer: int) -> None:
        loss = loss_of(plan.model, step, trainer)
        loss.backward()
        optimizers[0].minimize(loss)
        optimizers[0].clear_gradients()


# What optimizers there are


class Sum(Case):
    average = False


class Kind(Case):
    """An optimizer of the rows, and one of the rest."""

    exact = False

    def __init__(self, of_rows: Any, of_rest: Any) -> None:
        self._of_rows, self._of_rest = of_rows, of_rest

    def optimizers(self, model: Any) -> list[Any]:
        rest = [p for p in model.parameters() if p is not model.words.weight]
        return [self._of_rows(parameters=[model.words.weight]), self._of_rest(parameters=rest)]


class Often(Kind):
    """Several optimizers that step at different times."""

    def update(self, model: Any, optimizers: list[Any], step: int) -> None:
        optimizers[1].step()
        if step % 2:
            optimizers[0].step()


sgd = partial(optim.SGD, 0.1)
heavy = partial(optim.Momentum, 0.05, 0.9)
nesterov = partial(optim.Momentum, 0.05, 0.8, use_nesterov=True)
adagrad = partial(optim.Adagrad, 0.05, epsilon=1e-3, initial_accumulator_value=0.1)
adam = partial(optim.Adam, 0.01, epsilon=1e-3)
adamw = partial(optim.AdamW, 0.01, epsilon=1e-3, beta1=0.8, beta2=0.95, weight_decay=0.05)


decay, clip = paddle.regularizer.L2Decay(0.05), nn.ClipGradByValue(0.01)
heavier = partial(optim.Momentum, 0.05, 0.9, weight_decay=0.1, grad_clip=clip)


class ClipNorm(Kind):
    """By the norm of all gradients, some of them rows: a plan has methods for this."""

    most = 0.05

    def clip(self, model: Any) -> None:
        parameters = [p for p in model.parameters() if p.grad is not None]
        norm = np.sqrt(sum(float((p.grad.astype("float64") ** 2).sum()) for p in parameters))
        for p in parameters:
            p.grad = p.grad * min(1.0, self.most / (norm + 1e-6))

    def clip_on_servers(self, plan: Any) -> None:
        assert plan.clip_grad_norm_(self.most) > 0


class ClipValue(ClipNorm):
    most = 0.01

    def clip(self, model: Any) -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad.clip(-self.most, self.most)

    def clip_on_servers(self, plan: Any) -> None:
        plan.clip_grad_value_(self.most)


# Schedules


class Scheduled(Case):
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def optimizers(self, model: Any) -> list[Any]:
        self.rate = self._make()
        return [optim.SGD(self.rate, parameters=model.parameters())]

    def advance(self, optimizers: list[Any], step: int) -> None:
        self.rate.step()


class Plateau(Scheduled):
    """All trainers give the schedule the same number."""

    def advance(self, optimizers: list[Any], step: int) -> None:
        self.rate.step(1.0 if step else 0.5)


class ByHand(Case):
    def advance(self, optimizers: list[Any], step: int) -> None:
        optimizers[0].set_lr(0.2 / (1 + step))


class Later(Scheduled):
    """A schedule that is made after the program was transpiled."""

    def optimizers(self, model: Any) -> list[Any]:
        return [optim.SGD(0.1, parameters=model.parameters())]

    def advance(self, optimizers: list[Any], step: int) -> None:
        if step == 0:
            self.rate = self._make()
            optimizers[0].set_lr_scheduler(self.rate)
        else:
            self.rate.step()


SCHEDULES: dict[str, Callable[[], Any]] = {
    "step": lambda: lr.StepDecay(0.1, 2, 0.5),
    "one cycle": lambda: lr.OneCycleLR(0.3, STEPS + 1),
    "lambda": lambda: lr.LambdaDecay(0.1, lambda step: 0.0 if step == 2 else 1 / (1 + step)),
    "cosine": lambda: lr.CosineAnnealingDecay(0.1, 3),
    "warm up": lambda: lr.LinearWarmup(lr.ExponentialDecay(0.1, 0.9), 2, 0.01, 0.1),
}


class RoundTrip(Kind):
    """The state goes to a program of one process in the middle, and comes back."""

    def between(self, plan: Any, step: int) -> None:
        if step == 1:
            alone = self.model(True)
            alone.set_state_dict(plan.state_dict())
            ps.barrier()
            plan.set_state_dict(alone.state_dict())


CASES: dict[str, Case] = {
    **{
        one.__name__: one()
        for one in (
            *(
                Case,
                Aliased,
                Norms,
                Dropout,
                Padding,
                TiedDense,
                Shared,
                Frozen,
                Hooks,
                Accumulation,
            ),
            *(Evaluation, Dropped, Unused, Minimized, Sum, ByHand),
        )
    },
    "momentum": Kind(sgd, heavy),
    "nesterov": Kind(sgd, nesterov),
    "adagrad": Kind(adagrad, adagrad),
    "adam": Kind(adagrad, adam),
    "adamw": Kind(sgd, adamw),
    "momentum, decay": Kind(sgd, heavier),
    "sgd, decay, clip": Kind(
        partial(optim.SGD, 0.1, grad_clip=clip), partial(optim.SGD, 0.1, weight_decay=decay)
    ),
    "adagrad, decay": Kind(partial(adagrad, grad_clip=clip), partial(adagrad, weight_decay=decay)),
    "adam, decay": Kind(sgd, partial(adam, weight_decay=decay, grad_clip=clip)),
    "often": Often(adagrad, nesterov),
    "clip by norm": ClipNorm(sgd, adagrad),
    "clip by value": ClipValue(sgd, adagrad),
    "round trip": RoundTrip(adagrad, adam),
    **{f"schedule: {name}": Scheduled(make) for name, make in SCHEDULES.items()},
    "schedule: plateau": Plateau(lambda: lr.ReduceOnPlateau(0.1, factor=0.5, patience=1)),
    "schedule made later": Later(SCHEDULES["step"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_one_process(rank: int, case: Case) -> None:
    number = list(CASES.values()).index(case)
    plan = on_servers(case, (BOTH, ONE_OF_TWO)[number % 2])
    found = plan.state_dict()
    for kind in ["bits"] if case.exact else ["float32", "float64"]:
        wanted = one_process(case, 2, rank, kind)
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            if kind == "bits":
                assert np.array_equal(found[name].numpy(), value), name
            else:
                far = 1e-6 if kind == "float64" else 1e-5
                np.testing.assert_allclose(found[name].numpy(), value, far, 1e-6, err_msg=name)
    case.model(True).set_state_dict(found)


def test_what_differs_is_refused() -> None:
    model = Net(True)
    for given, text in (
        (optim.SGD(0.1, model.parameters(), weight_decay=0.1), "'words.weight'.*weight_decay"),
        (optim.SGD(0.1, model.parameters(), grad_clip=nn.ClipGradByGlobalNorm(1.0)), "grad_clip"),
        (optim.RMSProp(0.1, parameters=model.parameters()), "'words.weight'.*not RMSProp"),
    ):
        with pytest.raises(errors.UnsupportedError, match=f"^ps.transpile: parameter .*{text}"):
            ps.transpile(model, given, BOTH)
    plan = ps.transpile(model, optim.SGD(0.1, parameters=model.parameters()), BOTH)
    scaler = paddle.amp.GradScaler(enable=False)
    scaler._enable = True  # as on a GPU
    scaler._optimizer_states = {id(plan.optimizer): {"state": OptimizerState.UNSCALED}}
    scaler._found_inf = False
    loss_of(plan.model, 0, 0).backward()
    with pytest.raises(errors.UnsupportedError, match="GradScaler"):
        scaler.step(plan.optimizer)
    with pytest.raises(errors.UnsupportedError, match=r"step of plan\.optimizer"):
        plan.optimizer.optim.step()
