"""The checks of the doctor: pure functions from the facts of all ranks to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .._pages import PAGES
from . import paddle_alone

__all__ = ["Finding", "judge", "spell"]

_Facts = dict[str, Any]
_MIB = 1 << 20


class Finding(NamedTuple):
    """The result of a check."""

    name: str
    """The name of the check, as it is printed."""
    status: str
    """ok; warn: it works and could be better; fail; skip: it was not tried."""
    found: str
    """What was found, in words."""
    advice: str = ""
    """What to do; "": nothing."""


def judge(facts: Sequence[_Facts]) -> list[Finding]:
    """Return the findings in the order in which they are printed.

    Args:
        facts: what :func:`doctor_collect.collect` returned.
    """
    found = [finding for check in _CHECKS for finding in check(facts)]
    return [finding for finding in found if finding.found]


def spell(ranks: Iterable[int]) -> str:
    """Spell ranks: ``rank 3``, ``ranks 0-3, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return ("rank " if len(runs) == 1 and runs[0][0] == runs[0][1] else "ranks ") + text


def _groups(facts: Sequence[_Facts], key: Callable[[_Facts], Any]) -> list[tuple[Any, list[int]]]:
    """Return the different values of ``key``, each with the ranks that have it."""
    groups: dict[Any, list[int]] = {}
    for fact in facts:
        groups.setdefault(key(fact), []).append(fact["rank"])
    return list(groups.items())


def _by_value(facts: Sequence[_Facts], key: Callable[[_Facts], Any]) -> str:
    """Return the value of ``key``; if it differs, a line for each value with its ranks."""
    groups = _groups(facts, key)
    if len(groups) == 1:
        return str(groups[0][0])
    return "\n".join(f"{spell(ranks)}: {value}" for value, ranks in groups)


def _nodes(facts: Sequence[_Facts]) -> list[list[_Facts]]:
    """Return the facts by node. If MPI did not start, every process is a node."""
    core = facts[0]["core"]
    if core is None or not core["initialized"]:
        return [[fact] for fact in facts]
    nodes: dict[int, list[_Facts]] = {}
    for fact in facts:
        nodes.setdefault(core["node"][fact["rank"]], []).append(fact)
    return list(nodes.values())


def _started(facts: Sequence[_Facts]) -> bool:
    return bool(facts[0]["core"] and facts[0]["core"]["initialized"])


# MPI


def launcher(facts: Sequence[_Facts]) -> list[Finding]:
    """MPI was found, it starts, and it sees as many ranks as the launcher has started."""
    first = facts[0]
    core = first["core"]
    if core is None:
        return [Finding("core", "fail", first["core_error"], "install paddlempi again")]
    met = first.get("world") or {"way": "", "why": ""}
    if core.get("transport") == "node":
        found = f"{met['why']}: {core['size']} ranks, connected by memory; no MPI is needed"
        return [Finding("world", "ok", found)]
    if core["mpi"] is None and first["start_error"]:
        return [
            Finding("world", "fail", f"{met['why']}\nit does not begin: {first['start_error']}")
        ]
    if core["mpi"] is None:
        error, looked, _ = core["mpi_error"].partition(" Looked at:")
        advice = "python -m paddlempi info lists where it was looked for" if looked else ""
        return [Finding("mpi", "fail", error, advice)]
    mpi = core["mpi"]
    found = f"{mpi['version'] or mpi['name']}\n{mpi['path']}: {mpi['why']}"
    if first["start_error"]:
        return [Finding("mpi", "fail", f"{found}\nit does not start: {first['start_error']}")]
    name = core["launcher"]["name"]
    if met["way"] == "store":
        return [
            Finding("mpi", "ok", found),
            Finding("world", "ok", f"{met['why']}: {core['size']} ranks, over MPI"),
        ]
    if not name:
        return [
            Finding("mpi", "ok", found),
            Finding(
                "launcher", "skip", "none: a job of one", "mpirun -np 2 python -m paddlempi doctor"
            ),
        ]
    found_launcher = f"{name} of {core['launcher']['mpi']}, {core['size']} ranks"
    return [
        Finding(
            "mpi", "ok", _by_value(facts, lambda f: f["core"]["mpi"]["path"] + ": " + mpi["why"])
        ),
        Finding("launcher", "ok", found_launcher + ", as many as MPI says"),
    ]


