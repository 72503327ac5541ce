"""Ends of a process that need a hook, over a fake core. Every case is a process of its own."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import api_fake
import pytest

HERE = Path(api_fake.__file__).parent

PRELUDE = f"""
import contextlib, io, sys, os, json, threading, time
sys.path.insert(0, {str(HERE)!r})
from api_fake import FakeCore

class Core(FakeCore):
    def control(self, method, arguments):
        if method == "abort":
            status = json.loads(arguments)["status"]
            with contextlib.suppress(OSError):  # where the test has closed it
                os.write(2, f"aborted with {{status}}\\n".encode())
            os._exit(status)
        return super().control(method, arguments)

core = sys.modules["paddlempi._core"] = Core()
import paddlempi as dist
dist.init_process_group()

def sit():
    time.sleep(30)

def stay(daemon=False):
    threading.Thread(target=sit, daemon=daemon).start()

def buffering(below):  # as torch's
    def hook(*what):
        real, sys.stderr = sys.stderr, io.StringIO()
        try:
            below(*what)
        finally:
            text, sys.stderr = sys.stderr.getvalue(), real
        sys.stderr.write(text)
    return hook
"""


def leave(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=20,
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


def test_preempted_is_an_end_in_order() -> None:
    done = leave("dist.group._exit._hooks.foreign = True; sys.exit(dist.PREEMPTED)")
    assert done.returncode == 75 and "aborted" not in done.stderr, done.stderr


HOOKS = {
    "none": "",
    "after init": "sys.excepthook = buffering(sys.excepthook)",
    "before init": (
        "dist.destroy_process_group(); sys.excepthook = buffering(sys.excepthook); "
        "dist.init_process_group()"
    ),
    "before and after": (
        "dist.destroy_process_group(); sys.excepthook = buffering(sys.excepthook); "
        "dist.init_process_group(); sys.excepthook = buffering(sys.excepthook)"
    ),
    "in place of Python's": (
        "sys.excepthook = lambda kind, error, _: print('Traceback', repr(error), file=sys.stderr)"
    ),
    "without an end of line": (
        "sys.excepthook = lambda kind, error, _: sys.stderr.write(f'Traceback {error!r}')"
    ),
    "of threads": "threading.excepthook = buffering(threading.excepthook)",
}


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("company", ["stay()", "dist.group._exit._hooks.foreign = True"])
@pytest.mark.parametrize("hook", HOOKS)
def test_what_was_raised_is_shown_once_and_first(
    hook: str, company: str, options: list[str]
) -> None:
    done = leave(f"{HOOKS[hook]}\n{company}\nraise ValueError('bo' 'om')", *options)
    assert done.returncode == 1, done.stderr
    text, _, rest = done.stderr.partition("aborted with 1\n")
    assert (text.count("Traceback"), text.count("boom"), rest) == (1, 1, ""), done.stderr


@pytest.mark.parametrize(("seconds", "read"), [(60, True), (0.05, False)])
def test_the_launcher_reads_what_was_printed_before_the_end(seconds: float, read: bool) -> None:
    script = f"""
import array, fcntl, termios
def control(method, arguments):
    unread = array.array("i", [0])
    fcntl.ioctl(2, termios.FIONREAD, unread)
    os.write(1, f"{{unread[0]}} bytes unread".encode())
    os._exit(1)
