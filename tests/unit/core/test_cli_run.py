"""python -m paddlempi run: the script sees what it would see under python alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

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
