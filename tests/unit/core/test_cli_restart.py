"""python -m paddlempi run -- COMMAND: how an attempt ended, and what happens then.

The commands are no launchers here. Jobs of MPI are in tests/jobs/core/test_restart.py.
"""

from __future__ import annotations

import builtins
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fresh_signals import take_signals
from paddlempi import _marks
from paddlempi._processes import MARK
from paddlempi.cli import marks
from paddlempi.cli.restart import judge, judge_elastic
from paddlempi.cli.survivors import keeping
from paddlempi.errors import (
    ArgumentError,
    PeerDiedError,
    PeerLeftError,
    RefusedError,
    TimeoutError,
)

MARKS = {
    "whole": "began 0 3 1 h\nexit 0\n",
    "destroyed": "began 1 3 1 h\nleft\n",
    "lost": "began 1 3 1 h\nwatches 15\n",
    "again": "began 1 3 1 h\nleft\nbegan 1 3 1 h\n",
    "raised": "began 1 3 1 h\nraised program ValueError: no good\nexit 1\n",
    "killed while it raised": "began 1 3 1 h\nraised program ValueError: no good\n",
    "exit 3": "began 1 3 1 h\nexit 3\n",
    "told": "began 0 3 1 h\nraised death PeerDiedError: rank(s) [1] died\nexit 1\n",
    "preempted": "began 1 3 1 h\nwatches 15\nasked\nexit 75\n",
    "75": "began 1 3 1 h\nexit 75\n",
    "75 after a death": "began 1 3 1 h\nraised death PeerDiedError: x\nexit 75\n",
    "75 and a death before": "began 1 3 1 h\nasked\ndead 2\nexit 75\n",
    "left behind": "began 2 3 1 h\nraised left PeerLeftError: rank 1 has left\nexit 1\n",
    "left by the dead": "began 2 3 1 h\nraised left PeerLeftError: x\ndead 1\nexit 1\n",
    "late because of the dead": "began 2 3 1 h\nraised error TimeoutError: x\ndead 1\nexit 1\n",
    "mistaken after a death": "began 2 3 1 h\nraised program KeyError: x\ndead 1\nexit 1\n",
    "exit 3 after a death": "began 2 3 1 h\ndead 1\nexit 3\n",
    "coming": "comes 1 h\n",
    "cut": "began 1 3\nexit \n\n",
    "child": "raised program OSError: a child of a rank\n",
}


