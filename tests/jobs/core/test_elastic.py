"""``python -m paddlempi run --elastic``: what becomes of a job whose ranks die, fail and leave.

``test_elastic_chaos.py`` kills at random moments; here each moment is chosen.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from fresh_signals import take_signals
from outside import environment

# arguments: a folder, and what happens: words with an equals sign
PROGRAM = """
import os, signal, sys, time
from array import array
from pathlib import Path
import paddlempi as dist
from paddlempi import _native

folder, what = Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:])
steps, at = int(what.get("steps", "12")), int(what.get("at", "5"))


def note(text):
    with open(folder / "notes", "a") as file:
        file.write(f"{text}\\n")


class Deadly:
    # A part at the end, in whose share the root dies that is a step ahead.

    before = back = lambda self: None
    whole = lambda self: True
    reformed = lambda self, job: None

    def share(self, root):
        if job.rank == root and job.size == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


begun = (folder / "begun").exists()
# The first world of all ranks: by run --elastic, each process was in one of its own before.
initial = 0 if "PADDLEMPI_X" in os.environ else 1
note(f"starts {os.getpid()} as {os.environ.get('RANK')}")
if what.get("early") == os.environ.get("RANK"):
    sys.exit(3)
if begun and what.get("again") == "early":
    sys.exit(4)
if begun:
    time.sleep(float(what.get("late", "0")))
with dist.elastic(min_ranks=int(what.get("least", "1"))) as job:
    assert job.size == dist.get_world_size() and (job.rank == 0 or "PADDLEMPI_X" in os.environ)
    total = array("q", [0] * 4)
    job.attach([total], *([Deadly()] if what.get("way") == "apart" else []))

    @job.on_reform
    def tell(job):
        (folder / "begun").touch()
        assert (job.rank, job.size) == (dist.get_rank(), dist.get_world_size())
        assert job.generation == _native.control("info")["generation"]
        note(f"world {job.generation} {os.getpid()} {job.rank} of {job.size} at {job.done}")

    @job.on_preempted
    def save(job):
        note(f"saves {job.done} {total[0]}")

    for step in job.steps(steps):
        with step:
            x = array("q", [step.number])
            first = job.generation == initial and os.environ.get("PADDLEMPI_RESTART", "0") == "0"
            if step.number == at and job.rank == int(what.get("rank", "1")) and first:
                if what.get("way") == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what.get("way") == "save":
                    with dist.checkpoint(folder / "saved", step.number):
                        os.kill(os.getpid(), signal.SIGKILL)
                if what.get("way") == "full":
                    with dist.checkpoint(folder / "saved", step.number):
                        raise OSError("no space is left")
                if what.get("way") == "raise":
                    raise ValueError("of this rank")
            if step.number == at and what.get("way") == "all raise" and job.rank == job.size - 1:
                raise KeyError("of the data")
            if step.number == at and what.get("way") in ("save", "full"):
                with dist.checkpoint(folder / "saved", step.number) as place:
                    (place / str(job.rank)).write_text(str(list(total)))
            if step.number == at and what.get("way") == "middle" and first:
                total[1] += 1  # half of the change
                dist.all_reduce(x)
                if job.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.all_reduce(array("q", [0]))
                total[1] -= 1
            elif step.number == at and what.get("way") == "apart" and first:
                if job.rank == 1:
                    total[2] += 1
                    dist.recv(x, 2)
                if job.rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            else:
                dist.all_reduce(x, dist.ReduceOp.MAX)
            total[0] += step.number
            time.sleep(float(what.get("pause", "0")))
    note(f"ends {job.rank} of {job.size} with {list(total)}")
    print(f"rank {job.rank} ends", flush=True)
