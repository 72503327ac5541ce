"""Measures parameter servers between two ranks: ``bench ps --level transport`` and ``dense``.

Rank 0 trains, and rank 1 has the tables. Contenders take turns in random order, and every result
is checked before it is measured. Times are of the clock on the wall, because two processes work.

``transport``: pull and push of batches of ids, against

* gRPC alone: Python's grpcio carries the bytes that paddlempi's requests carry, which are every id
  once and its row. Nothing is computed, and the messages lie ready. So it is the least that a
  parameter server over this gRPC can take, and not a parameter server.
* torch's RPC: the whole batch travels, and the table is a tensor with ``index_select`` and
  ``index_add_``. All compute on one thread.

``dense``: push of a gradient and pull of a vector, against the same bytes over gRPC alone.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import group
from ...errors import ArgumentError, Error
from . import rivals
from .collectives import AGAIN, OURS, WrongResultError, of_all_ranks
from .report import environment, headline
from .sampling import shuffled
from .tables import RATE, WARM, Batches, Row, line, moved_right, summary

__all__ = ["DENSE", "TRANSPORT", "run"]

TRANSPORT, DENSE = "transport", "dense"
PULL, PUSH, BOTH = "pull", "push", "pull + push"

Call = Callable[[int], Any]
"""Pulls or pushes the batch of a round."""

Calls = tuple[Call, Call]
"""How a contender pulls, and how it pushes."""


def run(chosen: Namespace) -> int:
    """Measure a level on two ranks; rank 0 prints the figures. Return 0, or 1 after an error."""
    rank = 0
    try:
        group.init_process_group(timeout=chosen.timeout)
        rank = group.get_rank()
        if (group.get_world_size(), group.get_local_size()) != (2, 2):
            raise ArgumentError(
                f"bench: ps --level {chosen.level} is for two ranks of one node: "
                f"mpirun -np 2 python -m paddlempi bench ps --level {chosen.level}"
            )
        there = not chosen.json or Path(chosen.json).parent.is_dir()
        if not all(of_all_ranks("1" * there)):
            raise ArgumentError(f"bench: {chosen.json}: there is no folder for it")
        gc.disable()  # a collection would count as the time of some call
        try:
            _measure(chosen, rank)
        finally:
            gc.enable()
    except (ArgumentError, WrongResultError) as error:
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _measure(chosen: Namespace, rank: int) -> None:
    from ... import ps

    absent: dict[str, str] = {}
    found: dict[str, Any] = environment()
    made: dict[str, Any] = {}
    kinds: dict[str, Any] = {"gRPC": rivals.Grpc}
    if chosen.level == TRANSPORT:
        kinds[rivals.TORCH] = rivals.TorchRpc
    for name, kind in kinds.items():
        rival, absent[name] = rivals.of_all(kind)
        if not absent[name]:
            _, absent[name] = rivals.of_all(rival.open)
        if not absent[name]:
            made[name], found[name] = rival, rival.version
            del absent[name]
    ps.init("trainer:1,pserver:1", timeout=chosen.timeout)
    try:
        if rank == 0:
            _as_trainer(chosen, made, found, absent)
    finally:
        ps.shutdown()  # the server waits here until the trainer has completed
        for rival in made.values():
            rival.close()


def _as_trainer(
    chosen: Namespace, made: dict[str, Any], found: dict[str, Any], absent: dict[str, str]
) -> None:
    print(headline(found))
    versions = ", ".join(f"{name} {found[name]}" for name in made)
    print(f"# ps, {chosen.level}: {'against ' + versions if made else 'alone'}")
    for name, reason in absent.items():
        print(f"not measured: {name}: {reason}")
    print(
        f"{'dim':>5} {'ids':>6} {'unique':>6} {'':<16} {'contender':<16} {'least us':>10} "
        f"{'p50 us':>10}  time : paddlempi's, of the least, median (quartiles)",
        flush=True,
    )
    rows: list[Row] = []
    for measured in (_transport if chosen.level == TRANSPORT else _dense)(chosen, made):
        rows += measured
        print(*map(line, measured), sep="\n", flush=True)
    if chosen.json:
        options = {k: getattr(chosen, k) for k in ("level", "dims", "batches", "rows", "rounds")}
        options["sizes"] = chosen.sizes
        record = {**found, "options": options, "rows": [row.record() for row in rows]}
        Path(chosen.json).write_text(json.dumps(record | {"not_measured": absent}, indent=1))


def _transport(chosen: Namespace, made: dict[str, Any]) -> Iterator[list[Row]]:
    import numpy as np

    from ... import ps

    for dim in chosen.dims:
        batches = Batches(np, np.random.default_rng(dim), chosen.rows, dim, max(chosen.batches))
        table = ps.RemoteTable(f"bench {dim}", dim, ps.SGD(RATE), ps.Uniform())
        for begin in range(0, chosen.rows, 50_000):
            table.pull(np.arange(begin, min(begin + 50_000, chosen.rows)))
        if rivals.TORCH in made:
            made[rivals.TORCH].make(chosen.rows, dim)
        for batch in chosen.batches:
            batches.draw(batch)
            calls = {OURS: _ours(np, table, batches)}
            if rivals.TORCH in made:
                calls[rivals.TORCH] = _torch(made[rivals.TORCH], batches)
            for name, contender in calls.items():
                before = np.array(contender[0](0), np.float64)
                contender[1](0)
                if not moved_right(np, batches, np.array(contender[0](0), np.float64) - before):
                    raise WrongResultError(f"bench: {name}, dim {dim}: the rows are wrong")
            if "gRPC" in made:
                calls |= _grpc_rows(np, made["gRPC"], batches)
            unique = len(np.unique(batches.ids[0]))
            yield list(_cell(calls, chosen.rounds, dim, batch, unique))


def _ours(np: Any, table: Any, batches: Batches) -> Calls:
    out = np.empty((batches.batch, batches.dim), np.float32)
    return (
        lambda round_: table.pull(batches.ids_of(round_), out),
        lambda round_: table.push(batches.ids_of(round_), batches.gradient()),
    )


def _torch(rpc: Any, batches: Batches) -> Calls:
    return (
        lambda round_: rpc.pull(batches.ids_of(round_)),
        lambda round_: rpc.push(batches.ids_of(round_), batches.gradient(), RATE),
    )


def _grpc_rows(np: Any, grpc: rivals.Grpc, batches: Batches) -> dict[str, Calls]:
    pulls, pushes = [], []
    for ids in batches.ids:
        unique = np.unique(ids)
        pulls.append(rivals.request(unique, answer=4 * batches.dim * len(unique)))
        gradients = batches.gradients[: len(unique)]
        pushes.append(rivals.request(unique, gradients, answer=0))
    return _grpc(grpc, pulls, pushes)


def _grpc(grpc: rivals.Grpc, pulls: list[bytes], pushes: list[bytes]) -> dict[str, Calls]:
    """Return the calls of gRPC's contenders, after every message has come through whole."""

    def calls(ask: Callable[[bytes], bytes], messages: list[bytes]) -> Call:
        return lambda round_: ask(messages[round_ % len(messages)])

    for name, ask in grpc.ask.items():
        if not all(rivals.carries(ask, message) for message in (*pulls, *pushes)):
            raise WrongResultError(f"bench: {name}: the bytes are wrong")
    return {name: (calls(ask, pulls), calls(ask, pushes)) for name, ask in grpc.ask.items()}


