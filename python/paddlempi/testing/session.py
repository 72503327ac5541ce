"""The pytest session of one rank under --mpi.

It runs in lock-step with the sessions of the other ranks. Only rank 0 prints.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import secrets
import signal
import stat
import sys
import termios
import threading
import time
import traceback
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from _pytest._code.code import TerminalRepr

from . import place as places
from .client import HubError, join
from .hub import Message, ranks_text
from .report import Parts, by_rank, compare_collections, merge, message_of, shorten

# The least deadline between tests. Collecting may take longer than a test, because every rank
# imports the frameworks at the same time.
_LEAST_BETWEEN_TESTS = 60.0
# After the deadline of a test, rank 0 has this time to report. Then the watchdog of a rank ends it.
_WATCHDOG_SECONDS = 12.0
_REPORT_SECONDS = 10.0
_DRAIN_SECONDS = 2.0
# After a deadline pytest_sessionfinish runs for these plugins only. In other plugins it would need
# the thread that hangs: it runs the finalizers of fixtures, for example.
_REPORTERS = {"TerminalReporter", "LFPlugin", "LogXML"}

# Frames of these files are left out of stacks, because they are the same for every test.
_PYTEST = ("/_pytest/", "/pluggy/", "/paddlempi/testing/")


def start(config: pytest.Config) -> None:
    """Connect to the hub, wait for the other ranks, and register the session's hooks."""
    place = places.find()
    _refuse(config, place)
    if place.rank != 0:
        _write_no_files(config, place.rank)
    try:
        session = RankSession(config, place)
    except (HubError, OSError) as error:
        raise pytest.UsageError(f"--mpi: {error}") from error
    config.pluginmanager.register(session, "paddlempi-session")


def _refuse(config: pytest.Config, place: places.Place) -> None:
    """Raise pytest.UsageError if an option or the number of ranks does not go with --mpi."""
    expected = config.getoption("mpi_ranks")
    if expected is not None and expected != place.size:
        raise pytest.UsageError(
            f"--mpi-ranks={expected}, but the launcher ({place.launcher}) says {place.size}"
        )
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError("--mpi and pytest-xdist (-n, --tx) exclude each other")
    if place.size > 1 and config.getoption("usepdb", False):
        raise pytest.UsageError("--pdb would stop one rank while the others wait: not with --mpi")


def _write_no_files(config: pytest.Config, rank: int) -> None:
    """Have this rank not write the files of which there is one a session: rank 0 writes them.

    Call it before the plugins that write them start.
    """
    option = config.option
    for name in ("xmlpath", "log_file", "cacheclear"):
        if getattr(option, name, None):
            setattr(option, name, None)
    if getattr(option, "basetemp", None):
        option.basetemp = f"{option.basetemp}-rank{rank}"