def threads(facts: Sequence[_Facts]) -> list[Finding]:
    """The thread level of MPI on every rank."""
    if not _started(facts) or facts[0]["core"]["mpi"] is None:
        return []
    return [Finding("threads", "ok", _by_value(facts, lambda f: f["core"]["mpi"]["thread_level"]))]


def sums(facts: Sequence[_Facts]) -> list[Finding]:
    """all_reduce returns the right sums."""
    if not _started(facts):
        return []
    if any(fact["sums"] for fact in facts):
        found = _by_value(facts, lambda f: "; ".join(f["sums"]) or "right")
        advice = "report it, with python -m paddlempi info --json"
        return [Finding("all_reduce", "fail", found, advice)]
    return [Finding("all_reduce", "ok", "integers of 8 to 64 bits, float32 and float64: right")]


def paddle(facts: Sequence[_Facts]) -> list[Finding]:
    """Paddle is there, which loads no paddlempi by itself."""
    if not any(fact["paddle"] for fact in facts):
        return []
    version = _by_value(facts, lambda f: f["paddle"] or "not installed")
    return [Finding("paddle", "warn", f"{version}: {paddle_alone.FOUND}", paddle_alone.ADVICE)]


def tuning(facts: Sequence[_Facts]) -> list[Finding]:
    """A table of ways that was found is of this world."""
    told = _started(facts) and facts[0]["core"].get("tuning")
    if not told or not told["problem"]:
        return []
    return [Finding("tuning", "warn", told["problem"], "python -m paddlempi tune writes a new one")]


# The node


def binding(facts: Sequence[_Facts]) -> list[Finding]:
    """There are no more ranks than CPUs, and no rank starts more threads than its share of CPUs."""
    findings = []
    for node in _nodes(facts):
        cpus = sorted({cpu for fact in node for cpu in fact["cpus"]})
        ranks = [fact["rank"] for fact in node]
        counts = {len(fact["cpus"]) for fact in node}
        shared = sum(len(fact["cpus"]) for fact in node) > len(cpus)
        count = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        where = f"{node[0]['host']}: {spell(ranks)}, {count} of {len(cpus)} CPUs each"
        if len(node) > len(cpus):
            advice = (
                "start at most as many ranks on a node as it has CPUs: ranks that wait take CPU "
                "time from ranks that work"
            )
            findings.append(Finding("binding", "warn", where + ", more ranks than CPUs", advice))
        elif shared and len(node) > 1:
            advice = (
                "let the launcher bind: mpirun --map-by slot:PE=N --bind-to core (Open MPI), "
                "-bind-to core:N (MPICH), srun -c N --cpu-bind=cores, paddlempi run -np N --bind"
            )
            findings.append(Finding("binding", "warn", where + ", which they share", advice))
        else:
            findings.append(Finding("binding", "ok", where + ", their own" * (len(node) > 1)))
        findings += _thread_counts(node, len(cpus), shared)
    return findings


