"""The code that ``import torch`` runs through the entry-point group ``torch.backends``.

It registers the backends ``mpi`` and ``paddlempi`` with ``torch.distributed``. Under an MPI's
launcher it also sets the variables in which torchrun tells frameworks their ranks. It does no more:
the first use of one of the backends imports paddlempi, and init starts MPI. This module is at the
top level, so that importing it does not import ``paddlempi``. An error here must not stop ``import
torch``: it is kept in :data:`error`, and ``python -m paddlempi info`` shows it.

All names of torch that this module replaces are private to torch. It looks all of them up before it
replaces the first. It replaces the code inside a function, not the function, so that a module that
has imported the function before gets the new code too.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from paddlempi_launchers import BY_MPI, BY_PROCESS, SIGNS, Kind

__all__ = [
    "NAMES",
    "Launcher",
    "entered",
    "error",
    "fill",
    "is_ours",
    "launcher",
    "originals",
    "register",
    "set_ours",
    "torch",
]

error: BaseException | None = None
"""Why ``import torch`` could not register the names; None if it could, or did not try."""

NAMES = ("mpi", "paddlempi")
"""The names of the backend."""

entered: set[str] = set()
"""The names in ``NAMES`` that are registered for paddlempi in this process."""

originals: dict[str, Any] = {}
"""torch's functions that were replaced, by name; under ``env`` its handler of ``env://``."""

lazily = False
"""Whether this module, and not the user, is importing ``paddlempi.torch``."""

defaults: tuple[str, ...] = ()
"""The devices for which torch takes ``mpi`` where no backend is named: see ``DEFAULT``."""

naming = 0
"""How many groups are being made for which the program has named the backend."""

# What this module needs of torch's distributed_c10d.
_FUNCTIONS = (
    "init_process_group",
    "is_mpi_available",
    "_new_process_group_helper",
    "_new_group_with_tag",
    "split_group",
    "monitored_barrier",
)
_OTHERS = ("Backend", "ProcessGroup", "_world", "_MPI_AVAILABLE")


def torch() -> None:
    """The entry point. Never raises."""
    global error
    try:
        register(replace_native=False)
        if "mpi" in entered:
            started = launcher()
            fill(started, tell=started is not None and _to_be_told(started))
    except Exception as reason:
        error = reason


def register(replace_native: bool) -> None:
    """Register the names, unless they are registered.

    Args:
        replace_native: register ``mpi`` also in a torch that was built with an MPI, instead of
            torch's backend of that name.

    Raises:
        ImportError: this torch has no ``torch.distributed``, or lacks a private name that this
            module needs; the message has the names and the version of torch.
    """
    import importlib

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    if not originals:
        _check(c10d, rendezvous)
        native = c10d.is_mpi_available()
        for name in _FUNCTIONS:
            originals[name] = _replace(getattr(c10d, name), _STUBS[name])
        originals["env"] = rendezvous._rendezvous_handlers["env"]
        rendezvous._rendezvous_handlers["env"] = _env
        _enter(c10d, "paddlempi")
        if native and not replace_native:
            return
    if "mpi" not in entered and (replace_native or not originals["is_mpi_available"]()):
        c10d.ProcessGroupMPI = _Native
        c10d._MPI_AVAILABLE = True
        # torch up to 2.12 knows "mpi" already, which cannot be registered twice, and makes its
        # groups by ProcessGroupMPI.
        if hasattr(c10d.Backend, "_ensure_backend_registered"):
            _enter(c10d, "mpi")
        entered.add("mpi")
    _make_default(c10d)


def _make_default(c10d: Any) -> None:
    """Make ``mpi`` torch's default for the devices that the user names, in a job of MPI."""
    global defaults
    devices = [name for name in re.split(r"[,\s]+", os.environ.get(DEFAULT, "")) if name]
    if not devices or "mpi" not in entered or launcher() is None:
        return
    wrong = [device for device in devices if device not in ("cpu", "cuda")]
    if wrong:
        raise ValueError(f"{DEFAULT}={os.environ[DEFAULT]!r}: mpi serves cpu and cuda, not {wrong}")
    defaults = tuple(devices)
    for device in devices:
        c10d.Backend.default_device_backend_map[device] = "mpi"


def _enter(c10d: Any, name: str) -> None:
    c10d.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])
    entered.add(name)


