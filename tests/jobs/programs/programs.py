"""Start the programs of this folder on 2 ranks, over MPI and over gloo, and compare their numbers.

Over gloo there is no mpirun. The variables are those that the frameworks' launchers set.
The numbers must agree to the last digit, because the sum of two floats does not depend on their
order, and half of the sum is exact.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paddlempi.testing import launch
from ports import unused

FOLDER = Path(__file__).resolve().parent
RANKS = 2
DEADLINE = 150  # seconds, for a program that hangs, on two ranks

# With several threads a sum depends on the number of cores. Nothing is downloaded.
_ALWAYS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

Numbers = list[dict[str, Any]]
"""What every rank gave to ``report.write``."""


def needs(*modules: str) -> pytest.MarkDecorator:
    """Return the mark that skips a file if one of these modules is missing. Import none: slow."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def over_mpi(
    program: str,
    out: Path,
    *options: str,
    as_it_is: bool = False,
    mpi4py: bool = True,
    ranks: int = RANKS,
) -> Numbers:
    """Run a program under mpirun.

    Args:
        program: its name in this folder, without ``.py``.
        out: an empty folder for what it writes.
        options: further words of its command line.
        as_it_is: start it by ``python -m paddlempi run``.
        mpi4py: whether mpi4py can be imported.
        ranks: how many.
    """
    command = _command(program, out, options)
    if as_it_is:
        command[1:1] = ["-m", "paddlempi", "run"]
    env = dict(_ALWAYS)
    with tempfile.TemporaryDirectory() as hidden:
        if not mpi4py:
            Path(hidden, "mpi4py.py").write_text("raise ImportError('hidden by the test')\n")
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [hidden, os.environ.get("PYTHONPATH")])
            )
        result = launch.run(ranks, command, timeout=DEADLINE * ranks / RANKS, env=env)
    assert not result.timed_out, f"{program} hung:\n{result.output}"
    assert result.returncode == 0, result.output
    return _read(out, result.output, ranks)


def alone(program: str, out: Path, *options: str) -> Numbers:
    """Run a program in one process, without a launcher."""
    return _together(_command(program, out, options), [{}], out, 1)


def over_gloo(program: str, out: Path, *options: str) -> Numbers:
    """Run a program of torch in processes that find each other by torchrun's variables.

    They are forked (``forked.py``): how they start is no matter of what is compared.

    Give the program no workers that load data. On Python 3.11 a process that forks while a thread
    of gloo asks for the interpreter sometimes hangs, once in some hundred forks. That is a bug of
    Python and gloo.
    """
    [port] = _free_ports(1)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    size = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    ranks = [
        {**rendezvous, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)
    ]
    python, *words = _command(program, out, options)
    return _together([python, str(FOLDER / "forked.py"), json.dumps(ranks), *words], [{}], out)


def over_torchrun(program: str, out: Path, *options: str, **variables: str) -> Numbers:
    """Run a program by torchrun, which sets more variables than it documents. No MPI is there."""
    python, *words = _command(program, out, options)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return _together([python, *torchrun, *words], [variables], out)


def over_paddles_gloo(program: str, out: Path, *options: str) -> Numbers:
    """Run a program of Paddle as ``paddle.distributed.launch --backend gloo`` would."""
    endpoints = [f"127.0.0.1:{port}" for port in _free_ports(RANKS)]
    return _together(
        _command(program, out, options),
        [
            {
                "PADDLE_DISTRI_BACKEND": "gloo",
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(RANKS),
                "PADDLE_LOCAL_RANK": str(rank),
                "PADDLE_LOCAL_SIZE": str(RANKS),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            }
            for rank in range(RANKS)
        ],
        out,
    )


def same(ours: Numbers, theirs: Numbers, *, but: tuple[str, ...] = ("backend",)) -> None:
    """Check that all numbers of all ranks are equal to the last digit, except those of ``but``."""
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.keys() == other.keys()
        for name in mine.keys() - set(but):
            assert mine[name] == other[name], f"{name} of rank {rank}: MPI's and gloo's"


def _command(program: str, out: Path, options: tuple[str, ...]) -> list[str]:
    return [sys.executable, str(FOLDER / f"{program}.py"), f"--out={out}", *options]


def _together(
    command: list[str], environments: list[dict[str, str]], out: Path, ranks: int = RANKS
) -> Numbers:
    """Run the command in all environments at the same time. Fail if a process fails."""
    mark = uuid.uuid4().hex
    end = time.monotonic() + DEADLINE
    with tempfile.TemporaryFile() as output:
        processes = [
            subprocess.Popen(
                command,
                env={**_plain(os.environ), **_ALWAYS, **env, launch.MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for env in environments
        ]
        try:
            while time.monotonic() < end and any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):  # the other process waits for it
                    end = min(end, time.monotonic() + 5)
                time.sleep(0.05)
        finally:
            launch.kill_marked(mark)
            codes = [process.wait() for process in processes]
        output.seek(0)
        text = output.read().decode(errors="replace")
    assert not any(codes), f"exit statuses {codes} (-9: killed by the test):\n{text}"
    return _read(out, text, ranks)


def plain_environment() -> dict[str, str]:
    """Return the environment of a program that no launcher starts."""
    return {**_plain(os.environ), **_ALWAYS}


def _plain(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of launchers."""
    ours = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "PADDLE", "OMPI_", "PMIX_", "PMI_")
    return {name: value for name, value in variables.items() if not name.startswith(ours)}


def _read(out: Path, text: str, ranks: int) -> Numbers:
    files = [out / f"rank{rank}.json" for rank in range(ranks)]
    missing = [rank for rank, file in enumerate(files) if not file.exists()]
    assert not missing, f"ranks {missing} of {ranks} did not report:\n{text}"
    return [json.loads(file.read_text()) for file in files]


def _free_ports(count: int) -> list[int]:
    """Return ports that no process uses now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(unused())
    return [*found]
