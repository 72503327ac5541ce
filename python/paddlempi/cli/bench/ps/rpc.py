"""``--level rpc``: a gRPC call of the administration, while 8 threads of each rank block in MPI.

Rank 0 trains, rank 1 is the server. The call is :func:`paddlempi.ps.barrier` of one trainer: a
request and an answer. In half of the blocks, 8 threads of each rank wait for a message of the other
meanwhile. The threads of the Go runtime, which carry gRPC, have a timer slack of 10 ms
(``capi/slack.c``); this shows whether a call feels it.
"""

from __future__ import annotations

import socket
import threading
import time
from argparse import Namespace
from array import array

from .... import group, p2p, ps
from ..collectives import AGAIN, of_all_ranks
from ..sampling import shuffled
from .findings import Findings
from .measured import summary
from .rivals import place

__all__ = ["measure"]

THREADS = 8
CALLS = 50  # of a block
QUIET, BLOCKED = "no threads in MPI", f"{THREADS} threads in MPI"
_SETTLE = 0.02  # seconds in which the threads come to wait in MPI
_BEGIN, _RELEASE, _ENOUGH = b"b", b"r", b"e"


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure ``--rounds`` blocks of each kind. Collective over two ranks."""
    ps.init("trainer:1,pserver:1", timeout=chosen.timeout)
    try:
        with place() as at:
            address = str(at.folder / "socket")
            if group.get_rank() == 0:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(address)
                    listener.listen(1)
                    of_all_ranks("")
                    other, _ = listener.accept()
                with other:
                    _ask(other, chosen.rounds, findings)
            else:
                of_all_ranks("")
                with socket.socket(socket.AF_UNIX) as other:
                    other.connect(address)
                    _serve(other)
    finally:
        ps.shutdown()


def _ask(other: socket.socket, rounds: int, findings: Findings) -> None:
    times: dict[str, list[float]] = {QUIET: [], BLOCKED: [], AGAIN: []}
    for block in range(-1, rounds):
        for name in shuffled(list(times), block + 1):
            if name == BLOCKED:
                _command(other, _BEGIN)
                threads = _receive(1)
                time.sleep(_SETTLE)
            took = [_call() for _ in range(CALLS)]
            if name == BLOCKED:
                other.sendall(_RELEASE)  # rank 1 sends, and then waits for what is sent here
                _join(threads)
                _send(1)
                other.recv(1)
            if block >= 0:
                times[name] += took
    other.sendall(_ENOUGH)
    findings.add(summary({"threads": THREADS}, "barrier", times, QUIET), QUIET)


def _call() -> float:
    """Make the call; return how long it took, in us."""
    before = time.perf_counter_ns()
    ps.barrier()
    return (time.perf_counter_ns() - before) / 1e3


def _command(other: socket.socket, what: bytes) -> None:
    other.sendall(what)
    other.recv(1)


def _serve(other: socket.socket) -> None:
    """Do what rank 0 says. Between commands this thread waits in the kernel, not in MPI."""
    threads: list[threading.Thread] = []
    while (what := other.recv(1)) not in (_ENOUGH, b""):
        if what == _BEGIN:
            threads = _receive(0)
            time.sleep(_SETTLE)
        else:
            _send(0)
            _join(threads)
        other.sendall(what)


def _receive(source: int) -> list[threading.Thread]:
    """Start threads that each wait for a message."""
    threads = [
        threading.Thread(target=p2p.recv, args=(array("b", [0]), source), kwargs={"tag": tag})
        for tag in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    return threads


def _send(to: int) -> None:
    for tag in range(THREADS):
        p2p.send(array("b", [0]), to, tag=tag)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
