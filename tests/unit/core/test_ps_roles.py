"""``ps.init`` and its roles: texts, maps, functions, nodes, other ranks, servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ps_fake
import pytest
from paddlempi import errors, ps
from paddlempi.ps import role_map, session
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

T, P, B = "trainer", "pserver", "trainer+pserver"


@pytest.mark.parametrize(
    ("given", "size", "expected"),
    [
        ("trainer:3,pserver:2", 5, (T, T, T, P, P)),
        ("pserver, trainer", 2, (P, T)),
        (" Trainer:* , PSERVER:1", 4, (T, T, T, P)),
        ("trainer+pserver:2,trainer", 3, (B, B, T)),
        ("pserver+trainer:*", 1, (B,)),
        ({0: P, 1: T}, 2, (P, T)),
        ("master+pserver,trainer:*", 3, ("pserver+master", T, T)),
        ("trainer:2,pserver,master", 4, (T, T, P, "master")),
        (lambda rank: P if rank % 2 else T, 4, (T, P, T, P)),
        (None, 3, (B, B, B)),
    ],
)
def test_roles_of_all_ranks(given: Any, size: int, expected: tuple[str, ...]) -> None:
    assert role_map.resolved(given, size) == expected


@pytest.mark.parametrize(
    ("given", "size", "kind", "text"),
    [
        ("trainer:3,pserver:2", 4, errors.ArgumentError, "is for 5 ranks; the world has 4"),
        ("trainer:*,pserver:4", 4, errors.ArgumentError, "5 ranks or more; the world has 4"),
        ("trainer:*,pserver:*", 4, errors.ArgumentError, r"only one role can have \*"),
        ("trainer:0,pserver:4", 4, errors.ArgumentError, "'0' is no number of ranks above 0"),
        ("trainer:-1,pserver:5", 4, errors.ArgumentError, "'-1' is no number"),
        ("trainer:", 1, errors.ArgumentError, "'' is no number"),
        ("worker:2", 2, errors.ArgumentError, "'worker' is none of 'trainer', 'pserver'"),
        ("trainer:1,pserver:1,master:2", 4, errors.ArgumentError, r"ranks \[2, 3\] are masters"),
        ("trainer:1,master:1", 2, errors.ArgumentError, "no rank is a pserver"),
        ("", 2, errors.ArgumentError, "'' is none of"),
        ("trainer:2", 2, errors.ArgumentError, "no rank is a pserver"),
        ({0: P, 1: P}, 2, errors.ArgumentError, "no rank is a trainer"),
        ({0: P, 2: T}, 2, errors.ArgumentError, r"has the ranks \[0, 2\]; .* from 0 to 1"),
        ({"a": P}, 1, errors.DtypeError, "a key is no rank"),
        ({0: 7}, 1, errors.ArgumentError, "7 is none of"),
        (3, 2, errors.DtypeError, "roles is a int"),
        ("node:trainer:x", 2, errors.ArgumentError, "'x' is no number"),
    ],
)
def test_wrong_roles(given: Any, size: int, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        role_map.resolved(given, size)


def test_roles_of_a_node() -> None:
    assert role_map.resolved("node:trainer:*,pserver:1", 6) is None
    given = "node:trainer:*,pserver:1"
    assert [role_map.of_node(given, rank, 3) for rank in range(3)] == [T, T, P]
    with pytest.raises(errors.ArgumentError, match="this node has 1"):
        role_map.of_node(given, 0, 1)


def test_init_tells_the_core(ps_core: PsCore) -> None:
    ps.init("trainer+pserver:1", mode="async", timeout=7)
    (request,) = [given for method, given in ps_core.controls if method == "ps_init"]
    assert request == {
        "group": ps_fake.WORLD,
        "roles": [["trainer", "pserver"]],
        "mode": "async",
        "timeout": 7,
        "functions": [],
    }
    assert (ps.role(), ps.roles(), ps.trainers(), ps.pservers()) == (B, (B,), [0], [0])
    assert ps.is_trainer() and ps.trainer_group().size() == 1
    with pytest.raises(errors.AlreadyInitializedError, match=r"ps\.shutdown"):
        ps.init()
    ps.shutdown()
    assert ps_core.called()[-3:] == ["ps_complete", "ps_serve", "ps_close"]
    ps.shutdown()  # nothing is left to do
    assert ps_core.called().count("ps_close") == 1
    ps.init()
    assert ps.role() == B


def test_the_variable(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_ROLES", "trainer:2")
    with pytest.raises(errors.ArgumentError, match="'trainer:2' is for 2 ranks"):
        ps.init()
    assert "is for 2 ranks" in ps_core.refusals[0]  # the other ranks do not wait
    ps.init({0: B})  # an argument comes before the variable


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"mode": "half"}, errors.ArgumentError),
        ({"timeout": 0}, errors.ArgumentError),
        ({"timeout": "1"}, errors.DtypeError),
    ],
)
def test_wrong_arguments(ps_core: PsCore, arguments: Any, kind: type) -> None:
    with pytest.raises(kind):
        ps.init(**arguments)
    assert len(ps_core.refusals) == 1 and "ps_init" not in ps_core.called()


def test_ranks_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ps_fake.install(monkeypatch, rank=1, size=4)
    fake.others[2] = bytes(40)
    with pytest.raises(errors.MismatchError, match=r"rank\(s\) 2 gave other arguments") as caught:
        ps.init("trainer:2,pserver:2")
    assert caught.value.ranks == (2,)
    assert "roles=['trainer', 'trainer', 'pserver', 'pserver'], mode='sync'" in str(caught.value)
    assert "ps_init" not in fake.called()


def test_a_group_of_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ps_fake.install(monkeypatch, rank=1, size=3)
    ps.init("pserver,trainer:2")
    assert [given["ranks"] for method, given in fake.controls if method == "new_group"] == [[1, 2]]
    assert ps.trainer_group().rank() == 0 and ps.trainers() == [1, 2]
    with pytest.raises(
        errors.ArgumentError, match="rank 1 is a trainer; only servers and the master serve"
    ):
        ps.serve()
    ps.shutdown()
    assert fake.called()[-2:] == ["ps_complete", "ps_close"]  # it waits for nobody


def test_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ps_fake.install(monkeypatch, rank=0, size=3)
    ps.init("pserver,trainer:2")
    assert ps.role() == P and not ps.is_trainer()
    assert ps.trainer_group().rank() == -1
    for call in (
        lambda: ps.RemoteTable("t", 4),
        ps.step,
        ps.complete,
        ps.barrier,
        lambda: ps.pull([]),
        lambda: ps.save("x", 1),
    ):
        with pytest.raises(errors.ArgumentError, match="rank 0 is a pserver; only trainers"):
            call()
    ps.serve()
    ps.shutdown()
    assert fake.called()[-3:] == ["ps_serve", "ps_serve", "ps_close"]
    assert "ps_complete" not in fake.called()


def test_a_server_that_ends_in_init(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ps_fake.install(monkeypatch, rank=0, size=2)
    monkeypatch.setattr(session._state, "servers_end_in_init", True)
    with pytest.raises(SystemExit) as caught:
        ps.init("pserver,trainer")
    assert caught.value.code == 0 and fake.called()[-1] == "ps_close"
    trainer = ps_fake.install(monkeypatch, rank=1, size=2)
    ps.init("pserver,trainer")
    assert trainer.called()[-1] == "ps_init"
    ps.shutdown()


def test_before_init() -> None:
    for call in (ps.role, ps.trainers, ps.pservers, ps.serve, ps.complete, ps.step, ps.stats):
        with pytest.raises(errors.NotInitializedError, match=r"ps\.init"):
            call()
    with pytest.raises(errors.NotInitializedError, match=r"ps\.RemoteTable: call ps\.init"):
        ps.RemoteTable("t", 4)
    ps.shutdown()


def test_what_a_rank_does_once(ps_core: PsCore) -> None:
    ps.init()
    ps.complete()
    ps.complete()
    assert ps_core.called().count("ps_complete") == 1
    ps.barrier("here")
    ps.set_learning_rate("t", 0.5)
    ps.save("folder", 3, extra=b"\0more")
    told = {"step": 3, "extra": b"\0more", "rows": 5, "tables": ["t"], "skipped": []}
    assert ps.restore("folder", 3) == {**told, "time": None}  # that of an older version
    assert ps_core.controls[-4:] == [
        ("ps_barrier", {"name": "here"}),
        ("ps_learning_rate", {"name": "t", "rate": 0.5}),
        ("ps_save", {"dir": "folder", "step": 3, "keep": 2, "extra": "AG1vcmU="}),
        ("ps_restore", {"dir": "folder", "step": 3}),
    ]
    with pytest.raises(errors.DtypeError, match="step='3'"):
        ps.save("folder", "3")


END = """
import sys
sys.path.insert(0, {helpers!r})
import ps_fake, pytest
from paddlempi import ps
fake = ps_fake.install(pytest.MonkeyPatch())
ps.init()
before = fake.control
fake.control = lambda method, given: print(method) or before(method, given)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("", "ps_complete ps_serve ps_close"),
        ("sys.exit(0)", "ps_complete ps_serve ps_close"),
        ("1 / 0", ""),
        ("ps.shutdown(); print('.')", "ps_complete ps_serve ps_close ."),
    ],
)
def test_the_end_of_the_process(ending: str, expected: str) -> None:
    code = END.format(helpers=os.path.dirname(ps_fake.__file__), ending=ending)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == expected.split(), done.stderr


def test_every_name_is_documented() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = "\n".join(path.read_text() for path in docs.glob("ps*.md"))
    code = " ".join(re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)))
    names = {*ps.__all__, *ps._LAYERS} - {"Initializer", "Optimizer", "Prefetched"}
    assert not {name for name in names if not re.search(rf"\b{name}\b", code)}
    for name in ps.__all__:
        assert getattr(ps, name).__doc__, name
    with pytest.raises(AttributeError):
        ps.nonsense  # noqa: B018
