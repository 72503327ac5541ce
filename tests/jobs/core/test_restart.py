"""``python -m paddlempi run -- mpirun ...``: jobs that are started anew, or preempted."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from fresh_signals import take_signals
from paddlempi.testing import launch

pytestmark = pytest.mark.launcher("python -m paddlempi run starts the launcher anew")

PROGRAM = """
import os
import signal
import sys
import time
from array import array
from pathlib import Path

import paddlempi as dist

here, way, attempt = Path(sys.argv[1]), sys.argv[2], int(os.environ["PADDLEMPI_RESTART"])
dist.init_process_group("mpi", timeout=60)
rank = dist.get_rank()


def note(text):  # a launcher drops what a rank printed last
    with open(here / "notes", "a") as file:
        file.write(f"{text}\\n")


def save():
    with dist.checkpoint(here, step, keep=2) as folder:
        (folder / str(rank)).write_text(str(total))


note(f"attempt {attempt} rank {rank} pid {os.getpid()}")
begin = total = 0
last = dist.latest_checkpoint(here)
if last:
    begin, total = last.step, int((last.path / str(rank)).read_text())
    note(f"rank {rank} goes on at {begin}")
for step in range(begin, 30):
    if way in ("preempted", "slow") and dist.preempted():
        note(f"rank {rank} preempted at {step}")
        save()
        sys.exit(dist.PREEMPTED)
    if step % 8 == 0 and step:
        save()
    if step == 20 and rank == 1 and (attempt == 0 or way == "killed always"):
        if way.startswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "raises":
            raise ValueError("no good")
        if way == "preempted":
            os.kill(os.getpid(), signal.SIGTERM)
    if way in ("slow", "deaf"):
        note(f"rank {rank} at {step}")
        time.sleep(1)
    x = array("q", [step * (rank + 1)])
    dist.all_reduce(x)
    total += x[0]
note(f"rank {rank} has {total}")
"""

UNDISTURBED = sum(step * 3 for step in range(30))


def running(pid: str) -> bool:
    """Whether a process runs. If it has ended, its parent may still not have read its status."""
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Job:
    """A job under ``run``, with what its ranks noted."""

    process: subprocess.Popen[str]
    folder: Path
    err: str = ""

    @property
    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def wait(self) -> int:
        """Return the status of ``run``, when it and all ranks have ended."""
        try:
            _, self.err = self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            _, self.err = self.process.communicate(timeout=60)
            raise AssertionError(f"hung:\n{self.notes}\n{self.err}") from None
        pids = [note.split()[-1] for note in self.notes if " pid " in note]
        assert not [pid for pid in pids if running(pid)]
        return self.process.returncode

    def wait_for(self, note: str) -> None:
        end = time.monotonic() + 60
        while note not in self.notes:
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.terminate()
                raise AssertionError(f"no {note!r}:\n{self.notes}\n{self.wait()} {self.err}")
            time.sleep(0.05)

    def said(self) -> list[str]:
        """Return what ``run`` said, without what the launcher and the ranks said."""
        # Open MPI's launcher ends its text with a zero byte.
        return re.findall(r"^\0?(paddlempi run: .*)$", self.err, re.M)


def start(folder: Path, way: str, *options: str, launcher: Sequence[str] = ()) -> Job:
    (folder / "program.py").write_text(PROGRAM)
    ranks = [sys.executable, str(folder / "program.py"), str(folder), way]
    job = launch.command(2, ranks, options=launcher)
    words = [sys.executable, "-m", "paddlempi", "run", *options, "--grace", "20", "--", *job.argv]
    process = subprocess.Popen(
        words,
        env=job.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_signals,
    )
    return Job(process, folder)


def ends(job: Job, total: int = UNDISTURBED) -> None:
    assert [note for note in job.notes if " has " in note] == [
        f"rank {rank} has {total}" for rank in (0, 1)
    ], job.notes


def attempts(job: Job) -> list[str]:
    return [note[: note.index(" pid")] for note in job.notes if note.startswith("attempt")]


TWICE = [f"attempt {attempt} rank {rank}" for attempt in (0, 1) for rank in (0, 1)]


def test_a_killed_rank(tmp_path: Path) -> None:
    """The job goes on from the last checkpoint, and comes to the same end."""
    job = start(tmp_path, "killed", "--restarts", "3")
    assert job.wait() == 0, job.err
    ends(job)
    assert attempts(job) == TWICE
    assert {"rank 0 goes on at 16", "rank 1 goes on at 16"} <= set(job.notes)
    (said,) = job.said()
    assert re.search(r"attempt 0 ended after [\d.]+ s: a rank died.*starting attempt 1, 2 ", said)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-00000016", "step-00000024"]


def test_no_restart_is_left(tmp_path: Path) -> None:
    job = start(tmp_path, "killed always", "--restarts", "1")
    assert job.wait() == {"openmpi": 137, "mpich": 9, "impi": 255}[launch.command(1, ["x"]).kind]
    assert attempts(job) == TWICE and job.said()[-1].endswith("; no restart is left")


def test_an_exception(tmp_path: Path) -> None:
    """It ends the job, unless the user asks for restarts after exceptions, too."""
    job = start(tmp_path, "raises", "--restarts", "3")
    assert job.wait() == 1
    assert attempts(job) == TWICE[:2]
    (said,) = job.said()
    assert said.endswith("rank 1 ended with status 1: ValueError: no good"), job.err


def test_an_exception_with_restarts(tmp_path: Path) -> None:
    job = start(tmp_path, "raises", "--restarts", "3", "--restart-on-exception")
    assert job.wait() == 0, job.err
    ends(job)
    assert attempts(job) == TWICE


def test_a_rank_is_preempted(tmp_path: Path) -> None:
    """Both ranks learn of the signal to rank 1 at one step, save, and end with one status."""
    job = start(tmp_path, "preempted", "--restarts", "3")
    assert job.wait() == 75, job.err
    steps = [note.split() for note in job.notes if "preempted" in note]
    assert [words[1] for words in steps] == ["0", "1"], job.notes
    assert steps[0][-1] == steps[1][-1] in ("20", "21"), job.notes
    assert attempts(job) == TWICE[:2]
    assert "MPI_ABORT" not in job.err.upper()


def test_a_preempted_job_goes_on(tmp_path: Path) -> None:
    job = start(tmp_path, "preempted", "--restart-preempted")
    assert job.wait() == 0, job.err
    ends(job)
    assert attempts(job) == TWICE


def test_run_is_preempted(tmp_path: Path) -> None:
    """A launcher would kill the ranks a second after SIGTERM. ``run`` lets them save."""
    job = start(tmp_path, "slow", "--restarts", "3", "--restart-preempted")
    job.wait_for("rank 1 at 1")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.err
    steps = {note.split()[-1] for note in job.notes if "preempted" in note}
    assert len(steps) == 1, job.notes
    assert attempts(job) == TWICE[:2]
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [f"step-{int(steps.pop()):08d}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_is_ended(number: int, tmp_path: Path) -> None:
    """Ranks that do not watch for preemption are ended by the launcher, or by ``run``."""
    job = start(tmp_path, "deaf", "--restarts", "3")
    job.wait_for("rank 1 at 1")
    job.process.send_signal(number)
    assert job.wait() != 0
    assert attempts(job) == TWICE[:2]


@pytest.mark.launcher("an option of this launcher", only=["openmpi"])
def test_a_launcher_that_goes_on(tmp_path: Path) -> None:
    """The other rank's PeerDiedError ends the job. That is a death, and not an exception."""
    job = start(tmp_path, "killed", "--restarts", "3", launcher=("--continuous",))
    assert job.wait() == 0, job.err
    ends(job)
    assert "a rank died, as rank 0 says: PeerDiedError: " in job.said()[0], job.err


