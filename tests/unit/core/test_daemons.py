"""Daemon threads and the end of Python. Every case is a process of its own."""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import atexit, os, threading, time

begun, go, over = threading.Event(), threading.Event(), threading.Event()

def wait_for_the_thread():
    go.set()
    print("over" if over.wait(15) else "never", flush=True)

if {late}:
    atexit.register(wait_for_the_thread)  # runs after those of the package

from paddlempi import _daemons

def start(call):
    def target():
        _daemons.idle(go.wait)
        call()
        _daemons.idle(threading.Event().wait)
    _daemons.Daemon(target, "a thread").start()
"""


def leave(script: str, late: bool = False) -> str:
    """Run a program, and return what it has written."""
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE.format(late=late) + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    return ended.stdout


UNDER_WAY = """
def call():
    begun.set()
    {call}
    print("over", flush=True)

start(call)
go.set()
assert begun.wait(15)
"""


def test_the_end_waits_for_a_call() -> None:
    assert leave(UNDER_WAY.format(call="time.sleep(0.5)")) == "over\n"


def test_the_end_does_not_wait_for_ever() -> None:
    assert leave(UNDER_WAY.format(call="threading.Event().wait()")) == ""


def test_a_call_that_waits_for_that_of_another_thread() -> None:
    script = """
second = threading.Event()

def other():
    _daemons.idle(second.wait)
    over.set()

_daemons.Daemon(other, "another").start()
"""
    call = "time.sleep(0.2); second.set(); assert over.wait(15)"
    assert leave(script + UNDER_WAY.format(call=call)) == "over\n"


def test_an_ended_thread_is_not_waited_for() -> None:
    script = """
def end():
    begun.set()
    raise SystemExit

start(end)
go.set()
assert begun.wait(15)
while threading.active_count() > 1:
    time.sleep(0.001)
print(_daemons._hold())
"""
    assert leave(script) == "True\n"


def test_a_fork_does_not_wait_for_the_threads_of_its_parent() -> None:
    script = """
pid = os.fork()
if pid == 0:
    os._exit(0 if _daemons._hold() else 1)
assert not _daemons._hold()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    assert leave(UNDER_WAY.format(call="threading.Event().wait()") + script) == "0\n"


def test_no_call_begins_while_threads_are_held() -> None:
    script = """
start(lambda: print("called", flush=True))
_daemons._HELD = 1e9
assert _daemons._hold()
go.set()
time.sleep(0.5)
print("end", flush=True)
"""
    assert leave(script) == "end\n"


def test_a_callback_of_atexit_that_comes_later_may_wait_for_a_call() -> None:
    assert leave("start(over.set)", late=True) == "over\n"
