"""What ``import torch`` runs, over a torch that is not there: fakes of its two modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import paddlempi_autoload
import pytest


class FakeBackend:
    """As ``torch.distributed.Backend``, newer than 2.12 if ``newer``."""

    def __init__(self, newer: bool) -> None:
        self.registered: list[str] = []
        if newer:
            self._ensure_backend_registered = lambda name: None

    def register_backend(self, name: str, creator: Any, **more: Any) -> None:
        assert name not in self.registered
        assert more == {"extended_api": True, "devices": ["cpu", "cuda"]}
        self.registered.append(name)


def functions() -> dict[str, FunctionType]:
    """torch's functions, each of which says what it was called with."""

    def _new_process_group_helper(a: int, b: int, c: list[int], backend: str) -> tuple[Any, ...]:
        return "helper", a, b, c, backend

    def _new_group_with_tag(
        ranks: Any = None, timeout: Any = None, backend: Any = None
    ) -> tuple[Any, ...]:
        return "new_group", ranks, timeout, backend

    def split_group(parent: Any = None, *, part: int = 7) -> tuple[Any, ...]:
        return "split", parent, part

    def monitored_barrier(group: Any = None) -> tuple[Any, ...]:
        return "barrier", group

    return {name: made for name, made in locals().items() if isinstance(made, FunctionType)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the modules; called with ``native``, ``newer`` and names to leave out."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("paddlempi.torch", "paddlempi.torch.activation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(paddlempi_autoload, "entered", set())
    monkeypatch.setattr(paddlempi_autoload, "originals", {})
    monkeypatch.setattr(paddlempi_autoload, "error", None)

    def make(native: bool = False, newer: bool = True, without: tuple[str, ...] = ()) -> Any:
        c10d: Any = ModuleType("torch.distributed.distributed_c10d")
        vars(c10d).update(functions())
        c10d.Backend, c10d.ProcessGroup, c10d._world = FakeBackend(newer), object, object()
        c10d._MPI_AVAILABLE = native
        c10d.is_mpi_available = lambda: c10d._MPI_AVAILABLE
        if native:
            c10d.ProcessGroupMPI = "torch's own"
        for name in without:
            delattr(c10d, name)
        rendezvous: Any = ModuleType("torch.distributed.rendezvous")
        rendezvous._rendezvous_handlers = {"env": lambda url, **named: ("env", url, named)}
        package: Any = ModuleType("torch")
        package.__version__ = "9.9.9"
        package.distributed = SimpleNamespace(distributed_c10d=c10d, rendezvous=rendezvous)
        for name, module in {
            "torch": package,
            "torch.distributed": ModuleType("torch.distributed"),
            "torch.distributed.distributed_c10d": c10d,
            "torch.distributed.rendezvous": rendezvous,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)
        return c10d

    yield make


@pytest.mark.parametrize("newer", [False, True])
def test_both_names_are_entered_once(fake: Any, newer: bool) -> None:
    c10d = fake(newer=newer)
    for _ in range(2):
        paddlempi_autoload.torch()
        assert paddlempi_autoload.error is None
    assert c10d.is_mpi_available()
    assert paddlempi_autoload.entered == {"mpi", "paddlempi"}
    # Older ones serve "mpi" by ProcessGroupMPI and refuse to register it.
    assert c10d.Backend.registered == (["paddlempi", "mpi"] if newer else ["paddlempi"])
    assert callable(c10d.ProcessGroupMPI.create)


def test_a_native_mpi_is_left_alone_until_it_is_asked_for(fake: Any) -> None:
    c10d = fake(native=True)
    paddlempi_autoload.torch()
    assert c10d.ProcessGroupMPI == "torch's own"
    assert c10d.Backend.registered == ["paddlempi"]
    assert paddlempi_autoload.entered == {"paddlempi"}
    paddlempi_autoload.register(replace_native=True)
    assert callable(c10d.ProcessGroupMPI.create)
    assert c10d.Backend.registered == ["paddlempi", "mpi"]
    assert paddlempi_autoload.entered == {"mpi", "paddlempi"}


def test_names_that_have_moved_are_told_and_nothing_is_replaced(fake: Any) -> None:
    c10d = fake(without=("split_group", "_world"))
    before = dict(vars(c10d))
    code = c10d._new_group_with_tag.__code__
    paddlempi_autoload.torch()
    for part in ("9.9.9", "split_group", "_world"):
        assert part in str(paddlempi_autoload.error)
    assert "monitored_barrier" not in str(paddlempi_autoload.error)
    with pytest.raises(ImportError, match="does not know this torch"):
        paddlempi_autoload.register(replace_native=True)
    assert vars(c10d) == before
    assert c10d._new_group_with_tag.__code__ is code
    assert c10d.Backend.registered == []


def test_a_function_that_is_no_plain_one_has_moved(fake: Any) -> None:
    c10d = fake()
    c10d.split_group = print
    with pytest.raises(ImportError, match="split_group as a plain function"):
        paddlempi_autoload.register(replace_native=False)


def test_a_torch_without_distributed(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", None)
    paddlempi_autoload.torch()
    assert isinstance(paddlempi_autoload.error, ImportError)


def test_other_backends_go_to_torch_and_import_nothing(fake: Any) -> None:
    c10d = fake()
    imported_before = [
        getattr(c10d, name) for name in ("_new_group_with_tag", "split_group", "monitored_barrier")
    ]
    signatures = [inspect.signature(function) for function in imported_before]
    env = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    paddlempi_autoload.torch()
    new_group, split_group, barrier = imported_before
    assert c10d._new_process_group_helper(1, 2, [3], "nccl") == ("helper", 1, 2, [3], "nccl")
    assert c10d._new_process_group_helper(1, 2, [3], backend="gloo")[4] == "gloo"
    assert new_group([0], backend="gloo") == ("new_group", [0], None, "gloo")
    assert new_group([0], 5, "gloo") == ("new_group", [0], 5, "gloo")
    assert split_group() == ("split", None, 7)
    assert split_group(part=1) == ("split", None, 1)
    assert barrier() == ("barrier", None)
    assert env["env"]("env://", timeout=1) == ("env", "env://", {"timeout": 1})
    assert [inspect.signature(function) for function in imported_before] == signatures
    assert "paddlempi.torch" not in sys.modules


def test_our_backends_come_here_also_from_functions_imported_before(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10d = fake()
    new_group, split_group = c10d._new_group_with_tag, c10d.split_group
    env = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    paddlempi_autoload.torch()

    class Front(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **named: (f"our {name}", arguments, named)

    monkeypatch.setattr(paddlempi_autoload, "front", lambda: Front("front"))
    helper = c10d._new_process_group_helper
    assert helper(1, 2, [], "cpu:mpi,cuda:nccl")[0] == "our new_process_group_helper"
    assert new_group(backend="MPI") == ("our new_group_with_tag", (), {"backend": "MPI"})
    assert new_group([0], None, "paddlempi")[0] == "our new_group_with_tag"
    assert c10d.ProcessGroupMPI.create([1]) == ("our create", ([1],), {})

    def init_process_group(backend: str) -> Any:
        return env["env"]("env://", timeout=1)

    assert init_process_group("cpu:mpi")[:2] == ("our env_rendezvous", ("env://", "cpu:mpi"))
    assert init_process_group("gloo")[0] == "env"
    # Groups of ours exist only where the front is loaded.
    assert split_group()[0] == "split"
    monkeypatch.setitem(sys.modules, "paddlempi.torch.activation", Front("activation"))
    assert split_group()[0] == "our split_group"
