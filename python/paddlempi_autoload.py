"""What ``import torch`` runs through the entry-point group ``torch.backends``.

It enters the names ``mpi`` and ``paddlempi`` into ``torch.distributed``, and under an MPI's
launcher tells frameworks their ranks in the variables that torchrun would set. Nothing else:
paddlempi is imported, and MPI started, by the first use of one of the names. A module
of its own at the top level, so that importing it does not import ``paddlempi``. What
goes wrong here must not stop ``import torch``: it is kept in :data:`error`, which
``python -m paddlempi info`` shows.

All names of torch that this touches are private there, and each of them is looked up
before any is replaced. Functions are replaced inside, code by code: who imported one of
them before has the new one too.
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
    "own",
    "register",
    "torch",
]

error: BaseException | None = None
"""Why ``import torch`` could not enter the names; None where it could, or did not try."""

NAMES = ("mpi", "paddlempi")

entered: set[str] = set()
"""Those of them that mean paddlempi in this process."""

originals: dict[str, Any] = {}
"""torch's own functions, by name, and its handler of ``env://`` as ``env``."""

lazily = False
"""Whether ``paddlempi.torch`` is being imported from here and not by the user."""

naming = 0
"""How many groups are being made whose backend somebody has named."""

# Kept in one place: what a torch must have for this to work.
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
    """Enter the names; once they are, do nothing.

    Args:
        replace_native: also the name ``mpi`` of a torch that was built with an MPI of its own.

    Raises:
        ImportError: this torch has no ``torch.distributed``, or a private name of it has
            moved; the message names them and the version of torch.
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
        # Up to 2.12 a name may not be registered twice, and "mpi" is served by ProcessGroupMPI.
        if hasattr(c10d.Backend, "_ensure_backend_registered"):
            _enter(c10d, "mpi")
        entered.add("mpi")


def _enter(c10d: Any, name: str) -> None:
    c10d.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])
    entered.add(name)


def _check(c10d: Any, rendezvous: Any) -> None:
    """Look up all that is touched, so that nothing is left half replaced."""
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
    """Let a function do what ``stub`` does, in place; returns one that does what it did."""
    inner: FunctionType = inspect.unwrap(function)
    signature = inspect.signature(inner)
    original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
    original.__kwdefaults__ = inner.__kwdefaults__
    inner.__code__ = stub.__code__
    inner.__defaults__ = inner.__kwdefaults__ = None
    inner.__signature__ = signature  # type: ignore[attr-defined]
    return original


def concerns(backend: object) -> bool:
    """Whether paddlempi may have a part in a group of this backend: cheap, and never imports it."""
    return "paddlempi.torch.activation" in sys.modules or "mpi" in str(backend).lower()


def front() -> Any:
    """``paddlempi.torch.activation``, imported now if this is the first use."""
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
    """Whether ``is_mpi_available()`` says so to those who then take it without being asked.

    Not where torchrun, or somebody else's variables, tell of processes that MPI has not started:
    accelerate would choose "mpi" there, and each process be a world of its own.
    """
    if naming or "mpi" not in entered:  # a group is being made; torch's own MPI
        return True
    setting = os.environ.get(SETTING)
    if setting in ("0", "1"):
        return setting == "1"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # below an MPI's launcher too, for it is the nearer one
        return False
    given = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ]
    if all(is_ours(name) for name in given):
        return True
    started = launcher()
    return started is not None and os.environ.get("WORLD_SIZE") in (None, str(started.size))


class _Native:
    """Stands where a torch built with MPI has its C++ class."""

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


# What runs in place of torch's functions. Their globals are those of torch's module, not these.


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


# Who started this process. The core tells the same of the same table (gocore/mpi/launcher.go); but
# loading it starts Go's runtime, which `import torch` must not.


class Launcher(NamedTuple):
    """An MPI's launcher, and which of its processes this is; what it does not say is -1."""

    mpi: str  # "Open MPI", "MPICH or Intel MPI", "Slurm"
    size: int
    rank: int
    local_rank: int
    local_size: int
    job: str  # the same on all its processes, another for each job


_PROC = "/proc"
_MOST_PARENTS = 256


