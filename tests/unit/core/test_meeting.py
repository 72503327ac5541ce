"""The meeting of ranks over a store: threads in random order, over every kind of store."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from meeting_ranks import Open, Rank, assert_one_world, ended, in_file
from paddlempi.errors import ArgumentError, DtypeError, Error, LauncherError, TimeoutError
from paddlempi.startup.rendezvous import meeting, tcp_store
from paddlempi.startup.rendezvous.exchange import Exchange
from paddlempi.startup.rendezvous.file_store import FileStore
from paddlempi.startup.rendezvous.stores import MemoryStore, Store, adapt
from paddlempi.startup.rendezvous.tcp_store import TCPStore
from ports import unused


@pytest.fixture(params=["memory", "file", "tcp"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens a client of a store, of each kind."""
    if request.param == "file":
        return lambda rank, deadline: FileStore(str(tmp_path / "meeting"))
    if request.param == "tcp":
        port = unused()
        return lambda rank, deadline: TCPStore("127.0.0.1", port, rank == 0, deadline)
    shared = MemoryStore()
    return lambda rank, deadline: shared


@pytest.mark.parametrize("size", [1, 2, 7])
def test_all_come(opener: Open, size: int) -> None:
    first = assert_one_world(ended([Rank(opener, r, size, 20) for r in range(size)]))
    # A second round finds all keys of the first.
    again = assert_one_world(ended([Rank(opener, r, size, 20) for r in reversed(range(size))]))
    assert again != first


def test_in_any_order(tmp_path: Path) -> None:
    chance = random.Random(1)
    for number in range(20):
        path = str(tmp_path / f"meeting-{number}")
        late = [chance.choice((0.0, 0.002, 0.02)) for _ in range(4)]
        ranks = [Rank(in_file(path), r, 4, 20, late=late[r]) for r in range(4)]
        assert_one_world(ended(ranks))
        assert not Path(path).exists(), "rank 0 removes the file"


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_one_that_never_comes_is_named(opener: Open, absent: int) -> None:
    ranks = [Rank(opener, r, 3, 0.5) for r in range(3) if r != absent]
    for result in ended(ranks, 10):
        assert isinstance(result, TimeoutError), result
        assert result.ranks == (absent,), result
        if absent:
            assert f"rank(s) [{absent}] of 3 had not come" in str(result)


def test_one_that_has_given_up_is_not_named(tmp_path: Path) -> None:
    """It has removed the file, as nobody knew whether rank 0 still lived."""
    path = tmp_path / "meeting"
    ranks = [Rank(in_file(str(path)), r, 3, 0.3 + 0.4 * (r == 0)) for r in range(2)]
    for result in ended(ranks, 10):
        assert isinstance(result, TimeoutError) and result.ranks == (2,), result
    assert not path.exists()


def test_after_a_failed_round(opener: Open) -> None:
    for result in ended([Rank(opener, r, 3, 0.3) for r in (0, 2)], 10):
        assert isinstance(result, TimeoutError)
    assert_one_world(ended([Rank(opener, r, 3, 20) for r in range(3)]))