BEFORE_INIT = """
import os
import signal
import sys

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
if rank == 1 and os.environ["PADDLEMPI_RESTART"] == "0":
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)
import paddlempi as dist

dist.init_process_group("mpi", timeout=60)
dist.barrier()
"""


@pytest.mark.parametrize("way", ["killed", "ends"])
def test_a_rank_ends_before_init(way: str, tmp_path: Path) -> None:
    """MPI does not tell the others, who wait for it in MPI_Init."""
    script = tmp_path / "program.py"
    script.write_text(BEFORE_INIT)
    ranks = launch.command(3, [sys.executable, str(script), way])
    words = [sys.executable, "-m", "paddlempi", "run", "--restarts", "1", "--keep-survivors"]
    words += ["--init-wait", "3", "--", *ranks.argv]
    ended = subprocess.run(words, env=ranks.env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    said = re.search(r"paddlempi run: attempt 0 ended after ([\d.]+) s: (.*)", ended.stderr)
    assert said is not None, ended.stderr
    assert float(said[1]) < 30 and said[2].endswith("starting attempt 1, 0 restart(s) left")
    if way == "killed" and launch.command(1, ["x"]).kind == "mpich":
        assert said[2].startswith("a rank died; the launcher's status is 9"), ended.stderr
        return  # this mpirun ends the others all the same
    assert re.match(
        r"rank 1 (\(process \d+\) )?has ended without having come to init_process_group, where "
        r"others have waited for 3 s",
        said[2],
    ), ended.stderr


AFTER_A_DEATH = """
import os
import signal
import sys

import numpy as np
import paddlempi as dist


dist.init_process_group("mpi", timeout=60)
rank, way = dist.get_rank(), sys.argv[1]
if os.environ["PADDLEMPI_RESTART"] != "0":
    sys.exit(0)
both = dist.new_group([1, 2])
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    try:
        dist.barrier(group=both)
    except dist.errors.PeerDiedError:
        if way == "gives up":
            sys.exit(3)
        sys.exit(0)
    raise AssertionError("the dead rank came")
dist.recv(np.zeros(1), 1)  # it never sends
"""


@pytest.mark.parametrize("way", ["leaves", "gives up"])
def test_what_follows_a_death_is_a_death(way: str, tmp_path: Path) -> None:
    """Rank 1 learns of it, and ends by itself. Rank 0 only sees that rank 1 is gone."""
    script = tmp_path / "program.py"
    script.write_text(AFTER_A_DEATH)
    ranks = launch.command(3, [sys.executable, str(script), way])
    words = [sys.executable, "-m", "paddlempi", "run", "--restarts", "1", "--keep-survivors", "--"]
    ended = subprocess.run(
        [*words, *ranks.argv], env=ranks.env, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    said = re.search(r"run: attempt 0 ended after [\d.]+ s: a rank died(.*)", ended.stderr)
    assert said is not None and said[1].endswith("starting attempt 1, 0 restart(s) left")