@pytest.mark.parametrize(
    ("status", "names", "kind", "words"),
    [
        (0, ["whole", "whole"], "done", ""),
        (0, ["whole", "destroyed"], "done", ""),
        (0, [], "done", ""),
        (0, ["lost", "lost"], "done", ""),  # all end by os._exit(0): that is the program's way
        (0, ["whole", "lost"], "died", "rank(s) [1] ended without leaving"),
        (0, ["whole", "again"], "died", "rank(s) [1] ended without leaving"),
        (137, ["lost", "lost"], "died", "status is 137"),
        (9, ["whole", "lost"], "died", "status is 9"),
        (1, ["told", "lost"], "died", "rank 0 says: PeerDiedError: rank(s) [1] died"),
        (1, ["told", "raised"], "failed", "rank 1 ended with status 1: ValueError: no good"),
        (1, ["killed while it raised"], "failed", "rank 1 ended: ValueError: no good"),
        (3, ["lost", "exit 3"], "failed", "rank 1 ended with status 3"),
        (2, [], "failed", "no rank has told"),
        (137, ["cut"], "failed", "no rank has told"),
        (137, ["child"], "failed", "no rank has told"),
        (0, ["exit 3"], "failed", "rank 1 ended with status 3"),
        (75, ["preempted", "preempted"], "preempted", "75"),
        (75, ["preempted", "75"], "preempted", "75"),  # one rank knows
        (0, ["preempted"], "preempted", "75"),
        (1, ["preempted", "left behind"], "preempted", "75"),
        (137, ["preempted", "lost"], "died", "status is 137"),
        (75, ["preempted", "lost"], "died", "status is 75"),  # 9 | 75 of Hydra
        (1, ["preempted", "told"], "died", "rank 0 says: PeerDiedError"),
        (75, ["75 after a death", "lost"], "died", "rank 1 says: PeerDiedError"),
        (1, ["preempted", "raised"], "failed", "rank 1 ended with status 1: ValueError"),
        (75, ["75 and a death before"], "preempted", "75"),
        (75, [], "failed", "no rank has told"),
        (75, ["75", "75"], "failed", "rank 1 ended with status 75, and no signal had asked"),
        (75, ["75", "lost"], "failed", "rank 1 ended with status 75, and no signal had asked"),
        (137, ["75", "lost"], "died", "status is 137"),
        (75, ["lost", "lost"], "failed", "status is 75, and no signal had asked"),
        (1, ["left behind", "whole"], "failed", "rank 2 ended with status 1: PeerLeftError"),
        (1, ["left by the dead", "lost"], "died", "rank 2 says: PeerLeftError: x"),
        (1, ["late because of the dead", "lost"], "died", "rank 2 says: TimeoutError: x"),
        (1, ["mistaken after a death", "lost"], "failed", "rank 2 ended with status 1: KeyError"),
        (3, ["exit 3 after a death", "lost"], "died", "rank 2 says: rank(s) [1] had died"),
        (137, ["coming"], "failed", "no rank has told"),
    ],
)
def test_a_death_is_told_from_an_exception(
    status: int, names: list[str], kind: str, words: str, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        (tmp_path / str(number)).write_text(MARKS[name])
    ending = judge(status, marks.read(tmp_path))
    assert ending.kind == kind and words in ending.why, ending
    expected = {"done": 0, "preempted": 75, "died": status or 1, "failed": status or 3}
    assert ending.status == expected[kind]


def test_the_signal_may_have_come_to_run(tmp_path: Path) -> None:
    """Then the ranks need not have told of it: they may be on hosts that do not see the folder."""
    assert judge(75, [], asked=True).kind == "preempted"
    (tmp_path / "0").write_text(MARKS["75"])
    assert judge(75, marks.read(tmp_path), asked=True).kind == "preempted"
    (tmp_path / "1").write_text(MARKS["lost"])
    read = marks.read(tmp_path)
    assert (judge(75, read, asked=True).kind, judge(137, read, asked=True).kind) == (
        "died",
        "died",
    )
    assert judge(75, read, asked=True, lose=True).kind == "preempted"


def test_a_rank_may_be_lost(tmp_path: Path) -> None:
    """With --keep-survivors, if the launcher and the others end well."""
    for number, name in enumerate(["whole", "lost"]):
        (tmp_path / str(number)).write_text(MARKS[name])
    read = marks.read(tmp_path)
    assert (judge(0, read).kind, judge(0, read, lose=True).kind) == ("died", "done")
    assert judge(9, read, lose=True).kind == "died"


@pytest.mark.parametrize(
    ("status", "names", "asked", "kind"),
    [
        (0, ["whole", "lost", "raised"], False, "done"),  # what it has survived
        (137, ["lost", "raised"], False, "died"),
        (1, ["lost", "raised"], False, "failed"),
        (1, ["lost", "told"], False, "died"),
        (75, ["preempted", "lost"], True, "preempted"),
        (3, [], False, "failed"),
    ],
)
def test_a_job_that_survives_is_judged_by_its_status(
    status: int, names: list[str], asked: bool, kind: str, tmp_path: Path
) -> None:
    for place, name in enumerate(names):
        (tmp_path / str(place)).write_text(MARKS[name])
    ending = judge_elastic(status, marks.read(tmp_path), asked=asked)
    assert (ending.kind, ending.status) == (kind, status)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(137, "died"), (9, "died"), (11, "died"), (255, "died"), (1, "failed"), (127, "failed")],
)
def test_a_rank_that_is_killed_before_init(status: int, kind: str) -> None:
    """With --keep-survivors; some launchers end the others even so."""
    assert judge(status, [], lose=True).kind == kind


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("mpirun (Open MPI) 5.0.10", "--continuous"),
        ("mpirun (Open MPI) 4.1.4", "--continuous"),
        ("HYDRA build details:", "-disable-auto-cleanup"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021", "-disable-auto-cleanup"),
    ],
)
def test_what_keeps_survivors(version: str, option: str, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpirun.chmod(0o755)
    expected = [str(mpirun), option, "-np", "2", "x"]
    assert keeping([str(mpirun), "-np", "2", "x"]) == expected
    assert keeping(expected) == expected


def test_what_a_rank_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_marks.FOLDER, str(tmp_path))
    _marks.comes()
    assert marks.read(tmp_path) == []
    (mark,) = marks.read(tmp_path, begun=False)
    assert mark.coming and (mark.pid, mark.host) == (os.getpid(), os.uname().nodename)
    _marks.began(2, 4)
    _marks.watches(signal.SIGTERM)
    (mark,) = marks.read(tmp_path)
    assert not mark.coming and not mark.asked and not mark.by_death
    _marks.asked()
    try:
        try:
            raise PeerDiedError("rank(s) [3] died\nand a second line")
        except PeerDiedError:
            raise KeyError("what the program did then")  # noqa: B904
    except KeyError as error:
        _marks.raised(error)
    (mark,) = marks.read(tmp_path)
    assert (mark.rank, mark.size, mark.pid, mark.watches) == (2, 4, os.getpid(), signal.SIGTERM)
    assert mark.by_death and mark.raised == "KeyError: 'what the program did then'"
    assert mark.asked and not mark.left and mark.status is None
    _marks.dead([])
    assert not marks.read(tmp_path)[0].dead
    _marks.dead([1, 3])
    assert marks.read(tmp_path)[0].dead == "1 3"
    _marks.left()
    assert marks.read(tmp_path)[0].left
    monkeypatch.delenv(_marks.FOLDER)
    _marks.began(3, 4)
    assert len(marks.read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PeerDiedError("x"), "death"),
        (PeerLeftError("x"), "left"),
        (TimeoutError("x"), "error"),
        (RefusedError("x"), "error"),
        (builtins.TimeoutError("x"), "program"),
        (ArgumentError("x"), "program"),
        (KeyError("x"), "program"),
    ],
)
def test_what_an_exception_comes_from(
    error: Exception, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_marks.FOLDER, str(tmp_path))
    _marks.began(0, 1)
    _marks.raised(error)
    assert marks.read(tmp_path)[0].cause == kind
    error.__context__ = RuntimeError()
    error.__context__.__context__ = error  # a cycle ends
    _marks.raised(error)
    assert marks.read(tmp_path)[0].cause == kind