core.control = control
dist.group._exit._MOST_FOR_READER = {seconds}
stay()
raise ValueError("boom")
"""
    command = [sys.executable, "-c", PRELUDE + script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        if read:
            select.select([child.stderr], [], [])
            time.sleep(0.2)
            assert child.poll() is None, "it does not wait"
            assert b"boom" in child.stderr.read()
        said = child.stdout.read()
    assert (said == b"0 bytes unread") == read, said
    assert child.returncode == 1


def test_an_exception_group() -> None:
    group = "ExceptionGroup" if sys.version_info >= (3, 11) else "ValueError"
    done = leave(f"stay()\nraise {group}('several', [ValueError('boom'), KeyError('bang')])")
    text, _, rest = done.stderr.partition("aborted with 1\n")
    assert (done.returncode, rest) == (1, ""), done.stderr
    for part in ("several", "ValueError", "boom", "bang"):
        assert part in text, done.stderr


def test_an_exception_of_a_thread_is_shown_and_ends_nothing() -> None:
    done = leave(
        "def fail(): raise ValueError('bo' 'om')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "dist.group._exit._hooks.foreign = True\n"
    )
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr
    assert done.stderr.count("ValueError: boom") == 1


@pytest.mark.parametrize(
    "gone",
    ["sys.stderr = None", "sys.stderr.close()", "os.close(2)", "sys.stdout = sys.stderr = None"],
)
@pytest.mark.parametrize("way", ["raise ValueError('boom')", "sys.exit('what is wrong')"])
def test_where_there_is_no_stderr(gone: str, way: str) -> None:
    assert leave(f"stay()\n{gone}\n{way}").returncode == 1


@pytest.mark.parametrize("way", ["raise ValueError", "sys.exit(1)"])
def test_workers_of_a_pool_do_not_hold_up_the_end(way: str) -> None:
    done = leave(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "begun, begin = os.pipe()\n"
        "def work(parent):\n"
        "    os.write(begin, b'x')\n"
        "    while os.getppid() == parent: time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "pool = ProcessPoolExecutor(1)\n"
        "pool.submit(work, os.getpid())\n"
        "os.read(begun, 1)\n"
        f"{way}\n"
    )
    assert (done.returncode, "aborted with 1" in done.stderr) == (1, True)


def test_an_exception_that_was_caught() -> None:
    """Test runners and shells put a caught exception in sys.last_value, as if it were uncaught."""
    done = leave(
        "dist.group._exit._hooks.foreign = True\n"
        "def fail(): raise ValueError('bo' 'om')\n"
        "def run():\n"
        "    try: fail()\n"
        "    except ValueError as error:\n"
        "        sys.last_type, sys.last_value = type(error), error\n"
        "        sys.last_traceback = error.__traceback__\n"
        "run()\n"
    )
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr


def test_somebody_else_s_mpi() -> None:
    done = leave("dist.group._exit._hooks.foreign = True; sys.exit(6)")
    assert (done.returncode, "aborted with 6" in done.stderr) == (6, True)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sys.exit(3)", 3),  # on_exit of the core handles it
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


CAUGHT = {
    "passed over": "try: sys.exit(3)\nexcept SystemExit: pass",
    "suppressed": "with contextlib.suppress(SystemExit): sys.exit(3)",
    "kept": "try: sys.exit(3)\nexcept SystemExit as error: kept = error",
    "kept below": "def f():\n try: sys.exit(3)\n except SystemExit as e: return e\nkept = [f()]",
    "in a circle": "def f():\n try: sys.exit(3)\n except SystemExit as e: g = e\nf(); gc.collect()",
    "the second of two": (
        "with contextlib.suppress(SystemExit):\n try: sys.exit(3)\n finally: sys.exit(4)"
    ),
}


@pytest.mark.parametrize("company", ["stay()", "dist.group._exit._hooks.foreign = True"])
@pytest.mark.parametrize("how", CAUGHT)
def test_a_sys_exit_that_somebody_caught_last(how: str, company: str) -> None:
    """No call of the library comes after it."""
    done = leave(f"import gc\ndef sit(): time.sleep(0.2)\n{company}\n{CAUGHT[how]}\n")
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "def f():\n try: sys.exit(3)\n except SystemExit as e:\n  g = e\n  raise g\nf()",
        "try: sys.exit(4)\nexcept SystemExit: sys.exit(3)",
        "try: sys.exit(3)\nfinally: gc.collect()",
        "with contextlib.ExitStack() as s:\n s.callback(print, 'x')\n sys.exit(3)",
    ],
)
def test_a_sys_exit_that_somebody_raised_again(script: str) -> None:
    done = leave(f"import gc\ndef sit(): time.sleep(0.2)\nstay()\n{script}\n")
    assert (done.returncode, "aborted with 3" in done.stderr) == (3, True), done.stderr


def test_a_failed_call_does_not_clear_the_note() -> None:
    done = leave(
        "stay()\n"
        "core.error = dist.errors.GroupBrokenError()\n"
        "try: sys.exit(3)\n"
        "finally: dist.barrier()\n"
    )
    assert "aborted with 1" in done.stderr


def test_a_call_of_another_thread_does_not_clear_the_note() -> None:
    done = leave(
        "stay()\n"
        "try: sys.exit(3)\n"
        "finally:\n"
        "    thread = threading.Thread(target=dist.barrier); thread.start(); thread.join()\n"
    )
    assert "aborted with 3" in done.stderr


def test_sys_exit_of_a_thread_is_its_own() -> None:
    done = leave(
        "thread = threading.Thread(target=lambda: sys.exit(3)); thread.start(); thread.join()\n"
        "threading.Thread(target=lambda: time.sleep(0.2)).start()\n"
    )
    assert (done.returncode, "aborted" in done.stderr) == (0, False), done.stderr


def test_hooks_are_given_back() -> None:
    done = leave(
        "mine = lambda *a: None\n"
        "assert sys.excepthook is sys.__excepthook__\n"
        "assert sys.exit.__module__ != 'sys'\n"
        "dist.destroy_process_group()\n"
        "assert sys.exit.__module__ == 'sys'\n"
        "sys.exit = mine\n"
        "dist.init_process_group()\n"
        "dist.destroy_process_group()\n"
        "assert sys.exit is mine\n"
    )
    assert done.returncode == 0, done.stderr
