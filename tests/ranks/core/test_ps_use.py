"""What users of tables and servers meet: gradients, large numbers, other tables, mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from ps_roles import ONE_SERVER, begin, folder, layouts

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

DIM = 4
IDS = np.arange(6)
Begin = Callable[..., bool]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def full(value: float, dtype: str = "float32") -> np.ndarray:
    return np.full((len(IDS), DIM), value, dtype)


def of_bfloat16(value: float) -> Any:
    torch = pytest.importorskip("torch")
    return torch.full((len(IDS), DIM), value, dtype=torch.bfloat16)


def test_gradients_of_all_dtypes(begin: Begin) -> None:
    """A table takes what one on servers takes: its own dtype, and the others."""
    trains = begin(ONE_SERVER)
    for dtype in ("float32", "float16", "bfloat16"):
        tables = [ps.Table(DIM, ps.SGD(1.0), dtype=dtype)]
        if trains:
            tables.append(ps.RemoteTable(dtype, DIM, ps.SGD(1 / len(ps.trainers())), dtype=dtype))
        for table in tables:
            for gradients in (full(1), full(2, "float16"), of_bfloat16(4)):
                table.push(IDS, gradients)
            assert (table.pull(IDS) == -7).all()
            with pytest.raises(errors.DtypeError, match="float64"):
                table.push(IDS, full(1, "float64"))
            if trains:
                ps.barrier()


OPTIMIZERS = [
    ps.SGD(10.0),
    ps.Momentum(10.0, momentum=0.9),
    ps.Adagrad(1e37, epsilon=0.0),
    ps.RowWiseAdagrad(1e37, epsilon=0.0),
    ps.Adam(1e38),
    ps.AdamW(1e38, weight_decay=1.0),
]
LARGEST = {"float32": np.float32(3.4028235e38), "float16": 65504.0, "bfloat16": 3.3895314e38}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.NAME)
def test_finite_pushes_keep_rows_finite(dtype: str, optimizer: Any) -> None:
    table = ps.Table(37, optimizer, dtype=dtype)
    ids = np.arange(5)
    for value in (1.0, 1e38, -1e38, 3e38, 1e38, -3e38):
        for _ in range(3):
            table.push(ids, np.full((5, 37), value, np.float32))
            assert (np.abs(table.pull(ids)) <= LARGEST[dtype]).all()


def test_the_largest_number() -> None:
    for dtype, most in LARGEST.items():
        table = ps.Table(17, ps.SGD(1e38), dtype=dtype)
        for sign in (1, -1):
            table.push(IDS, np.full((6, 17), 10 * sign, np.float32))
            assert (table.pull(IDS) == -sign * most).all()
        free = ps.Table(17, ps.SGD(1e38), dtype=dtype, non_finite="allow")
        free.push(IDS, np.full((6, 17), 10, np.float32))
        assert (free.pull(IDS) == -np.inf).all()
        free.push(IDS, np.full((6, 17), np.nan, np.float32))
        assert np.isnan(free.pull(IDS)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_the_dtype_cannot_hold(dtype: str, begin: Begin) -> None:
    """A table that refuses what is not finite has no infinity, whatever its rows come from."""
    trains = begin(ONE_SERVER)
    rows, most = full(3), np.float32(LARGEST[dtype])
    for wrong in (np.nextafter(most, np.float32(np.inf)), np.float32(-3.4e38)):
        rows[4, 1] = wrong
        state = ps.Table(DIM).state_dict() | {"ids": IDS, "rows": rows}
        state["states"] = np.zeros((len(IDS), 0), np.float32)
        with pytest.raises(errors.ArgumentError, match=r"rows\[4, 1\] is .* of b?float16 is"):
            ps.Table(DIM, dtype=dtype).load_state_dict(state)
        if trains:
            table = ps.RemoteTable("t", DIM, dtype=dtype)
            with pytest.raises(errors.ArgumentError, match=r"row of id 4 .* at element 1; the"):
                table.write(IDS, rows)
    free = ps.Table(DIM, dtype=dtype, non_finite="allow")
    free.load_state_dict(state)
    assert free.pull(IDS)[4, 1] == -np.inf
    for beyond in (ps.Uniform(-4e38, 0), ps.Normal(0, 1e38)):
        with pytest.raises(errors.ArgumentError, match=r"makes numbers up to .*; the largest of"):
            ps.Table(DIM, initializer=beyond, dtype=dtype)
        ps.Table(DIM, initializer=beyond, dtype=dtype, non_finite="allow")
    largest = ps.Table(DIM, initializer=ps.Uniform(float(most), float(most)), dtype=dtype)
    assert (largest.pull(IDS) == most).all()


def test_rows_that_are_not_finite(begin: Begin, rank: int, roles: str) -> None:
    if not begin(roles):
        return
    table = ps.RemoteTable("t", DIM)
    free = ps.RemoteTable("free", DIM, non_finite="allow")
    if rank == ps.trainers()[0]:
        for value in (np.nan, np.inf):
            rows = full(3)
            rows[4, 1] = value
            with pytest.raises(errors.ArgumentError, match=r"write: the row of id 4 .*element 1"):
                table.write(IDS, rows)
            assert (table.pull(IDS) == 0).all()
            free.write(IDS, rows)
            assert not np.isfinite(free.pull(IDS)[4, 1])
        table.write(IDS, full(3))
    ps.barrier()
    assert (table.pull(IDS) == 3).all()


def test_a_dim_has_one_limit(begin: Begin) -> None:
    trains = begin(ONE_SERVER)
    for dim in (0, 65537, 1 << 30):
        with pytest.raises(errors.ArgumentError, match=f"dim={dim} is not from 1 to 65536"):
            ps.Table(dim)
        if trains:
            with pytest.raises(errors.ArgumentError, match=f"dim={dim} is not from 1 to 65536"):
                ps.RemoteTable("t", dim)
    if trains:
        table = ps.RemoteTable("t", 65536)
        assert table.pull(IDS[:1]).shape == (1, 65536)


def test_the_divisor_counts_trainers_that_have_completed(begin: Begin, rank: int) -> None:
    """Every sample of a training has the same weight, however many trainers are left."""
    if not begin("trainer+pserver:*"):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    if rank == 0:
        ps.complete()
        return
    count = len(ps.trainers())
    ps.note(table, IDS, full(count))
    ps.step()
    assert (table.pull(IDS) == -(count - 1)).all()


def test_wrong_steps_of_a_cut(begin: Begin, rank: int, roles: str, folder: Path) -> None:
    """A mistake of one trainer is its own error, at once."""
    if not begin(roles):
        return
    ps.RemoteTable("t", DIM)
    if rank == ps.trainers()[0]:
        with pytest.raises(errors.ArgumentError, match=r"ps.save: step=-1 is below 0"):
            ps.save(folder, -1)
        with pytest.raises(errors.ArgumentError, match=r"ps.save: keep=-2 is below 0"):
            ps.save(folder, 1, keep=-2)
        with pytest.raises(errors.ArgumentError, match=r"ps.restore: step=-1 is below 0"):
            ps.restore(folder, -1)
    ps.save(folder, 1)


def test_the_newest_cut(begin: Begin, rank: int, roles: str, folder: Path) -> None:
    """None where nothing is saved. Damaged cuts are an error, and so is a wrong kind of rank."""
    trains = begin(roles)
    if not trains:
        with pytest.raises(errors.ArgumentError, match="is a pserver"):
            ps.latest(folder)
        return
    assert ps.latest(folder) is None and ps.latest(folder / "missing") is None
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ps.barrier("looked")
    for step in (0, 7):
        table.push(IDS, full(1))
        ps.save(folder, step)
        assert ps.latest(folder) == (step, folder / f"cut-{step:08d}")
        assert ps.latest(folder)  # also of step 0
        ps.barrier("looked")
    (folder / "cut-00000009").mkdir(exist_ok=True)  # what a job that was killed leaves
    assert ps.latest(str(folder)).step == 7
    ps.barrier("looked")
    if rank == ps.trainers()[0]:
        for part in folder.glob("cut-0*/part-*"):
            part.write_bytes(part.read_bytes()[:-1])
    ps.barrier("damaged")
    with pytest.raises(errors.ArgumentError, match=r"of 2 complete cuts in .* none is whole"):
        ps.latest(folder)
    ps.barrier("seen")
    ps.shutdown()
    with pytest.raises(errors.ArgumentError, match=r"of 2 complete cuts in .* none is whole"):
        ps.latest(folder)  # without servers


def test_a_cut_of_other_tables(begin: Begin, roles: str, folder: Path) -> None:
    def made(names: str) -> dict[str, ps.RemoteTable]:
        return {name: ps.RemoteTable(name, DIM, ps.SGD(1.0)) for name in names}

    def values(tables: dict[str, ps.RemoteTable]) -> dict[str, float]:
        rows = {name: table.pull(IDS) for name, table in tables.items()}
        assert all((of == of[0, 0]).all() for of in rows.values())
        return {name: -float(of[0, 0]) for name, of in rows.items()}

    if begin(roles):
        tables = made("abc")
        count = len(ps.trainers())
        ps.push([(table, IDS, full(i + 1)) for i, table in enumerate(tables.values())])
        ps.save(folder, 3)
    ps.shutdown()
    for names, options, restored in (
        ("abc", {}, "abc"),
        ("abc", {"tables": ["b"]}, "b"),
        ("ab", {"strict": False}, "ab"),
        ("ab", {"tables": ("a", "b")}, "ab"),
        ("bcd", {"strict": False}, "bc"),
        ("bcd", {"tables": ["c", "d"], "strict": False}, "c"),
        ("d", {"strict": False}, ""),
    ):
        if begin(roles):
            tables = made(names)
            ps.push([(table, IDS, full(100)) for table in tables.values()])
            ps.barrier("pushed")
            told = ps.restore(folder, **options)
            assert (told["step"], told["tables"]) == (3, list(restored))
            of = {"a": 1, "b": 2, "c": 3}
            expected = {name: of[name] if name in restored else 100 for name in names}
            assert values(tables) == {name: count * value for name, value in expected.items()}
        ps.shutdown()
    for names, options, words in (
        ("ab", {}, 'the cut has a table "c", which is not there now.*strict=False'),
        ("abcd", {}, 'the cut has no table "d".*strict=False'),
        ("abcd", {"tables": ["a", "d"]}, 'the cut has no table "d"'),
        ("ab", {"tables": ["a", "c"]}, 'tables names "c", which is not there now'),
    ):
        if begin(roles):
            tables = made(names)
            ps.push([(table, IDS, full(100)) for table in tables.values()])
            ps.barrier("pushed")
            with pytest.raises(errors.ArgumentError, match=words):
                ps.restore(folder, **options)
            assert set(values(tables).values()) == {100 * count}  # nothing has changed
            with pytest.raises(errors.DtypeError, match="are no list of names"):
                ps.restore(folder, tables="a")
        ps.shutdown()