def _thread_counts(node: Sequence[_Facts], cpus: int, shared: bool) -> list[Finding]:
    wanted = max(1, cpus // len(node))
    findings = []
    many = []
    for fact in node:
        own = len(fact["cpus"])  # whole cores may not go round evenly
        share = wanted if shared else own
        if not _within(fact["variables"]["OMP_NUM_THREADS"], own, share):
            many.append(fact["rank"])
    if many:
        found = (
            f"{spell(many)}: OMP_NUM_THREADS lets each start more threads than its share of "
            "the CPUs"
        )
        findings.append(Finding("omp", "warn", found, f"OMP_NUM_THREADS={wanted}"))
    few = [
        fact["rank"]
        for fact in node
        if (fact["variables"]["GOMAXPROCS"] or "4").isdigit()
        and int(fact["variables"]["GOMAXPROCS"] or 4) < 4
    ]
    if few:
        found = f"{spell(few)}: GOMAXPROCS is below 4, which the core sets itself"
        findings.append(Finding("gomaxprocs", "warn", found, "leave GOMAXPROCS unset"))
    return findings


def _within(value: str | None, cpus: int, share: int) -> bool:
    """Whether a rank starts no more OpenMP threads than its share of the node's CPUs.

    Args:
        value: ``OMP_NUM_THREADS``; None: unset, which means a thread for each CPU of the rank.
        cpus: the number of CPUs that the rank may run on.
        share: the number of threads that it should start at most.
    """
    first = (value or "").split(",")[0]
    return (int(first) if first.isdigit() else cpus) <= max(share, 1)


def single_copy(facts: Sequence[_Facts]) -> list[Finding]:
    """Ranks of a node can read each other's memory (Cross Memory Attach)."""
    tried = [fact for fact in facts if fact["cma"] and not fact["cma"]["alone"]]
    if not tried:
        return [Finding("cma", "skip", "no two ranks on a node")]
    bad = [fact for fact in tried if fact["cma"]["error"]]
    if not bad:
        return [
            Finding("cma", "ok", "process_vm_readv reads the memory of other ranks of the node")
        ]
    found = "process_vm_readv: " + _by_value(bad, lambda f: f["cma"]["error"])
    scope = bad[0]["ptrace_scope"]
    if scope:
        advice = (
            f"kernel.yama.ptrace_scope is {scope}: set it to 0 (sysctl), or have MPI call "
            "prctl(PR_SET_PTRACER)"
        )
    else:
        advice = (
            "in a container: --cap-add=SYS_PTRACE, and one user and PID namespace for all ranks"
        )
    return [Finding("cma", "warn", found, advice + "; until then ranks copy long tensors twice")]


def arrival(facts: Sequence[_Facts]) -> list[Finding]:
    """The arrival of ranks of a node is in shared memory, not by messages."""
    shared = [node for node in _nodes(facts) if len(node) > 1]
    if not _started(facts) or not shared:
        return [Finding("arrival", "skip", "no two ranks on a node")]
    way = shared[0][0]["core"]["arrive"]
    if way != "messages":
        return [Finding("arrival", "ok", f"the ranks of a node meet in {way}")]
    found = "the ranks of a node meet by messages: a small all_reduce takes some 20 times as long"
    advice = (
        "they can neither open each other's /proc/PID/fd nor reach each other by a socket: let "
        "the containers of a node share the PID namespace, or the network namespace"
    )
    return [Finding("arrival", "warn", found, advice)]


def deaths(facts: Sequence[_Facts]) -> list[Finding]:
    """The ranks of a job on several nodes see when a rank or a host dies."""
    if not _started(facts) or len(_nodes(facts)) == 1:
        return [Finding("deaths", "skip", "all ranks are on one node")]
    watches = [fact["core"]["liveness"] for fact in facts]
    if not watches[0]["off"]:
        seen = f"seen on all nodes; a host may be silent for {watches[0]['after']:g} s"
        return [Finding("deaths", "ok", seen)]
    if any(not watch["after"] for watch in watches):
        return [Finding("deaths", "ok", f"not seen on other nodes: {watches[0]['off']}")]
    # A rank that could not connect says why; the others only name it.
    reason = max((watch["off"] for watch in watches), key=len)
    advice = (
        "a rank that waits for a dead one on another node waits until its deadline. Let the hosts "
        "reach each other by TCP (PADDLEMPI_IFNAME, the firewall)"
    )
    return [Finding("deaths", "warn", f"not seen on other nodes: {reason}", advice)]


def heap(facts: Sequence[_Facts]) -> list[Finding]:
    """The ranks of a node map each other's heaps, and limits let the heaps grow."""
    shared = [fact for node in _nodes(facts) if len(node) > 1 for fact in node]
    if not _started(facts) or not shared:
        return [Finding("heap", "skip", "no two ranks on a node")]
    bad = [fact for fact in shared if fact["core"]["heap"]["why"]]
    if bad:
        found = _by_value(bad, lambda f: f["core"]["heap"]["why"])
        advice = (
            "collectives of tensors in a heap take 3 to 11 times as long over MPI: let the "
            "containers of a node allow memfd_create, and share the PID namespace or the network "
            "namespace"
        )
        return [Finding("heap", "warn", found, advice)]
    low = [fact for fact in shared if (fact["core"]["heap"]["left"] or _HEAP) < _HEAP]
    if low:
        found = _by_value(low, lambda f: f"limits leave {f['core']['heap']['left'] >> 20} MiB")
        advice = (
            "raise ulimit -v and ulimit -f, or the memory of the container: a heap grows in steps "
            "of 64 MiB"
        )
        return [Finding("heap", "warn", found, advice)]
    return [Finding("heap", "ok", "the ranks of a node map each other's heaps")]


_HEAP = 64 * _MIB  # the least length of a segment


def shared_memory(facts: Sequence[_Facts]) -> list[Finding]:
    """/dev/shm has at least 32 MiB free for every rank of the node."""
    findings = []
    for node in _nodes(facts):
        shm = node[0]["shm"]
        if shm is None:
            found, status = "there is no /dev/shm", "warn"
        else:
            low = shm["free"] < 32 * _MIB * len(node)
            status = "warn" if low else "ok"
            found = f"{shm['free'] // _MIB} of {shm['size'] // _MIB} MiB free"
        advice = (
            "MPI keeps segments there: docker run --shm-size=1g, or mount -o "
            "remount,size=1g /dev/shm"
        )
        findings.append(
            Finding("/dev/shm", status, f"{node[0]['host']}: {found}", advice * (status != "ok"))
        )
    return findings


def limits(facts: Sequence[_Facts]) -> list[Finding]:
    """The limits on locked memory (1 GiB with InfiniBand) and open files (1024) are high enough."""

    def text(fact: _Facts) -> str:
        names = (("memlock", "locked memory"), ("nofile", "open files"))
        return ", ".join(f"{what} {_limit(fact['limits'][name])}" for name, what in names)

    low_files = any(0 <= fact["limits"]["nofile"] < 1024 for fact in facts)
    low_lock = any(
        fact["infiniband"] and 0 <= fact["limits"]["memlock"] < 1 << 30 for fact in facts
    )
    advice = []
    if low_lock:
        advice.append(
            "InfiniBand locks the memory it reaches: ulimit -l unlimited, in Slurm "
            "PropagateResourceLimits"
        )
    if low_files:
        advice.append("a rank has a file for each peer: ulimit -n 4096")
    status = "warn" if advice else "ok"
    return [Finding("limits", status, _by_value(facts, text), "; ".join(advice))]


def _limit(value: int) -> str:
    return "unlimited" if value < 0 or value >= 1 << 62 else str(value)


# CUDA


def driver(facts: Sequence[_Facts]) -> list[Finding]:
    """Every rank has a CUDA driver and a device, and no two ranks share a device."""
    if facts[0]["core"] is None:
        return []
    without = [fact for fact in facts if fact["core"]["cuda"]["error"]]
    if len(without) == len(facts):
        asked = any(
            fact["variables"][name]
            for fact in facts
            for name in ("PADDLEMPI_CUDA", "CUDA_VISIBLE_DEVICES")
        )
        error = without[0]["core"]["cuda"]["error"]
        return [Finding("cuda", "fail" if asked else "skip", error)]
    found = _by_value(
        facts,
        lambda f: (
            f["core"]["cuda"]["error"]
            or f"CUDA {f['core']['cuda']['version']}, {f['core']['cuda']['driver']}"
        ),
    )
    status = "fail" if without else "ok"
    findings = [Finding("cuda", status, found, "give every rank its driver" * bool(without))]
    if any(fact["cuda"] for fact in facts):
        findings += _devices(facts)
    return findings


def _devices(facts: Sequence[_Facts]) -> list[Finding]:
    lines, users = [], dict[tuple[str, str], list[int]]()
    for fact in facts:
        mine = _device(fact)
        if mine is None:
            lines.append(f"rank {fact['rank']}: none of {len(fact['core']['cuda']['devices'])}")
            continue
        users.setdefault((fact["host"], mine["uuid"]), []).append(fact["rank"])
        number, memory = fact["cuda"]["device"], mine["memory_bytes"] >> 30
        lines.append(
            f"rank {fact['rank']}: device {number}, {mine['name']}, {memory} GiB, "
            f"{mine['bus']}, {mine['uuid']}"
        )
    findings = []
    visible = _by_value(facts, lambda f: f["variables"]["CUDA_VISIBLE_DEVICES"] or "unset")
    status = "ok" if len(users) and all(_device(fact) for fact in facts) else "fail"
    advice = _SET_DEVICE.format(_number(facts))
    if status == "fail":
        advice = "CUDA_VISIBLE_DEVICES, or the container, hides them"
    findings.append(Finding("devices", status, "\n".join(lines), advice))
    findings.append(Finding("visible", "ok", f"CUDA_VISIBLE_DEVICES: {visible}"))
    for (host, uuid), ranks in users.items():
        if len(ranks) > 1:
            found = f"{host}: {spell(ranks)} share {uuid}"
            advice = (
                "they take turns: one rank for each GPU is faster, or start "
                f"nvidia-cuda-mps-control -d before the job ({PAGES}/gpu.md)"
            )
            findings.append(Finding("shared gpu", "warn", found, advice))
    errors = [fact for fact in facts if fact["cuda"]["error"]]
    if errors:
        findings.append(Finding("gpu", "fail", _by_value(errors, lambda f: f["cuda"]["error"])))
    return findings


_SET_DEVICE = (
    "in the program, before init and the first tensor: torch.cuda.set_device({}) "
    "(import paddlempi.torch sets LOCAL_RANK)"
)


def _number(facts: Sequence[_Facts]) -> str:
    """Return the index of the device that a rank should use, as a Python expression."""
    seen = [len(fact["core"]["cuda"]["devices"]) for fact in facts]
    if max(seen) == 1:
        return "0"
    local_rank = 'int(os.environ["LOCAL_RANK"])'
    crowded = any(fact["core"]["local_size"] > n for fact, n in zip(facts, seen, strict=True))
    return local_rank + " % torch.cuda.device_count()" * crowded


def _device(fact: _Facts) -> _Facts | None:
    """Return the device that a rank tried; None if it sees none."""
    if not fact["cuda"] or fact["cuda"]["device"] is None:
        return None
    device: _Facts = fact["core"]["cuda"]["devices"][fact["cuda"]["device"]]
    return device


def _on_gpus(facts: Sequence[_Facts]) -> list[_Facts]:
    return [fact for fact in facts if _device(fact)]


def awareness(facts: Sequence[_Facts]) -> list[Finding]:
    """If MPI says that it takes GPU memory, it does."""
    if not _on_gpus(facts):
        return []
    found = _by_value(facts, lambda f: "{how}: {reason}".format(**f["cuda"]["aware"]))
    if not all(fact["cuda"]["aware"]["aware"] for fact in facts):
        tried = any(fact["cuda"]["aware"]["how"] == "tried" for fact in facts)
        status = "warn" if tried else "ok"
        return [Finding("cuda-aware", status, f"no: {found}", _UNAWARE * (status == "ok"))]
    trials = [fact for fact in facts if fact["cuda"]["trial"]]
    broken = [fact for fact in trials if not fact["cuda"]["trial"]["aware"]]
    if broken:
        found += "\nbut " + _by_value(broken, lambda f: f["cuda"]["trial"]["reason"])
        return [Finding("cuda-aware", "fail", found, "leave PADDLEMPI_CUDA_AWARE unset, or 0")]
    wrong = [fact for fact in facts if fact["cuda"]["transfer"]]
    if wrong:
        found += "\nbut between ranks: " + _by_value(wrong, lambda f: f["cuda"]["transfer"])
        return [Finding("cuda-aware", "fail", found, "PADDLEMPI_CUDA_AWARE=0")]
    moved = "" if facts[0]["cuda"]["transfer"] is None else "; 1 MiB went from rank to rank"
    return [Finding("cuda-aware", "ok", f"yes: {found}{moved}")]


_UNAWARE = (
    "nothing to do: tensors go by IPC or through pinned memory. An MPI built with CUDA, or a UCX "
    "built with CUDA and PADDLEMPI_CUDA_AWARE=1, may be faster between nodes"
)


def ipc(facts: Sequence[_Facts]) -> list[Finding]:
    """Ranks of a node can map each other's GPU memory."""
    tried = [fact for fact in _on_gpus(facts) if not fact["cuda"]["ipc"]["alone"]]
    if not tried:
        return []
    bad = [fact for fact in tried if fact["cuda"]["ipc"]["error"]]
    if bad:
        found = _by_value(bad, lambda f: f["cuda"]["ipc"]["error"])
        advice = (
            "in a container: --ipc=host --pid=host and the same devices for all ranks; "
            "until then tensors go through pinned memory"
        )
        return [Finding("ipc", "warn", found, advice)]
    return [Finding("ipc", "ok", "1 MiB of the next rank's GPU memory was mapped and read")]


def peers(facts: Sequence[_Facts]) -> list[Finding]:
    """All GPUs of a node reach each other's memory."""
    findings = []
    for node in _nodes(facts):
        matrix: list[list[bool]] = max(
            (fact["cuda"]["peers"] for fact in _on_gpus(node)), key=len, default=[]
        )
        if len(matrix) < 2:
            continue
        head = "      " + " ".join(f"{j:>2}" for j in range(len(matrix)))
        rows = [
            f"gpu {i:<2}" + " ".join(f"{'+' if can else '-':>2}" for can in row)
            for i, row in enumerate(matrix)
        ]
        all_of_them = all(all(row) for row in matrix)
        advice = (
            ""
            if all_of_them
            else (
                "there are no direct copies between GPUs with a minus: look at nvidia-smi topo -m, "
                "and at ACS in the BIOS"
            )
        )
        text = "all reach each other" if all_of_them else "\n".join([head, *rows])
        status = "ok" if all_of_them else "warn"
        findings.append(Finding("peer access", status, f"{node[0]['host']}: {text}", advice))
    return findings


def bandwidth(facts: Sequence[_Facts]) -> list[Finding]:
    """The rates of copies between pinned memory and the GPU differ by less than a factor of 2."""
    measured = [fact for fact in facts if fact["cuda"] and fact["cuda"]["bandwidth"]]

    def text(fact: _Facts) -> str:
        rates = fact["cuda"]["bandwidth"]
        ways = (("to the GPU", "host_to_device"), ("from it", "device_to_host"))
        return ", ".join(f"{way} {rates[name] / 1e9:.1f} GB/s" for way, name in ways)

    lines = [f"rank {fact['rank']}: {text(fact)}" for fact in measured]
    rates = [min(fact["cuda"]["bandwidth"].values()) for fact in measured]
    slow = len(rates) > 1 and min(rates) < max(rates) / 2
    advice = (
        "some ranks are far from their GPU: bind each to the CPUs of its GPU's NUMA "
        "node (nvidia-smi topo -m)"
    )
    return [Finding("pinned", "warn" if slow else "ok", "\n".join(lines), advice * slow)]


def paths(facts: Sequence[_Facts]) -> list[Finding]:
    """Which path tensors in GPU memory take, and why."""
    if len(facts) == 1 or not _on_gpus(facts):
        return []
    allowed = (facts[0]["variables"]["PADDLEMPI_CUDA_PATHS"] or "ipc,direct,staged").split(",")
    every = len(_on_gpus(facts)) == len(facts)
    mapped = every and len(_nodes(facts)) == 1
    mapped = mapped and not any(fact["cuda"]["ipc"]["error"] for fact in facts)
    aware = every and all(fact["cuda"]["aware"]["aware"] for fact in facts)
    open_to = {"ipc": mapped, "direct": aware, "staged": True}
    reasons = {
        "ipc": "the ranks share a node and map each other's memory",
        "direct": "MPI takes the addresses",
        "staged": "through pinned memory, which is always possible",
    }
    lines, status = [], "ok"
    for what, among in (("all_reduce", ("ipc", "staged")), ("broadcast", tuple(reasons))):
        way = next((path for path in among if path in allowed and open_to[path]), None)
        if way is None:
            status = "fail"
            lines.append(f"{what}: none of PADDLEMPI_CUDA_PATHS={','.join(allowed)} can serve")
        else:
            lines.append(f"{what}: {way}, {reasons[way]}")
    advice = 'leave "staged" in PADDLEMPI_CUDA_PATHS' * (status == "fail")
    return [Finding("gpu path", status, "\n".join(lines), advice)]


_CHECKS = (
    launcher,
    threads,
    sums,
    paddle,
    tuning,
    binding,
    arrival,
    deaths,
    single_copy,
    heap,
    shared_memory,
    limits,
    driver,
    awareness,
    ipc,
    peers,
    bandwidth,
    paths,
)
