"""Several hosts on this one machine, for what needs a network between the ranks.

`Hosts(2)` is a context manager. Inside it there are a login node and the hosts h1 and h2. Each has
its own network interface, host name, process ids, SysV IPC, mounts, /dev/shm and boot id, and one
bridge connects them. As on most clusters they share the file system, here with /tmp. They share
the CPUs too. Needs root, iproute2 and util-linux.

How it works: the login node is a process with new namespaces, and the hosts' namespaces lie inside
the login node's. So nothing has a name on the machine outside, and two runs cannot clash. When
process 1 of the login node dies, however the tests end, the kernel removes all processes,
interfaces and mounts. Process 1 waits for the end of a pipe that only the tests hold. Its last act
is to remove the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import far

NETWORK = "10.77.0"

_QUEUE = "burst 256kb latency 50ms"  # the rest of a token bucket: tc-tbf(8)

# The program of process 1 of the login node; $1 is the scratch directory. `pid` is read while /proc
# is still the outer one. So it is the number by which the tests know this process.
_LOGIN = """
set -e
ulimit -c 0
read -r pid _ </proc/self/stat
mount -t proc proc /proc
hostname login
mount --bind "$1/hosts" /etc/hosts
ip link set lo up
ip link add br0 type bridge
ip addr add "$2.254/24" dev br0
ip link set br0 up
echo "$pid" >"$1/login.new" && mv "$1/login.new" "$1/login.pid"
set +e
cat >/dev/null
kill -9 -1
cd /
for _ in 1 2 3 4 5; do rm -rf "$1" && break; sleep 0.1; done
"""

# The program of process 1 of a host; $1 is the scratch directory, $2 the name. `sleep` is not
# the last command, because the shell must stay to reap orphans.
_HOST = """
set -e
read -r pid _ </proc/self/stat
hostname "$2"
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
umount -l /sys
mount -t sysfs sysfs /sys
cat /proc/sys/kernel/random/uuid >"$1/$2.boot"
mount --bind "$1/$2.boot" /proc/sys/kernel/random/boot_id
echo "$pid" >"$1/$2.new" && mv "$1/$2.new" "$1/$2.pid"
sleep infinity
:
"""

# The launchers call this instead of ssh: [-options] HOST COMMAND. Like ssh it passes on only a
# basic environment. Like ssh it ends with 255 if the host dies.
_AGENT = """#!/bin/sh
while case $1 in -*) ;; *) false ;; esac; do shift; done
pid=$(cat '{scratch}'/"$1.pid") || exit 255
host=$1; shift
nsenter -t "$pid" -m -u -i -n -p env -i -C "$PWD" HOME="$HOME" PATH="$PATH" \\
    TMPDIR='{scratch}'/tmp/"$host" LANG=C.UTF-8 sh -c "$*"
