"""Tables on servers, with real ranks: what trainers pull is what one process would compute."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps.dense import PLACEMENTS, Blocks, pull, spread
from ps_roles import BOTH, ONE_SERVER, begin, folder, layouts
from ranks_tools import skip_over_nodes

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

DIM, STEPS = 5, 4
Begin = Callable[..., bool]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def batch(trainer: int, step: int, table: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The ids and gradients of a trainer's step: some ids twice, and in some steps none."""
    random = np.random.default_rng([trainer, step, table])
    count = 0 if (trainer, step) == (1, 2) else 40
    ids = random.integers(-20, 20, count) * 10**6
    return ids, random.normal(size=(count, DIM)).astype(np.float32)


def merged(ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every id once, with its gradients added in float32 in order of appearance."""
    places: dict[int, int] = {}
    sums = np.zeros((len(set(ids.tolist())), DIM), np.float32)
    for one, gradient in zip(ids.tolist(), gradients, strict=True):
        if one in places:
            sums[places[one]] += gradient
        else:
            sums[places.setdefault(one, len(places))] = gradient
    return np.array(list(places), np.int64), sums


def reference(optimizer: Any, table: int, steps: int = STEPS) -> ps.Table:
    """The table of one process that adds the trainers' merged gradients in the order of ranks."""
    alone = ps.Table(DIM, optimizer, ps.Normal(), seed=table)
    for step in range(steps):
        parts = [merged(*batch(trainer, step, table)) for trainer in range(len(ps.trainers()))]
        ids, gradients = (np.concatenate(column) for column in zip(*parts, strict=True))
        alone.push(ids, gradients, step=step + 1)
    return alone


ALL = np.arange(-20, 20) * 10**6


@pytest.mark.parametrize(
    "optimizer", [ps.SGD(0.1), ps.Adagrad(0.1), ps.Adam(0.1)], ids=lambda o: o.NAME
)
def test_synchronous_steps_are_those_of_one_process(
    begin: Begin, rank: int, roles: str, optimizer: Any
) -> None:
    if not begin(roles):
        return
    trainer = ps.trainers().index(rank)
    tables = [ps.RemoteTable(f"t{i}", DIM, optimizer, ps.Normal(), seed=i) for i in range(2)]
    fresh = reference(optimizer, 0, steps=0)
    assert (tables[0].pull(ALL).view(np.uint32) == fresh.pull(ALL).view(np.uint32)).all()
    for step in range(STEPS):
        ps.push([(table, *batch(trainer, step, i)) for i, table in enumerate(tables)])
    for i, table in enumerate(tables):
        expected = reference(optimizer, i).pull(ALL)
        assert (table.pull(ALL).view(np.uint32) == expected.view(np.uint32)).all()
    first, second = ps.pull([(tables[1], ALL[:3]), (tables[0], ALL)])
    assert (first == tables[1].pull(ALL[:3])).all() and (second == tables[0].pull(ALL)).all()


def test_adam_counts_the_steps_of_its_own_table(begin: Begin, roles: str) -> None:
    """Neither other tables' steps count, nor which server has the rows of a step."""
    if not begin(roles):
        return
    other = ps.RemoteTable("other", DIM)
    late = ps.RemoteTable("late", DIM, ps.Adam(0.1), ps.Normal())
    alone = ps.Table(DIM, ps.Adam(0.1), ps.Normal())
    count = len(ps.trainers())
    for step in range(12):
        ids, gradients = ALL[step % 4 : step % 4 + 1], np.full((1, DIM), step + 1, np.float32)
        ps.push([(other, ids, gradients)])
        ps.push([])
        late.push(ids, gradients)
        alone.push(ids, gradients * count, step=step + 1)
    assert (late.pull(ALL).view(np.uint32) == alone.pull(ALL).view(np.uint32)).all()


def rows_and_ids() -> int:
    """The bytes that requests of this rank have moved, without those of the administration."""
    moved = ps.stats()["bytes"]
    return int(moved["shared"] + moved["mpi"] + moved["local"])


def test_rows_of_16_bits_are_those_of_one_process(begin: Begin, rank: int, roles: str) -> None:
    if not begin(roles):
        return
    # The rows of one table end where those of the next one, of float32, are not aligned.
    kinds = [("bfloat16", 5), ("float32", 3), ("float16", 7), ("bfloat16", 1), ("float16", 64)]
    made = {"optimizer": ps.Adagrad(0.1), "initializer": ps.Normal()}
    tables, alone = [], []
    for i, (dtype, dim) in enumerate(kinds):
        tables.append(ps.RemoteTable(f"t{i}", dim, dtype=dtype, seed=i, **made))
        alone.append(ps.Table(dim, dtype=dtype, seed=i, **made))
    asked = [ALL[i : 40 - i] for i in range(len(kinds))]
    asked[1] = ALL[:0]
    count, trainer = len(ps.trainers()), ps.trainers().index(rank)
    for step in range(3):
        parts = []
        for i, (_, dim) in enumerate(kinds):
            all_ids, all_gradients = [], []
            for one in range(count):
                random = np.random.default_rng([one, step, i])
                all_ids.append(random.choice(ALL, 11, replace=False))
                all_gradients.append(random.normal(size=(11, dim)).astype(np.float32))
            alone[i].push(np.concatenate(all_ids), np.concatenate(all_gradients), step=step + 1)
            parts.append((tables[i], all_ids[trainer], all_gradients[trainer]))
        ps.push(parts)
        ps.barrier(f"pushed {step}")
        for ids in (asked, [np.repeat(ALL[:9], 2)] * len(kinds)):
            together = ps.pull(list(zip(tables, ids, strict=True)))
            for i, rows in enumerate(together):
                expected = alone[i].pull(ids[i])
                assert (rows.view(np.uint32) == expected.view(np.uint32)).all()
                assert (tables[i].pull(ids[i]) == expected).all()
        ps.barrier(f"pulled {step}")


def test_rows_of_16_bits_travel_as_they_are(begin: Begin, roles: str) -> None:
    if not begin(roles):
        return
    ids = np.arange(1000)
    moved = []
    for dtype in ("float32", "bfloat16"):
        table = ps.RemoteTable(dtype, 64, dtype=dtype)
        before = rows_and_ids()
        table.pull(ids)
        moved.append(rows_and_ids() - before)
    assert moved[0] - moved[1] == 1000 * 64 * 2


def test_pushes_of_the_same_and_of_other_ids(begin: Begin, roles: str) -> None:
    if not begin(roles):
        return
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    one, two = np.arange(30), np.arange(30) % 7 + 15
    ids = one.copy()
    for other in (one, two, one[::-1].copy(), two):  # a batch is made in the same memory
        ids[:] = other
        table.pull(ids)
        table.push(ids, np.ones((30, 2), np.float32))
    table.push(one.astype(np.int32), np.ones((30, 2), np.float32))
    expected = -len(ps.trainers()) * (3.0 + 2 * np.bincount(two, minlength=30))
    ps.barrier()
    assert (table.pull(one)[:, 0] == expected).all()


def test_asynchronous_pushes_all_count(begin: Begin, roles: str) -> None:
    if not begin(roles, mode="async"):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ids = np.arange(100)
    for _ in range(20):
        table.push(ids, np.ones((100, DIM), np.float32))
        table.pull(ids)
    ps.barrier()
    assert (table.pull(ids) == -20 * len(ps.trainers())).all()


def test_notes_are_averaged(begin: Begin, rank: int, roles: str) -> None:
    if not begin(roles):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ids = np.array([1, 2, 1])
    before = table.prefetch(ids).wait()
    assert (before == 0).all()
    mine = np.full((3, DIM), ps.trainers().index(rank) + 1, np.float32)
    ps.note(table, ids, mine)
    ps.step()
    count = len(ps.trainers())
    mean = (count + 1) / 2
    np.testing.assert_allclose(table.pull(ids), -mean * np.array([[2], [1], [2]]) * np.ones(DIM))
    ps.step()  # with nothing
    assert (table.pull(ids)[1] == -np.float32(mean)).all()


def test_rates_rows_and_statistics(begin: Begin, rank: int, roles: str) -> None:
    if not begin(roles):
        return
    first = rank == ps.trainers()[0]
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    ids = np.arange(50)
    if first:
        table.write(ids, np.full((50, 2), 3, np.float32))
        ps.set_learning_rate("t", 0.5)
    ps.barrier("written")
    assert (table.pull(ids) == 3).all()
    ps.barrier("read")
    gradients = np.full((50, 2), 1 / len(ps.trainers()), np.float32)
    table.push(ids, gradients)
    assert np.allclose(table.pull(ids), 2.5)
    table.learning_rate = 2.0
    table.push(ids, gradients)
    assert np.allclose(table.pull(ids), 0.5)
    servers = ps.stats()["servers"]
    assert len(servers) == len(ps.pservers())
    assert sum(found["rows"] for server in servers for found in server["tables"]) == 50


def test_steps_make_no_rpc(begin: Begin, rank: int, roles: str) -> None:
    """Administration goes over gRPC. Once the tables are declared, no number of steps calls it."""
    if not begin(roles):
        return
    tables = [ps.RemoteTable(f"t{i}", DIM, ps.SGD(1.0)) for i in range(2)]
    trainer = ps.trainers().index(rank)

    def calls_of(steps: int) -> int:
        """Return the calls of gRPC for so many steps, and a look at the statistics."""
        begun = ps.stats()["rpcs"]
        for step in range(steps):
            ps.pull([(table, ALL) for table in tables])
            ps.push([(table, *batch(trainer, step, i)) for i, table in enumerate(tables)])
        return ps.stats()["rpcs"] - begun

    assert calls_of(0) == calls_of(100) == len(ps.pservers())
    before = ps.stats()["bytes"]
    ps.barrier()
    after = ps.stats()
    assert after["bytes"]["grpc"] > before["grpc"]
    del before["grpc"]
    assert before == {way: count for way, count in after["bytes"].items() if way != "grpc"}
    for server in after["servers"]:  # their calls are those of all trainers
        assert server["rpcs"] >= after["rpcs"] / len(ps.pservers())
        assert server["grpc_in"] > 0 and server["grpc_out"] > 0


def test_a_trainer_that_completes_early(
    begin: Begin, rank: int, roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not begin(roles):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    one = np.array([7])
    ones = np.ones((1, DIM), np.float32)
    table.push(one, ones)
    if rank == ps.trainers()[-1] and len(ps.trainers()) > 1:

        def ctrl_c() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ps.session._state, "before_complete", [ctrl_c])
            ps.complete()
        ps.complete()  # the others would wait for this trainer's pushes if it told nothing
        with pytest.raises(errors.ArgumentError, match="completed"):
            table.pull(one)
        return
    for _ in range(3):
        table.push(one, ones)
    left = max(1, len(ps.trainers()) - 1)
    assert (table.pull(one) == -len(ps.trainers()) - 3 * left).all()


def test_a_refused_push_is_no_step(begin: Begin, rank: int, roles: str) -> None:
    if not begin(roles):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0), num_ids=10)
    ids = np.arange(10)
    gradients = np.ones((10, DIM), np.float32)
    if rank == ps.trainers()[0]:
        wrong = gradients.copy()
        wrong[4, 2] = np.nan
        with pytest.raises(errors.ArgumentError, match="not finite"):
            table.push(ids, wrong)
        with pytest.raises(errors.ArgumentError, match="id 10"):
            table.push(ids + 1, gradients)
    table.push(ids, gradients)
    assert (table.pull(ids) == -len(ps.trainers())).all()


