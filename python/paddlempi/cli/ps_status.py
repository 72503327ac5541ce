"""``python -m paddlempi ps status``: what the parameter servers of a job hold and do.

The core finds the servers by the file that the job has written for its user, and asks all of them
(docs/ps-reference.md). What they say is shown: it is another process's, so types and characters are
looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _native
from .._units import amount
from ..errors import ArgumentError, Error
from . import options

__all__ = ["add_to"]

_COUNTERS = (
    *("pulls", "pushes", "pulled_rows", "pushed_rows", "bytes_in", "bytes_out"),
    *("rpcs", "grpc_in", "grpc_out"),
)


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "ps",
        help="the parameter servers of a job that runs",
        description="Tools for jobs with parameter servers.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    status = actions.add_parser(
        "status",
        help="roles, tables, queues and rates of the servers, shards of the master",
        description="Asks all servers of a job of this user. The exit status is 1 if a server "
        "does not answer, or no job is found.",
    )
    status.add_argument(
        "--file",
        default="",
        metavar="PATH",
        help="the file of the job (default: that of the only job that runs on this host)",
    )
    status.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=2.0,
        metavar="SECONDS",
        help="ask again after so many seconds (2), until Ctrl-C or the end of the job",
    )
    status.add_argument(
        "--json", action="store_true", help="print a JSON object; with --watch one in each line"
    )
    status.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for the servers (default: 10)",
    )
    status.set_defaults(run=_status, parser=status)


def _seconds(text: str) -> float:
    return options.seconds(text, 0.01, 86400)


def _status(chosen: argparse.Namespace) -> int:
    file, before, status = chosen.file, None, 1
    try:
        while True:
            try:
                found = _ask(file, chosen.timeout)
            except Error as error:
                if before and isinstance(error, ArgumentError):  # the file has gone
                    print("the job has ended", file=sys.stderr)
                    return 0
                print(f"ps status: {error}", file=sys.stderr)
                return 1
            _add_rates(found, before)
            if chosen.json:
                print(json.dumps(found, indent=None if chosen.watch else 2), flush=True)
            else:
                clear = "\x1b[H\x1b[2J" if chosen.watch and sys.stdout.isatty() else ""
                print(clear + as_text(found), flush=True)
            status = int(any(server["error"] for server in _asked(found)))
            if chosen.watch is None:
                return status
            file, before = found["file"], found
            time.sleep(chosen.watch)
    except KeyboardInterrupt:
        return status
    except BrokenPipeError:  # `| head` has read enough; what is left to flush goes nowhere
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return status


def _ask(file: str, timeout: float) -> dict[str, Any]:
    """Return what the core has found, with the time and a dict of statistics for each server."""
    found: dict[str, Any] = _native.control("ps_status", file=file, timeout=timeout)
    found["time"] = time.time()
    for server in _asked(found):
        if not server["error"] and not isinstance(server["statistics"], dict):
            server["error"] = "its statistics are no JSON object: another version of paddlempi?"
        if server["error"]:
            server["statistics"] = {}
    return found


def _asked(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The servers and the master."""
    return [*found["servers"], *found["masters"]]


