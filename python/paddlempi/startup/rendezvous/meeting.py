"""The meeting of the ranks of a world that no mpirun has started, over a store.

A store may hold keys of an earlier round, also of processes that still run, so no key is believed
because it is there. Every process makes a *nonce*, a random number. The keys, below ``paddlempi/``:

* ``lead``, which rank 0 writes: its nonce, and what it asks or has decided;
* ``hello/R``, which rank R writes: its nonce, who it is, and what must be the same on all ranks. It
  says when the rank's meeting is over, because it has its world or has given up;
* ``still/R``, which rank R writes: the last question of rank 0 that it has answered.

1. Rank 0 takes ``lead`` over from whoever had it. Every other rank writes its hello.
2. Once all hellos are there, rank 0 asks: it writes the list of their nonces, with the number of
   the question. If a hello has changed, it asks anew, with the next number.
3. A rank answers if its nonce is in the list. Thereby it says that it still waits. It answers the
   rank 0 whose nonce is in ``lead`` now, and no other.
4. When all have answered, rank 0 decides: it writes the world's id, a random number. It writes by
   ``swap``, so that a process that is rank 0 no more decides nothing.
5. A rank believes a decision if its nonce is in the list that stands with it. So a process that has
   ended, or has its world, is in no other world. The same holds for an error of rank 0, which has a
   list of those that had come.

A rank that has answered waits for the decision 2 s longer than its deadline: it may be under way.
A process that finds another one's nonce where its nonce was raises an error that names both.

This is the protocol of ``meet`` in gocore/world/meeting.go, over a store instead of messages.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import ArgumentError, Error, LauncherError, TimeoutError
from .stores import Store

__all__ = ["PREFIX", "Met", "Pause", "meet", "replaced", "still_leads", "sweep", "timeout_error"]

PREFIX = "paddlempi/"
_LEAD = f"{PREFIX}lead"

_GRACE = 2.0
"""For how many seconds after its deadline a rank waits for a decision that may be under way."""

_NAMED = 32
"""The most ranks that an error names."""


class Pause:
    """Waits between two looks at a store: 1 ms at first, and then longer.

    Args:
        ranks: how many look; the more they are, the more rarely each looks.
    """

    def __init__(self, ranks: int) -> None:
        self._longest = min(0.01 + 0.0005 * ranks, 0.1)
        self._next = 0.001

    def wait(self) -> None:
        time.sleep(self._next)
        self._next = min(self._next * 1.5, self._longest)


class Met(NamedTuple):
    """What a meeting has agreed on. It is the same on all ranks."""

    world: str
    """32 hexadecimal digits, as in no other world."""
    generation: int
    """How often the world was reformed before this one."""


def meet(
    store: Store,
    rank: int,
    size: int,
    deadline: float,
    same: Mapping[str, str] | None = None,
    *,
    generation: int = -1,
    look: Callable[[], None] = lambda: None,
) -> Met:
    """Return what the ranks of a world agree on that has every rank once, when all have come.

    Args:
        store: the job's.
        rank, size: this process's rank, and the number of ranks.
        deadline: until when it waits, as :func:`time.monotonic`.
        same: what must be the same on all ranks: names, as in error messages, and values.
        generation: of the world that this process had before; -1: it had none. That of the new
            world is greater by 1 than the greatest of all ranks.
        look: called now and then; what it raises ends the meeting on this rank.

    Raises:
        TimeoutError: some ranks did not come; ``ranks`` are those.
        ArgumentError: another process has the same rank, or the ranks have different sizes.
        LauncherError: something in ``same`` differs.
    """
    meeting = _Meeting(store, rank, size, deadline, same or {}, generation, look)
    return meeting.lead() if rank == 0 else meeting.attend()


class _Meeting:
    """One process's part in a meeting."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        deadline: float,
        same: Mapping[str, str],
        generation: int,
        look: Callable[[], None],
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.deadline, self.began = deadline, time.monotonic()
        self.nonce = secrets.token_hex(16)
        self.who = f"process {os.getpid()} on {os.uname().nodename}"
        self.same = same
        self.generation, self.look = generation, look

    # Rank 0

    def lead(self) -> Met:
        store, pause = self.store, Pause(self.size)
        state: dict[str, Any] = {"nonce": self.nonce, "who": self.who, "size": self.size}
        before, written = _decoded(store.get([_LEAD])[0]), _encoded(state)
        store.set(_LEAD, written)
        sweep(store, before)
        others = range(1, self.size)
        stale = store.get([_hello(rank) for rank in others])
        wanted: list[str] = []
        came: set[int] = set()  # also in a store that has moved since
        while True:
            self.look()
            moved = store.moved()
            there, *hellos = store.get([_LEAD, *(_hello(rank) for rank in others)])
            if there and there != written:
                raise replaced(0, self.who, _decoded(there))
            if not there:  # the store is a new one
                store.set(_LEAD, written)
            cards = [_decoded(hello) for hello in hellos]
            over = [rank for rank, card in zip(others, cards, strict=True) if "over" in card]
            missing = [
                rank
                for rank, card, hello in zip(others, cards, hellos, strict=True)
                if not card or (rank in over and hello == stale[rank - 1])
            ]
            came.update(set(others) - set(missing))
            # Those that have given up since then have come, but the world will not be.
            missing = missing or over
            if not missing:
                self._compare(written, state, cards)
                nonces = [card["nonce"] for card in cards]
                if nonces != wanted or "ask" not in state:
                    wanted = nonces
                    state["list"] = [self.nonce, *nonces]
                    state["ask"] = state.get("ask", 0) + 1
                    written = self._write(written, state)
                answers = store.get([_still(rank) for rank in others])
                right = _answer(self.nonce, state["ask"])
                missing = [r for r, a in zip(others, answers, strict=True) if a != right]
            if not missing:
                state["world"] = secrets.token_hex(16)
                had = [int(card.get("generation", -1)) for card in cards]
                state["generation"] = 1 + max([self.generation, *had])
                self._write(written, state)
                return Met(state["world"], state["generation"])
            if time.monotonic() >= self.deadline:
                never = [rank for rank in missing if rank not in came]
                seconds = time.monotonic() - self.began
                error = timeout_error(never or missing, self.size, seconds)
                self._fail(written, state, error)
            if moved:
                store.reopen()
            pause.wait()

    def _write(self, old: bytes, state: Mapping[str, Any]) -> bytes:
        new = _encoded(state)
        if not self.store.swap(_LEAD, old, new):
            raise replaced(0, self.who, _decoded(self.store.get([_LEAD])[0]))
        return new

    def _fail(self, old: bytes, state: dict[str, Any], error: Error) -> None:
        """Tell the others why there is no world, and raise it here."""
        hellos = map(_decoded, self.store.get([_hello(rank) for rank in range(1, self.size)]))
        state["told"] = ["", *(hello.get("nonce", "") for hello in hellos)]
        state["error"] = [type(error).__name__, str(error), list(error.ranks)]
        self._write(old, state)
        self.store.remove()
        raise error

    def _compare(self, written: bytes, state: dict[str, Any], cards: Sequence[Any]) -> None:
        """Raise an error on all ranks if a hello tells of something else than this rank's."""
        wrong = [rank for rank, card in enumerate(cards, 1) if card.get("size") != self.size]
        if wrong:
            first = cards[wrong[0] - 1]
            error: Error = ArgumentError(
                f"init_process_group: world_size={self.size} on rank 0 ({self.who}), but "
                f"world_size={first.get('size')} on rank {wrong[0]} ({first.get('who')}): start "
                "all ranks with the same number"
            )
            error.ranks = tuple(wrong[:_NAMED])
            self._fail(written, state, error)
        for name, value in self.same.items():
            told = [card.get("same", {}).get(name) for card in cards]
            wrong = [rank for rank, its in enumerate(told, 1) if its != value]
            if wrong:
                first = cards[wrong[0] - 1]
                error = LauncherError(
                    f"init_process_group: {name} is {value!r} on rank 0 ({self.who}), but "
                    f"{told[wrong[0] - 1]!r} on rank(s) {wrong[:_NAMED]} ({first.get('who')}): "
                    "it must be the same on all ranks"
                )
                error.ranks = tuple(wrong[:_NAMED])
                self._fail(written, state, error)

    # The other ranks

    def attend(self) -> Met:
        store, rank, pause = self.store, self.rank, Pause(self.size)
        card = {
            "nonce": self.nonce,
            "who": self.who,
            "size": self.size,
            "same": dict(self.same),
            "generation": self.generation,
        }
        hello = _encoded(card)
        store.set(_hello(rank), hello)
        over = _encoded({**card, "over": True})
        answered = ""  # the nonce of the rank 0 whose question was answered
        try:
            while True:
                self.look()
                moved = store.moved()
                led, there = store.get([_LEAD, _hello(rank)])
                if there and there != hello:
                    raise replaced(rank, self.who, _decoded(there))
                if not there:  # the store is a new one, or a process that gave up has cleaned it
                    store.set(_hello(rank), hello)
                state = _decoded(led)
                listed = self._in(state.get("list"))
                if "error" in state and self._in(state.get("told")):
                    raise _told(state)
                if listed and "world" in state:
                    return Met(str(state["world"]), int(state["generation"]))
                late = time.monotonic() - self.deadline
                if listed and late < 0:
                    answer = _answer(state["nonce"], state["ask"])
                    if store.get([_still(rank)])[0] != answer:
                        store.set(_still(rank), answer)
                    answered = state["nonce"]
                if late >= (_GRACE if answered and answered == state.get("nonce") else 0):
                    error = self._late(state)
                    store.remove()  # those that still wait see that it has moved
                    raise error
                if moved:
                    store.reopen()
                pause.wait()
        finally:
            with suppress(Exception):  # of a store that is gone; the error of the meeting counts
                if store.get([_hello(rank)])[0] == hello:
                    store.set(_hello(rank), over)
                    store.set(_still(rank), b"")

    def _in(self, nonces: Sequence[str] | None) -> bool:
        return nonces is not None and self.rank < len(nonces) and nonces[self.rank] == self.nonce

    def _late(self, state: Mapping[str, Any]) -> Error:
        missing: list[int] = []
        if state and "world" not in state:  # rank 0 waits too, or has died
            others = range(1, self.size)
            hellos = self.store.get([_hello(rank) for rank in others])
            missing = [r for r, there in zip(others, hellos, strict=True) if not there]
        return timeout_error(missing or [0], self.size, time.monotonic() - self.began)


