"""A static program of one machine that is spread over trainers and servers is what it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import paddlempi
import pytest
from paddlempi import errors, ps
from paddlempi.paddle import DistributeTranspiler, mpi_listenandserve, mpi_recv, mpi_send
from paddlempi.testing import World
from ps_roles import BOTH, ONE_SERVER, layouts

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM, STEPS, EACH, PADDING = 40, 6, 4, 5, 3
STATISTICS = ("mean", "variance")  # of batch_norm: each trainer has its own


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


@pytest.fixture(autouse=True)
def legacy(mpi_world: World) -> Iterator[None]:
    """Programs of the legacy IR, with names and a scope of their own."""
    with paddle.pir_utils.OldIrGuard(), apart():
        yield
    ps.shutdown()


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Names and a scope that other programs do not see."""
    scope = paddle.static.scope_guard(paddle.static.Scope())
    with paddle.base.unique_name.guard(), scope:
        yield


@pytest.fixture
def folder(mpi_world: World, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    told = [str(tmp_path)]
    mpi_world.dist.broadcast_object_list(told)
    return Path(told[0])


@contextlib.contextmanager
def to_the_end() -> Iterator[None]:
    """What trainers do: servers wait for its end."""
    try:
        yield
    finally:
        ps.shutdown()


def named(name: str, **more: Any) -> Any:
    return paddle.ParamAttr(name=name, **more)


class Built:
    """A program with tables, dense layers of several blocks, statistics and a frozen parameter.

    Its loss is the sum of those of ``count`` batches, or their mean.
    """

    def __init__(
        self, make: Callable[[Built], None], count: int = 1, average: bool = False
    ) -> None:
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, self.startup):
            self.losses = [self.loss_of(number) for number in range(count)]
            self.test = self.main.clone(for_test=True)
            self.loss = self.losses[0] if count == 1 else paddle.add_n(self.losses)
            if average:
                self.loss = self.loss / count
            self.rate = paddle.optimizer.lr.ExponentialDecay(0.001, 0.9)
            make(self)
        self.executor = paddle.static.Executor()

    @staticmethod
    def loss_of(number: int) -> Any:
        ids = paddle.static.data(f"ids{number}", [None, 3], "int64")
        target = paddle.static.data(f"target{number}", [None, 1], "float32")
        # A table that is looked up twice, also with ids that the program computes; one with a
        # padding; and an embedding without sparse gradients.
        shape, settings = (ROWS, DIM), {"is_sparse": True}
        words = paddle.static.nn.embedding(ids, shape, param_attr=named("words"), **settings)
        other = paddle.static.nn.embedding(
            paddle.flip(ids, [1]) // 2, shape, param_attr=named("words"), **settings
        )
        tags = paddle.static.nn.embedding(
            ids, shape, padding_idx=PADDING, param_attr=named("tags"), **settings
        )
        plain = paddle.static.nn.embedding(ids, shape, param_attr=named("plain"))
        parts = [paddle.mean(one, 1) for one in (words, other, tags, plain)]
        hidden = paddle.static.nn.fc(
            paddle.concat(parts, 1), 700, weight_attr=named("up"), bias_attr=False
        )
        norm = {"param_attr": named("scale"), "bias_attr": named("shift")}
        norm |= {"moving_mean_name": "mean", "moving_variance_name": "variance"}
        hidden = paddle.static.nn.batch_norm(hidden, act="relu", **norm)
        out = paddle.static.nn.fc(
            hidden,
            1,
            weight_attr=named("down", learning_rate=2.0),
            bias_attr=named("frozen", trainable=False),
        )
        return F.mse_loss(out, target)

    def run(self, batches: list[dict[str, Any]], program: Any = None) -> float:
        """Make one step, or run another program."""
        feed = {f"{k}{n}": value for n, one in enumerate(batches) for k, value in one.items()}
        loss = self.loss if program is None else self.losses[0]
        fetched = self.executor.run(program or self.main, feed=feed, fetch_list=[loss.name])
        return float(fetched[0])