RANK = """
import os, pathlib, sys
attempt = int(os.environ["PADDLEMPI_RESTART"])
mark = pathlib.Path(os.environ["PADDLEMPI_RUN_DIR"], "rank")
mark.write_text("began 0 1 %d h\\n" % os.getpid())
print("attempt", attempt, flush=True)
"""


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: of another user
        return b""


def start(folder: Path, body: str, *options: str) -> subprocess.Popen[str]:
    """Start ``run`` with a script as its command."""
    (folder / "rank.py").write_text(RANK + body)
    command = [sys.executable, "-m", "paddlempi", "run", *options]
    command += ["--", sys.executable, str(folder / "rank.py")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_signals,
    )


def run(folder: Path, body: str, *options: str) -> tuple[int, str, str]:
    process = start(folder, body, *options)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_death_starts_it_anew(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, "if attempt < 2: os.kill(os.getpid(), 9)", "--restarts", "3")
    assert (status, out) == (0, "attempt 0\nattempt 1\nattempt 2\n"), err
    lines = err.splitlines()
    assert len(lines) == 2 and all(line.startswith("paddlempi run: attempt ") for line in lines)
    assert lines[1].endswith("status is 137; starting attempt 2, 1 restart(s) left"), err


def test_no_restart_is_left(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, "os.kill(os.getpid(), 15)", "--restarts", "1")
    assert (status, out) == (128 + 15, "attempt 0\nattempt 1\n"), err
    assert err.splitlines()[-1].endswith("; no restart is left")


