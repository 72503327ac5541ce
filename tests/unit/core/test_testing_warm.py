"""paddlempi.testing.run(warm=...): ranks that are forked from a server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paddlempi.testing import Warm, run, warm_wire
from paddlempi.testing import warm as client

pytest.importorskip("numpy")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Warm]:
    with Warm(["numpy", "multiprocessing"]) as warm:
        yield warm


def _script(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def _server_pid(warm: Warm) -> int:
    with client._connected(warm.folder, client._own_modules(warm.folder)) as sock:
        return warm_wire.peer(sock)[0]


@pytest.mark.parametrize("np", [2, 3])
def test_all_reduce(np: int) -> None:
    def body() -> None:
        import numpy
        import paddlempi as dist

        dist.init_process_group("mpi")
        x = numpy.arange(4.0) + dist.get_rank()
        dist.all_reduce(x)
        size = dist.get_world_size()
        assert (x == size * numpy.arange(4.0) + size * (size - 1) / 2).all()
        print("sum", x.sum())

    result = run(np, body, warm=True)
    assert (result.returncode, result.timed_out) == (0, False), result.output
    assert result.stdout.count("sum") == np and not result.stderr


def test_the_status_of_sys_exit() -> None:
    def body() -> None:
        import sys

        sys.exit(3)

    result = run(2, body, warm=True)
    assert (result.returncode, result.output) == (3, "")


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    text = "def inner():\n    raise KeyError('absent')\n\ninner()\n"
    result = run(1, _script(tmp_path, text), warm=True)
    cold = run(1, tmp_path / "program.py", mpi="node")
    assert result.returncode == 1 and "KeyError: 'absent'" in result.stderr
    assert (result.returncode, result.output) == (cold.returncode, cold.output)
    assert f'File "{tmp_path}/program.py", line 4' in result.stderr.splitlines()[1]


@pytest.mark.parametrize(
    "text",
    [
        "x = = 1",
        "import sys\nsys.exit('a text')",
        "raise SystemExit(256 + 7)",
        "raise KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[1], a[2].tb_lineno)\n1 / 0",
        "import atexit\natexit.register(print, 'over')\nraise ValueError('why')",
        "import threading\nthreading.Timer(0.3, print, ['thread']).start()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e",
        "import os\nos._exit(9)",
        "print('no newline', end='')",
    ],
)
def test_an_end_is_as_in_a_cold_start(tmp_path: Path, text: str) -> None:
    script = _script(tmp_path, text)
    warm, cold = run(1, script, warm=True), run(1, script, mpi="node")
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    process = re.compile(r"\(process \d+\)")  # of a rank that a signal has ended
    assert process.sub("", warm.stderr) == process.sub("", cold.stderr)


def test_a_killed_rank_ends_the_job() -> None:
    def body() -> None:
        import os
        import signal
        import time

        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    result = run(2, body, warm=True, timeout=30)
    assert (result.returncode, result.timed_out) == (137, False)
    assert result.seconds < 25


DAEMONS = """
    import os, subprocess, sys, time
    folder = sys.argv[1]
    def note(pid): open(os.path.join(folder, str(pid)), 'w').close()
    note(os.getpid())
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid()
        note(os.getpid())
        time.sleep(1000)
    os.waitpid(child, 0)
    program = [sys.executable, '-c', 'import time; time.sleep(1000)']
    note(subprocess.Popen(program, start_new_session=True).pid)
    while len(os.listdir(folder)) < int(os.environ['WORLD_SIZE']) * 3:
        time.sleep(0.01)
    print('all', flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("seconds", "timed_out"), [(1000, True), (0, False)])
def test_nothing_is_left_of_a_job(tmp_path: Path, seconds: int, timed_out: bool) -> None:
    """Neither at the deadline nor at the end, and not in other sessions."""
    folder = tmp_path / "pids"
    folder.mkdir()
    argv = [sys.executable, str(_script(tmp_path, DAEMONS)), str(folder), str(seconds)]
    result = run(2, argv, warm=True, timeout=10 if timed_out else 60)
    assert result.timed_out == timed_out
    assert result.returncode == (-9 if timed_out else 0), result.output
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) == 6
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