def batch(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng(1000 * step + trainer)
    ids = random.integers(0, ROWS, (EACH, 3))
    return {"ids": ids, "target": random.random((EACH, 1), np.float32)}


def sgd(built: Built) -> None:
    paddle.optimizer.SGD(built.rate).minimize(built.loss)


def adagrad(built: Built) -> None:
    paddle.optimizer.Adagrad(0.01, initial_accumulator_value=0.1).minimize(built.loss)


def several(built: Built) -> None:
    pairs = paddle.static.append_backward(built.loss)
    sparse = [pair for pair in pairs if pair[0].name in ("words", "tags")]
    rest = [pair for pair in pairs if pair[0].name not in ("words", "tags")]
    decay = paddle.regularizer.L2Decay(0.1)
    paddle.optimizer.Momentum(built.rate, use_nesterov=True, weight_decay=decay).apply_gradients(
        rest
    )
    paddle.optimizer.SGD(0.1).apply_gradients(sparse)


def decayed(built: Built) -> None:
    """The tables are frozen. Paddle 3.3.1 itself crashes where it clips sparse gradients."""
    decay, clip = paddle.regularizer.L2Decay(0.1), paddle.nn.ClipGradByValue(0.01)
    dense = ["up", "scale", "shift", "down", "plain"]
    adam = paddle.optimizer.Adam(built.rate, weight_decay=decay, grad_clip=clip)
    adam.minimize(built.loss, parameters=dense)


def one_process(make: Any, start: dict[str, Any], trainers: int, average: bool) -> dict[str, Any]:
    """The state after STEPS steps of one process, which adds the gradients of all batches."""
    with apart():
        built = Built(make, trainers, average)
        built.executor.run(built.startup)
        built.main.set_state_dict(start)
        for step in range(STEPS):
            built.run([batch(step, trainer) for trainer in range(trainers)])
            built.rate.step()
        return {
            name: np.array(paddle.static.global_scope().find_var(name).get_tensor())
            for name in start
        }


def test_it_is_like_one_process(rank: int, roles: str) -> None:
    like_one_process(rank, roles, several, average=False)


@pytest.mark.parametrize("make", [sgd, adagrad, decayed], ids=lambda make: make.__name__)
def test_other_optimizers(rank: int, make: Any) -> None:
    like_one_process(rank, BOTH, make, average=True)


def like_one_process(rank: int, roles: str, make: Any, average: bool) -> None:
    paddle.seed(rank)  # the first trainer's values count
    built = Built(make)
    try:
        plan = ps.transpile(built.main, built.startup, roles, average=average)
    except SystemExit as ended:  # this rank has served
        assert ended.code == 0
        return
    with to_the_end():
        trainers, me = len(ps.trainers()), ps.trainers().index(rank)
        built.executor.run(built.startup)
        start = plan.state_dict()
        for step in range(STEPS):
            built.run([batch(step, me)])
            built.rate.step()
        ps.barrier()
        found, text = plan.state_dict(), str(plan)
        # Both ways to a program for tests read the tables, and the parameters of now.
        tests = [plan.adopt(built.test), built.main.clone(for_test=True)]
        lost = [built.run([batch(99, 0)], program=one) for one in tests]
    program = str(built.main)
    assert "mpi_send_1.token" in program and "op_namescope = /mpi_recv/" in program
    assert "ParamOut" not in program and "_moment" not in program
    assert ("persist trainable param tags " in program) == (make is decayed)
    rows = "no: frozen" if make is decayed else "rows by id"
    assert "up         24x700  3 blocks" in text and f"tags       40x6    {rows}" in text, text
    wanted = one_process(make, start, trainers, average)
    assert set(found) == {"words", "tags", "plain", "up", "scale", "shift", "down"} | {
        "frozen",
        *STATISTICS,
    }
    wanted["tags"][PADDING] = start["tags"][PADDING]  # Paddle trains it, though nothing reads it
    for name, value in wanted.items():
        if name not in STATISTICS:
            np.testing.assert_allclose(found[name], value, 1e-4, 1e-5, err_msg=name)
    assert (found["words"] != start["words"]).any() == (make is not decayed)
    with apart():  # the program of one machine, with the values of all
        single = Built(make)
        single.executor.run(single.startup)
        single.test.set_state_dict(found)
        again = single.run([batch(99, 0)], program=single.test)
    np.testing.assert_allclose(lost, [again] * 2, 1e-5)


def test_values_are_set_saved_and_restored(rank: int, roles: str, folder: Path) -> None:
    built = Built(adagrad)
    try:
        plan = ps.transpile(built.main, built.startup, roles)
    except SystemExit:
        return
    with to_the_end():
        me = ps.trainers().index(rank)
        with pytest.raises(errors.NotInitializedError, match=r"run plan\.startup"):
            plan.state_dict()
        built.executor.run(built.startup)
        names = {"words", "down", "mean"}  # a table, a vector, and what each trainer has
        state = {name: value + me for name, value in plan.state_dict().items() if name in names}
        ps.barrier()
        shift = {name: np.full(value.shape, 0.5) for name, value in state.items()}
        plan.set_state_dict({name: value + shift[name] for name, value in state.items()})
        found = plan.state_dict()
        for name in names:  # those of the first trainer
            assert np.allclose(found[name], state[name] - me + 0.5), name
        with pytest.raises(errors.ArgumentError, match=r"'words' of shape \(2,\)"):
            plan.set_state_dict({"words": np.zeros(2)})
        built.run([batch(0, me)])
        ps.save(folder, 1)
        saved = plan.state_dict()
        built.run([batch(1, me)])
        ps.barrier()
        assert (plan.state_dict()["down"] != saved["down"]).any()
        assert ps.restore(folder)["step"] == 1
        plan.optimizer.refresh()
        again = plan.state_dict()
        for name in {"words", "down", "plain"}:
            assert (again[name] == saved[name]).all(), name


def test_a_mistake_of_one_trainer(rank: int) -> None:
    """It gets its error, also from a thread of the executor, and the others do not wait."""
    built = Built(sgd)
    ps.transpile(built.main, built.startup, BOTH)
    built.executor.run(built.startup)
    for step in range(2):  # the first run is in the main thread
        wrong = batch(step, rank)
        if rank == 1:
            wrong["target"][0] = np.nan
        kind = errors.ArgumentError if rank == 1 else errors.RefusedError
        with pytest.raises(kind) as told:
            built.run([wrong])
        assert "not finite" in str(told.value) if rank == 1 else told.value.ranks == (1,)
        built.run([batch(step, rank)])
    wrong = batch(9, rank)
    wrong["ids"][0] = ROWS
    with pytest.raises(errors.ArgumentError, match=f"{ROWS}"):
        built.run([wrong])


def test_operators_by_hand(rank: int, roles: str) -> None:
    """Rows of tables in a program, the gradients of which its own operator sends."""
    ps.init(roles, timeout=30)
    if not ps.is_trainer():
        with paddle.static.program_guard(paddle.static.Program()):
            token = mpi_listenandserve()
            program = paddle.static.default_main_program()
        assert token.name in str(program) and "/mpi_listenandserve/" in str(program)
        paddle.static.Executor().run(program)
        return
    with to_the_end():
        me, trainers = ps.trainers().index(rank), len(ps.trainers())
        tables = [
            ps.RemoteTable(name, DIM, ps.SGD(0.5), ps.Normal(), seed=1) for name in ("a", "b")
        ]
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            ids = paddle.static.data("ids", [None, 2], "int64")
            few = paddle.static.data("few", [None], "int32")
            rows, others, again = mpi_recv([(tables[0], ids), (tables[1], few), (tables[0], few)])
            assert tuple(rows.shape) == (-1, 2, DIM) and tuple(others.shape) == (-1, DIM)
            parts = [paddle.mean(paddle.square(one)) for one in (rows, others, again)]
            loss = paddle.add_n(parts)
            grads = paddle.static.gradients(loss, [rows, others])
            rate = paddle.full([1], 0.25, "float32")
            done = mpi_send(
                [(tables[0], ids, grads[0]), (tables[1], few, grads[1])],
                average=False,
                learning_rate=rate,
            )
            (after,) = mpi_recv([(tables[0], ids)], after=[done])
        executor = paddle.static.Executor()
        executor.run(startup)
        feeds = [
            {"ids": np.array([[1, 2], [2, k]]), "few": np.array([5, 6, 5 + k], np.int32)}
            for k in range(trainers)
        ]
        before = [np.array(table.pull(np.arange(9))) for table in tables]
        ps.barrier()
        wanted = [one.copy() for one in before]
        for feed in feeds:
            for table, name in enumerate(("ids", "few")):
                flat = feed[name].reshape(-1)
                gradient = 2 * before[table][flat] / (flat.size * DIM)
                np.subtract.at(wanted[table], flat, np.float32(0.25) * gradient)
        fetched = executor.run(main, feed=feeds[me], fetch_list=[rows, others, again, after])
        mine = feeds[me]
        assert (fetched[0] == before[0][mine["ids"]]).all()
        assert (fetched[1] == before[1][mine["few"]]).all()
        assert (fetched[2] == before[0][mine["few"]]).all()
        np.testing.assert_allclose(fetched[3], wanted[0][mine["ids"]], 1e-6, 1e-6)
        ps.barrier()
        np.testing.assert_allclose(tables[1].pull(np.arange(9)), wanted[1], 1e-6, 1e-6)
        with paddle.static.program_guard(main, startup):
            for call in (mpi_recv, mpi_send):
                with pytest.raises(errors.DtypeError, match=r"a request is \(RemoteTable, ids"):
                    call([(tables[0], 3, 4)])


def test_the_methods_of_fluid(rank: int, roles: str) -> None:
    built = Built(sgd)
    transpiler = DistributeTranspiler()
    for get in (transpiler.get_trainer_program, transpiler.get_pserver_program):
        with pytest.raises(errors.ArgumentError, match="call transpile before"):
            get()
    with paddle.static.program_guard(built.main, built.startup):
        transpiler.transpile(roles=roles, timeout=30)
    executor = paddle.static.Executor()
    if not ps.is_trainer():
        program = transpiler.get_pserver_program()
        assert "sgd(plan.words)" in str(program)
        executor.run(program)
        return
    with to_the_end():
        executor.run(transpiler.get_startup_program())
        assert transpiler.get_trainer_program() is built.main
        lost = [built.run([batch(0, 0)]) for _ in range(5)]
        assert lost[-1] < lost[0]
        with pytest.raises(errors.ArgumentError, match="a rank that does not train"):
            transpiler.get_pserver_program()


def test_it_is_not_saved(tmp_path: Path) -> None:
    built = Built(sgd)
    ps.transpile(built.main, built.startup, BOTH)
    built.executor.run(built.startup)
    ids = built.main.global_block().var("ids0")
    target = built.main.global_block().var("target0")
    path = str(tmp_path / "model")
    with pytest.raises(errors.UnsupportedError, match=r"mpi_recv cannot be saved.*state_dict"):
        paddle.static.save_inference_model(
            path, [ids, target], [built.loss], built.executor, program=built.main
        )
    with pytest.raises(errors.UnsupportedError, match=r"cannot be saved"):
        paddle.static.save(built.main, path)
    with pytest.raises(errors.UnsupportedError, match=r"cannot be saved"):
        paddle.static.serialize_program([ids, target], [built.loss], program=built.main)
    with apart():  # another one is
        other = Built(sgd)
        other.executor.run(other.startup)
        paddle.static.save(other.main, path)
    assert (tmp_path / "model.pdparams").exists()


def refused(make: Callable[[Any], Any], kind: type[BaseException], text: str) -> None:
    """Build a program of one table and a dense layer; its transpiling fails."""
    with apart():
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            ids = paddle.static.data("ids", [None, 3], "int64")
            rows = paddle.static.nn.embedding(
                ids, (ROWS, DIM), is_sparse=True, param_attr=named("words")
            )
            out = paddle.static.nn.fc(
                paddle.mean(rows, 1), 2, weight_attr=named("w"), bias_attr=False
            )
            loss = paddle.mean(out)
            given = make(loss)
        before = str(main), str(startup)
        with pytest.raises(kind, match=text):
            ps.transpile(main, startup if given is None else given, BOTH)
        assert (str(main), str(startup)) == before


def test_what_cannot_be() -> None:
    """All of it is seen before ranks talk to each other, and changes nothing."""
    optimizer, unsupported = paddle.optimizer, errors.UnsupportedError

    def minimize(made: Any, **more: Any) -> Callable[[Any], None]:
        return lambda loss: (made.minimize(loss, **more), None)[1]

    refused(lambda loss: None, errors.ArgumentError, "no optimizer: call minimize")
    refused(minimize(optimizer.RMSProp(0.1)), unsupported, "'w'.*no rmsprop|'words'.*no rmsprop")
    refused(minimize(optimizer.Adam(0.1)), unsupported, "'words'.*without lazy_mode=True")
    refused(minimize(optimizer.Momentum(0.1)), unsupported, "'words'.*no Momentum.*append_backward")
    decay = paddle.regularizer.L2Decay(0.1)
    refused(minimize(optimizer.SGD(0.1, weight_decay=decay)), unsupported, "'words'.*with a decay")
    l1 = optimizer.SGD(0.1, weight_decay=paddle.regularizer.L1Decay(0.1))
    refused(minimize(l1), unsupported, "no operator 'sum' for its gradient")
    norm = optimizer.SGD(0.1, grad_clip=paddle.nn.ClipGradByNorm(1.0))
    refused(minimize(norm), unsupported, "'clip_by_norm' for its gradient")

    def two(loss: Any) -> None:
        optimizer.SGD(0.1).minimize(loss, parameters=["w"])
        optimizer.SGD(0.1).minimize(loss, parameters=["words"])

    refused(two, unsupported, "reads parameter 'w' after its update")

    def half(loss: Any) -> None:
        pairs = paddle.static.append_backward(loss)
        optimizer.SGD(0.1).apply_gradients([one for one in pairs if one[0].name == "w"])

    refused(half, errors.ArgumentError, "'words' belongs to nobody")

    def twice(loss: Any) -> None:
        pairs = paddle.static.append_backward(loss)
        optimizer.SGD(0.1).apply_gradients(pairs)
        optimizer.SGD(0.1).apply_gradients(pairs)

    refused(twice, errors.ArgumentError, "belongs to two optimizers")

    def tied(loss: Any) -> None:
        words = loss.block.program.global_block().var("words")
        optimizer.SGD(0.1).minimize(loss + paddle.mean(words))

    refused(tied, unsupported, "'words'.*operator 'reduce_mean' uses 'words'")

    def selected(loss: Any) -> None:
        ids = loss.block.program.global_block().var("ids")
        rows = paddle.static.nn.sparse_embedding(paddle.unsqueeze(ids, [2]), (ROWS, DIM))
        optimizer.SGD(0.1).minimize(loss + paddle.mean(rows))

    refused(selected, unsupported, "is of sparse_embedding")

    def another(loss: Any) -> Any:
        optimizer.SGD(0.1).minimize(loss)
        return paddle.static.Program()

    refused(another, errors.ArgumentError, "does not set parameter 'w")

    def optimizer_too(loss: Any) -> Any:
        made = optimizer.SGD(0.1)
        made.minimize(loss)
        return made

    refused(optimizer_too, errors.ArgumentError, "does not set parameter 'w.*give the startup")

    def odd(loss: Any) -> Any:
        optimizer.SGD(0.1).minimize(loss)
        return "startup"

    refused(odd, errors.DtypeError, "str is no startup program")


def older_lookup(ids: Any, name: str) -> Any:
    """What embeddings of Fluid 1 made, in programs that were kept since."""
    block = ids.block
    weight = paddle.static.create_parameter([ROWS, DIM], "float32", attr=named(name))
    rows = block.create_var(name=f"{name}.rows", dtype="float32")
    block.append_op(
        type="lookup_table",
        inputs={"Ids": ids, "W": weight},
        outputs={"Out": rows},
        attrs={"is_sparse": True, "padding_idx": -1},
    )
    return rows


@pytest.mark.parametrize("mode", ["async", "half_async", "ssp", "geo", "dc_asgd"])
def test_other_modes(rank: int, mode: str) -> None:
    """No trainer waits for another one, but the program is the same."""
    built = Built(sgd if mode == "geo" else adagrad)  # in mode geo tables have no states
    plan = ps.transpile(built.main, built.startup, BOTH, mode=mode, geo_step=4)
    built.executor.run(built.startup)
    lost = [built.run([batch(0, rank)]) for _ in range(20)]
    ps.barrier()
    # Adagrad's first step leads to 30 times the first loss, and the trainers are not in step.
    assert lost[-1] < max(lost)
    plan.optimizer.refresh()
    found = plan.state_dict()
    told: list[Any] = [None] * len(ps.trainers())
    paddlempi.all_gather_object(told, [found[name] for name in ("words", "down")])
    for ours in told:
        assert all((one == other).all() for one, other in zip(ours, told[0], strict=True))


def test_two_programs(rank: int) -> None:
    """Each has a plan of its own; they share a startup program and a frozen table."""
    paddle.seed(rank)
    built = Built(several)
    second = paddle.static.Program()
    with paddle.static.program_guard(second, built.startup):
        ids = paddle.static.data("ids0", [None, 3, 1], "int64")
        with paddle.base.unique_name.guard("second"):
            words = paddle.static.nn.embedding(
                paddle.squeeze(ids, [2]), (ROWS, DIM), param_attr=named("words", trainable=False)
            )
            # The older operator, whose ids have a last dimension of 1.
            own = older_lookup(ids, "own")
            parts = paddle.concat([paddle.mean(words, 1), paddle.mean(own, 1)], 1)
            loss = paddle.mean(paddle.square(paddle.static.nn.fc(parts, 3, bias_attr=False)))
            paddle.optimizer.SGD(0.5).minimize(loss)
    plan = ps.transpile(built.main, built.startup, BOTH, name="one")
    plan.adopt(second)
    other = ps.transpile(second, built.startup, name="two")
    assert set(other.tables) == {"own"} and "lookup_table" not in str(second)
    built.executor.run(built.startup)
    given = {"ids0": batch(0, rank)["ids"][:, :, None]}
    lost = [built.executor.run(second, feed=given, fetch_list=[loss])[0] for _ in range(5)]
    assert lost[-1] < lost[0]
    assert built.run([batch(0, rank)]) > 0
    ps.barrier()
    told: list[Any] = [None] * len(ps.trainers())
    paddlempi.all_gather_object(told, other.state_dict())
    for name in told[0]:
        assert all((one[name] == told[0][name]).all() for one in told), name
    again = Built(sgd)
    for program, startup, text in (
        (again.main, built.startup, "belongs to an earlier plan"),
        (again.main, again.startup, "name='two'"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            ps.transpile(program, startup, name="two")
    with pytest.raises(errors.DtypeError, match="SGD is no paddle"):
        ps.transpile(paddle.optimizer.SGD(0.1), None)


def test_another_ir() -> None:
    with paddle.pir_utils.OldIrGuard():
        built = Built(sgd)
    paddle.pir_utils._switch_to_pir_()
    paddle.set_flags({"FLAGS_enable_pir_api": True})
    try:
        for program in (built.main, paddle.static.Program()):
            with pytest.raises(errors.UnsupportedError, match=r"FLAGS_enable_pir_api=0"):
                ps.transpile(program, None, ONE_SERVER)
        with pytest.raises(errors.UnsupportedError, match=r"mpi_send.*FLAGS_enable_pir_api=0"):
            mpi_send([])
    finally:
        paddle.set_flags({"FLAGS_enable_pir_api": False})
        paddle.pir_utils._switch_to_old_ir_()
