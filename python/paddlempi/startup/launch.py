"""``paddlempi.launch``: a function in several processes of this host, from a notebook or a program.

The processes are the ranks of a job without MPI. They meet in a file without a name (``memfd``) of
this process.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from paddlempi_bootstrap.starters import MEET

from .. import _native, _processes, group
from ..errors import ArgumentError, RankFailedError, UnsupportedError
from . import cpu_binding

__all__ = ["launch"]

_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for the ranks that are left when one has failed."""


def launch(
    function: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    *,
    method: str | None = None,
    bind: bool = False,
) -> list[Any]:
    """Call ``function(*args)`` in ``nprocs`` new processes, and return what it returned in each.

    The processes are the ranks 0 to ``nprocs - 1`` of a job: ``init_process_group`` in the function
    needs no arguments, nor does ``torch.distributed.init_process_group("mpi")``. ``RANK``,
    ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are
    set. If a rank fails, the others are ended: by SIGTERM, and by SIGKILL 10 s later.

    Args:
        function: what every rank calls. With ``"spawn"`` a rank imports it, so it is not of a
            notebook's cell, and a program calls ``launch`` below ``if __name__ == "__main__":``.
        nprocs: the number of ranks.
        args: its arguments; with ``"spawn"`` they are pickled.
        method: ``"fork"``: the processes are copies of this one, as a notebook needs it.
            ``"spawn"``: they are new. None: ``"fork"`` in a notebook, else ``"spawn"``.
        bind: bind each rank to its share of the CPUs that the calling thread may use: neighbours,
            whole cores while there are as many. More ranks than CPUs take the CPUs in turn.

    Returns:
        What the function returned, by rank. It is pickled.

    Raises:
        ArgumentError: a wrong ``nprocs`` or ``method``.
        UnsupportedError: ``"fork"`` where a copy of the process would not work: in this process
            the core was loaded, or CUDA was initialised. Start the notebook's kernel anew, and use
            them in the function only. Or the kernel refuses to bind a rank.
        RankFailedError: a rank ended by an exception, whose text is in the message, by a signal or
            with another status than 0; ``ranks`` is that rank.

    Thread-safety: may be called from any thread; with ``"fork"`` locks that other threads hold stay
    locked in the ranks.

    Source: accelerate's ``notebook_launcher``, ``torch.multiprocessing.spawn``.
    """
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ArgumentError(f"launch: nprocs={nprocs!r}: it must be a whole number above 0")
    if method is None:
        method = "fork" if _in_notebook() else "spawn"
    if method not in ("fork", "spawn"):
        raise ArgumentError(f"launch: method={method!r}: it must be 'fork' or 'spawn'")
    if method == "fork":
        _refuse_copies()
    meeting = os.memfd_create("paddlempi-launch")
    try:
        return _Ranks(method, meeting, bind).run(function, nprocs, args)
    finally:
        os.close(meeting)


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel. IPython in a terminal has cells, too."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _refuse_copies() -> None:
    """Raise UnsupportedError if a copy of this process would not work."""
    advice = (
        "start the kernel anew and call launch before that, or put the function into a module and "
        'give method="spawn"'
    )
    if _native.loaded():
        raise UnsupportedError(
            'launch: method="fork", but the core of paddlempi is loaded in this process '
            f"(init_process_group, is_available and dist.empty load it): {advice}"
        )
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                    raise UnsupportedError(
                        'launch: method="fork", but CUDA was initialised in this process (as by '
                        f"tensor.cuda() and torch.cuda.get_device_name()): {advice}"
                    )