STATE = """
    import ctypes, gc, json, os, random, resource, signal, sys, threading, time, warnings
    import multiprocessing, numpy, tempfile
    state = {
        "environ": {k: v for k, v in os.environ.items() if k != "MASTER_PORT"},
        "cwd": os.getcwd(), "umask": os.umask(0o077),
        "argv": sys.argv, "path": sys.path, "orig_argv": sys.orig_argv,
        "main": sorted(globals()), "names": [__name__, __file__, str(__spec__), str(__package__)],
        "limits": [resource.getrlimit(n) for n in range(16)],
        "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "status": [line for line in open("/proc/self/status")
                   if line.startswith(("SigB", "SigI", "SigC", "Threads"))],
        "cpus": sorted(os.sched_getaffinity(0)),
        "filters": [str(f) for f in warnings.filters], "options": sys.warnoptions,
        "gc": [gc.isenabled(), gc.get_threshold()],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "kinds": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in (0, 1, 2)),
        "streams": [repr(s) + str((s.line_buffering, s.write_through, s.errors))
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "group": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "bytecode": sys.dont_write_bytecode, "zone": time.tzname,
        "thread": threading.current_thread() is threading.main_thread(),
        "last": [hasattr(sys, "last_traceback"), str(sys.exc_info())],
        "builtins": [type(__builtins__).__name__, str(sys.excepthook), str(sys.exit)],
        "main module": [sys.modules["__main__"].__dict__ is globals()],
    }
    state["temporary"] = tempfile.gettempdir()
    state["numpy"] = sorted(numpy.geterr().items())
    libc = ctypes.CDLL(None)
    libc.getauxval.restype = ctypes.c_ulong
    of_kernel = ctypes.string_at(libc.getauxval(25), 16).hex()  # Go's runtime is seeded by it
    state["random"] = [of_kernel, random.random(), float(numpy.random.rand()), os.urandom(4).hex(),
                       multiprocessing.current_process().authkey.hex()]
    print(json.dumps(state))
"""


