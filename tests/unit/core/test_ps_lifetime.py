"""Tables of this process whose ids come and go: their states, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paddlempi import _native, errors, ps

ALL = np.arange(60)


def made(**settings: Any) -> ps.Table:
    return ps.Table(2, ps.Adagrad(0.5), ps.Uniform(-1, 1), seed=5, **settings)


def train(table: ps.Table, begin: int, end: int) -> None:
    for step in range(begin, end):
        random = np.random.default_rng(step)
        ids = random.integers(0, 60, 9)
        table.push(ids, random.standard_normal((9, 2)).astype(np.float32))


@pytest.mark.parametrize(
    "settings",
    [
        {"admit_after": 2, "expire_after": 11, "max_rows": 15},
        {"admit_after": 3},
        {"expire_after": 4},
        {"max_rows": 9},
    ],
)
def test_a_state_goes_on_as_its_table(settings: dict[str, int]) -> None:
    table, other = made(**settings), made(**settings)
    train(table, 0, 30)
    state = table.state_dict()
    assert ("sketch" in state) == ("admit_after" in settings)
    assert state["stamps"].max() == state["steps"] == 30
    train(other, 100, 110)
    other.load_state_dict(state)
    again = other.state_dict()
    assert all(np.array_equal(state[name], again[name]) for name in state)
    for one in (table, other):
        train(one, 30, 60)
    assert np.array_equal(table.ids(), other.ids())
    assert np.array_equal(table.pull(ALL), other.pull(ALL))
    assert len(table) == len(table.ids())
    told = table.info()
    assert sum(told[name] for name in ("dropped", "expired", "evicted")) > 0


def test_pulls_make_no_rows() -> None:
    table = made(max_rows=10)
    assert np.array_equal(table.pull(ALL), made().pull(ALL))
    assert len(table) == 0


def test_a_smaller_table_takes_the_rows_of_the_last_pushes() -> None:
    table, smaller = made(max_rows=30), made(max_rows=7)
    train(table, 0, 30)
    state = table.state_dict()
    smaller.load_state_dict(state)
    order = sorted(zip(state["stamps"].tolist(), state["ids"].tolist(), strict=True))
    kept = np.array(sorted(number for _, number in order[-7:]))
    assert np.array_equal(smaller.ids(), kept)
    assert np.array_equal(smaller.pull(kept), table.pull(kept))


def test_states_of_other_tables() -> None:
    """One without last uses counts as used now; one with them loads where no ids go."""
    plain, table = made(), made(expire_after=3, admit_after=2)
    train(plain, 0, 10)
    table.load_state_dict(plain.state_dict())
    rows = len(plain)
    assert len(table) == rows and (table.state_dict()["stamps"] == 10).all()
    plain.load_state_dict(table.state_dict())
    assert len(plain) == rows and "stamps" not in plain.state_dict()
    few = made(max_rows=5)
    few.load_state_dict(plain.state_dict())
    assert few.ids().tolist() == plain.ids()[-5:].tolist()


def test_wrong_states() -> None:
    table = made(admit_after=2)
    train(table, 0, 30)
    state = table.state_dict()
    for name, value, text in (
        ("stamps", state["stamps"][1:], "stamps are of int64 and have shape"),
        ("stamps", state["stamps"].astype("f8"), "stamps are of float64"),
        ("sketch", b"short", "sketch: it has 5 bytes"),
        ("sketch", state["sketch"][:-1], "sketch: it ends after"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            table.load_state_dict({**state, name: value})
    assert np.array_equal(table.state_dict()["rows"], state["rows"])


@pytest.mark.parametrize("method", ["table_stamps", "table_sketch"])
def test_the_control_methods(method: str) -> None:
    plain, table = made(), made(max_rows=5)
    number, ids = table._held.number, "AQAAAAAAAAA="  # id 1
    for request, text in (
        ({"table": 70000}, "there is no table 70000"),
        ({"table": plain._held.number}, "do not come and go"),
        ({"table": "x"}, "is not what it takes"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            _native.control(method, **request)
    if method == "table_sketch":
        assert _native.control(method, table=number) == {"sketch": None}
        with pytest.raises(errors.ArgumentError, match="admit_after is off"):
            _native.control(method, table=number, add="AAAA")
        return
    for more, text in (
        ({"ids": "AAAA"}, "ids have 3 bytes"),
        ({"ids": ids, "stamps": ""}, "and stamps 0"),
        ({"ids": ids}, "which has no row"),
        ({"ids": ids, "stamps": ids}, "which has no row"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            _native.control(method, table=number, **more)
    assert _native.control(method, table=number, ids="") == {"stamps": ""}