def _add_rates(found: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Add to each server how much it did in a second: since ``before``, or since it began."""
    last = {server["address"]: server for server in before["servers"]} if before else {}
    for server in found["servers"]:
        now = server["statistics"]
        past = last.get(server["address"], {}).get("statistics", {})
        passed = _number(now, "seconds") - _number(past, "seconds")
        server["rates"] = {
            name: max(0.0, _number(now, name) - _number(past, name)) / passed if passed > 0 else 0.0
            for name in _COUNTERS
        }


def as_text(found: dict[str, Any]) -> str:
    """Say what a person wants to know."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    servers = found["servers"]
    yield f"job of process {found['pid']} ({_plain(found['file'])})"
    yield "; ".join(_roles(found["roles"] or {})) or "no roles are known"
    yield ""
    answered = [server for server in servers if not server["error"]]
    yield from _table(
        "server rank host mode step up tables rows memory queue pulls/s pushes/s in/s out/s "
        "RPCs/s gRPC/s",
        [_server(number, server) for number, server in enumerate(servers) if not server["error"]],
    )
    for number, server in enumerate(servers):
        if server["error"]:
            yield f"server {number}, rank {server['rank']}: {_plain(server['error'])}"
    tables = _tables(answered)
    if tables:
        yield ""
        yield from _table("table kind dim rows memory rows_by_server", tables)
    lives = _lives(answered)
    if lives:
        yield ""
        yield from _table("ids_come_and_go max_rows dropped expired evicted sketches", lives)
    trainers = _trainers(answered)
    if trainers:
        yield ""
        yield from _table("trainer step lag queue staleness state", trainers)
    for asked in found["masters"]:
        yield ""
        if asked["error"]:
            yield f"master, rank {asked['rank']}: {_plain(asked['error'])}"
        else:
            yield from _master(asked)


def _master(asked: dict[str, Any]) -> Iterator[str]:
    """The queues of a master, and who has which shard."""
    told = asked["statistics"].get("master")
    queues = _dicts(told, "queues") if isinstance(told, dict) else []
    yield from _table(
        "tasks rank epoch shards queued leased done failed",
        [
            [
                *(_word(queue, "name"), str(asked["rank"])),
                *(f"{_number(queue, name):.0f}" for name in ("epoch", "shards", "queued")),
                str(len(_dicts(queue, "leased"))),
                *(f"{_number(queue, name):.0f}" for name in ("done", "failed_in_all")),
            ]
            for queue in queues
        ],
    )
    leases = [
        [
            *(_word(queue, "name"), f"{_number(lease, 'shard'):.0f}"),
            *(f"{_number(lease, name):.0f}" for name in ("rank", "tries")),
            *(_duration(_number(lease, name)) for name in ("since", "remains")),
        ]
        for queue in queues
        for lease in _dicts(queue, "leased")
    ]
    if leases:
        yield ""
        yield from _table("lease_of shard owner tries since remains", leases)
    for queue in queues:
        for failure in _dicts(queue, "failed"):
            yield (
                f"{_word(queue, 'name')}: shard {_number(failure, 'shard'):.0f} failed in epoch "
                f"{_number(failure, 'epoch'):.0f}, rank {_number(failure, 'rank'):.0f}: "
                f"{_word(failure, 'reason')}"
            )


def _roles(roles: dict[str, str]) -> Iterator[str]:
    by_role: dict[str, list[int]] = {}
    for rank, role in roles.items():
        by_role.setdefault(role, []).append(int(rank))
    for role, ranks in sorted(by_role.items()):
        yield f"{_plain(role)}: {_ranges(sorted(ranks))}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ``0-3, 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in parts)


def _server(number: int, server: dict[str, Any]) -> list[str]:
    now, rates = server["statistics"], server["rates"]
    tables = _dicts(now, "tables")
    return [
        *(str(number), str(server["rank"]), _word(now, "host"), _word(now, "mode")),
        *(f"{_number(now, 'step'):.0f}", _duration(_number(now, "seconds")), str(len(tables))),
        f"{sum(_number(table, 'rows') for table in tables):.0f}",
        amount(sum(_number(table, "bytes") for table in tables)),
        f"{_number(now, 'queue'):.0f}",
        *(f"{rates[name]:.1f}" for name in ("pulls", "pushes")),
        *(amount(rates[name]) for name in ("bytes_in", "bytes_out")),
        *(f"{rates['rpcs']:.1f}", amount(rates["grpc_in"] + rates["grpc_out"])),
    ]


def _parts(servers: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The tables by name, and what each server has of them."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for server in servers:
        for table in _dicts(server["statistics"], "tables"):
            parts.setdefault(_word(table, "name"), []).append(table)
    return sorted(parts.items())


def _lives(servers: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each table whose ids come and go."""
    counted = ("max_rows", "dropped", "expired", "evicted", "sketch_bytes")
    lines = []
    for name, of in _parts(servers):
        sums = [sum(_number(part, what) for part in of) for what in counted]
        if any(sums):
            cap = f"{sums[0]:.0f}" if sums[0] else "-"
            lines.append([name, cap, *(f"{n:.0f}" for n in sums[1:4]), amount(sums[4])])
    return lines


def _tables(servers: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            *(name, _word(of[0], "kind"), f"{_number(of[0], 'dim'):.0f}"),
            f"{sum(_number(part, 'rows') for part in of):.0f}",
            amount(sum(_number(part, "bytes") for part in of)),
            " ".join(f"{_number(part, 'rows'):.0f}" for part in of),
        ]
        for name, of in _parts(servers)
    ]


def _trainers(servers: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each trainer: it is as far as the server that has heard the least of it."""
    seen: dict[float, list[dict[str, Any]]] = {}
    for server in servers:
        for trainer in _dicts(server["statistics"], "trainers"):
            seen.setdefault(_number(trainer, "rank"), []).append(trainer)
    steps = {rank: min(_number(one, "step") for one in of) for rank, of in seen.items()}
    return [
        [
            *(f"{rank:.0f}", f"{steps[rank]:.0f}", f"{max(steps.values()) - steps[rank]:.0f}"),
            f"{sum(_number(one, 'queue') for one in of):.0f}",
            f"{max(_number(one, 'staleness') for one in of):.1f}",
            "completed" if all(one.get("completed") is True for one in of) else "active",
        ]
        for rank, of in sorted(seen.items())
    ]


def _table(head: str, rows: list[list[str]]) -> Iterator[str]:
    """The rows below their names, right aligned except for the first column."""
    every = [[name.replace("_", " ") for name in head.split()], *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        padded = [word.rjust(width) for word, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *padded[1:]])


def _number(of: dict[str, Any], name: str) -> float:
    value = of.get(name, 0)
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63
    return float(value) if right else 0.0


def _word(of: dict[str, Any], name: str) -> str:
    value = of.get(name)
    return _plain(value) if isinstance(value, str) and value else "?"


def _dicts(of: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = of.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _plain(text: str) -> str:
    """The text without characters that change a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{int(seconds) % 60:02}s"