def test_cuts_are_for_any_number_of_servers(
    begin: Begin, rank: int, roles: str, folder: Path
) -> None:
    optimizer = ps.Adagrad(0.1)
    trains = begin(roles)
    if trains:
        trainer = ps.trainers().index(rank)
        table = ps.RemoteTable("t0", DIM, optimizer, ps.Normal(), seed=0)
        for step in range(STEPS):
            if step == STEPS - 1:
                ps.save(folder, step, extra=b"from trainer %d" % trainer)
            table.push(*batch(trainer, step))
        expected = reference(optimizer, 0)
        before = reference(optimizer, 0, STEPS - 1)
        assert (table.pull(ALL) == expected.pull(ALL)).all()
        trainers = len(ps.trainers())
    ps.shutdown()
    for again in (BOTH, ONE_SERVER):
        if begin(again):
            table = ps.RemoteTable("t0", DIM, optimizer, ps.Normal(), seed=0)
            told = ps.restore(folder)
            assert told["step"] == STEPS - 1 and told["extra"] == b"from trainer 0"
            if trains:
                assert (table.pull(ALL) == before.pull(ALL)).all()
            if trains and trainers == len(ps.trainers()) == 1:  # the states are there too
                table.push(*batch(0, STEPS - 1))
                assert (table.pull(ALL) == expected.pull(ALL)).all()
        ps.shutdown()


