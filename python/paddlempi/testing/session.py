"""One rank's pytest session under --mpi: in lock-step with the others, silent but on rank 0."""

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

# Collecting takes longer than a test may, with frameworks to import on every rank at once.
_LEAST_BETWEEN_TESTS = 60.0
# Seconds that rank 0 has after a deadline to report; then each rank's watchdog ends it.
_GRACE = 12.0
_REPORT_SECONDS = 10.0
_DRAIN_SECONDS = 2.0
# After a deadline only these still have their say at the session's end: the others (fixtures'
# finalizers above all) belong to the thread that hangs.
_REPORTERS = {"TerminalReporter", "LFPlugin", "LogXML"}

# What is the same in every test's stack.
_PYTEST = ("/_pytest/", "/pluggy/", "/paddlempi/testing/")


def start(config: pytest.Config) -> None:
    """Meet the other ranks and register the session's hooks."""
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
    """Leave files that pytest writes once a session to rank 0, before their plugins start."""
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
        self.collect_errors: dict[str, str] = {}
        self.note = ""
        self.sections: dict[str, list[str]] = {}
        self.finished = False
        self.leaving = False
        # pytest redirects descriptor 2 while a test runs; this is where it went before.
        self.stderr = os.dup(2)
        between = max(self.seconds, _LEAST_BETWEEN_TESTS) if self.seconds else 0.0
        self.rounds, self.watch = join(place, between)
        for line in (self.rounds, self.watch):
            # A forked child's copies would make a dead parent look alive.
            os.register_at_fork(after_in_child=line.sock.close)
        name = "paddlempi-testing"
        self.thread = threading.Thread(target=self._answer_hub, name=name, daemon=True)
        self.thread.start()
        messages = self._swap("meet", seed=secrets.randbits(32))
        if getattr(config.option, "hypothesis_seed", "") is None:
            config.option.hypothesis_seed = str(messages[0]["seed"])  # the same examples
        self._guard_exit()

    def _guard_exit(self) -> None:
        """Give a rank that leaves in the middle with status 0 another one.

        Hydra ends the job when a rank goes without MPI_Finalize, but with that rank's status: a
        test that calls ``os._exit(0)`` would be a job that succeeded.
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
        messages = self._swap("finish", status=status, note=self.note)
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
        # The first rank that ends with a status other than 0 makes the launcher kill the rest:
        # nobody leaves before rank 0 has printed.
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
        own = self.collect_errors.copy()
        ids = [item.nodeid for item in session.items]
        messages = self._swap("collect", errors=own, ids=ids)
        errors: dict[str, dict[int, str]] = {}
        for rank, message in messages.items():
            for nodeid, text in message["errors"].items():
                errors.setdefault(nodeid, {})[rank] = text
        for nodeid in errors.keys() - own.keys():
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
        if seconds:
            # A rank that hangs while it holds the GIL runs no Python thread. faulthandler's own
            # needs no GIL: it writes the stacks and ends this rank, and the launcher the job.
            faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=self.stderr)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not self._forked():
            merge(report, self._swap(**message_of(report)), self.place.rank)
            if call.when == "teardown":
                faulthandler.cancel_dump_traceback_later()
        return report

    @contextlib.contextmanager
    def agree(self) -> Generator[None, None, None]:
        """Raise RanksFailed on every rank, from this one place, if the block failed on any."""
        failure = ""
        try:
            yield
        except Exception as error:  # it is raised again, on all ranks
            if type(error).__module__.startswith("hypothesis."):
                raise  # assume(): no failure, and the same on every rank
            failure = shorten(traceback.format_exc())
        messages = {self.place.rank: {"failure": failure}}
        if not self._forked():
            messages = self._swap("agree", failure=failure)
        failures = {r: m["failure"] for r, m in sorted(messages.items()) if m["failure"]}
        if failures:
            parts = [f"on rank {rank}:\n{text}" for rank, text in failures.items()]
            raise RanksFailed("\n".join([f"failed on {ranks_text(failures)}", *parts]))

    def _swap(self, kind: str, **fields: Any) -> dict[int, Message]:
        """Take part in a round; return every rank's message. Only rank 0 gets their ``more``."""
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
            # Who finishes after a Ctrl-C may still find the answer to an earlier round.
            if kind != "finish":
                pytest.exit(answer["stop"], returncode=int(pytest.ExitCode.INTERRUPTED))
        os._exit(1)  # as in _answer_hub

    def _forked(self) -> bool:
        """Whether this is a child that a test forked: it has no part in the rounds."""
        return os.getpid() != self.pid

    # The end of a job that hangs, in a thread of its own.

    def _answer_hub(self) -> None:
        while (message := self.watch.receive()) is not None:
            if message["kind"] == "dump":
                output = ""
                manager = self.config.pluginmanager.get_plugin("capturemanager")
                with contextlib.suppress(Exception):  # no capture, or who hangs is at it
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
            os._exit(1)  # rank 0 is gone; the hub has said so, and the launcher may not care

    def _report_fatal(self, fatal: Message) -> bool:
        """Report why the job ends; return False where there is no session to report in."""
        # From this thread only C can do it: the launcher's SIGTERM must not cut the report off.
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
        for rank, text in fatal["stacks"]:
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
    """A block under ``mpi_agree`` failed; the text holds the traceback of each rank it failed on.

    Raised alike on all ranks, so that what decides by it (hypothesis) decides alike.
    """


def stacks() -> str:
    """Return the Python stacks of this process's other threads, without pytest's own frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            frames = traceback.extract_stack(frame)
            frames[:] = [f for f in frames if not any(path in f.filename for path in _PYTEST)]
            shown.append(f"{names.get(ident, ident)}:\n{''.join(frames.format())}")
    return "\n".join(shown)


def flush() -> None:
    """Hand everything printed to the launcher, and wait until it has read it.

    A launcher that ends a job because of a rank's status may drop what it has not read yet.
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