def test_an_exception_does_not(tmp_path: Path) -> None:
    body = "mark.open('a').write('exit 4\\n'); sys.exit(4 * (attempt == 0))"
    status, out, err = run(tmp_path, body, "--restarts", "3")
    assert (status, out) == (4, "attempt 0\n"), err
    assert re.fullmatch(
        r"paddlempi run: attempt 0 ended after [\d.]+ s: rank 0 ended with status 4\n", err
    )
    body = body.replace("exit 4", "exit %d' % (4 * (attempt == 0)) + '")
    status, out, err = run(tmp_path, body, "--restarts", "3", "--restart-on-exception")
    assert (status, out) == (0, "attempt 0\nattempt 1\n"), err


def test_preempted_is_no_failure(tmp_path: Path) -> None:
    body = "mark.open('a').write('asked' + chr(10)); sys.exit(75 * (attempt < 2))"
    status, out, err = run(tmp_path, body, "--restarts", "1")
    assert (status, out) == (75, "attempt 0\n"), err
    status, out, err = run(tmp_path, body, "--restarts", "1", "--restart-preempted")
    assert (status, out) == (0, "attempt 0\nattempt 1\nattempt 2\n"), err


def test_75_is_a_failure_if_nobody_asked(tmp_path: Path) -> None:
    """A program that ends with it for reasons of its own is not started anew for ever."""
    body = "mark.open('a').write('exit 75' + chr(10)); sys.exit(75 * (attempt < 2))"
    status, out, err = run(tmp_path, body, "--restarts", "3", "--restart-preempted")
    assert (status, out) == (75, "attempt 0\n"), err
    assert "rank 0 ended with status 75, and no signal had asked the job to end" in err
    status, out, err = run(tmp_path, body, "--restarts", "1", "--restart-on-exception")
    assert (status, out) == (75, "attempt 0\nattempt 1\n"), err


PROXY = """#!PYTHON
# The name of this file is that of a process of MPICH's launcher.
import os, subprocess, sys

RANK = '''
import os, sys, time
if os.environ["PMI_RANK"] == "1":
    sys.exit(0)
if sys.argv[1] == "waits":
    with open(os.path.join(os.environ["PADDLEMPI_RUN_DIR"], "mark"), "w") as mark:
        mark.write(f"comes {os.getpid()} {os.uname().nodename}" + chr(10))
time.sleep(5)
'''
job = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", RANK, sys.argv[1]], env={**os.environ, **job, "PMI_RANK": rank}
    )
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.parametrize("way", ["waits", "computes"])
def test_a_rank_that_never_comes_to_init(way: str, tmp_path: Path) -> None:
    """That ends the attempt only if another one waits for it there: the program may need no MPI."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.write_text(PROXY.replace("PYTHON", sys.executable))
    proxy.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "run", "--init-wait", "0", "--", str(proxy), way],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if way == "computes":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "rank 1 has ended without having come to init_process_group, where" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_75_after_a_signal_to_run(number: int, tmp_path: Path) -> None:
    """The program has a handler of its own. The first of the signals asks for no end of ``run``."""
    body = """
import signal, time
def on_signal(*_): mark.open("a").write("exit 75" + chr(10)); sys.exit(75)
for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, on_signal)
print("ready", flush=True)
time.sleep(60 * (attempt == 0))
"""
    process = start(tmp_path, body, "--restart-preempted")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["attempt 0\n", "ready\n"]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    again = number == signal.SIGUSR1
    assert out == ("attempt 1\nready\n" if again else ""), err
    assert process.returncode == (0 if again else 75), err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_job(number: int, tmp_path: Path) -> None:
    """It is handed on, no attempt follows, and a process that the launcher leaves is ended."""
    body = "os.fork(); os.write(1, b'%d\\n' % os.getpid()); import time; time.sleep(60)"
    process = start(tmp_path, body, "--restarts", "3")
    assert process.stdout is not None and process.stdout.readline() == "attempt 0\n"
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"told to end; the launcher's status is {128 + number}\n" in err
    assert "starting attempt" not in err and out == ""
    # A process that has ended has no environment, even if its parent has not read its status.
    assert not [pid for pid in pids if environment(pid)]