def _states(folder: Path, warm: bool) -> list[dict[str, Any]]:
    variables = {
        "PYTHONPATH": f"{folder}{os.pathsep}/absent",
        "PYTHONWARNINGS": "ignore::ResourceWarning,error::BytesWarning",
        "TMPDIR": str(folder),
        "TZ": "Asia/Tokyo",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ONLY_HERE": "yes \udcff",
    }
    argv = [sys.executable, str(_script(folder, STATE)), "a", "--b"]
    result = run(2, argv, warm=warm, mpi="node", env=variables, cwd=folder, timeout=60)
    assert result.returncode == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_rank_is_as_after_a_cold_start(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        warm, cold = _states(tmp_path, True), _states(tmp_path, False)
    finally:
        os.umask(old)
    assert len(warm) == len(cold) == 2
    drawn = [number for state in (*warm, *cold) for number in state.pop("random")]
    assert len(set(drawn)) == len(drawn) == 20
    left = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # that nohup and shells ignore
    taken = all(signal.getsignal(number) != signal.SIG_IGN for number in left)
    for states in (warm, cold):
        states.sort(key=lambda state: state["environ"]["RANK"])
        for state in states:
            mark = state["environ"].pop("PADDLEMPI_LAUNCH_ID")
            assert len(mark) == 32
            state["environ"].pop("PADDLEMPI_MEET")  # the number of the descriptor
            state["environ"].pop("LC_CTYPE", None)  # Python sets it in the C locale
            if not taken:  # a warm rank takes signals that nohup lets a cold one ignore
                del state["signals"], state["status"]
    for one, other in zip(warm, cold, strict=True):
        for name in one:
            assert one[name] == other[name], name


def test_limits_are_those_of_the_caller(tmp_path: Path) -> None:
    import resource

    text = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, old[1]))
    try:
        result = run(1, _script(tmp_path, text), warm=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    assert result.stdout == "200\n"


def test_functions_of_main_can_be_pickled(tmp_path: Path) -> None:
    text = """
        import dataclasses, multiprocessing, pickle

        @dataclasses.dataclass
        class Point:
            x: int

        def twice(point):
            return Point(2 * point.x)

        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(twice, [Point(4)]))
    """
    result = run(1, _script(tmp_path, text), warm=True)
    assert result.stdout == "[Point(x=8)]\n", result.output


def test_several_jobs_at_once(tmp_path: Path) -> None:
    """Each has its own ranks and output, and nothing of the others' connections."""
    text = (
        "import os, time\ntime.sleep(1)\nprint(os.environ['JOB'], len(os.listdir('/proc/self/fd')))"
    )
    script = _script(tmp_path, text)
    found: dict[str, str] = {}

    def one(name: str) -> None:
        found[name] = run(2, script, warm=True, env={"JOB": name}).stdout

    threads = [threading.Thread(target=one, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {str(number): f"{number} 5\n" * 2 for number in range(4)}


def test_a_server_that_died_is_replaced(server: Warm, tmp_path: Path) -> None:
    script = _script(tmp_path, "print('here')")
    assert run(1, script, warm=True).stdout == "here\n"
    pid = _server_pid(server)
    os.kill(pid, signal.SIGKILL)
    assert run(1, script, warm=True).stdout == "here\n"
    assert _server_pid(server) != pid


def test_a_starter_that_is_killed_is_an_error(tmp_path: Path) -> None:
    """The parent of the ranks' parent. Nothing is left, and nobody waits."""
    text = """
        import os, signal, time
        open("pid", "w").write(str(os.getpid()))
        with open(f"/proc/{os.getppid()}/stat") as stat:
            starter = int(stat.read().rpartition(")")[2].split()[1])
        if os.fork() == 0:
            os.setsid()
            open("child", "w").write(str(os.getpid()))
            os.kill(starter, signal.SIGKILL)
        time.sleep(1000)
    """
    with pytest.raises(RuntimeError, match="was killed"):
        run(1, _script(tmp_path, text), warm=True, cwd=tmp_path)
    end = time.monotonic() + 10
    pids = [int((tmp_path / name).read_text()) for name in ("pid", "child")]
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_server_ends_with_its_owner(tmp_path: Path) -> None:
    text = """
        import os, signal, sys
        from paddlempi.testing import Warm, run, warm, warm_wire
        if __name__ == "__main__":
            own = Warm()
            run(1, sys.argv[1], warm=True)
            with warm._connected(own.folder, ["numpy"]) as sock:
                print(own.folder, warm_wire.peer(sock)[0], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    other = tmp_path / "other.py"
    other.write_text("")
    argv = [sys.executable, str(_script(tmp_path, text)), str(other)]
    result = run(1, argv, mpi="node")
    folder, pid = result.stdout.split()
    end = time.monotonic() + 10
    while Path(folder).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mpi", {"mpi": "openmpi"}),
        ("prefix", {"prefix": "/usr"}),
        ("options", {"options": ["--bind-to", "none"]}),
        ("np", {"np": 0}),
        ("target", {"target": ["true"]}),
        ("target", {"target": [sys.executable, "-c", "pass"]}),
    ],
)
def test_wrong_arguments(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        run(**{"np": 1, "target": "program.py", "warm": True, **arguments})


def test_a_script_that_is_not_there() -> None:
    result = run(1, "/absent/program.py", warm=True)
    assert result.returncode == 2
    assert "can't open file '/absent/program.py': [Errno 2] No such file" in result.stderr


def test_a_server_that_cannot_import() -> None:
    with pytest.raises(RuntimeError, match="No module named 'absent_module'"):
        run(1, "program.py", warm=["absent_module"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
            "2 thr",
        ),
        ("from paddlempi import _native\n_native.load()", r"threads|paddlempi\._core is loaded"),
        ("import sys\nsys.modules['paddlempi._core'] = sys", r"paddlempi\._core is loaded"),
    ],
)
def test_a_server_that_must_not_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: str
) -> None:
    (tmp_path / "unfit.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Warm(["unfit"]), pytest.raises(RuntimeError, match=found):
        run(1, "program.py", warm=True)


def test_a_request_that_is_none(server: Warm) -> None:
    """The server answers with an error, and goes on."""
    with client._connected(server.folder, client._own_modules(server.folder)) as sock:
        sock.sendall(b"\xff\xff\xff\xff{}")
        assert "no request" in warm_wire.receive_answer(sock)["error"]