class RankSession:
    """The hooks of a session under --mpi."""

    def __init__(self, config: pytest.Config, place: places.Place) -> None:
        self.config = config
        self.place = place
        self.pid = os.getpid()
        option = config.getoption("mpi_timeout")
        self.seconds = float(config.getini("mpi_timeout") if option is None else option)
        self.session: pytest.Session | None = None
        self.item: pytest.Item | None = None
        self.watched = 0.0  # the deadline of the test in seconds; 0: none
        self.collect_errors: dict[str, str] = {}
        self.note = ""
        self.sections: dict[str, list[str]] = {}
        self.finished = False
        self.leaving = False
        # pytest redirects descriptor 2 while a test runs. This is the stderr from before.
        self.stderr = os.dup(2)
        between = max(self.seconds, _LEAST_BETWEEN_TESTS) if self.seconds else 0.0
        self.rounds, self.watch = join(place, between)
        for line in (self.rounds, self.watch):
            # The hub would not notice the end of this rank while a forked child has a copy.
            os.register_at_fork(after_in_child=line.sock.close)
        name = "paddlempi-testing"
        self.thread = threading.Thread(target=self._answer_hub, name=name, daemon=True)
        self.thread.start()
        messages = self._exchange("meet", seed=secrets.randbits(32))
        if getattr(config.option, "hypothesis_seed", "") is None:
            config.option.hypothesis_seed = str(messages[0]["seed"])  # the same examples
        self._guard_exit()

    def _guard_exit(self) -> None:
        """Have ``os._exit(0)`` in a test end this rank with status 1.

        Hydra ends the job when a rank ends without MPI_Finalize, but with the status of this rank.
        With status 0 the job would have succeeded.
        """
        leave = os._exit

        def guarded(status: int) -> NoReturn:
            leave(status if self._forked() or self.finished else status or 1)

        os._exit = guarded

    # The session.

    def pytest_report_header(self) -> str:
        deadline = f"{self.seconds:g} s a test" if self.seconds else "none"
        return f"mpi: {self.place.size} ranks ({self.place.launcher}), deadline {deadline}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        if self.place.rank == 0:
            return
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        cache = getattr(self.config, "cache", None)
        if cache is not None:
            cache.set = lambda key, value: None

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.note = f"INTERNALERROR\n{shorten(str(excrepr))}"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.note = f"{excinfo.typename}: {excinfo.value}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self._forked() and not self.finished:
            session.exitstatus = self._finish(int(exitstatus))

    def _finish(self, status: int) -> int:
        self.finished = True
        faulthandler.cancel_dump_traceback_later()
        messages = self._exchange("finish", status=status, note=self.note)
        notes = {r: m["note"] for r, m in sorted(messages.items()) if m["note"] != self.note}
        self.sections["other ranks"] = [f"rank {r}: {note}" for r, note in notes.items() if note]
        return status or max(int(m["status"]) for m in messages.values())

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._forked():
            return
        if not self.finished:
            self._finish(int(pytest.ExitCode.USAGE_ERROR))
        if self.place.rank == 0:
            flush()
        # When a rank ends with a status other than 0, the launcher kills the others. So every rank
        # waits here until rank 0 has printed.
        self.leaving = True
        self.rounds.send({"kind": "bye"})
        self.rounds.receive()
        self.thread.join()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, lines in self.sections.items():
            if lines:
                terminalreporter.section(title)
                terminalreporter.line("\n".join(lines))

    # Collection.

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors[report.nodeid] = shorten(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        local = self.collect_errors.copy()
        ids = [item.nodeid for item in session.items]
        messages = self._exchange("collect", errors=local, ids=ids)
        errors: dict[str, dict[int, str]] = {}
        for rank, message in messages.items():
            for nodeid, text in message["errors"].items():
                errors.setdefault(nodeid, {})[rank] = text
        for nodeid in errors.keys() - local.keys():
            self._collect_error(nodeid, by_rank(errors[nodeid], self.place.size))
        text = compare_collections({rank: m["ids"] for rank, m in messages.items()})
        if text and not errors:
            self._collect_error("the same tests on every rank", Parts(text, {"": text}))

    def _collect_error(self, nodeid: str, longrepr: TerminalRepr) -> None:
        report = pytest.CollectReport(nodeid, "failed", longrepr, None)
        self.config.hook.pytest_collectreport(report=report)

    # The tests.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        marks = (mark.kwargs.get("timeout") for mark in item.iter_markers("mpi"))
        seconds = float(next((s for s in marks if s is not None), self.seconds))
        self.item = item
        if self.place.rank == 0:
            self.rounds.send({"kind": "begin", "test": item.nodeid, "seconds": seconds})
        self.watched = seconds
        self._watch()
        return (yield)

    def _watch(self) -> None:
        """Let faulthandler end this rank some time after the deadline of the hub.

        If a rank hangs and holds the GIL, none of its Python threads runs. faulthandler's thread
        needs no GIL: it writes the stacks and ends this rank. The launcher then ends the job.
        """
        if self.watched:
            faulthandler.dump_traceback_later(
                self.watched + _WATCHDOG_SECONDS, exit=True, file=self.stderr
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not self._forked():
            # A rank that waits for the others must not end before the one that hangs has written.
            faulthandler.cancel_dump_traceback_later()
            merge(report, self._exchange(**message_of(report)), self.place.rank)
            if call.when != "teardown":
                self._watch()
        return report

    @contextlib.contextmanager
    def agree(self) -> Generator[None, None, None]:
        """Raise RanksFailed on all ranks if the block failed on one of them.

        It is always raised at the same line, because hypothesis identifies a failure by its line.
        """
        failure = ""
        try:
            yield
        except Exception as error:  # RanksFailed takes its place
            if type(error).__module__.startswith("hypothesis."):
                raise  # assume() raises it on every rank alike; it is no failure
            failure = shorten(traceback.format_exc())
        messages = {self.place.rank: {"failure": failure}}
        if not self._forked():
            messages = self._exchange("agree", failure=failure)
        failures = {r: m["failure"] for r, m in sorted(messages.items()) if m["failure"]}
        if failures:
            parts = [f"on rank {rank}:\n{text}" for rank, text in failures.items()]
            raise RanksFailed("\n".join([f"failed on {ranks_text(failures)}", *parts]))

    def _exchange(self, kind: str, **fields: Any) -> dict[int, Message]:
        """Take part in a round and return the messages of all ranks, by rank.

        If the messages differ, only rank 0 gets the ``more`` of the others.
        """
        message = {"kind": kind, **fields}
        self.rounds.send(message)
        while (answer := self.rounds.receive()) is not None:
            if answer.get("same") == kind:
                return dict.fromkeys(range(self.place.size), message)
            theirs = {int(rank): m for rank, m in answer.get("all", {}).items()}
            if theirs and theirs[0]["kind"] == kind:
                return theirs
            if kind == "meet":
                raise HubError(answer["stop"])
            # After a Ctrl-C, this rank finishes while the answer to an earlier round still comes.
            if kind != "finish":
                pytest.exit(answer["stop"], returncode=int(pytest.ExitCode.INTERRUPTED))
        os._exit(1)  # the hub has ended, because rank 0 has: see _answer_hub

    def _forked(self) -> bool:
        """Whether this process is a child that a test forked. It takes no part in the rounds."""
        return os.getpid() != self.pid

    # The end of a job that hangs. These run in the thread that answers the hub.

    def _answer_hub(self) -> None:
        while (message := self.watch.receive()) is not None:
            if message["kind"] == "dump":
                output = ""
                manager = self.config.pluginmanager.get_plugin("capturemanager")
                with contextlib.suppress(Exception):  # no capture, or the thread that hangs uses it
                    assert manager is not None
                    output = shorten("".join(manager.read_global_capture()))
                self.watch.send({"kind": "stacks", "stacks": stacks(), "output": output})
            else:
                try:
                    if self._report_fatal(message):
                        self.watch.send({"kind": "reported"})
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)  # the launcher and the hub end the others
        if not self.leaving:
            # Rank 0 has ended, and the hub has said so. The launcher may not end the other ranks.
            os._exit(1)

    def _report_fatal(self, fatal: Message) -> bool:
        """Report why the job ends. Return False if there is no session or reporter for it."""
        # The launcher's SIGTERM must not end this process before the report is written. Python's
        # signal.signal works in the main thread only, C's in every thread.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(1))
        threading.Timer(_REPORT_SECONDS, os._exit, (1,)).start()
        session, item, test, summary = self.session, self.item, fatal["test"], fatal["summary"]
        plugins = self.config.pluginmanager
        manager = plugins.get_plugin("capturemanager")
        if manager is not None:
            manager.suspend_global_capture(in_=True)
        reporter = plugins.get_plugin("terminalreporter")
        if session is None or reporter is None:
            return False
        parts = {"": summary}
        failures = dict(fatal["failures"])
        for rank, text in failures.items():
            parts[f"failure of rank {rank}, before the others came"] = text
        for rank, text in fatal["stacks"]:
            if rank in failures:
                continue
            state = "hangs" if rank in fatal["late"] else "waits for the others"
            parts[f"stacks of rank {rank}, which {state}"] = text
        longrepr = Parts(summary, parts, test or "")
        if test is None or item is None:
            self._collect_error("the job", longrepr)
        else:
            output = [(f"rank {r}: Captured output", text) for r, text in fatal["output"] if text]
            keywords = dict.fromkeys(item.keywords, 1)
            report = pytest.TestReport(
                item.nodeid, item.location, keywords, "failed", longrepr, "call", output
            )
            item.ihook.pytest_runtest_logreport(report=report)
            nodeids = [other.nodeid for other in session.items]
            not_run = nodeids[nodeids.index(item.nodeid) + 1 :]
            if not_run:
                self.sections[f"{len(not_run)} not run"] = not_run
                reporter.stats["not run"] = [SimpleNamespace(nodeid=n) for n in not_run]
                reporter._main_color = None  # so that the closing line counts them
        session.shouldfail = f"the job was ended: {summary}"
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.finished = True
        silent = [p for p in plugins.get_plugins() if type(p).__name__ not in _REPORTERS]
        finish = plugins.subset_hook_caller("pytest_sessionfinish", silent)
        finish(session=session, exitstatus=session.exitstatus)
        flush()
        return True


class RanksFailed(AssertionError):
    """A block under ``mpi_agree`` failed. The text has the traceback of every rank that failed.

    It is the same error on all ranks, so hypothesis goes on with the same example on all ranks.
    """


def stacks() -> str:
    """Return the Python stacks of all threads but the calling one, without pytest's frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            frames = traceback.extract_stack(frame)
            frames[:] = [f for f in frames if not any(path in f.filename for path in _PYTEST)]
            shown.append(f"{names.get(ident, ident)}:\n{''.join(frames.format())}")
    return "\n".join(shown)


def flush() -> None:
    """Flush stdout and stderr. Wait until the launcher has read them, or ``_DRAIN_SECONDS``.

    A launcher that ends a job because of a rank's status may drop the output that it has not read
    yet.
    """
    end = time.monotonic() + _DRAIN_SECONDS
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for pipe in (1, 2):
        with contextlib.suppress(OSError):
            while stat.S_ISFIFO(os.fstat(pipe).st_mode) and time.monotonic() < end:
                if not any(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)):
                    break
                time.sleep(0.01)