code=$?
[ $code -lt 128 ] || code=255
exit $code
"""


class HostsError(RuntimeError):
    """The hosts could not be started, or a command on a host failed."""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int  # exit status, or minus the signal
    out: str
    err: str
    seconds: float  # from start to end
    ended: float  # when it ended, by time.time()
    timed_out: bool  # the deadline ran out and the command was killed
    strays: tuple[str, ...]  # command lines of the processes that it left behind, which were killed

    @property
    def text(self) -> str:
        """All that was printed, for assertions to which the stream does not matter."""
        return self.out + self.err

    def __str__(self) -> str:
        end = "killed at its deadline" if self.timed_out else f"exit status {self.code}"
        printed = f"--- stdout\n{self.out}--- stderr\n{self.err}"
        return f"{end} after {self.seconds:.1f} s, left behind {list(self.strays)}\n{printed}"


class Hosts:
    """Hosts h1 to hN and a login node. Use it as a context manager, or call `down()`."""

    def __init__(self, count: int) -> None:
        self.names = tuple(f"h{i + 1}" for i in range(count))
        self.scratch = Path(
            tempfile.mkdtemp(prefix="pmpi-", dir="/tmp")
        )  # short, because the path of a socket has at most 108 bytes
        self.scratch.chmod(0o755)
        self.agent = self.scratch / "agent"
        self._children: list[subprocess.Popen[bytes]] = []
        self._login = 0
        try:
            self._up()
        except BaseException:
            self.down()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    # -- bringing up and down

    def _up(self) -> None:
        lines = ["127.0.0.1 localhost", f"{NETWORK}.254 login"]
        lines += [f"{NETWORK}.{i + 1} {name}" for i, name in enumerate(self.names)]
        (self.scratch / "hosts").write_text("\n".join(lines) + "\n")
        self.agent.write_text(_AGENT.format(scratch=self.scratch))
        self.agent.chmod(0o755)
        (self.scratch / "home").mkdir()
        for name in ("login", *self.names):
            (self.scratch / "tmp" / name).mkdir(parents=True)
        namespaces = ["unshare", "--fork", "--pid", "--mount", "--net", "--uts", "--ipc"]
        self._children.append(
            self._spawn(
                "login",
                # --kill-child: the namespaces end with the process that the tests can see.
                [
                    *namespaces,
                    "--kill-child",
                    "sh",
                    "-c",
                    _LOGIN,
                    "login",
                    str(self.scratch),
                    NETWORK,
                ],
                stdin=subprocess.PIPE,
            )
        )
        self._login = self._pid("login")
        for i, name in enumerate(self.names):
            inside = [
                *self._enter_login(),
                *namespaces,
                "sh",
                "-c",
                _HOST,
                name,
                str(self.scratch),
                name,
            ]
            self._children.append(self._spawn(name, inside, stdin=subprocess.DEVNULL))
            pid = self._pid(name)
            self._check(f"ip link add v-{name} type veth peer name eth0 netns {pid}")
            self._check(f"ip link set v-{name} master br0 up")
            self._check("ip link set lo up", host=name)
            self._check(f"ip addr add {NETWORK}.{i + 1}/24 dev eth0", host=name)
            self._check("ip link set eth0 up", host=name)

    def _spawn(self, name: str, argv: Sequence[str | Path], stdin: int) -> subprocess.Popen[bytes]:
        with open(self.scratch / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )

    def _pid(self, name: str, seconds: float = 10) -> int:
        """Return process 1 of a node: the login's number outside, or a host's in the login node."""
        path = self.scratch / f"{name}.pid"
        for _ in wait_for(seconds):
            if path.exists():
                return int(path.read_text())
            if self._children and self._children[-1].poll() is not None:
                break
        log = (self.scratch / f"{name}.log").read_text(errors="replace")
        raise HostsError(f"{name} did not come up: {log.strip() or 'it printed nothing'}")

    def down(self) -> None:
        """Kill every process of every host and remove what was made. May be called twice."""
        if not self._children:
            shutil.rmtree(self.scratch, ignore_errors=True)
            return
        login = self._children[0]
        if login.stdin is not None:
            login.stdin.close()  # process 1 reads the end of the pipe, cleans up and ends
        for child in self._children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()  # --kill-child passes this on to process 1
                child.wait()
        self._children.clear()
        for _ in wait_for(5):
            shutil.rmtree(self.scratch, ignore_errors=True)
            if not self.scratch.exists():
                return
        raise HostsError(f"{self.scratch} could not be removed")

    # -- running commands

    def environment(self, **more: str) -> dict[str, str]:
        """Return a clean environment: no launcher's variables, and not the user's home."""
        base = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.scratch / "home"),
            "LANG": "C.UTF-8",
        }
        return base | more

    def _enter_login(self) -> list[str]:
        return ["nsenter", "-t", str(self._login), "-m", "-u", "-i", "-n", "-p", "--"]

    def _enter(self, host: str | None) -> list[str]:
        if host is None:
            return self._enter_login()
        pid = (self.scratch / f"{host}.pid").read_text().strip()
        return [*self._enter_login(), "nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "--"]

    def _check(self, command: str, host: str | None = None) -> None:
        result = self.execute(command.split(), host=host, timeout=20, sweep=False)
        if result.code != 0:
            raise HostsError(f"`{command}` on {host or 'the login node'}: {result}")

    def execute(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        host: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        sweep: bool = True,
    ) -> Result:
        """Run a command on a host, or on the login node, and wait for its end.

        The command is killed after `timeout` seconds. With `sweep` all processes that began on any
        node since the start of the command are killed too: at once after a timeout, otherwise after
        a grace of two seconds. So nothing else may start on the hosts at that time.
        """
        before = self._processes()
        name = host or "login"
        with tempfile.TemporaryDirectory(dir=self.scratch) as place:
            out, err = Path(place, "out"), Path(place, "err")
            started = time.monotonic()
            # Files, not pipes: a stray process that keeps a pipe open would block this one.
            with open(out, "wb") as out_file, open(err, "wb") as err_file:
                process = subprocess.Popen(
                    [*self._enter(host), "env", "-C", str(cwd or self.scratch), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out_file,
                    stderr=err_file,
                    env=self.environment(TMPDIR=str(self.scratch / "tmp" / name)) | dict(env or {}),
                    start_new_session=True,
                )
                try:
                    process.wait(timeout)
                    timed_out = False
                except subprocess.TimeoutExpired:
                    timed_out = True
                finally:
                    if process.poll() is None:
                        kill_group(process)
                    seconds, ended = time.monotonic() - started, time.time()
                    strays = self._sweep(before, grace=0 if timed_out else 2) if sweep else ()
            return Result(
                code=process.returncode,
                out=out.read_text(errors="replace"),
                err=err.read_text(errors="replace"),
                seconds=seconds,
                ended=ended,
                timed_out=timed_out,
                strays=strays,
            )

    def daemon(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        host: str | None = None,
        env: Mapping[str, str],
    ) -> subprocess.Popen[bytes]:
        """Start a command that lives as long as the hosts. Its output goes to NAME.log."""
        child = self._spawn(
            name,
            [*self._enter(host), "env", *(f"{k}={v}" for k, v in env.items()), *argv],
            subprocess.DEVNULL,
        )
        self._children.append(child)
        return child

    def _processes(self) -> dict[tuple[int, str], str]:
        """Return (process id, start time) and command line of all processes on the nodes."""
        found: dict[tuple[int, str], str] = {}
        for entry in Path(f"/proc/{self._login}/root/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if (
                    fields[0] not in "ZX"
                ):  # a zombie has ended, but its parent has not reaped it yet
                    line = (
                        (entry / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    found[int(entry.name), fields[19]] = line
        return found

    def _sweep(self, before: Mapping[tuple[int, str], str], grace: float) -> tuple[str, ...]:
        """Kill the processes that are not in `before`, after `grace` seconds to end themselves."""
        for _ in wait_for(grace):
            if not self._newcomers(before):
                return ()
        left = self._newcomers(before)
        for _ in wait_for(10):
            now = self._newcomers(before)
            if not now:
                break
            kill = f"kill -9 {' '.join(str(pid) for pid, _ in now)}"
            subprocess.run(
                [*self._enter_login(), "sh", "-c", kill],
                check=False,  # a process may have ended meanwhile
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
        return tuple(left.values())

    def _newcomers(self, before: Mapping[tuple[int, str], str]) -> dict[tuple[int, str], str]:
        return {key: line for key, line in self._processes().items() if key not in before}

    # -- accidents of a host

    def cut(self, host: str) -> None:
        """Unplug the host's cable."""
        self._check(f"ip link set v-{host} down")

    def heal(self, host: str) -> None:
        """Plug the host's cable in again."""
        self._check(f"ip link set v-{host} up")

    @contextlib.contextmanager
    def slow(self, rate: str = "", delay: float = 0) -> Iterator[None]:
        """Give the hosts another network.

        Every host sends no faster than `rate`, such as "100mbit". What one sends to another arrives
        `delay` seconds later (far.py); the login node is as near as before. This takes a part of
        the processors.
        """
        device = "eth0"
        with contextlib.ExitStack() as undo:
            if delay:
                device = undo.enter_context(self._far(delay))
            for host in self.names if rate else ():
                self._check(f"tc qdisc add dev {device} root tbf rate {rate} {_QUEUE}", host)
                undo.callback(self._check, f"tc qdisc del dev {device} root", host)
            yield

    @contextlib.contextmanager
    def _far(self, delay: float) -> Iterator[str]:
        """Let packets between hosts arrive later. Yield the interface by which they leave."""
        address = {name: f"{NETWORK}.{i + 1}" for i, name in enumerate(self.names)}
        ends = []
        for name in self.names:
            pid = (self.scratch / f"{name}.pid").read_text().strip()
            ends.append(f"/proc/{pid}/ns/net={address[name]}")
        program: list[str | Path]
        program = [sys.executable, Path(far.__file__).resolve(), str(delay), *ends]
        cable = self.daemon("far", program, env={})
        try:
            for name in self.names:
                self._make_far(name, cable)
                for other in self.names:
                    if other != name:
                        way = f"{address[other]}/32 dev {far.INTERFACE} src {address[name]}"
                        self._check(f"ip route add {way}", name)
            yield far.INTERFACE
        finally:
            kill_group(cable)
            self._children.remove(cable)
            for _ in wait_for(10):  # the kernel takes the interfaces away when it has ended
                if not any(self._far_is(name) for name in self.names):
                    break

    def _make_far(self, host: str, cable: subprocess.Popen[bytes]) -> None:
        """Switch on the interface of a host that the cable makes."""
        for _ in wait_for(10):
            if self._far_is(host, "set", "up", "txqueuelen", "10000"):
                return
            if cable.poll() is not None:
                break
        raise HostsError(f"no delay: {(self.scratch / 'far.log').read_text()}")

    def _far_is(self, host: str, verb: str = "show", *words: str) -> bool:
        """Tell whether a host has the interface to do something with."""
        command = ["ip", "link", verb, "dev", far.INTERFACE, *words]
        return self.execute(command, host=host, timeout=20, sweep=False).code == 0

    def end(self, host: str) -> None:
        """Let the host die: its processes end, and its network is gone. It does not come back."""
        pid = (self.scratch / f"{host}.pid").read_text().strip()
        self._check(f"kill -9 {pid}")

    def bind(self, source: Path, target: Path) -> None:
        """Mount `source` over `target` on all nodes. The machine outside does not see it."""
        for host in (None, *self.names):
            self._check(f"mount --bind {source} {target}", host=host)


def wait_for(seconds: float, step: float = 0.05) -> Iterator[None]:
    """Yield at once, and then every `step` seconds until the time is over."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(step)
        yield


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started in its own session, and all processes in that session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
