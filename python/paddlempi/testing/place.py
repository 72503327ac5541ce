"""Which rank this process is, told by the launcher's variables, before any MPI is loaded."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass

# The processes under which each launcher puts its ranks; the nearest one decides whose
# variables count, for an mpirun inside a Slurm job sees the variables of both.
_LAUNCHERS = {
    "prted": "openmpi",
    "prterun": "openmpi",
    "orted": "openmpi",
    "orterun": "openmpi",
    "hydra_pmi_proxy": "hydra",
    "slurmstepd": "slurm",
}


@dataclass(frozen=True)
class Place:
    """One rank's place in its job.

    ``job`` is the same string on all ranks of one job on one host, and on no other job's;
    it is None where the ranks do not all live on this host (or nobody can tell).
    """

    rank: int
    size: int
    launcher: str
    job: str | None


ALONE = Place(0, 1, "none", None)


def find(env: Mapping[str, str] | None = None) -> Place:
    """Return this process's place; rank 0 of 1 where no launcher is to be seen."""
    env = os.environ if env is None else env
    candidates = [p for p in (_openmpi(env), _hydra(env), _slurm(env)) if p is not None]
    if not candidates:
        return ALONE
    if len(candidates) == 1 and candidates[0].launcher != "hydra":
        return candidates[0]
    kind, ancestor, _ = _ancestor()
    chosen = next((p for p in candidates if p.launcher == kind), candidates[0])
    if chosen.launcher == "hydra":
        # Hydra gives its jobs no name; its proxy on this host is one process for all ranks.
        here = env.get("MPI_LOCALNRANKS") == env.get("PMI_SIZE")
        job = ancestor if here and kind == "hydra" else None
        return Place(chosen.rank, chosen.size, "hydra", job)
    return chosen


def _openmpi(env: Mapping[str, str]) -> Place | None:
    rank, size = _int(env, "OMPI_COMM_WORLD_RANK"), _int(env, "OMPI_COMM_WORLD_SIZE")
    if rank is None or size is None:
        return None
    job = None
    if _int(env, "OMPI_COMM_WORLD_LOCAL_SIZE") == size:
        job = env.get("PMIX_NAMESPACE")
    return Place(rank, size, "openmpi", job)


def _hydra(env: Mapping[str, str]) -> Place | None:
    rank, size = _int(env, "PMI_RANK"), _int(env, "PMI_SIZE")
    if rank is None or size is None:
        return None
    return Place(rank, size, "hydra", None)


def _slurm(env: Mapping[str, str]) -> Place | None:
    rank, size = _int(env, "SLURM_PROCID"), _int(env, "SLURM_NTASKS")
    step = env.get("SLURM_STEP_ID")
    # Without a step this is the batch script's shell, not a task of srun.
    if rank is None or size is None or step is None:
        return None
    job = None
    if _int(env, "SLURM_STEP_NUM_NODES") == 1:
        job = f"slurm-{env.get('SLURM_JOB_ID')}-{step}"
    return Place(rank, size, "slurm", job)


def _int(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name, "")
    return int(value) if value.isdigit() else None


def launcher_stderr() -> int | None:
    """Open the stderr of this host's mpirun, if one is above us and writing there is harmless.

    Open MPI's mpirun drops what its ranks wrote last when it kills them. Its own stderr takes
    further lines where that is a terminal or a pipe, or a file opened to append.
    """
    _, _, pid = _ancestor(("prterun", "orterun"))
    if not pid:
        return None
    try:
        mode = os.stat(f"/proc/{pid}/fd/2").st_mode
        with open(f"/proc/{pid}/fdinfo/2", encoding="ascii") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or flags & os.O_APPEND):
            return None
        return os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except (OSError, StopIteration):
        return None


def _ancestor(names: Collection[str] = tuple(_LAUNCHERS)) -> tuple[str, str, int]:
    """Return the kind of the nearest launcher above this process, a name for it, and its pid."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            break
        # The command's name stands in parentheses and may itself hold some.
        known = {text[text.index("(") + 1 : text.rindex(")")]}
        with contextlib.suppress(OSError):  # another user's
            known.add(os.path.basename(os.readlink(f"/proc/{pid}/exe")))
        fields = text[text.rindex(")") + 2 :].split()
        name = next((n for n in names if n in known), None)
        if name is not None:
            # With its start time: pids come again.
            return _LAUNCHERS[name], f"{name}-{pid}-{fields[19]}", pid
        pid = int(fields[1])
    return "", "", 0