class _Ranks:
    """The processes of one call of :func:`launch`."""

    def __init__(self, method: str, meeting: int, bind: bool) -> None:
        import multiprocessing  # which few programs need

        self._bind = bind
        if bind and method == "spawn":
            from multiprocessing import resource_tracker

            # Else the start of rank 0 starts this helper of all later processes, which is no rank.
            resource_tracker.ensure_running()
        self._context: Any = multiprocessing.get_context(method)
        self._target = _copied_rank if method == "fork" else _rank
        self._variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_processes.unused_port()),
            "GROUP_RANK": "0",
            MEET: f"file:///proc/{os.getpid()}/fd/{meeting}",
        }

    def run(self, function: Callable[..., Any], number: int, args: Sequence[Any]) -> list[Any]:
        from multiprocessing import connection

        started: list[Any] = []
        answers: list[Any] = []
        results: list[Any] = [None] * number
        shares: Sequence[Collection[int] | None] = [None] * number
        if self._bind:
            shares = cpu_binding.shares(number, os.sched_getaffinity(0))
        try:
            for rank in range(number):
                own, theirs = self._context.Pipe(duplex=False)
                variables = self._variables | {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(number),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(number),
                }
                process = self._context.Process(
                    target=self._target, args=(function, tuple(args), variables, theirs)
                )
                with cpu_binding.bound(shares[rank], rank):
                    process.start()
                theirs.close()
                started.append(process)
                answers.append(own)
            left = dict(enumerate(answers))
            while left:
                ready = connection.wait(list(left.values()))
                for rank in [rank for rank, answer in left.items() if answer in ready]:
                    good, results[rank] = self._answer(rank, left.pop(rank), started[rank])
                    if not good:
                        raise _failed(rank, number, results[rank])
            for rank, process in enumerate(started):
                process.join()
                if process.exitcode:
                    raise _failed(rank, number, _ended(process.exitcode))
            return results
        finally:
            _end(started)
            for answer in answers:
                answer.close()

    def _answer(self, rank: int, answer: Any, process: Any) -> tuple[bool, Any]:
        """Return whether a rank succeeded, and its result or why it did not."""
        try:
            good, result = answer.recv()
            return good, result
        except EOFError:  # it was killed, or has called os._exit
            process.join()
            return False, _ended(process.exitcode)


def _failed(rank: int, number: int, why: str) -> RankFailedError:
    error = RankFailedError(f"launch: rank {rank} of {number} failed: {why}")
    error.ranks = (rank,)
    return error


def _ended(status: int) -> str:
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with the status {status}"


def _end(started: Sequence[Any]) -> None:
    """End the processes that still run."""
    alive = [process for process in started if process.is_alive()]
    for process in alive:
        process.terminate()
    end = time.monotonic() + _GRACE
    for process in alive:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


class _Lines(io.TextIOBase):
    """A stream that hands whole lines on: pieces of lines of several ranks would mix."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        """Keep what is no whole line yet."""
        lines, end, self._rest = (self._rest + text).rpartition("\n")
        if end:
            self._stream.write(lines + end)
        return len(text)

    def flush(self) -> None:
        """Hand on what is kept, too."""
        self._stream.write(self._rest)
        self._rest = ""
        self._stream.flush()


def _copied_rank(*given: Any) -> None:
    """Be one rank in a copy of the parent."""
    if _in_notebook():
        sys.stdout, sys.stderr = _Lines(sys.stdout), _Lines(sys.stderr)
    torch = sys.modules.get("torch")
    if torch is not None:
        # The threads of OpenMP that the parent has computed on are not in a copy, which would wait
        # for them at its first operation on several threads.
        torch.set_num_threads(1)
    _rank(*given)


def _rank(
    function: Callable[..., Any], args: tuple[Any, ...], variables: dict[str, str], answer: Any
) -> None:
    """Be one rank: the target of its process."""
    os.environ.update(variables)
    try:
        result = function(*args)
        # A process of multiprocessing may end without the core's handler of exits.
        if group.is_initialized():
            group.destroy_process_group()
        answer.send((True, result))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            answer.send((True, None))
            raise
        answer.send((False, "".join(traceback.format_exception(error)).rstrip()))
        answer.close()
        raise SystemExit(1) from None