def _check(c10d: Any, rendezvous: Any) -> None:
    """Look up every name before one is replaced, so that an error leaves torch as it is."""
    missing = [name for name in (*_FUNCTIONS, *_OTHERS) if not hasattr(c10d, name)]
    if not hasattr(getattr(c10d, "Backend", None), "register_backend"):
        missing.append("Backend.register_backend")
    missing += [
        f"{name} as a plain function"
        for name in _FUNCTIONS
        if name not in missing and not _plain(getattr(c10d, name))
    ]
    if "env" not in getattr(rendezvous, "_rendezvous_handlers", ()):
        missing.append("rendezvous._rendezvous_handlers['env']")
    if missing:
        version = getattr(sys.modules.get("torch"), "__version__", "of unknown version")
        raise ImportError(
            f"paddlempi does not know this torch ({version}): torch.distributed.distributed_c10d "
            f"has no {', '.join(missing)}; use a version that paddlempi supports (2.8 to 2.15)"
        )


def _plain(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return isinstance(inner, FunctionType) and not inner.__code__.co_freevars


def _replace(function: Any, stub: FunctionType) -> FunctionType:
    """Replace the code of a function by that of ``stub``; return a function with the old code."""
    inner: FunctionType = inspect.unwrap(function)
    signature = inspect.signature(inner)
    original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
    original.__kwdefaults__ = inner.__kwdefaults__
    inner.__code__ = stub.__code__
    inner.__defaults__ = inner.__kwdefaults__ = None
    inner.__signature__ = signature  # type: ignore[attr-defined]
    return original


def concerns(backend: object) -> bool:
    """Whether a group of this backend may be paddlempi's. Fast, and does not import paddlempi."""
    if "paddlempi.torch.activation" in sys.modules:
        return True
    name = str(backend).lower()
    return "mpi" in name or (bool(defaults) and name in ("none", "undefined"))


def front() -> Any:
    """Return ``paddlempi.torch.activation``. Import it at the first use."""
    global lazily
    loaded = sys.modules.get("paddlempi.torch.activation")
    if loaded is not None:
        return loaded
    lazily = True
    try:
        from paddlempi.torch import activation
    finally:
        lazily = False
    return activation


def offered() -> bool:
    """Whether ``is_mpi_available()`` shall return True.

    Some libraries, such as accelerate, choose "mpi" if it is available. They must not do so if
    torchrun, or variables that another program has set, say that there are processes which no MPI's
    launcher has started: each process would become a world of one rank.
    """
    if naming or "mpi" not in entered:  # torch asks while it makes a group; or "mpi" is torch's own
        return True
    setting = os.environ.get(SETTING)
    if setting in ("0", "1"):
        return setting == "1"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun is nearer than an MPI's launcher above it
        return False
    given = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ]
    if all(is_ours(name) for name in given):
        return True
    started = launcher()
    return started is not None and os.environ.get("WORLD_SIZE") in (None, str(started.size))


class _Native:
    """Replaces the C++ class ``ProcessGroupMPI`` that a torch built with MPI has."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        return front().create(ranks)


def _create(options: Any, pg_options: Any) -> Any:
    return front().create(options.global_ranks_in_group)


def _env(url: str, **options: Any) -> Any:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    backend = None if frame is None else frame.f_locals.get("backend")
    if concerns(backend):
        return front().env_rendezvous(url, backend, **options)
    return originals["env"](url, **options)


# The code that replaces that of torch's functions. It runs with the globals of torch's module, so
# it has to import this module.


def _stub_init(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    backend = named["backend"] if "backend" in named else (*arguments, None)[0]
    if ours.concerns(backend):
        return ours.front().init_process_group(*arguments, **named)
    return ours.originals["init_process_group"](*arguments, **named)


def _stub_available() -> bool:
    import paddlempi_autoload as ours

    return bool(ours.originals["is_mpi_available"]() and ours.offered())


def _stub_helper(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    backend = named["backend"] if "backend" in named else arguments[3]
    if ours.concerns(backend):
        return ours.front().new_process_group_helper(*arguments, **named)
    return ours.originals["_new_process_group_helper"](*arguments, **named)


def _stub_new_group(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    backend = named["backend"] if "backend" in named else (*arguments, None, None, None)[2]
    if ours.concerns(backend):
        return ours.front().new_group_with_tag(*arguments, **named)
    return ours.originals["_new_group_with_tag"](*arguments, **named)


def _stub_split(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    if ours.concerns(None):
        return ours.front().split_group(*arguments, **named)
    return ours.originals["split_group"](*arguments, **named)


def _stub_barrier(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    if ours.concerns(None):
        return ours.front().monitored_barrier(*arguments, **named)
    return ours.originals["monitored_barrier"](*arguments, **named)


_STUBS: dict[str, Any] = {
    "init_process_group": _stub_init,
    "is_mpi_available": _stub_available,
    "_new_process_group_helper": _stub_helper,
    "_new_group_with_tag": _stub_new_group,
    "split_group": _stub_split,
    "monitored_barrier": _stub_barrier,
}


# The launcher of this process. The core finds it by the same table (gocore/mpi/launcher.go), but
# loading the core starts Go's runtime, which `import torch` must not do.


class Launcher(NamedTuple):
    """An MPI's launcher, and the place of this process in its job. Unknown numbers are -1."""

    mpi: str  # "Open MPI", "MPICH or Intel MPI", "Slurm"
    size: int
    rank: int
    local_rank: int
    local_size: int
    job: str  # an identifier of the job, the same on all its ranks