def _dense(chosen: Namespace, made: dict[str, Any]) -> Iterator[list[Row]]:
    import numpy as np

    from ... import ps
    from ...ps.dense import Blocks

    for size in chosen.sizes:
        elements = max(1, size // 4)
        vector = Blocks(f"bench {size}", elements, ps.SGD(RATE))
        generator = np.random.default_rng(elements)
        vector.values[:] = generator.normal(size=vector.values.shape)
        vector.gradients[:] = generator.normal(size=vector.values.shape)
        vector.write()
        expected = vector.values - np.float32(RATE) * vector.gradients

        def push(round_: int, vector: Blocks = vector) -> None:
            ps.push([vector.request()])

        def pull(round_: int, vector: Blocks = vector) -> None:
            vector.pull()

        push(0)
        pull(0)
        if not np.allclose(vector.values, expected, rtol=1e-5, atol=1e-6):
            raise WrongResultError(f"bench: {OURS}, {size} bytes: the vector is wrong")
        calls: dict[str, Calls] = {OURS: (pull, push)}
        if "gRPC" in made:
            gradient = vector.gradients[:elements]
            asked = rivals.request(answer=gradient.nbytes)
            given = rivals.request(gradient, answer=0)
            calls |= _grpc(made["gRPC"], [asked], [given])
        block, blocks = vector.table.dim, len(vector.values) // vector.table.dim
        yield list(_cell(calls, chosen.rounds, block, blocks, blocks))


def _cell(calls: dict[str, Calls], rounds: int, dim: int, batch: int, unique: int) -> Iterator[Row]:
    calls = {**calls, AGAIN: calls[OURS]}
    times: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in calls} for what in (PULL, PUSH, BOTH)
    }
    clock = time.perf_counter_ns
    for round_ in range(-WARM, rounds):
        for name in shuffled(list(calls), round_ + WARM):
            pull, push = calls[name]
            stamps = [clock()]
            pull(round_)
            stamps.append(clock())
            push(round_)
            stamps.append(clock())
            if round_ >= 0:
                times[PULL][name].append((stamps[1] - stamps[0]) / 1e3)
                times[PUSH][name].append((stamps[2] - stamps[1]) / 1e3)
                times[BOTH][name].append((stamps[2] - stamps[0]) / 1e3)
    for what, of in times.items():
        yield from summary(dim, batch, unique, what, of)
