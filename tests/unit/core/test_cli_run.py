"""python -m paddlempi run: the script sees what it would see under python alone."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from paddlempi.cli.forward import Forwarder, Place

SCRIPT = """
import sys
import beside

print(__name__, sys.argv, beside.VALUE, "paddlempi.torch" in sys.modules)
import torch

print(torch.VALUE, torch.__spec__.loader is torch.__loader__, "paddlempi.torch" in sys.modules)
sys.exit(int(sys.argv[-1]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``paddlempi run`` in a folder with a script, a module next to it and a fake torch."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("VALUE = 'beside'")
    (folder / "torch.py").write_text("VALUE = 'framework'")
    command = [sys.executable, "-m", "paddlempi", "run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_script_and_its_status(tmp_path: Path) -> None:
    """The front is imported after its framework. The fake is no framework, and an error says so."""
    done = run(tmp_path, "script.py", "--epochs", "3")
    assert done.stdout == "__main__ ['script.py', '--epochs', '3'] beside False\n"
    assert done.returncode == 1 and "torch" in done.stderr.splitlines()[-1], done.stderr


def test_a_module_without_frameworks(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(5)")
    done = run(tmp_path, "-m", "plain", "a", "--help")
    assert (done.returncode, done.stdout) == (5, "__main__ ['a', '--help']\n"), done.stderr


def test_nothing_is_filled_without_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import os, sys\n"
        "print([n for n in os.environ if n.startswith(('PADDLE_', 'PADDLEMPI_FILLED'))])\n"
        "print('paddlempi._core' in sys.modules, sys.exit)"
    )
    done = run(tmp_path, "plain.py")
    assert done.stdout == "[]\nFalse <built-in function exit>\n", done.stderr


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    """It is said in one line, without a traceback of this package."""
    (tmp_path / "folder").mkdir()
    for words, text in (
        (["absent.py"], "absent.py: No such file or directory"),
        (["folder"], "folder: can't find '__main__' module in 'folder'"),
        (["-m", "absent"], "-m absent: No module named absent"),
        (["-m", "absent.part"], "-m absent.part: Error while finding module specification"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == 1
        assert done.stderr.startswith(f"paddlempi run: {text}") and done.stderr.count("\n") == 1


def test_a_script_that_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = = 1\n")
    done = run(tmp_path, "wrong.py")
    assert done.returncode == 1 and done.stderr.endswith("SyntaxError: invalid syntax\n")
    assert "Traceback" not in done.stderr and "x = = 1" in done.stderr


def test_exceptions_of_the_script_are_shown_whole(tmp_path: Path) -> None:
    """Also those that are like the errors about a script that is not there."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import absent\n")
    (tmp_path / "opens.py").write_text("open('/absent')\n")
    (tmp_path / "imports.py").write_text("import absent\n")
    (tmp_path / "pipe.py").write_text("raise BrokenPipeError\n")
    for words, last in (
        (["opens.py"], "FileNotFoundError: [Errno 2] No such file or directory: '/absent'"),
        (["imports.py"], "ModuleNotFoundError: No module named 'absent'"),
        (["-m", "package"], "ModuleNotFoundError: No module named 'absent'"),
        (["pipe.py"], "BrokenPipeError"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == 1 and "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1] == last, done.stderr


@pytest.mark.parametrize(
    ("words", "file"), [((), "fails.py"), (("-m",), "/fails.py"), (("-np", "2"), "fails.py")]
)
def test_a_traceback_begins_with_the_script(
    words: Sequence[str], file: str, tmp_path: Path
) -> None:
    """Also if a hook of a framework shows it, as torch's does, and with what caused it."""
    (tmp_path / "fails.py").write_text(
        "import sys\n"
        "below = sys.excepthook\n"
        "sys.excepthook = lambda *error: (print('of torch', file=sys.stderr), below(*error))\n"
        "def inner():\n"
        "    try:\n"
        "        1 / 0\n"
        "    except ZeroDivisionError as error:\n"
        "        raise ValueError('outer') from error\n"
        "inner()\n"
    )
    name = "fails" if "-m" in words else "fails.py"
    done = run(tmp_path, *words, name)
    frames = re.findall(r'^  File "(.*)", line (\d+), in (.*)$', done.stderr, re.M)
    ranks = done.stderr.count("of torch")  # the first that fails ends the other
    assert ranks in ((1, 2) if "-np" in words else (1,))
    expected = [("6", "inner"), ("9", "<module>"), ("8", "inner")] * ranks
    found = [frame[1:] for frame in frames]
    assert sorted(found) == sorted(expected) and (ranks > 1 or found == expected), done.stderr
    assert all(frame[0].endswith(file) for frame in frames)


LINES = """
import os, sys, time
rank = os.environ["RANK"]
os.write(1, b"on")
time.sleep(0.1)  # no whole line is handed on meanwhile
os.write(1, f"e {rank}\\ntwo".encode())
os.write(1, b" parts\\r\\n\\nbar 1\\rbar 2")
os.write(2, b"wrong\\n")
status = int(sys.argv[1]) if rank == "1" else 0
if rank == "0":
    open("written", "w").close()
while status and not os.path.exists("written"):  # its failure would end rank 0
    time.sleep(0.01)
sys.exit(status)
"""


def lines_of(rank: int, mark: str = "") -> list[bytes]:
    words = [f"one {rank}", "two parts", "", "bar 1", "bar 2"]
    return [f"{mark}{line}".encode() for line in words]


def test_lines_have_their_rank(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(LINES)
    command = [sys.executable, "-m", "paddlempi", "run", "-np", "2", "--prefix", "lines.py", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    found = sorted(re.split(rb"\r\n|\r|\n|(?<=bar 2)(?=\[)", done.stdout))
    assert [line for line in found if line] == sorted(
        [*lines_of(0, "[rank 0] "), *lines_of(1, "[rank 1] ")]
    )
    assert sorted(done.stderr.splitlines()) == [b"[rank 0] wrong", b"[rank 1] wrong"]


@pytest.mark.parametrize("tee", [False, True])
def test_a_file_for_each_rank(tee: bool, tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(LINES)
    words = ["-np", "2", "--log-dir", "new/logs", *(["--tee"] if tee else []), "lines.py", "3"]
    done = run(tmp_path, *words)
    assert done.returncode == 3
    for rank in range(2):
        text = (tmp_path / "new" / "logs" / f"rank-{rank}.log").read_bytes()
        assert b"one %d\n" % rank in text and b"wrong\n" in text
    told = "paddlempi run: rank 1 has failed, status 3: see new/logs/rank-1.log\n"
    assert (done.stderr == told) is not tee and ("one 0" in done.stdout) is tee, done


def test_a_full_output_that_does_not_block_loses_nothing() -> None:
    """A program on the same terminal may have made it so."""
    ours, theirs, wakeup = os.pipe(), os.pipe(), os.pipe()
    os.set_blocking(ours[1], False)
    data = b"x" * 99 + b"\n"
    lines = 8 * (1 << 20) // len(data)
    forwarder = Forwarder(wakeup[0])
    forwarder.add(theirs[0], [Place(ours[1])])
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(_write_and_close, theirs[1], data * lines)
        read = threads.submit(_read_slowly, ours[0], len(data) * lines)
        while not written.done():
            forwarder.wait(0.01)
        forwarder.close()
        assert read.result() == len(data) * lines
    for end in (*ours, *wakeup):
        os.close(end)


def _write_and_close(pipe: int, data: bytes) -> None:
    with os.fdopen(pipe, "wb") as file:
        file.write(data)


def _read_slowly(pipe: int, most: int) -> int:
    """Read so many bytes, or until there are none for 5 s; return how many there were."""
    count = 0
    while count < most and select.select([pipe], [], [], 5)[0]:
        count += len(os.read(pipe, 1 << 14))
    return count


def test_the_files_of_restarts_go_on(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, signal\n"
        "print('attempt', os.environ['PADDLEMPI_RESTART'], flush=True)\n"
        "if os.environ['PADDLEMPI_RESTART'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "rank-0.log").write_text("of another job")
    done = run(
        tmp_path,
        "-np",
        "1",
        "--restarts",
        "1",
        "--restart-on-exception",
        "--log-dir",
        ".",
        "dies.py",
    )
    text = (tmp_path / "rank-0.log").read_text()
    assert (done.returncode, text) == (0, "attempt 0\nattempt 1\n"), done


def test_bound_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has CPUs of its own, and as many threads, also after a restart."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "bound.py").write_text(
        "import os, signal\n"
        "print(*sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)\n"
        "if os.environ['PADDLEMPI_RESTART'] == '0' and os.environ['RANK'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cpus = sorted(os.sched_getaffinity(0))
    anew = ["--restarts", "1", "--restart-on-exception"]
    done = run(tmp_path, "-np", "2", "--bind", *anew, "--log-dir", ".", "bound.py")
    assert done.returncode == 0, done
    found = []
    for rank in range(2):
        text = (tmp_path / f"rank-{rank}.log").read_text()
        *own, threads = map(int, text.splitlines()[-1].split())
        assert len(own) == threads and len(text.splitlines()) in (1, 2), text
        found += own
    assert sorted(found) == (cpus if len(cpus) > 1 else cpus * 2)


def test_ranks_that_cannot_be_bound(tmp_path: Path) -> None:
    code = (
        "import os, runpy\n"
        "def refuse(*_): raise PermissionError(1, 'Operation not permitted')\n"
        "os.sched_setaffinity = refuse\n"
        "runpy.run_module('paddlempi', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, "run", "-np", "2", "--bind", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = "paddlempi run: --bind: rank 0 cannot be bound to the CPUs ["
    assert done.returncode == 1 and done.stderr.startswith(told), done
    assert "Operation not permitted" in done.stderr and done.stderr.count("\n") == 1, done


def test_roles_are_for_ps_init(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import os, sys\n"
        "from paddlempi.ps import session\n"
        "print(os.environ['PADDLEMPI_ROLES'], session._state.servers_end_in_init, sys.argv[1:])"
    )
    done = run(tmp_path, "--roles", "trainer:2,pserver:1", "plain.py", "--roles", "x")
    assert done.stdout == "trainer:2,pserver:1 True ['--roles', 'x']\n", done.stderr
    done = run(tmp_path, "--roles", "trainer:1", "--", "mpirun", "plain.py")
    assert done.returncode == 2 and "before the SCRIPT" in done.stderr


RANK = """
import os, sys, time

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PADDLE_TRAINER_ID")
rank = os.environ["RANK"]
with open(f"rank-{rank}", "w") as file:
    file.write(" ".join(os.environ[name] for name in names))
    file.write(f" {os.path.exists(os.environ['PADDLEMPI_MEET'].removeprefix('file://'))}")
way, who, status = sys.argv[1:4]
if who in (rank, "all"):
    sys.exit(int(status))
if way == "wait":
    time.sleep(60)
"""


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "rank.py").write_text(RANK)
    return run(folder, *words)


def test_ranks_without_mpi(tmp_path: Path) -> None:
    done = start(tmp_path, "-np", "3", "rank.py", "go", "none", "0")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert (tmp_path / f"rank-{rank}").read_text() == f"{rank} 3 {rank} 3 {rank} True"


def test_the_first_status_counts_and_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    done = start(tmp_path, "-np", "3", "rank.py", "wait", "1", "5")
    assert done.returncode == 5, done.stderr
    assert time.monotonic() - began < 30, "the others were ended"


def test_preempted_ranks_are_no_failure(tmp_path: Path) -> None:
    done = start(tmp_path, "-np", "2", "rank.py", "go", "all", "75")
    assert done.returncode == 75, done.stderr


def test_a_signal_comes_to_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANK)
    words = ["run", "-np", "2", "script.py", "wait", "none", "0"]
    command = [sys.executable, "-m", "paddlempi", *words]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        end = time.monotonic() + 30
        while not all((tmp_path / f"rank-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    for words, text in (
        (["-np", "0", "script.py"], "above 0"),
        (["-np", "2", "--roles", "trainer:2", "script.py"], "give --mpi too"),
        (["--mpi", "script.py"], "give -np N too"),
        (["-np", "2", "--", "mpirun"], "-np and --mpi are for a SCRIPT"),
        (["-np", "2"], "name a SCRIPT"),
        (["--prefix", "script.py"], "--prefix: give -np N, without --mpi"),
        (["-np", "2", "--mpi", "--log-dir", "x", "script.py"], "--log-dir: give -np N, without"),
        (["--log-dir", "x", "--", "mpirun"], "--log-dir: give -np N"),
        (["-np", "2", "--tee", "script.py"], "--tee: give --log-dir DIR too"),
        (["--bind", "script.py"], "--bind: give -np N, without --mpi; other launchers bind by"),
        (["-np", "2", "--mpi", "--bind", "script.py"], "mpirun --bind-to core"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == 2 and text in done.stderr, done.stderr


def test_ranks_have_the_flags_of_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "flags.py").write_text(
        "import sys\nprint(sys.flags.optimize, sys._xoptions.get('utf8'), sys.warnoptions)"
    )
    flags = ["-O", "-X", "utf8=1", "-W", "error::BytesWarning"]
    words = ["-m", "paddlempi", "run", "-np", "2", "flags.py"]
    done = subprocess.run(
        [sys.executable, *flags, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["1 1 ['error::BytesWarning']"] * 2, done