_PROC = "/proc"
_MAX_PARENTS = 256


def launcher() -> Launcher | None:
    """Find the launcher that started this process as a rank.

    It is the nearest launcher among the processes above this one. The result is None if there is
    none, or if it does not say the rank and the number of ranks.
    """
    if not any(sign in os.environ for sign in SIGNS):
        return None
    for pid, name in _parents():
        kind = BY_PROCESS.get(name)
        if kind is None:
            continue
        if kind.task and kind.task not in os.environ:
            return None  # a batch script, which the launcher starts once for the whole job
        size, rank = _first(kind.size), _first(kind.rank)
        if rank < 0 or size < 1:
            return None
        local_size = _tasks_of_this_node(kind) if kind.tasks_per_node else _first(kind.local_size)
        return Launcher(kind.mpi, size, rank, _first(kind.local_rank), local_size, _job(kind, pid))
    return None


def _parents() -> Iterator[tuple[int, str]]:
    """Yield the pids and names of the processes above this one, the nearest first.

    The name is that of the executable if it is a launcher's, else the process's own.
    """
    pid = os.getppid()
    for _ in range(_MAX_PARENTS):
        try:
            with open(f"{_PROC}/{pid}/stat", errors="replace") as stat:
                # pid (name) state parent ...: the name may hold spaces and parentheses.
                head, _, tail = stat.read().rpartition(")")
        except OSError:
            return
        name = head.partition("(")[2]
        try:
            file = os.path.basename(os.readlink(f"{_PROC}/{pid}/exe")).removesuffix(" (deleted)")
        except OSError:  # a process of another user, such as slurmstepd
            file = name
        yield pid, file if file in BY_PROCESS else name
        pid = int(tail.split()[1])
        if pid <= 0:
            return


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else -1


def _first(names: Sequence[str]) -> int:
    return next((number for number in map(_number, names) if number >= 0), -1)


def _job(kind: Kind, pid: int) -> str:
    parts = [os.environ[name] for name in kind.job if os.environ.get(name)]
    if not parts and kind.job_option:
        try:
            with open(f"{_PROC}/{pid}/cmdline", errors="replace") as line:
                words = line.read().split("\0")
        except OSError:
            words = []
        if kind.job_option in words[:-1]:
            parts = [words[words.index(kind.job_option) + 1]]
    return ".".join(parts)


