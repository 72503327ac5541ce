"""Run groups of tests, two at a time, and note what each took.

Ranks and jobs wait for much of their time, so two groups share the machine. On one core they run
one by one. What a group prints comes at its end. A group that all ranks run in step, and Go's, are
started a second time if they fail: their tests cannot be tried again one by one. tools/results.py
reports what failed at first.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import environments
from environments import ROOT, LeftOut
from groups import Group

RESULTS = ROOT / ".test-results"
HERE = Path(__file__).resolve().parent
# In CI no group may use up the time of all.
LIMIT = 1500.0
ATTEMPT = 720.0


# Where a control group says what its processes may take and have taken: by the groups' version.
LIMITS = {
    1: ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
}


def memory() -> float:
    """Return the GiB of memory that a new process may take here."""
    text = Path("/proc/meminfo").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines())
    left = int(lines["MemAvailable"].split()[0]) * 1024
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        left = min(left, limit)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        version = 2 if number == "0" else 1 if "memory" in controllers.split(",") else None
        if version:
            left = min([left, *left_in_groups(version, path)])
    return left / 2**30


def left_in_groups(version: int, path: str) -> Iterator[int]:
    """Yield the bytes that a control group and those above it may still take."""
    top, limit, usage, prefix = LIMITS[version]
    folder = Path(top + path)
    for place in (folder, *folder.parents):
        try:
            most, used = (int((place / name).read_text()) for name in (limit, usage))
            said = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        # Files that were read are given back when somebody needs the memory.
        cached = sum(int(said.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        yield most - used + cached


def busy() -> float:
    """Return the CPU seconds that the whole machine has spent so far."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measured(
    words: list[str], report: Path, limit: float, env: dict[str, str], out: int | None
) -> dict[str, float]:
    """Run a command below measured.py; return what it took."""
    report.unlink(missing_ok=True)
    whole = [sys.executable, "-S", str(HERE / "measured.py"), str(report), str(limit), *words]
    subprocess.run(whole, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        found: dict[str, float] = json.loads(report.read_text())
    except OSError:
        found = {"wall": 0.0, "cpu": 0.0, "status": 1, "limit": False}
    report.unlink(missing_ok=True)
    return found


class Lanes:
    """What runs: things that are made, and groups, in the order of their list.

    A lane takes the first one whose needs are there.
    """

    def __init__(self, groups: list[Group], number: int, shown: bool) -> None:
        self._groups = list(groups)
        needs = {need for group in groups for need in environments.order(list(group.needs))}
        self._things = [name for name in environments.order(sorted(needs)) if name in needs]
        self._made: dict[str, str] = {}  # and why it could not be made, or ""
        self._running: set[str] = set()
        self._under_way: list[Group] = []
        self._state = threading.Condition()
        self._number, self._shown = number, shown
        self._stopped = False
        self.status = 0
        self.cpu = 0.0

    def run(self) -> int:
        """Run all; return the highest status."""
        threads = [threading.Thread(target=self._lane) for _ in range(self._number)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stopped = True  # the groups have had the terminal's signal themselves
            for thread in threads:
                thread.join()
            self.status = 130
        return self.status

    def _lane(self) -> None:
        while True:
            with self._state:
                task = None
                while not self._stopped:
                    task = self._next()
                    if task is not None or not (self._groups or self._things):
                        break
                    self._state.wait()
                if task is None:
                    self._state.notify_all()
                    return
            try:
                if isinstance(task, Group):
                    self._group(task)
                else:
                    self._thing(task)
            except Exception:  # a group that is lost must not look like one that passed
                traceback.print_exc()
                with self._state:
                    self.status = max(self.status, 1)
                    if isinstance(task, str):
                        self._made[task] = f"!{task} could not be made"
                        self._running.discard(task.partition(":")[0])
            with self._state:
                if isinstance(task, Group):
                    self._under_way.remove(task)
                self._state.notify_all()

    def _next(self) -> Group | str | None:
        if any(group.alone for group in self._under_way):
            return None
        for name in self._things:
            room = name.partition(":")[0]
            before = environments.THINGS[name].after
            if room not in self._running and all(b in self._made for b in before):
                self._things.remove(name)
                self._running.add(room)
                return name
        for group in self._groups:
            # Also what others need in the same environments: pip must not work below a test.
            rooms = {need.partition(":")[0] for need in group.needs}
            waits = any(name.partition(":")[0] in rooms for name in self._things)
            if waits or rooms & self._running:
                continue
            if all(need in self._made for need in environments.order(list(group.needs))):
                if group.alone and (self._under_way or self._running):
                    return None  # nothing that is behind it begins, so its turn comes
                self._groups.remove(group)
                self._under_way.append(group)
                return group
        return None

    def _thing(self, name: str) -> None:
        why = next((w for b in environments.THINGS[name].after if (w := self._made[b])), "")
        try:
            if not why and not environments.is_made(name):
                why = self._make(name)
        except LeftOut as reason:
            why = str(reason)
        with self._state:
            self._made[name] = why
            self._running.discard(name.partition(":")[0])

    def _make(self, name: str) -> str:
        """Make a thing, in a process whose time counts; return why that was not possible."""
        print(f"making {name}", flush=True)
        log = RESULTS / f"make-{name.replace(':', '-')}.log"
        words = [sys.executable, str(HERE), "make", name]
        with log.open("wb") as out:
            took = measured(words, log.with_suffix(".took"), 0, dict(os.environ), out.fileno())
        with self._state:
            self.cpu += took["cpu"]
        if took["status"] == 3:
            return log.read_text(errors="replace").strip().splitlines()[-1]
        if took["status"]:
            print(log.read_text(errors="replace"), flush=True)
            print(f"FAILED making {name}: see above", flush=True)
            with self._state:
                self.status = max(self.status, 1)
            return f"!{name} could not be made"
        print(f"made {name} in {took['wall']:.0f} s", flush=True)
        log.unlink()
        return ""

    def _group(self, group: Group) -> None:
        why = next((w for n in environments.order(list(group.needs)) if (w := self._made[n])), "")
        why = why or group.reason() or ""
        if not why and group.memory > (left := memory()):
            why = f"needs {group.memory} GiB of memory, and {left:.1f} GiB are there"
        said = {
            "name": group.name,
            "wall": 0.0,
            "cpu": 0.0,
            "status": 1 if why.startswith("!") else 0,
            "attempts": 0,
            "budget": group.budget,
            "again": group.again,
            "left_out": why or None,
        }
        if why:
            print(f"{group.name}: left out: {why.lstrip('!')}", flush=True)
            if why.startswith("!"):
                said["left_out"] = None
        else:
            self._attempts(group, said)
        with self._state:
            self.cpu += float(str(said["cpu"]))
            self.status = max(self.status, 1 if said["status"] else 0)
        (RESULTS / f"{group.name}.group.json").write_text(json.dumps(said))

    def _attempts(self, group: Group, said: dict[str, object]) -> None:
        first = RESULTS / "first"
        results = [RESULTS / f"{group.name}.{suffix}" for suffix in ("xml", "json")]
        for path in (*results, *(first / path.name for path in results)):
            path.unlink(missing_ok=True)
        took_all = {"wall": 0.0, "cpu": 0.0}
        for attempt in (1, 2) if group.twice else (1,):
            if group.report:
                # A run that ends without a report leaves an empty one, which is a failure.
                (RESULTS / f"{group.name}.{group.report}").touch()
            took = self._attempt(group)
            took_all = {k: v + took[k] for k, v in took_all.items()}
            if not took["status"] or self._stopped:
                break
            if attempt == 1 and group.twice:
                first.mkdir(exist_ok=True)
                for path in results:
                    if path.exists():
                        path.rename(first / path.name)
                print(f"{group.name}: that was the first attempt; the second begins", flush=True)
        said |= took_all | {"status": int(took["status"]), "attempts": attempt}

    def _attempt(self, group: Group) -> dict[str, float]:
        words = group.command(RESULTS)
        env = group.environment_variables()
        limit = (ATTEMPT if group.twice else LIMIT) if os.environ.get("CI") else 0.0
        log = RESULTS / f"{group.name}.log"
        line = " ".join(word.replace(f"{ROOT}/", "") for word in words)
        if self._shown:
            print(f"+ {line}", flush=True)
            return measured(words, log.with_suffix(".took"), limit, env, None)
        print(f"{group.name} begins", flush=True)
        with log.open("wb") as out:
            took = measured(words, log.with_suffix(".took"), limit, env, out.fileno())
        text = log.read_text(errors="replace")
        with self._state:
            print(
                f"\n+ {line}\n{text}{group.name}: status {took['status']:.0f} after "
                f"{took['wall']:.0f} s, {took['cpu']:.0f} CPU s",
                flush=True,
            )
        return took


def run(
    groups: list[Group],
    tier: dict[str, object] | None = None,
    after: dict[str, float] | None = None,
) -> int:
    """Run groups; return the status.

    ``tier``: the name and the budgets of the tier that they make up. ``after``: what a smaller tier
    has noted, which ran before and whose results stay.
    """
    if tier is not None and after is None:
        shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    cores = len(os.sched_getaffinity(0))
    began, before = time.time(), busy()
    lanes = Lanes(groups, min(2, cores, len(groups) + 1), shown=len(groups) == 1)
    status = lanes.run()
    if tier is not None:
        foreign = max(0.0, busy() - before - lanes.cpu)
        said = {
            **tier,
            "began": (after or {}).get("began", began),
            "ended": time.time(),
            "cpu_used": lanes.cpu + (after or {}).get("cpu_used", 0.0),
            "foreign_cpu": foreign + (after or {}).get("foreign_cpu", 0.0),
        }
        (RESULTS / "tier.json").write_text(json.dumps(said))
    return status
