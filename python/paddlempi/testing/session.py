"""One rank's pytest session under --mpi: in lock-step with the others, silent but on rank 0."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Generator
from typing import Any, NoReturn

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from . import place as places
from .channel import ChannelError, Links, Message, meet, ranks_text
from .deadline import Watchdog, flush
from .report import RanksRepr, Verdict, adopt, merge, message_of, shorten
from .rounds import Coordinator, Exchange, Fatal, Follower
from .witness import Witness

_MEET_SECONDS = 120.0
# Collecting takes longer than a test may, with frameworks to import on every rank at once.
_LEAST_OUTSIDE_TESTS = 60.0
# After a deadline only these still have their say at the session's end: the others (fixtures'
# finalizers above all) belong to the thread that hangs.
_REPORTERS = {"terminalreporter", "lfplugin"}
_REPORTER_CLASSES = {"LogXML"}


def start(config: pytest.Config) -> None:
    """Meet the other ranks and register the session's hooks."""
    place = places.find()
    _refuse(config, place)
    if place.rank != 0:
        _write_no_files(config, place.rank)
    watchdog = Watchdog()
    # Before the ranks meet, for between hosts that loads MPI, and MPI does not like forks.
    witness = Witness(watchdog.stderr) if place.rank == 0 else None
    try:
        links = meet(place, _MEET_SECONDS)
    except BaseException as error:
        if witness is not None:
            witness.close()
        if isinstance(error, ChannelError):
            raise pytest.UsageError(f"--mpi: {error}") from error
        raise
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(links.seed)  # the same examples on every rank
    session = RankSession(config, place, links, watchdog, witness)
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
    for name in ("xmlpath", "log_file"):
        if getattr(option, name, None):
            setattr(option, name, None)
    if getattr(option, "cacheclear", False):
        option.cacheclear = False
    if getattr(option, "basetemp", None):
        option.basetemp = f"{option.basetemp}-rank{rank}"