"""


class Ended:
    """What a job has left behind."""

    def __init__(self, folder: Path, status: int, output: str) -> None:
        self.status, self.output, self.folder = status, output, folder

    def notes(self, word: str) -> list[str]:
        with suppress(FileNotFoundError):
            lines = (self.folder / "notes").read_text().splitlines()
            return [line for line in lines if line.startswith(f"{word} ")]
        return []

    def ends(self, size: int, steps: int = 12) -> None:
        """Check that so many ranks have ended, with the right state."""
        total = [sum(range(steps)), 0, 0, 0]
        expected = [f"ends {rank} of {size} with {total}" for rank in range(size)]
        assert sorted(self.notes("ends")) == expected, self.output


def begin(
    folder: Path, options: Sequence[str], *what: str, also: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "-m", "paddlempi", "run", *options, str(script), str(folder), *what],
        env={**environment(), **(also or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=take_signals,
    )


def end(folder: Path, process: subprocess.Popen[str]) -> Ended:
    try:
        output = process.communicate(timeout=90)[0]
    finally:
        process.kill()
    return Ended(folder, process.returncode, output)


def run(folder: Path, options: str, *what: str) -> Ended:
    return end(folder, begin(folder, options.split(), *what))


def test_a_replacement_comes(tmp_path: Path) -> None:
    """It has the number of the dead one, and the last rank; the others have trained meanwhile."""
    options = f"-np 3 --elastic 2 --prefix --tee --log-dir {tmp_path / 'logs'}"
    ended = run(tmp_path, options, "way=kill", "steps=800", "pause=0.01", "late=1")
    assert ended.status == 0, ended.output
    ended.ends(3, steps=800)
    starts = ended.notes("starts")
    assert [line.split()[-1] for line in starts].count("1") == 2, starts
    worlds = [line.split() for line in ended.notes("world")]
    assert [line[5] for line in worlds] == ["3"] * 3 + ["2"] * 2 + ["3"] * 3
    assert [line[3] for line in worlds if line[2] == starts[-1].split()[1]] == ["2"]
    assert ": 2 ranks go on with step 5 after " in ended.output
    assert "1 process has come: 3 ranks go on with step " in ended.output
    # It writes to the file and under the number of the one that it replaces.
    assert "rank 2 ends" in (tmp_path / "logs" / "rank-1.log").read_text()
    assert "[rank 1] rank 2 ends" in ended.output


@pytest.mark.parametrize("rank", ["0", "2"])
def test_the_others_go_on_alone(tmp_path: Path, rank: str) -> None:
    ended = run(tmp_path, "-np 3 --elastic 2 --no-replace", "way=kill", f"rank={rank}")
    assert ended.status == 0, ended.output
    ended.ends(2)
    assert len(ended.notes("starts")) == 3


def test_a_step_that_ends_in_its_middle_changes_nothing(tmp_path: Path) -> None:
    """The arrays are those from before it."""
    ended = run(tmp_path, "-np 3 --elastic 2 --no-replace", "way=middle")
    assert ended.status == 0, ended.output
    ended.ends(2)


def test_the_rank_that_was_ahead_dies_too(tmp_path: Path) -> None:
    """Rank 0 has ended the step, and dies while rank 1 takes its state: that goes back."""
    ended = run(tmp_path, "-np 3 --elastic 1 --no-replace", "way=apart")
    assert ended.status == 0, ended.output
    ended.ends(1)
    assert ": 1 rank goes on with step 5 after " in ended.output


def test_more_ranks_come(tmp_path: Path) -> None:
    ended = run(tmp_path, "-np 1 --elastic 1:2", "steps=800", "pause=0.01")
    assert ended.status == 0, ended.output
    ended.ends(2, steps=800)


def test_fewer_than_it_needs(tmp_path: Path) -> None:
    ended = run(tmp_path, "-np 2 --elastic 2 --no-replace", "way=kill")
    assert ended.status == 128 + signal.SIGKILL, ended.output
    assert "1 rank(s) live, and the job needs 2" in ended.output
    assert ended.notes("ends") == []


def test_fewer_than_it_needs_wait_for_a_replacement(tmp_path: Path) -> None:
    ended = run(tmp_path, "-np 2 --elastic 1", "way=kill", "least=2")
    assert ended.status == 0, ended.output
    ended.ends(2)
    assert [line.split()[5] for line in ended.notes("world")] == ["2"] * 4


def test_a_replacement_that_does_not_start(tmp_path: Path) -> None:
    """It is tried three times, with pauses; the job goes on without it."""
    ended = run(
        tmp_path, "-np 2 --elastic 1", "way=kill", "again=early", "steps=1500", "pause=0.01"
    )
    assert ended.status == 0, ended.output
    ended.ends(1, steps=1500)
    assert len(ended.notes("starts")) == 5, ended.output
    assert "3 processes in a row have ended as rank 1 before they came" in ended.output


def test_an_exception_of_one_rank(tmp_path: Path) -> None:
    """The others repeat the step without it."""
    ended = run(tmp_path, "-np 3 --elastic 2 --no-replace", "way=raise")
    assert ended.status == 0, ended.output
    ended.ends(2)
    assert "ValueError: of this rank" in ended.output  # its traceback
    assert "has raised ValueError in step 5: of this rank: 2 ranks go on" in ended.output


@pytest.mark.parametrize("way", ["save", "full"])
def test_a_checkpoint_that_one_rank_does_not_write(tmp_path: Path, way: str) -> None:
    """The others make it anew."""
    ended = run(tmp_path, "-np 3 --elastic 2 --no-replace", f"way={way}")
    assert ended.status == 0, ended.output
    ended.ends(2)
    saved = tmp_path / "saved" / "step-00000005"
    assert sorted(path.name for path in saved.iterdir()) == ["0", "1"]
    assert {path.read_text() for path in saved.iterdir()} == {"[10, 0, 0, 0]"}


def test_an_exception_that_comes_again(tmp_path: Path) -> None:
    """It ends the job, with its traceback and its status, and without a loop."""
    ended = run(tmp_path, "-np 3 --elastic 1", "way=all raise")
    assert ended.status == 1, ended.output
    assert "the same exception has come again" in ended.output
    assert ended.output.count("KeyError: 'of the data'") >= 2, ended.output
    assert ended.notes("ends") == []


def test_a_failure_before_the_training(tmp_path: Path) -> None:
    """A program that cannot start ends the job, as without --elastic."""
    ended = run(tmp_path, "-np 2 --elastic 1", "early=1")
    assert ended.status == 3, ended.output
    assert "ended with status 3 before the training began" in ended.output
    assert len(ended.notes("starts")) == 2


def test_restarts_begin_anew_what_cannot_go_on(tmp_path: Path) -> None:
    options = "--restarts 1 -np 2 --elastic 2 --no-replace"
    ended = run(tmp_path, options, "way=kill")
    assert ended.status == 0, ended.output
    assert "a rank died; the launcher's status is 137; starting attempt 1" in ended.output
    ended.ends(2)


def test_restarts_do_not_count_what_was_survived(tmp_path: Path) -> None:
    options = "--restarts 1 -np 3 --elastic 2 --no-replace"
    ended = run(tmp_path, options, "way=raise")
    assert ended.status == 0 and "attempt" not in ended.output, ended.output
    ended.ends(2)


def asked(folder: Path, options: str, all_of_them: bool, *what: str) -> Ended:
    """Run a job of which one rank, or the launcher, gets SIGTERM in a step."""
    process = begin(folder, options.split(), "steps=100000", "pause=0.01", *what)
    seen = Ended(folder, 0, "")
    until = time.monotonic() + 60
    while len(seen.notes("world")) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    (pid,) = [line.split()[2] for line in seen.notes("world") if line.split()[3] == "1"]
    if not all_of_them:
        subprocess.run(["kill", "-TERM", pid], check=True)
        while len(seen.notes("world")) < 5 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
    process.terminate()
    return end(folder, process)


def test_one_rank_is_asked_to_end(tmp_path: Path) -> None:
    """It leaves, and is not replaced; the others go on, until the job is asked."""
    ended = asked(tmp_path, "-np 3 --elastic 1", False)
    assert ended.status == 75, ended.output
    assert " was asked to end, and has left: 2 ranks go on" in ended.output
    assert len(ended.notes("starts")) == 3
    assert len(ended.notes("saves")) == 2 and len(set(ended.notes("saves"))) == 1


@pytest.mark.parametrize("restarts", ["", "--restarts 1 "])
def test_the_job_is_asked_to_end(tmp_path: Path, restarts: str) -> None:
    """All ranks save after the same step, and end with 75, which no attempt follows."""
    ended = asked(tmp_path, f"{restarts}-np 3 --elastic 1", True)
    assert ended.status == 75, ended.output
    assert len(ended.notes("saves")) == 3 and len(set(ended.notes("saves"))) == 1
    assert "go on" not in ended.output


def test_without_its_launcher_the_ranks_have_it_among_them(tmp_path: Path) -> None:
    """Any launcher that leaves the others alone will do; rank 0 dies, which has the coordinator."""
    options = "-np 3 --keep-survivors"
    process = begin(tmp_path, options.split(), "way=kill", "rank=0", also={"PADDLEMPI_X": ""})
    ended = end(tmp_path, process)
    ended.ends(2)
    assert "paddlempi elastic: rank 0 (process " in ended.output
    assert ") died: 2 ranks go on with step 5 after " in ended.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-np 2 --elastic 3", "--elastic 3: -np 2 must be from MIN to MAX"),
        ("-np 4 --elastic 1:3", "--elastic 1:3: -np 4 must be from MIN to MAX"),
        ("-np 4 --elastic x", "'x': it must be a whole number above 0"),
        ("-np 4 --elastic 0:4", "'0': it must be a whole number above 0"),
        ("-np 4 --no-replace", "--no-replace: give --elastic MIN too"),
        ("--elastic 2", "--elastic: give -np N, without --mpi"),
        ("-np 2 --mpi --elastic 2", "--elastic: give -np N, without --mpi"),
        ("-np 2 --elastic 2 --keep-survivors", "--elastic leaves them alone already"),
    ],
)
def test_wrong_options(tmp_path: Path, words: str, text: str) -> None:
    ended = run(tmp_path, words)
    assert ended.status == 2 and text in ended.output, ended.output
