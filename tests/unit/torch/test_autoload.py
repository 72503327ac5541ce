"""What ``import torch`` runs, with fakes in the place of two of torch's modules."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from paddlempi_bootstrap import mpi_launcher, torch_autoload, torch_stubs, torchrun_variables
from paddlempi_bootstrap.known_launchers import BY_PROCESS, SIGNS
from paddlempi_bootstrap.mpi_launcher import Place
from torch_environment import NAMES

ALONE: tuple[str, ...] = (
    *NAMES,
    "PADDLEMPI_FILLED",
    "PADDLEMPI_TORCH",
    "TORCHELASTIC_RUN_ID",
    "PADDLEMPI_TORCH_GLOO",
)
JOB = Place("Open MPI", size=4, rank=2, local_rank=2, local_size=4, job="prterun-n-1@1")


class FakeBackend:
    """A fake ``torch.distributed.Backend``. ``newer``: of a torch newer than 2.12."""

    def __init__(self, newer: bool) -> None:
        self.registered: list[str] = []
        self._plugins: dict[str, Any] = {}
        self.default_device_backend_map = {"cpu": "gloo", "cuda": "nccl"}
        if newer:
            self._ensure_backend_registered = lambda name: None

    def register_backend(self, name: str, creator: Any, **more: Any) -> None:
        assert name not in self.registered
        assert more == {"extended_api": True, "devices": ["cpu", "cuda"]}
        self.registered.append(name)
        self._plugins[name.upper()] = creator


def functions() -> dict[str, FunctionType]:
    """Return fakes of torch's functions, which return what they were called with."""

    def init_process_group(backend: Any = None, **named: Any) -> tuple[Any, ...]:
        return "init", backend, named

    def is_mpi_available() -> bool:
        return _MPI_AVAILABLE  # type: ignore[name-defined,no-any-return]  # noqa: F821

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
def variables() -> Iterator[Any]:
    """Return the environment, without a launcher's variables. Restore it after the test."""
    before = dict(os.environ)
    for name in (*ALONE, *SIGNS):
        os.environ.pop(name, None)
    yield os.environ
    os.environ.clear()
    os.environ.update(before)


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing registered, as in a new process."""
    entered: set[str] = set()
    monkeypatch.setattr(torch_stubs, "entered", entered)
    monkeypatch.setattr(torch_autoload, "entered", entered)
    monkeypatch.setattr(torch_stubs, "originals", {})
    monkeypatch.setattr(torch_autoload, "error", None)
    monkeypatch.setattr(torch_stubs, "defaults", ())
    monkeypatch.setattr(torch_stubs, "gloo_is_ours", False)
    monkeypatch.setattr(torch_stubs, "gloo_was_asked", False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, variables: Any) -> Iterator[Any]:
    """Return a function that puts the fake modules in place.

    ``native``: this torch was built with MPI. ``newer``: it is newer than 2.12. ``without``: names
    that its module lacks.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("paddlempi.torch", "paddlempi.torch.activation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    clear(monkeypatch)

    def make(native: bool = False, newer: bool = True, without: tuple[str, ...] = ()) -> Any:
        c10d: Any = ModuleType("torch.distributed.distributed_c10d")
        for name, made in functions().items():  # they use the module's globals, as torch's do
            setattr(
                c10d,
                name,
                FunctionType(made.__code__, vars(c10d), name, made.__defaults__),
            )
            getattr(c10d, name).__kwdefaults__ = made.__kwdefaults__
        c10d.Backend, c10d.ProcessGroup, c10d._world = FakeBackend(newer), object, object()
        c10d._MPI_AVAILABLE = native
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
        torch_autoload.autoload()
        assert torch_autoload.error is None
    assert c10d.is_mpi_available()
    assert torch_autoload.entered == {"mpi", "paddlempi"}
    # An older torch serves "mpi" by ProcessGroupMPI and refuses to register that name.
    assert c10d.Backend.registered == (["paddlempi", "mpi"] if newer else ["paddlempi"])
    assert callable(c10d.ProcessGroupMPI.create)
    assert {"MPI", "PADDLEMPI"} == c10d.Backend._plugins.keys()  # for those who call it themselves


def test_a_native_mpi_is_left_alone_until_it_is_asked_for(fake: Any) -> None:
    c10d = fake(native=True)
    torch_autoload.autoload()
    assert c10d.ProcessGroupMPI == "torch's own"
    assert c10d.Backend.registered == ["paddlempi"]
    assert torch_autoload.entered == {"paddlempi"}
    torch_stubs.register(replace_native=True)
    assert callable(c10d.ProcessGroupMPI.create)
    assert c10d.Backend.registered == ["paddlempi", "mpi"]
    assert torch_autoload.entered == {"mpi", "paddlempi"}


def test_names_that_have_moved_are_told_and_nothing_is_replaced(fake: Any) -> None:
    c10d = fake(without=("split_group", "_world"))
    before = dict(vars(c10d))
    code = c10d._new_group_with_tag.__code__
    torch_autoload.autoload()
    for part in ("9.9.9", "split_group", "_world"):
        assert part in str(torch_autoload.error)
    assert "monitored_barrier" not in str(torch_autoload.error)
    with pytest.raises(ImportError, match="does not know this torch"):
        torch_stubs.register(replace_native=True)
    assert vars(c10d) == before
    assert c10d._new_group_with_tag.__code__ is code
    assert c10d.Backend.registered == []


def test_a_function_that_is_no_plain_one_has_moved(fake: Any) -> None:
    c10d = fake()
    c10d.split_group = print
    with pytest.raises(ImportError, match="split_group as a plain function"):
        torch_stubs.register(replace_native=False)


def test_a_torch_without_distributed(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", None)
    torch_autoload.autoload()
    assert isinstance(torch_autoload.error, ImportError)


def test_other_backends_go_to_torch_and_import_nothing(fake: Any) -> None:
    c10d = fake()
    imported_before = [
        getattr(c10d, name) for name in ("_new_group_with_tag", "split_group", "monitored_barrier")
    ]
    init = c10d.init_process_group
    signatures = [inspect.signature(function) for function in imported_before]
    env = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    torch_autoload.autoload()
    new_group, split_group, barrier = imported_before
    assert init() == ("init", None, {})
    assert init("gloo", rank=1) == ("init", "gloo", {"rank": 1})
    assert init(backend="gloo") == ("init", "gloo", {})
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
    torch_autoload.autoload()

    class Front(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **named: (f"our {name}", arguments, named)

    monkeypatch.setattr(torch_stubs, "front", lambda: Front("front"))
    assert c10d.init_process_group("mpi", rank=3)[::2] == ("our init_process_group", {"rank": 3})
    helper = c10d._new_process_group_helper
    assert helper(1, 2, [], "cpu:mpi,cuda:nccl")[0] == "our new_process_group_helper"
    assert new_group(backend="MPI") == ("our new_group_with_tag", (), {"backend": "MPI"})
    assert new_group([0], None, "paddlempi")[0] == "our new_group_with_tag"
    assert c10d.ProcessGroupMPI.create([1]) == ("our create", ([1],), {})

    def init_process_group(backend: str) -> Any:
        return env["env"]("env://", timeout=1)

    assert init_process_group("cpu:mpi")[:2] == ("our env_rendezvous", ("env://", "cpu:mpi"))
    assert init_process_group("gloo")[0] == "env"
    # Groups of paddlempi can exist only if the front is loaded.
    assert split_group()[0] == "split"
    monkeypatch.setitem(sys.modules, "paddlempi.torch.activation", Front("activation"))
    assert split_group()[0] == "our split_group"


def test_gloo_is_ours_where_the_user_wants_it(
    fake: Any, variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10d = fake()
    variables["PADDLEMPI_TORCH_GLOO"] = "yes"
    torch_autoload.autoload()
    assert "PADDLEMPI_TORCH_GLOO='yes'" in str(torch_autoload.error)
    clear(monkeypatch)
    c10d = fake()
    variables["PADDLEMPI_TORCH_GLOO"] = "mpi"
    torch_autoload.autoload()
    assert torch_autoload.error is None and torch_stubs.defaults == ("cpu",)
    assert c10d.Backend.default_device_backend_map == {"cpu": "mpi", "cuda": "nccl"}

    class Front:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **named: (arguments, named)

    monkeypatch.setattr(torch_stubs, "front", Front)
    init = c10d.init_process_group
    assert init("nccl", rank=1) == ("init", "nccl", {"rank": 1})
    assert init("cuda:gloo") == ("init", "cuda:gloo", {})
    assert not torch_stubs.gloo_was_asked
    assert init("GLOO", rank=1) == (("mpi",), {"rank": 1})
    assert torch_stubs.gloo_was_asked
    assert init(backend="cuda:nccl,cpu:gloo") == ((), {"backend": "cuda:nccl,cpu:mpi"})
    assert c10d._new_process_group_helper(1, 2, [], "gloo") == ((1, 2, [], "mpi"), {})
    assert c10d._new_group_with_tag([0], 5, "gloo", 1) == (([0], 5, "mpi", 1), {})
    assert c10d._new_group_with_tag([0], backend="gloo") == (([0],), {"backend": "mpi"})


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("given", "started", "answer"),
    [
        ({}, None, True),
        ({}, JOB, True),
        # torchrun on one node, which needs no MPI, and on two, which need one that is not there.
        ({**TORCHRUN, "WORLD_SIZE": "2"}, None, True),
        ({**TORCHRUN, "WORLD_SIZE": "4"}, None, False),
        ({**TORCHRUN, "WORLD_SIZE": "4", "PADDLEMPI_MPI": "/x/libmpi.so"}, None, True),
        # It is nearer than the launcher of an MPI above it.
        ({**TORCHRUN, "WORLD_SIZE": "2"}, JOB, True),
        # A user who sets the same variables.
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, False),
        ({"LOCAL_RANK": "0"}, None, False),
        ({"RANK": "7", "WORLD_SIZE": "8"}, JOB, False),
        # The launcher's numbers, in torchrun's variables.
        ({"RANK": "2", "WORLD_SIZE": "4"}, JOB, True),
        ({"LOCAL_RANK": "2"}, JOB, True),
        ({"PADDLEMPI_TORCH": "1", "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, None, True),
        ({"PADDLEMPI_TORCH": "0"}, JOB, False),
    ],
)
def test_is_mpi_available(
    fake: Any,
    variables: Any,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    started: Place | None,
    answer: bool,
) -> None:
    c10d = fake()
    is_mpi_available = c10d.is_mpi_available
    assert not is_mpi_available()
    variables.update(given)
    monkeypatch.setattr(mpi_launcher, "find", lambda: started)
    monkeypatch.setattr(sys, "prefix", "/nowhere")  # this environment may have an MPI
    torch_autoload.autoload()
    assert torch_autoload.error is None
    assert is_mpi_available() is answer
    assert torch_stubs.originals["is_mpi_available"]() is True
    monkeypatch.setattr(torch_stubs, "naming", 1)  # torch asks before it makes a group
    assert is_mpi_available() is True


def test_the_answer_changes_with_the_variables(fake: Any, variables: Any) -> None:
    """A notebook without these variables starts processes that have them."""
    c10d = fake()
    torch_autoload.autoload()
    assert c10d.is_mpi_available()
    variables.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    assert not c10d.is_mpi_available()


def test_a_native_mpi_answers_for_itself(fake: Any, variables: Any) -> None:
    c10d = fake(native=True)
    variables.update(RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="x")
    torch_autoload.autoload()
    assert c10d.is_mpi_available()
    assert "PADDLEMPI_FILLED" not in variables


def test_the_variables_that_import_torch_sets(
    fake: Any, variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(started: Place | None, *moved: str, **given: str) -> dict[str, str]:
        for name in ALONE:
            variables.pop(name, None)
        variables.update(given)
        monkeypatch.setattr(mpi_launcher, "find", lambda: started)
        clear(monkeypatch)
        fake(without=moved)
        torch_autoload.autoload()
        return {name: variables[name] for name in NAMES if name in variables}

    found = shown(JOB)
    assert 10_000 <= int(found["MASTER_PORT"]) < 30_000
    assert found == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": found["MASTER_PORT"],
    }
    assert shown(None) == {}
    assert shown(JOB, "split_group") == {}, "a torch that is not known"
    assert torch_autoload.error is not None
    assert "MASTER_ADDR" not in shown(JOB._replace(local_size=2))
    given = shown(JOB, RANK="2", MASTER_ADDR="there", MASTER_PORT="29500")
    assert given == found | {"MASTER_ADDR": "there", "MASTER_PORT": "29500"}
    assert not torchrun_variables.is_ours("RANK")
    assert torchrun_variables.is_ours("WORLD_SIZE")


@pytest.mark.parametrize(
    ("started", "given", "told"),
    [
        (JOB, {}, True),
        (JOB._replace(size=1, rank=0, local_size=1, local_rank=0), {}, False),
        (JOB._replace(size=1, rank=0), {"PADDLEMPI_TORCH": "1"}, False),
        (JOB, {"PADDLEMPI_TORCH": "0"}, False),
        # The user has set other numbers.
        (JOB, {"RANK": "7", "WORLD_SIZE": "8"}, False),
        (JOB, {"WORLD_SIZE": "1"}, False),
        (JOB, {"LOCAL_RANK": "0"}, False),
        (JOB, {"RANK": "2", "WORLD_SIZE": "4"}, True),
        # srun without MPI, and with MPI.
        (JOB._replace(mpi="Slurm"), {}, False),
        (JOB._replace(mpi="Slurm"), {"PMIX_RANK": "2"}, True),
        (JOB._replace(mpi="Slurm"), {"PMI_RANK": "2"}, True),
        # Programs take LOCAL_RANK for the index of a visible GPU.
        (JOB, {"CUDA_VISIBLE_DEVICES": "2"}, False),
        (JOB, {"CUDA_VISIBLE_DEVICES": "2"} | {"PADDLEMPI_TORCH": "1"}, True),
        (JOB, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, True),
        (JOB, {"CUDA_VISIBLE_DEVICES": ""}, True),
        (JOB, {"CUDA_VISIBLE_DEVICES": "-1"}, True),
    ],
)
def test_whom_import_torch_tells(
    fake: Any,
    variables: Any,
    monkeypatch: pytest.MonkeyPatch,
    started: Place,
    given: dict[str, str],
    told: bool,
) -> None:
    fake()
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    variables.update(given)
    monkeypatch.setattr(mpi_launcher, "find", lambda: started)
    before = dict(variables)
    torch_autoload.autoload()
    assert torch_autoload.error is None
    if told:
        assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == (
            "2",
            "4",
            "2",
        )
    else:
        assert dict(variables) == before


OMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "prterun-n-1@1",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_NTASKS": "9",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "a[03-05,7]",
}
BY_OMPI = Place("Open MPI", 4, 2, 0, 2, "prterun-n-1@1", "n", "openmpi")
BY_SRUN = Place("Slurm", 7, 5, 1, 2, "7.3", "a03", "slurm")


@pytest.mark.parametrize(
    ("given", "parents", "found"),
    [
        (OMPI, ["python", "prterun", "bash"], BY_OMPI),
        (OMPI, ["sh", "python", "/usr/bin/prted"], BY_OMPI),
        (OMPI, ["a (b) c", "orterun"], BY_OMPI),
        ({"PMIX_RANK": "2"}, ["prted"], None),  # PRRTE without Open MPI tells no size
        (OMPI, ["bash", "sshd"], None),
        ({}, ["prterun"], None),
        (SRUN, ["slurmstepd"], BY_SRUN),
        (SRUN, ["/usr/sbin/slurmstepd-wlm slurmstepd"], BY_SRUN),
        (SRUN | {"SLURM_NODEID": "3"}, ["slurmstepd"], BY_SRUN._replace(local_size=1)),
        (
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "?"},
            ["slurmstepd"],
            BY_SRUN._replace(local_size=-1),
        ),
        # In a batch script the variables describe the script, or mpirun's daemons.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "9"}, ["bash", "slurmstepd"], None),
        (SRUN | OMPI, ["prterun", "slurmstepd"], BY_OMPI),
        (SRUN | OMPI, ["slurmstepd", "prterun"], BY_SRUN),
        (
            {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            ["hydra_pmi_proxy --control-port head:357 --rmk user"],
            Place("MPICH or Intel MPI", 2, 1, 1, 2, "head:357", "head", "hydra"),
        ),
        (
            {"PMI_SIZE": "2", "PMI_RANK": "1", "I_MPI_HYDRA_UUID": "abc"},
            ["hydra_pmi_proxy"],
            Place("MPICH or Intel MPI", 2, 1, -1, -1, "abc", "", "hydra"),
        ),
    ],
)
def test_launchers(
    variables: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: dict[str, str],
    parents: list[str],
    found: Place | None,
) -> None:
    """An item of ``parents`` is an executable's path or, if that is hidden, name and arguments."""
    for name in (*OMPI, *SRUN, "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"):
        variables.pop(name, None)
    variables.pop("I_MPI_HYDRA_UUID", None)
    variables.update(given)
    for number, parent in enumerate(parents):
        folder = tmp_path / str(100 + number)
        folder.mkdir()
        above = 101 + number if number + 1 < len(parents) else 0
        words = parent.split() if "(" not in parent else [parent]
        name = words[1] if words[0].startswith("/") and len(words) > 1 else Path(words[0]).name
        (folder / "stat").write_text(f"{100 + number} ({name}) S {above} 1 1 0\n")
        (folder / "cmdline").write_text("\0".join(words) + "\0")
        if words[0].startswith("/"):
            (folder / "exe").symlink_to(words[0])
    monkeypatch.setattr(mpi_launcher, "_PROC", str(tmp_path))
    monkeypatch.setattr(os, "getppid", lambda: 100)
    got = mpi_launcher.find()
    if got is None or found is None:
        assert got is found
        return
    assert got[:8] == found[:8]
    above = parents[got.pid - 100]
    assert got.path == (above.split()[0] if above.startswith("/") else "")
    assert got.name in BY_PROCESS and got.name in above
    assert got.mpirun == (got.name in ("prterun", "orterun"))