class Ghost:
    """What a rank that was killed has left in a store, at some point of the meeting."""

    def __init__(self, store: Store, until: str) -> None:
        self.store, self.until, self.dead = store, until, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def set(self, key: str, value: bytes) -> None:
        self._die(key)
        self.store.set(key, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        self._die(key)
        return self.store.swap(key, old, new)

    def _die(self, key: str) -> None:
        if self.dead:
            raise KeyError("dead")
        if key.endswith(self.until):  # dead from its next write on
            self.dead = True


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("until", ["lead", "hello/1", "still/1"])
def test_killed_in_the_middle_and_started_anew(killed: int, until: str) -> None:
    shared = MemoryStore()
    first = [
        Rank(lambda rank, _: Ghost(shared, until) if rank == killed else shared, r, 3, 0.6)  # type: ignore[return-value, arg-type]
        for r in range(2)
    ]
    ended(first, 10)  # rank 2 has never come
    assert all(isinstance(rank.result, Exception) for rank in first)
    assert_one_world(ended([Rank(lambda *_: shared, r, 3, 20) for r in (2, 1, 0)]))


def test_one_of_an_old_round_that_waits_may_join() -> None:
    shared = MemoryStore()
    old = Rank(lambda *_: shared, 1, 2, 20)
    time.sleep(0.1)
    assert_one_world(ended([Rank(lambda *_: shared, 0, 2, 20), old]))


def test_one_that_is_started_anew_takes_its_place() -> None:
    shared = MemoryStore()
    old = Rank(lambda *_: shared, 1, 3, 20)
    time.sleep(0.1)
    new = [Rank(lambda *_: shared, r, 3, 20) for r in (0, 1, 2)]
    assert_one_world(ended(new))
    assert isinstance(ended([old])[0], ArgumentError)


@pytest.mark.parametrize("twice", [0, 1])
@pytest.mark.parametrize("kind", ["memory", "file"])  # over TCP the second rank 0 gets no port
def test_a_rank_number_twice_is_named(kind: str, twice: int, tmp_path: Path) -> None:
    shared = MemoryStore()
    opener = in_file(str(tmp_path / "meeting")) if kind == "file" else lambda *_: shared
    ranks = [Rank(opener, r, 3, 0.7) for r in (0, 1)]
    time.sleep(0.1)
    other = Rank(opener, twice, 3, 0.7)
    results = ended([*ranks, other], 10)
    named = [error for error in results if isinstance(error, ArgumentError)]
    assert len(named) == 1, results
    assert named[0].ranks == (twice,)
    assert f"both are rank {twice}" in str(named[0])


def test_two_jobs_with_one_file(tmp_path: Path) -> None:
    chance = random.Random(2)
    for number in range(5):
        path = str(tmp_path / f"meeting-{number}")
        late = [chance.choice((0.0, 0.01, 0.05)) for _ in range(6)]
        ranks = [Rank(in_file(path), i % 3, 3, 0.6, late=late[i]) for i in range(6)]
        results = ended(ranks, 20)
        worlds = {r for r in results if isinstance(r, str)}
        for world in worlds:
            members = [rank.rank for rank in ranks if rank.result == world]
            assert len(members) == len(set(members)), results
        assert all(isinstance(r, (str, Error)) for r in results), results


def test_sizes_that_differ(opener: Open) -> None:
    for result in ended([Rank(opener, 0, 2, 5), Rank(opener, 1, 3, 5)], 15):
        assert isinstance(result, ArgumentError)
        assert "world_size=2 on rank 0" in str(result)
        assert "world_size=3 on rank 1" in str(result)


def test_what_must_be_the_same(opener: Open) -> None:
    ranks = [
        Rank(opener, r, 3, 5, same={"PADDLEMPI_TRANSPORT": "node" if r == 2 else ""})
        for r in range(3)
    ]
    for result in ended(ranks, 15):
        assert isinstance(result, LauncherError)
        assert result.ranks == (2,)
        assert "PADDLEMPI_TRANSPORT" in str(result)


def test_a_new_rank_0_ends_the_wait_of_an_old_world() -> None:
    shared = MemoryStore()
    ranks = [Rank(lambda *_: shared, r, 3, 20, rounds=1) for r in range(3)]
    world = assert_one_world(ended(ranks))
    waiting = Exchange(shared, 0, 3, world, time.monotonic() + 20)
    new = Rank(lambda *_: shared, 0, 3, 1.5)
    with pytest.raises(LauncherError, match="has begun another meeting"):
        waiting.gather(b"")
    ended([new], 10)


def test_old_worlds_are_swept() -> None:
    shared = MemoryStore()
    worlds = [
        assert_one_world(ended([Rank(lambda *_: shared, r, 2, 20) for r in range(2)]))
        for _ in range(4)
    ]
    assert sum(map(bool, shared.get([f"{meeting.PREFIX}{world}/all" for world in worlds]))) == 1


def test_what_is_no_store() -> None:
    with pytest.raises(DtypeError, match="store is a dict"):
        adapt({})


# The file


def test_a_record_that_was_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    first = FileStore(str(path))
    first.set("a", b"1")
    whole = path.read_bytes()
    first.set("b", b"22222")
    longer = path.read_bytes()
    for length in range(len(whole), len(longer)):
        path.write_bytes(longer[:length])
        store = FileStore(str(path))
        assert store.get(["a", "b"]) == [b"1", b""]
        store.set("b", b"3")
        assert FileStore(str(path)).get(["a", "b"]) == [b"1", b"3"]
        store.close()


def test_a_file_in_which_ranks_meet_often_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    writer, other, looks = (FileStore(str(path)) for _ in range(3))
    writer.set("kept", b"for ever")
    longest = 0
    for world in range(3000):
        name = f"world {world}"
        (writer, other)[world % 2].set(name, b"x" * 100)
        (writer, other)[world // 2 % 2].delete([f"world {world - 1}"])
        if world % 100 == 99:
            assert looks.get([name, f"world {world - 1}", "kept"]) == [b"x" * 100, b"", b"for ever"]
        longest = max(longest, path.stat().st_size)
    assert longest < 100_000
    assert FileStore(str(path)).get(["world 2999", "kept"]) == [b"x" * 100, b"for ever"]


def test_readers_while_a_file_is_written_anew(tmp_path: Path) -> None:
    """They see each value that was there before, or that has come since."""
    path = tmp_path / "meeting"
    over = threading.Event()
    writer, reader = FileStore(str(path)), FileStore(str(path))
    writer.set("first", b"0")

    def write() -> None:
        for number in range(1, 3000):
            writer.set("first", f"{number}".encode())
            writer.set("second", b"y" * 200)
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    while not over.is_set():
        first = int(reader.get(["first"])[0])
        assert first >= last
        last = first
    thread.join()
    assert reader.get(["first"]) == [b"2999"]


def test_a_process_is_killed_while_it_writes_the_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    first = FileStore(str(path))
    first.set("a", b"1")
    whole = path.read_bytes()
    for length in (8, 12, 16, len(whole) - 1, len(whole)):
        path.write_bytes((whole[:8] + bytes(8) + whole[16:])[:length])
        assert first.get(["a"]) == [b"1"]  # what it knew
        store = FileStore(str(path))  # which begins anew: nothing is believed of such a file
        assert store.get(["a"]) == [b""]
        store.set("a", b"2")
        assert FileStore(str(path)).get(["a"]) == first.get(["a"]) == [b"2"]
        path.write_bytes(whole)
        assert first.get(["a"]) == [b"1"]
        store.close()


def test_the_file_of_something_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"not a meeting")
    with pytest.raises(ArgumentError, match="holds something else"):
        FileStore(str(path))
    assert path.read_bytes() == b"not a meeting"


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be opened"):
        FileStore(str(tmp_path / "no" / "meeting"))


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"cannot listen at 127.0.0.1:{port}"):
            TCPStore("127.0.0.1", port, True, time.monotonic() + 0.2)