class RankSession:
    """The hooks of a session under --mpi."""

    def __init__(
        self,
        config: pytest.Config,
        place: places.Place,
        links: Links,
        watchdog: Watchdog,
        witness: Witness | None,
    ) -> None:
        self.config = config
        self.place = place
        self.watchdog = watchdog
        option = config.getoption("mpi_timeout")
        self.seconds = float(config.getini("mpi_timeout") if option is None else option)
        self.exchange: Exchange
        if witness is not None:
            outside = max(self.seconds, _LEAST_OUTSIDE_TESTS) if self.seconds else 0.0
            self.exchange = Coordinator(
                links, watchdog, witness, outside, self._captured, self._report_fatal
            )
        else:
            self.exchange = Follower(links, self._captured)
        self.exchange.start()
        self.pid = os.getpid()
        self._guard_exit()
        os.register_at_fork(after_in_child=self.exchange.forget)
        self.session: pytest.Session | None = None
        self.item: pytest.Item | None = None
        self.collect_errors: list[tuple[str, str]] = []
        self.different = False
        self.note = ""
        self.notes: list[str] = []
        self.not_run: list[str] = []
        self.finished = False

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
            reporter._tw._file = _Nowhere()
        cache = getattr(self.config, "cache", None)
        if cache is not None:
            cache.set = lambda key, value: None

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.note = f"INTERNALERROR\n{shorten(str(excrepr))}"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.note = f"{excinfo.typename}: {excinfo.value}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._forked() or self.finished:
            return
        session.exitstatus = self._finish(int(exitstatus))

    def _finish(self, status: int) -> int:
        self.finished = True
        self.exchange.begin(None, 0)
        answer = self.exchange.swap({"kind": "finish", "status": status, "note": self.note})
        self.notes = [str(note) for note in answer.get("notes", ())]
        return status or int(answer.get("status", 1))

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
        self.exchange.leave()
        self.watchdog.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        own = f"rank {self.place.rank}: {self.note}"
        notes = [note for note in self.notes if note != own]
        if notes:
            terminalreporter.section("other ranks", "=")
            for note in notes:
                terminalreporter.line(note)
        if self.not_run:
            terminalreporter.section(f"{len(self.not_run)} not run", "=")
            for nodeid in self.not_run:
                terminalreporter.line(nodeid)

    # Collection.

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not isinstance(report.longrepr, RanksRepr):
            self.collect_errors.append((report.nodeid, shorten(str(report.longrepr))))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        answer = self._swap(
            {
                "kind": "collect",
                "ids": [item.nodeid for item in session.items],
                "errors": self.collect_errors,
            }
        )
        problem = answer["problem"]
        if problem is not None:
            self.different = True
            self._collect_error("the same tests on every rank", _Text(problem))
        own = {nodeid for nodeid, _ in self.collect_errors}
        by_test: dict[str, list[tuple[int, str]]] = {}
        for rank, errors in answer["errors"].items():
            for nodeid, text in errors:
                by_test.setdefault(nodeid, []).append((int(rank), text))
        for nodeid, parts in by_test.items():
            if nodeid not in own:
                self._collect_error(nodeid, RanksRepr.of(parts, self.place.size))

    def _collect_error(self, nodeid: str, longrepr: TerminalRepr) -> None:
        report = pytest.CollectReport(nodeid, "failed", longrepr, None)
        self.config.hook.pytest_collectreport(report=report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if self.different:  # also under --continue-on-collection-errors
            raise session.Interrupted("the ranks collected different tests")

    # The tests.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        seconds = self._deadline(item)
        self.item = item
        self.exchange.begin(item.nodeid, seconds)
        if seconds:
            self.watchdog.arm(seconds)
        try:
            return (yield)
        finally:
            if not self._forked():
                self.watchdog.disarm()
                self.exchange.begin(None, 0)

    def _deadline(self, item: pytest.Item) -> float:
        for mark in item.iter_markers("mpi"):
            if mark.kwargs.get("timeout") is not None:
                return float(mark.kwargs["timeout"])
        return self.seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._forked():
            return report
        answer = self._swap(message_of(self.config, report))
        verdict = Verdict(answer["outcome"], answer["wasxfail"], tuple(answer["ranks"]))
        if self.place.rank == 0:
            return merge(self.config, report, verdict, answer["all"])
        return adopt(report, verdict)

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
        if self._forked():
            if failure:
                raise RanksFailed(failure)
            return
        answer = self._swap({"kind": "agree", "failure": failure})
        failures = {int(rank): str(text) for rank, text in answer["failures"].items()}
        if failures:
            parts = [f"on rank {rank}:\n{text}" for rank, text in sorted(failures.items())]
            raise RanksFailed("\n".join([f"failed on {ranks_text(list(failures))}", *parts]))

    def _swap(self, message: Message) -> Message:
        answer = self.exchange.swap(message)
        if "stop" in answer:
            pytest.exit(str(answer["stop"]), returncode=int(pytest.ExitCode.INTERRUPTED))
        return answer

    def _forked(self) -> bool:
        """Whether this is a child that a test forked: it has no part in the rounds."""
        return os.getpid() != self.pid

    # The end of a job that hangs, in the coordinator's thread.

    def _captured(self) -> str:
        manager = self.config.pluginmanager.get_plugin("capturemanager")
        if manager is None or not manager.is_globally_capturing():
            return ""
        with contextlib.suppress(Exception):
            out, err = manager.read_global_capture()
            return shorten(f"{out}{err}")
        return ""

    def _report_fatal(self, fatal: Fatal) -> None:
        config, session = self.config, self.session
        manager = config.pluginmanager.get_plugin("capturemanager")
        if manager is not None:
            manager.suspend_global_capture(in_=True)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        item = self.item if fatal.test is not None else None
        if session is None or reporter is None:
            self.watchdog.write(f"\npaddlempi: {fatal.summary}\n")
            return
        longrepr = _FatalRepr(fatal)
        if item is not None:
            sections = [
                (f"rank {rank}: Captured output", text)
                for rank, text in sorted(fatal.output.items())
                if text
            ]
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords=dict.fromkeys(item.keywords, 1),
                outcome="failed",
                longrepr=longrepr,
                when="call",
                sections=sections,
            )
            item.ihook.pytest_runtest_logreport(report=report)
            nodeids = [other.nodeid for other in session.items]
            self.not_run = nodeids[nodeids.index(item.nodeid) + 1 :]
            if self.not_run:
                reporter.stats["not run"] = [_NotRun(nodeid) for nodeid in self.not_run]
                reporter._main_color = None  # so that the closing line counts them
        else:
            self._collect_error("the job", longrepr)
        session.shouldfail = f"the job was ended: {fatal.summary}"
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.finished = True
        plugins = config.pluginmanager.list_name_plugin()
        others = [
            plugin
            for name, plugin in plugins
            if plugin is not None
            and name not in _REPORTERS
            and type(plugin).__name__ not in _REPORTER_CLASSES
        ]
        finish = config.pluginmanager.subset_hook_caller("pytest_sessionfinish", others)
        finish(session=session, exitstatus=session.exitstatus)
        flush()


class RanksFailed(AssertionError):
    """A block under ``mpi_agree`` failed; the text holds the traceback of each rank it failed on.

    Raised alike on all ranks, so that what decides by it (hypothesis) decides alike.
    """


class _Nowhere(io.TextIOBase):
    """The terminal of a rank that prints nothing."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True


class _NotRun:
    """A test that the job's end came before, for the closing line's count."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


class _Text(TerminalRepr):
    def __init__(self, text: str) -> None:
        self.text = text
        self.reprcrash = ReprFileLocation("", 0, text.splitlines()[0])

    def toterminal(self, tw: Any) -> None:
        tw.line(self.text)


class _FatalRepr(TerminalRepr):
    """Why a job was ended, and where each rank was."""

    def __init__(self, fatal: Fatal) -> None:
        self.fatal = fatal
        self.reprcrash = ReprFileLocation(fatal.test or "", 0, fatal.summary)

    def toterminal(self, tw: Any) -> None:
        tw.line(self.fatal.summary, red=True)
        for rank, trace in sorted(self.fatal.stacks.items()):
            state = "hangs" if rank in self.fatal.hung else "waits for the others"
            tw.sep("-", f"stacks of {ranks_text([rank])}, which {state}", bold=True)
            tw.line(trace.rstrip())