STARTS_SLOWLY = """
import subprocess, sys
from paddlempi import cli

class Slow(subprocess.Popen):  # returns when this process reads a line, long after the start
    def __init__(self, *words, **options):
        super().__init__(*words, stdin=subprocess.DEVNULL, **options)
        sys.stdin.readline()

subprocess.Popen = Slow
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_comes_when_the_launcher_has_just_started(number: int, tmp_path: Path) -> None:
    """On a busy machine the launcher may run before ``run`` has its process: the signal waits."""
    body = """
import signal, time
for one in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
    signal.signal(one, lambda number, _: os._exit(number))
print("ready", flush=True)
time.sleep(60)
"""
    (tmp_path / "rank.py").write_text(RANK + body)
    launcher = [sys.executable, str(tmp_path / "rank.py")]
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS_SLOWLY, "run", "--restarts", "0", "--", *launcher],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_signals,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["attempt 0\n", "ready\n"]
    process.send_signal(number)
    out, err = process.communicate("goes on\n", timeout=60)
    assert (process.returncode, out) == (number, ""), err


def test_ranks_that_watch_get_the_signal_first(tmp_path: Path) -> None:
    """The launcher, here the same process's parent, does not get it as long as the grace lasts."""
    body = """
import signal, subprocess, time
def on_launcher(*_): os.write(1, b"launcher%c" % 10); sys.exit(5)
signal.signal(signal.SIGTERM, on_launcher)
child = '''
import os, pathlib, signal, sys, time
def on_rank(*_): os.write(1, b"rank%c" % 10); sys.exit(75 if sys.argv[1] == "quick" else None)
signal.signal(signal.SIGUSR1, on_rank if sys.argv[1] == "quick" else signal.SIG_IGN)
mark = pathlib.Path(os.environ["PADDLEMPI_RUN_DIR"], "rank")
mark.write_text("began 0 1 %d h" % os.getpid() + chr(10) + "watches 10" + chr(10))
print("ready", flush=True)
time.sleep(60)
'''
sys.exit(subprocess.call([sys.executable, "-c", child, WAY]))
"""
    for way, grace, lines, status in (
        ("quick", "60", "rank\n", 75),
        ("deaf", "0.3", "launcher\n", 5),
    ):
        process = start(tmp_path, body.replace("WAY", repr(way)), "--grace", grace)
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["attempt 0\n", "ready\n"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (out, process.returncode) == (lines, status), err


def test_nothing_ends_after_the_grace(tmp_path: Path) -> None:
    body = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)\n"
    process = start(tmp_path, body + "time.sleep(60)", "--grace", "0.3")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["attempt 0\n", "\n"]
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + 9 and time.monotonic() - sent > 0.3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name a SCRIPT, or -- and the COMMAND"),
        (["--"], "name a SCRIPT, or -- and the COMMAND"),
        (["-m", "--", "mpirun"], "-m is for a SCRIPT"),
        (["--restarts", "0", "train.py"], "--restarts: put -- and the launcher's COMMAND"),
        (["--restart-on-exception", "train.py"], "--restart-on-exception: put --"),
        (["--restarts", "-1", "--", "mpirun"], "--restarts: '-1': it must be at least 0"),
        (["--restarts", "x", "--", "mpirun"], "--restarts: 'x': it must be at least 0, a whole"),
        (["--grace", "soon", "--", "mpirun"], "--grace: 'soon': it must be a number of seconds"),
        (["--init-wait", "5", "train.py"], "--init-wait: put -- and the launcher's COMMAND"),
        (["--grace", "nan", "--", "mpirun"], "must be a number of seconds"),
        (["--keep-survivors", "--", "true"], "true is the mpirun of neither Open MPI"),
        (["--keep-survivors", "train.py"], "--keep-survivors: put -- and the launcher's COMMAND"),
    ],
)
def test_wrong_use(words: list[str], text: str) -> None:
    command = [sys.executable, "-m", "paddlempi", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and text in done.stderr, done.stderr


@pytest.mark.parametrize("options", [[], ["--keep-survivors"]])
def test_a_command_that_is_not_there(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paddlempi", "run", *options, "--", str(tmp_path / "mpirun")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 127 and "cannot be started" in done.stderr, done.stderr


def test_the_mark_of_the_processes_is_that_of_launch(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, f"print(len(os.environ[{MARK!r}]))")
    assert (status, out.splitlines()[1]) == (0, "32"), err