def owner(number: int, servers: int) -> int:
    """The server of a number: a fixed hash, the finalizer of splitmix64."""
    mask = (1 << 64) - 1
    h = number & mask
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & mask
    h = (h ^ h >> 27) * 0x94D049BB133111EB & mask
    return (h ^ h >> 31) * servers >> 64


# The names of dense parameters and their elements: 1, 5 and 2 blocks.
DENSE = {"bias": 7, "weight": 8192 * 4 + 1, "head": 8192 * 2}


def rows_by_server(placement: str, servers: int) -> list[dict[str, int]]:
    """How many blocks of each dense parameter lie on each server."""
    found: list[dict[str, int]] = [dict.fromkeys(DENSE, 0) for _ in range(servers)]
    turn = 0
    for name, elements in DENSE.items():
        salt = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "little")
        for block in range(-(-elements // 8192)):
            in_turn = placement == "round_robin"
            found[turn % servers if in_turn else owner(salt + block, servers)][name] += 1
            turn += 1
    return found


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dense_blocks_on_servers(begin: Begin, roles: str, placement: str, folder: Path) -> None:
    """They lie where the placement says, and a cut of it is for another one on other servers."""

    def vectors(placement: str) -> dict[str, Blocks]:
        made = {name: Blocks(name, n, ps.SGD(1.0), placement) for name, n in DENSE.items()}
        for vector, n in zip(made.values(), DENSE.values(), strict=True):
            vector.values[:n] = np.arange(n)
            vector.gradients[:n] = np.arange(n) % 3 + 1
        spread(list(made.values()))
        return made

    def check(made: dict[str, Blocks], steps: int) -> None:
        for vector, n in zip(made.values(), DENSE.values(), strict=True):
            pull([vector])
            assert (vector.values[:n] == np.arange(n) - steps * (np.arange(n) % 3 + 1)).all()

    if begin(roles):
        made = vectors(placement)
        told = [
            {table["name"]: table["rows"] for table in server["tables"]}
            for server in ps.stats()["servers"]
        ]
        assert told == rows_by_server(placement, len(ps.pservers()))
        ps.push([vector.request() for vector in made.values()])
        steps = len(ps.trainers())
        check(made, steps)
        ps.save(folder, 1, extra=bytes([steps]))
    ps.shutdown()
    other = PLACEMENTS[1 - PLACEMENTS.index(placement)]
    for again in (BOTH, ONE_SERVER):
        if begin(again):
            made = vectors(other)
            check(made, 0)
            steps = ps.restore(folder)["extra"][0]
            check(made, steps)
            ps.barrier("read")
            ps.push([vector.request() for vector in made.values()])
            check(made, steps + len(ps.trainers()))
        ps.shutdown()


def test_dense_parameters_in_another_order(begin: Begin, rank: int) -> None:
    """They are dealt in turn, so all trainers make them in the same order."""
    begin(BOTH)
    if rank == 0:
        Blocks("first", 10, ps.SGD(1.0))
    ps.barrier()
    if rank == 1:
        Blocks("second", 10, ps.SGD(1.0))
        with pytest.raises(errors.MismatchError, match="rank 1 declares table"):
            Blocks("first", 10, ps.SGD(1.0))


def test_all_trainers_get_the_error_of_a_cut(begin: Begin, roles: str, folder: Path) -> None:
    if not begin(roles):
        return
    ps.RemoteTable("t", DIM)
    with pytest.raises(errors.ArgumentError, match="no complete cut"):
        ps.restore(folder)
    ps.save(folder, 3)
    with pytest.raises(errors.ArgumentError, match="cut-00000003 is complete"):
        ps.save(folder, 3)
    with pytest.raises(errors.ArgumentError, match="no whole cut"):
        ps.restore(folder, 4)
    with pytest.raises(errors.ArgumentError, match="step=-3"):
        ps.restore(folder, -3)
    assert ps.restore(folder)["step"] == 3


def test_what_a_program_adds_to_a_cut(begin: Begin, rank: int, folder: Path) -> None:
    """More than a request of the administration takes, and the most that a cut takes."""
    begin(BOTH)
    ps.RemoteTable("t", DIM)
    for step, size in enumerate((0, 1, 300_000, 8 << 20)):
        added = np.random.default_rng(size + rank).bytes(size)
        ps.save(folder, step, extra=added)
        for told in (ps.restore(folder), ps.restore(folder, step)):
            assert told["extra"] == np.random.default_rng(size).bytes(size)  # of the first trainer
    with pytest.raises(errors.ArgumentError, match="8388609 bytes, and a cut takes 8388608"):
        ps.save(folder, 9, extra=bytes((8 << 20) + 1))
    assert ps.latest(folder) is not None and ps.latest(folder).step == 3
    if rank == 0:
        assert told["extra"] == added


def test_trainers_that_ask_for_different_cuts(begin: Begin, rank: int, folder: Path) -> None:
    """All learn it, and nothing is done."""
    begin(BOTH)
    table = ps.RemoteTable("t", DIM)
    others = tuple(range(1, len(ps.trainers())))
    last = rank == others[-1]

    def differ(call: Callable[[], object], match: str) -> None:
        with pytest.raises(errors.MismatchError, match=match) as raised:
            call()
        assert set(raised.value.ranks) <= set(others), raised.value.ranks

    differ(lambda: ps.save(folder, 3 + rank), "asks for step [345] in")
    differ(lambda: ps.save(folder / "other" if last else folder, 3), "asks for step 3 in")
    differ(lambda: ps.save(folder, 3, keep=2 + last), "with keep=[23]")
    assert ps.barrier() is None and not any(folder.rglob("*"))
    ps.save(f"{folder}/" if rank else folder, 3, extra=bytes([rank]))
    table.push(np.arange(3), np.ones((3, DIM), np.float32))
    differ(lambda: ps.restore(folder, 3 if last else None), "asks for (step 3|the newest cut) in")
    differ(lambda: ps.restore(folder / "other" if last else folder), "asks for the newest cut in")
    assert (table.pull(np.arange(3)) != 0).all()
    assert ps.restore(folder)["step"] == 3
    assert (table.pull(np.arange(3)) == 0).all()


def test_who_is_missing_in_a_barrier_is_named(begin: Begin, rank: int, size: int) -> None:
    begin(BOTH, timeout=3.0)
    names = ["a", *["b"] * (size - 1)]
    with pytest.raises(errors.TimeoutError, match="have not come") as caught:
        ps.barrier(names[rank])
    assert rank not in caught.value.ranks
    assert (0 if rank else 1) in caught.value.ranks


def test_ranks_that_differ_are_named(rank: int, size: int) -> None:
    roles = BOTH if rank == size - 1 else ONE_SERVER
    with pytest.raises(errors.MismatchError, match="gave other arguments") as caught:
        ps.init(roles)
    if size > 2:
        assert caught.value.ranks == (size - 1,)
    with pytest.raises(errors.NotInitializedError):
        ps.role()
    kind = errors.ArgumentError if rank == 0 else errors.RefusedError
    with pytest.raises(kind):
        ps.init(ONE_SERVER if rank else "trainer")


def test_certificates_reach_the_core(rank: int, tmp_path: Path) -> None:
    """The service says which file it cannot read; what it does with good ones is tested in Go."""
    missing = {"cert": tmp_path / "none.pem", "key": str(tmp_path / "none.key")}
    for tls, kind, text in (
        (missing, errors.ArgumentError, "none.pem"),
        ({"cert": missing["cert"]}, errors.ArgumentError, "both a certificate and its key"),
        ({"crt": "x"}, errors.ArgumentError, r"tls has \['crt'\]; it takes cert, key, ca"),
        ("x", errors.DtypeError, "tls='x' is no map"),
        (missing if rank == 0 else None, errors.MismatchError, "other arguments"),
    ):
        with pytest.raises(kind, match=text):
            ps.init(tls=tls)


def test_tables_that_differ(begin: Begin, rank: int) -> None:
    begin(BOTH)
    one = ps.RemoteTable("t", DIM, seed=1)
    ps.barrier()
    with pytest.raises(
        errors.MismatchError, match=f"rank {rank} declares table .*: seed=2 instead of 1$"
    ):
        ps.RemoteTable("t", DIM, seed=2)
    with pytest.raises(errors.MismatchError, match=r"optimizer\.name=adam instead of sgd"):
        ps.RemoteTable("t", DIM, ps.Adam(), seed=1)
    other = ps.RemoteTable("t", DIM, seed=1)
    other.push(np.array([3]), np.ones((1, DIM), np.float32), 1.0)
    assert (one.pull(np.array([3])) == -float(len(ps.trainers()))).all()
    with pytest.raises(errors.MismatchError, match="learning rates"):
        one.push(np.array([3]), np.ones((1, DIM), np.float32), float(rank))


def test_who_declares_differently_at_the_same_time(
    begin: Begin, dist: ModuleType, rank: int, folder: Path
) -> None:
    """One trainer's table is that of all servers, so that cuts can be made."""
    begin(BOTH)
    made = np.zeros(1, np.int64)
    for number in range(12):
        ps.barrier()
        with contextlib.suppress(errors.MismatchError):
            ps.RemoteTable(f"t{number}", DIM, seed=rank)
            made += 1
    dist.all_reduce(made)
    assert made == 12
    ps.save(folder, 1)


def test_roles_and_the_group_of_trainers(begin: Begin, dist: ModuleType, rank: int) -> None:
    skip_over_nodes("the roles are those of one node")
    trains = begin("node:pserver:1,trainer:*")
    assert ps.pservers() == [0] and ps.trainers() == list(range(1, dist.get_world_size()))
    assert trains == (rank > 0) and ps.role() == ("trainer" if rank else "pserver")
    group = ps.trainer_group()
    assert group.rank() == rank - 1
    if trains:
        x = np.full(4, rank, np.float32)
        dist.all_reduce(x, group=group)
        assert (x == sum(ps.trainers())).all()


def test_the_world_may_end_first(rank: int, dist: ModuleType) -> None:
    """destroy_process_group ends the parameter server, and another may begin after it."""
    ps.init(BOTH)
    table = ps.RemoteTable("t", DIM)
    dist.destroy_process_group()
    try:
        with pytest.raises(errors.NotInitializedError):
            ps.role()
        with pytest.raises(errors.Error):
            table.pull(np.array([1]))
    finally:
        dist.init_process_group()
    ps.init(ONE_SERVER)
    if ps.is_trainer():
        assert (ps.RemoteTable("t", DIM).pull(np.array([1])) == 0).all()
    ps.shutdown()