def test_a_port_that_nobody_serves() -> None:
    with pytest.raises(TimeoutError, match="cannot be reached") as caught:
        TCPStore("127.0.0.1", unused(), False, time.monotonic() + 0.2)
    assert caught.value.ranks == (0,)


def test_damaged_requests_end_the_client_only() -> None:
    port = unused()
    store = TCPStore("127.0.0.1", port, True, time.monotonic() + 5)
    for damage in (b"\xff" * 64, b"\x01\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"):
        with socket.create_connection(("127.0.0.1", port), 5) as other:
            other.sendall(damage)
            assert other.recv(1) == b""
    store.set("a", b"1")
    assert store.get(["a"]) == [b"1"]
    store.close()


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602], ids=oct)
def test_a_file_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "meeting"
    path.touch()
    path.chmod(mode)
    with pytest.raises(ArgumentError, match=f"has mode {mode:04o}.*this user's alone"):
        FileStore(str(path))
    path.chmod(0o644)
    FileStore(str(path)).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    path.touch(0o600)
    os.chown(path, 1234, 1234)
    with pytest.raises(ArgumentError, match="belongs to user 1234"):
        FileStore(str(path))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", socket.gethostname()])
def test_ranks_of_one_host_know_it_by_different_addresses(host: str) -> None:
    port = unused()
    others = ["127.0.0.1", "127.0.1.1", "localhost"]
    if socket.has_dualstack_ipv6() and Path("/proc/net/if_inet6").exists():
        others.append("::1")

    def opener(rank: int, deadline: float) -> Store:
        return TCPStore(host if rank == 0 else others[rank - 1], port, rank == 0, deadline, True)

    assert_one_world(ended([Rank(opener, r, len(others) + 1, 20) for r in range(len(others) + 1)]))


class Client:
    """A client at an address, which has called an address of this host."""

    def __init__(self, peer: str, own: str) -> None:
        self.getpeername = lambda: (peer, 1)
        self.getsockname = lambda: (own, 2)


@pytest.mark.parametrize(
    ("peer", "own", "here"),
    [
        ("127.0.0.1", "127.0.1.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.3", "::ffff:127.0.1.1", True),
        ("::ffff:10.0.0.5", "::ffff:10.0.0.5", True),
        ("::ffff:10.0.0.6", "::ffff:10.0.0.5", False),
        ("10.0.0.6", "10.0.0.5", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("fe80::2%eth0", "fe80::2%eth0", True),
    ],
)
def test_who_is_on_this_host(peer: str, own: str, here: bool) -> None:
    assert tcp_store._is_here(Client(peer, own)) == here  # type: ignore[arg-type]


def test_the_next_world_comes_while_clients_of_the_last_one_are_there() -> None:
    port = unused()

    def open_as(rank: int) -> TCPStore:
        return TCPStore("127.0.0.1", port, rank == 0, time.monotonic() + 5)

    first = [open_as(0), open_as(1)]
    first[0].close()
    early = open_as(1)  # of the next world, before rank 0 of it
    first[1].close()
    again = open_as(0)
    early.set("a", b"1")
    early.close()
    assert again.get(["a"]) == [b"1"]
    again.close()
    time.sleep(0.1)  # all are gone, and so is the server
    assert not tcp_store._servers
    with pytest.raises(TimeoutError):
        TCPStore("127.0.0.1", port, False, time.monotonic() + 0.2)


def test_connections_that_an_ended_server_resets() -> None:
    """They are made again, until a server answers."""
    port = unused()
    listener = socket.create_server(("127.0.0.1", port))
    waiting = Rank(lambda rank, deadline: TCPStore("127.0.0.1", port, False, deadline), 1, 2, 10)
    time.sleep(0.1)
    listener.close()  # with its connection in it
    other = Rank(lambda rank, deadline: TCPStore("127.0.0.1", port, True, deadline), 0, 2, 10)
    assert_one_world(ended([waiting, other]))