def _tasks_of_this_node(kind: Kind) -> int:
    """Return the number of ranks on this node, from a list for all nodes such as ``2(x3),1``."""
    node = _number(kind.node)
    for part in os.environ.get(kind.tasks_per_node, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None or node < 0:
            return -1
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return -1


# The variables that torchrun would set, with values from the launcher's variables. PADDLEMPI_FILLED
# says which of them were set here, to which values, and in which job. Child processes inherit all
# of them. PADDLEMPI_FILLED lets a child that is a rank of another job tell them from variables that
# the user has set. If a variable has another value than PADDLEMPI_FILLED says, the user or a
# torchrun has set it since.

FILLED = "PADDLEMPI_FILLED"

SETTING = "PADDLEMPI_TORCH"
"""0: ``import torch`` sets no variables, and ``is_mpi_available()`` is False. 1: it sets them in
every job of several ranks, and ``is_mpi_available()`` is True. Naming the backend always works."""

DEFAULT = "PADDLEMPI_TORCH_DEFAULT"
"""``cpu``, ``cuda`` or ``cpu,cuda``: in a job of MPI, torch takes ``mpi`` for these devices where a
program names no backend, and ``get_default_backend_for_device`` returns it."""

# Ports below the range from which Linux gives ports to programs that ask for any.
_FIRST_PORT, _PORTS = 10_000, 20_000


def _to_be_told(started: Launcher) -> bool:
    """Whether ``import torch`` shall set the variables in a program that may not expect them.

    It shall not if

    * the job has one rank;
    * ``srun`` has started the ranks without an MPI plugin;
    * another program has set ``RANK``, ``WORLD_SIZE`` or ``LOCAL_RANK`` to other values;
    * a rank sees some GPUs, but fewer than there are ranks on its node, because programs use
      ``LOCAL_RANK`` as the index of a GPU.
    """
    setting = os.environ.get(SETTING)
    if started.size < 2 or setting == "0":
        return False
    if setting == "1":
        return True
    ranks = {"RANK": started.rank, "WORLD_SIZE": started.size, "LOCAL_RANK": started.local_rank}
    others = any(os.environ.get(name) not in (None, str(value)) for name, value in ranks.items())
    plugins = BY_MPI[started.mpi].plugins
    by_mpi = not plugins or any(name in os.environ for name in plugins)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = 0 if devices in ("", "-1", "NoDevFiles") else devices.count(",") + 1
    return by_mpi and not others and (seen == 0 or started.local_size <= seen)


def fill(started: Launcher | None, tell: bool, address: str = "") -> None:
    """Set those of torchrun's variables that are not set. Unset those of another job.

    ``MASTER_ADDR`` and ``MASTER_PORT`` are set in a job on one node, or with an ``address``.

    Args:
        started: the launcher of this process; None: there is none.
        tell: whether to set variables.
        address: the host of rank 0; "": unknown.
    """
    job, ours = _filled()
    if started is None or started.job != job:
        for name in ours:
            if is_ours(name):
                del os.environ[name]
        os.environ.pop(FILLED, None)
        ours = {}
    if started is None or not tell:
        return
    values = {
        "RANK": started.rank,
        "WORLD_SIZE": started.size,
        "LOCAL_RANK": started.local_rank,
        "LOCAL_WORLD_SIZE": started.local_size,
    }
    # GROUP_RANK is the number of the node, if all nodes have as many ranks and consecutive ones.
    # Lightning computes the global rank from it and the local rank.
    first, per_node = started.rank - started.local_rank, started.local_size
    even = per_node > 0 and first % per_node == started.size % per_node == 0
    if started.local_rank >= 0 and even:
        values["GROUP_RANK"] = first // per_node
    texts = {name: str(value) for name, value in values.items() if value >= 0}
    if started.size == started.local_size:
        address = "127.0.0.1"
    if address:
        texts["MASTER_ADDR"] = address
        texts["MASTER_PORT"] = str(_FIRST_PORT + zlib.crc32(started.job.encode()) % _PORTS)
    for name, text in texts.items():
        # If a variable was set here before and is gone, the program has unset it on purpose.
        if name not in ours and name not in os.environ:
            os.environ[name] = ours[name] = text
    _record(started.job, ours)


def is_ours(name: str) -> bool:
    """Whether the variable was set here, or by a parent process, and not by the user."""
    text = os.environ.get(name)
    return text is not None and _filled()[1].get(name) == text


def set_ours(name: str, value: object) -> None:
    """Set a variable, and note that it was set here."""
    job, ours = _filled()
    os.environ[name] = ours[name] = str(value)
    _record(job, ours)


def _filled() -> tuple[str, dict[str, str]]:
    """Return the job for which variables were set, and the values that they were set to."""
    job, _, texts = os.environ.get(FILLED, "").rpartition("|")
    return job, dict(text.split("=", 1) for text in texts.split() if "=" in text)


def _record(job: str, ours: dict[str, str]) -> None:
    os.environ[FILLED] = f"{job}|{' '.join(f'{name}={text}' for name, text in ours.items())}"
