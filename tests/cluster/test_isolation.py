"""The hosts themselves: as separate as real hosts, and removed without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from hosts import Hosts, HostsError, Result, wait_for

pytestmark = pytest.mark.usefixtures("hosts")  # skips all tests if there can be no hosts


def ask(hosts: Hosts, command: str, host: str | None = None, timeout: float = 20) -> Result:
    return hosts.execute(["sh", "-c", command], host=host, timeout=timeout)


def namespaces(hosts: Hosts) -> set[str]:
    """The network namespaces of the login node and the hosts, as the kernel names them."""
    return {
        ask(hosts, "readlink /proc/self/ns/net", host).out.strip() for host in (None, *hosts.names)
    }


def assert_no_trace(scratch: Path, spaces: set[str]) -> None:
    """Assert that no files, mounts and processes are left, and so no interfaces either."""
    for _ in wait_for(5):
        left = {str(scratch)} if scratch.exists() else set()
        left |= {
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(scratch) in line
        }
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "net") in spaces:
                    left.add((entry / "cmdline").read_text())
        if not left:
            return
    assert left == set()


def test_every_host_has_a_name_and_an_identity_of_its_own(hosts: Hosts) -> None:
    identity = "hostname; cat /proc/sys/kernel/random/boot_id; ls /sys/class/net"
    first, second = (ask(hosts, identity, host).out.split() for host in ("h1", "h2"))
    assert first[0] == "h1" and second[0] == "h2"
    assert first[1] != second[1]
    assert sorted(first[2:]) == sorted(second[2:]) == ["eth0", "lo"]


def test_hosts_share_no_memory_and_see_no_other_processes(hosts: Hosts) -> None:
    # A job whose host was cut off may have left MPI's segments there. They vanish with the host.
    assert "mark" in ask(hosts, "touch /dev/shm/mark && ls /dev/shm", "h1").out.split()
    assert "mark" not in ask(hosts, "ls /dev/shm", "h2").out.split()
    spaces = {ask(hosts, "readlink /proc/self/ns/pid", host).out for host in (None, "h1", "h2")}
    assert len(spaces) == 3
    ask(hosts, "rm /dev/shm/mark", "h1")


def test_a_cut_host_is_out_of_reach_until_healed(hosts: Hosts) -> None:
    connect = f"{sys.executable} -c 'import socket; socket.create_connection((\"h2\", 9), 0.5)'"
    assert "ConnectionRefusedError" in ask(hosts, connect, "h1").err
    hosts.cut("h2")
    try:
        assert "ConnectionRefusedError" not in ask(hosts, connect, "h1").err
    finally:
        hosts.heal("h2")
    assert any("ConnectionRefusedError" in ask(hosts, connect, "h1").err for _ in wait_for(10))


def test_a_deadline_kills_what_ran_on_every_host(hosts: Hosts) -> None:
    result = ask(
        hosts,
        f"{hosts.agent} h1 'setsid sleep 61 & sleep 62' & {hosts.agent} h2 'sleep 63'",
        timeout=1,
    )
    assert result.timed_out and result.seconds < 20
    assert "sleep 61 " in result.strays
    for host in hosts.names:
        assert "sleep 6" not in ask(hosts, "cat /proc/*/cmdline | tr '\\0' ' '", host).out


def test_nothing_is_left_and_two_sets_do_not_clash() -> None:
    with Hosts(1) as one, Hosts(1) as other:
        one.daemon("sleeper", ["sleep", "600"], host="h1", env={})
        ask(one, "touch /dev/shm/mark", "h1")
        assert "mark" not in ask(other, "ls /dev/shm", "h1").out
        spaces = namespaces(one)
        assert len(spaces | namespaces(other)) == 4
    assert_no_trace(one.scratch, spaces)


def test_nothing_is_left_when_coming_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, set[str]]] = []
    check = Hosts._check

    def fail(self: Hosts, command: str, host: str | None = None) -> None:
        check(self, command, host)
        if host == "h2":
            seen.append(
                (
                    self.scratch,
                    {
                        ask(self, "readlink /proc/self/ns/net", name).out.strip()
                        for name in (None, "h1", "h2")
                    },
                )
            )
            raise HostsError("refused")

    monkeypatch.setattr(Hosts, "_check", fail)
    with pytest.raises(HostsError, match="refused"):
        Hosts(3)
    assert_no_trace(*seen[0])


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    program = """if True:
        import hosts, time
        with hosts.Hosts(2) as up:
            space = up.execute(["readlink", "/proc/self/ns/net"], host="h2", timeout=9)
            print(up.scratch, space.out, flush=True)
            time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(hosts.__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        scratch, space = owner.stdout.readline().split()
    assert Path(scratch, "h2.pid").exists()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert_no_trace(Path(scratch), {space})