def launcher() -> Launcher | None:
    """The launcher that started this process as one of an MPI job; None: none did, or none is seen.

    It is the nearest of the parents of this process that is one.
    """
    if not any(sign in os.environ for sign in SIGNS):
        return None
    for pid, name in _parents():
        kind = BY_PROCESS.get(name)
        if kind is None:
            continue
        if kind.task and kind.task not in os.environ:
            return None  # a batch script: started once, whatever the job's size
        size, rank = _first(kind.size), _first(kind.rank)
        if rank < 0 or size < 1:
            return None
        local_size = _tasks_of_this_node(kind) if kind.tasks_per_node else _first(kind.local_size)
        return Launcher(kind.mpi, size, rank, _first(kind.local_rank), local_size, _job(kind, pid))
    return None


def _parents() -> Iterator[tuple[int, str]]:
    """The processes above this one, nearest first; a launcher by its name."""
    pid = os.getppid()
    for _ in range(_MOST_PARENTS):
        try:
            with open(f"{_PROC}/{pid}/stat", errors="replace") as stat:
                # pid (name) state parent ...: the name may hold spaces and parentheses.
                head, _, tail = stat.read().rpartition(")")
        except OSError:
            return
        name = head.partition("(")[2]
        try:
            file = os.path.basename(os.readlink(f"{_PROC}/{pid}/exe")).removesuffix(" (deleted)")
        except OSError:  # another user's, as slurmstepd
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
    """How many of the job's processes are on this node, by ``2(x3),1``."""
    node = _number(kind.node)
    for part in os.environ.get(kind.tasks_per_node, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None or node < 0:
            return -1
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return -1


# The variables that torchrun would set, out of the launcher's. PADDLEMPI_FILLED tells which of
# them were set here, to what, and in which job: programs started from here inherit them, and
# those of a launcher below this one must not take them for the user's. Where one has another value,
# somebody else has set it since: the user, or a torchrun below.

FILLED = "PADDLEMPI_FILLED"

SETTING = "PADDLEMPI_TORCH"
"""0: ``import torch`` tells programs of MPI only what they ask for by name; 1: that it is there."""

# Ports below those that Linux gives to whoever asks for any.
_FIRST_PORT, _PORTS = 10_000, 20_000


def _to_be_told(started: Launcher) -> bool:
    """Whether the variables would do no harm to a program that does not ask for them.

    Not to one that runs alone. Not where srun starts processes without MPI. Not where somebody else
    has set them, to other ranks. And not where each rank sees its own GPU alone: programs take
    ``LOCAL_RANK`` for the index of one.
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
    """Set torchrun's variables, where they are not set. Takes back those of another job.

    ``MASTER_ADDR`` and ``MASTER_PORT`` are set for a job on one node, or with an ``address``.

    Args:
        started: who started this process; None: nobody that counts.
        tell: False: set none.
        address: the host of rank 0.
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
    # The number of the node, where each has as many ranks and they are dealt out node by node. From
    # it and the local rank Lightning computes the global one.
    first, each = started.rank - started.local_rank, started.local_size
    if started.local_rank >= 0 and each > 0 and first % each == started.size % each == 0:
        values["GROUP_RANK"] = first // each
    texts = {name: str(value) for name, value in values.items() if value >= 0}
    if started.size == started.local_size:
        address = "127.0.0.1"
    if address:
        texts["MASTER_ADDR"] = address
        texts["MASTER_PORT"] = str(_FIRST_PORT + zlib.crc32(started.job.encode()) % _PORTS)
    for name, text in texts.items():
        # What was set before in this job and is gone was taken away on purpose.
        if name not in ours and name not in os.environ:
            os.environ[name] = ours[name] = text
    _record(started.job, ours)


def is_ours(name: str) -> bool:
    """Whether the variable was set here and not by the user."""
    text = os.environ.get(name)
    return text is not None and _filled()[1].get(name) == text


def own(name: str, value: object) -> None:
    """Set a variable here."""
    job, ours = _filled()
    os.environ[name] = ours[name] = str(value)
    _record(job, ours)


def _filled() -> tuple[str, dict[str, str]]:
    """The job in which variables were set here, and to what."""
    job, _, texts = os.environ.get(FILLED, "").rpartition("|")
    return job, dict(text.split("=", 1) for text in texts.split() if "=" in text)


def _record(job: str, ours: dict[str, str]) -> None:
    os.environ[FILLED] = f"{job}|{' '.join(f'{name}={text}' for name, text in ours.items())}"
