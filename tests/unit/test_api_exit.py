"""Ways out of the process that need a hook: in processes of their own, over a fake core."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PRELUDE = f"""
import sys, os, json, threading, time
sys.path.insert(0, {str(HERE)!r})
from api_fake import FakeCore

class Core(FakeCore):
    def control(self, method, arguments):
        if method == "abort":
            status = json.loads(arguments)["status"]
            sys.stderr.write(f"aborted with {{status}}\\n")
            sys.stderr.flush()
            os._exit(status)
        return super().control(method, arguments)

core = sys.modules["paddlempi._core"] = Core()
import paddlempi as dist
dist.init_process_group()

def sit():
    time.sleep(30)

def stay(daemon=False):
    threading.Thread(target=sit, daemon=daemon).start()
"""


def leave(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=20
    )


@pytest.mark.parametrize(
    ("script", "status", "shown"),
    [
        ("stay(); raise ValueError('boom')", 1, "ValueError: boom"),
        ("stay(); sys.exit(3)", 3, ""),
        ("stay(); sys.exit('what is wrong')", 1, "what is wrong"),
        ("stay(); sys.exit(257)", 1, ""),
        (
            "from concurrent.futures import ThreadPoolExecutor as P; P().submit(sit); sys.exit(4)",
            4,
            "",
        ),
        ("stay(); print('out', end=''); raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("dist.destroy_process_group(); dist.init_process_group(); stay(); sys.exit(5)", 5, ""),
        ("dist._exit = None; stay(); dist.group._exit._hooks.foreign = True; sys.exit(6)", 6, ""),
    ],
)
def test_the_job_is_aborted(script: str, status: int, shown: str) -> None:
    done = leave(script)
    assert done.returncode == status, done.stderr
    assert f"aborted with {status}" in done.stderr
    assert shown in done.stderr
    if "print" in script:
        assert done.stdout == "out"


def test_somebody_else_s_mpi() -> None:
    done = leave("dist.group._exit._hooks.foreign = True; sys.exit(6)")
    assert (done.returncode, "aborted with 6" in done.stderr) == (6, True)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sys.exit(3)", 3),  # on_exit of the core sees to it
        ("raise ValueError('boom')", 1),
        ("stay(daemon=True); sys.exit(3)", 3),
        ("stay(daemon=True); raise ValueError", 1),
        ("sys.exit(0)", 0),
        ("sys.exit()", 0),
        ("", 0),
    ],
)
def test_the_core_sees_to_it(script: str, status: int) -> None:
    done = leave(script)
    assert (done.returncode, "aborted" in done.stderr) == (status, False)


@pytest.mark.parametrize(
    "then",
    [
        "dist.barrier()",
        "dist.destroy_process_group()",
        "sys.exit(0)",
    ],
)
def test_a_sys_exit_that_somebody_caught(then: str) -> None:
    done = leave(
        f"def sit(): time.sleep(0.2)\nstay()\ntry: sys.exit(3)\nexcept SystemExit: {then}\n"
    )
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr


def test_a_failed_call_does_not_clear_the_note() -> None:
    done = leave(
        "stay()\n"
        "core.error = dist.errors.GroupBrokenError()\n"
        "try: sys.exit(3)\n"
        "finally: dist.barrier()\n"
    )
    assert "aborted with 1" in done.stderr


def test_sys_exit_of_a_thread_is_its_own() -> None:
    done = leave(
        "thread = threading.Thread(target=lambda: sys.exit(3)); thread.start(); thread.join()\n"
        "threading.Thread(target=lambda: time.sleep(0.2)).start()\n"
    )
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr


def test_hooks_are_given_back() -> None:
    done = leave(
        "mine = lambda *a: None\n"
        "assert sys.excepthook is not sys.__excepthook__\n"
        "dist.destroy_process_group()\n"
        "assert sys.excepthook is sys.__excepthook__\n"
        "assert sys.exit.__module__ == 'sys'\n"
        "sys.excepthook = mine\n"
        "dist.init_process_group()\n"
        "dist.destroy_process_group()\n"
        "assert sys.excepthook is mine\n"
        "sys.excepthook = sys.__excepthook__\n"
    )
    assert done.returncode == 0, done.stderr