def _told(state: Mapping[str, Any]) -> Error:
    """Return the error that rank 0 has raised, for a rank that it has told."""
    kind, text, ranks = state["error"]
    kinds = {"TimeoutError": TimeoutError, "ArgumentError": ArgumentError}
    error = kinds.get(kind, LauncherError)(text)
    error.ranks = tuple(ranks)
    return error


def still_leads(store: Store, world: str) -> tuple[bool, dict[str, Any]]:
    """Return whether the world of this id is the last one that met, and what stands there now."""
    state = _decoded(store.get([_LEAD])[0])
    return not state or state.get("world") == world, state


def sweep(store: Store, state: Mapping[str, Any]) -> None:
    """Delete what a world whose rank 0 wrote ``state`` has left in the store."""
    world, size = state.get("world"), state.get("size")
    if isinstance(world, str) and isinstance(size, int):
        store.delete([f"{PREFIX}{world}/{name}" for name in ("all", *range(min(size, 1 << 16)))])


def replaced(rank: int, who: str, other: Mapping[str, Any]) -> Error:
    """Make the error of a process whose rank another process has taken."""
    error = ArgumentError(
        f"init_process_group: {who} and {other.get('who', 'another process')} both are rank {rank} "
        "of one meeting: give every process a rank of its own, and every job a file, a port or a "
        "store of its own. If the job was started anew, this process is of the attempt before"
    )
    error.ranks = (rank,)
    return error


def timeout_error(missing: Sequence[int], size: int, seconds: float) -> TimeoutError:
    """Make the error of a meeting to which some ranks have not come."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    error = TimeoutError(
        f"init_process_group: after {seconds:.1f} s rank(s) {list(missing[:_NAMED])}{more} of "
        f"{size} had not come to init_process_group: start them all with the same init_method or "
        "store, and look for what has ended them"
    )
    error.ranks = tuple(missing[:_NAMED])
    return error


def _hello(rank: int) -> str:
    return f"{PREFIX}hello/{rank}"


def _still(rank: int) -> str:
    return f"{PREFIX}still/{rank}"


def _answer(nonce: str, ask: int) -> bytes:
    return f"{nonce} {ask}".encode()


def _encoded(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state).encode()


def _decoded(value: bytes) -> dict[str, Any]:
    """Return what was encoded; nothing if it is damaged, as in the store of another program."""
    try:
        state = json.loads(value or b"{}")
    except ValueError:
        return {}
    return state if isinstance(state, dict) and (not value or "nonce" in state) else {}
