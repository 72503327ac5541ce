"""What ``python -m paddlempi doctor`` concludes from the facts that ranks collected."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from paddlempi.cli import doctor_judge
from paddlempi.cli.doctor_judge import Finding, spell

GIB = 1 << 30
Facts = dict[str, Any]


def device(number: int) -> Facts:
    return {
        "name": "GPU",
        "memory_bytes": 80 * GIB,
        "bus": f"0000:0{number}:00.0",
        "uuid": f"GPU-{number}",
    }


def ranks(n: int, devices: int = 2, nodes: int = 1) -> list[Facts]:
    """Return the facts of ``n`` ranks, in which nothing is wrong."""
    each = n // nodes
    all_of_them = []
    for rank in range(n):
        core: Facts = {
            "initialized": True,
            "mpi": {
                "path": "/x/libmpi.so",
                "why": "the launcher's",
                "name": "Open MPI",
                "version": "Open MPI v5",
                "thread_level": "multiple",
            },
            "mpi_error": "",
            "launcher": {"name": "prterun", "mpi": "Open MPI", "size": n, "rank": rank},
            "rank": rank,
            "size": n,
            "node": [r // each for r in range(n)],
            "local_rank": rank % each,
            "local_size": each,
            "arrive": "shared memory",
            "liveness": {"after": 5, "off": "", "dead": []},
            "heap": {"reserved": 0, "used": 0, "left": None, "mapped": True, "why": ""},
            "cuda": {
                "driver": "/x/libcuda.so.1",
                "version": "12.4",
                "devices": [device(i) for i in range(devices)],
                "error": "",
            },
        }
        all_of_them.append(
            {
                "rank": rank,
                "core": core,
                "core_error": None,
                "start_error": None,
                "paddle": None,
                "host": f"node{rank // each}",
                "cpus": [2 * (rank % each), 2 * (rank % each) + 1],
                "shm": {"size": 8 * GIB, "free": 4 * GIB},
                "limits": {"memlock": -1, "nofile": 4096},
                "infiniband": True,
                "ptrace_scope": 1,
                "variables": dict.fromkeys(
                    (
                        "OMP_NUM_THREADS",
                        "GOMAXPROCS",
                        "CUDA_VISIBLE_DEVICES",
                        "PADDLEMPI_MPI",
                        "PADDLEMPI_CUDA",
                        "PADDLEMPI_CUDA_AWARE",
                        "PADDLEMPI_CUDA_PATHS",
                    )
                ),
                "sums": [],
                "cma": {"of": 0, "error": None, "alone": each == 1},
                "cuda": {
                    "device": rank % each % devices,
                    "peers": [[True] * devices] * devices,
                    "bandwidth": {"host_to_device": 25e9, "device_to_host": 24e9},
                    "error": None,
                    "ipc": {"of": 0, "error": None, "alone": each == 1},
                    "aware": {"aware": True, "how": "tried", "reason": "it moved"},
                    "trial": None,
                    "transfer": "",
                },
            }
        )
    return all_of_them


def findings(facts: list[Facts]) -> dict[str, Finding]:
    """Return the findings of the doctor by name. Of several with one name, return the worst."""
    order = ("skip", "ok", "warn", "fail")
    worst: dict[str, Finding] = {}
    for finding in doctor_judge.judge(facts):
        known = worst.get(finding.name)
        if known is None or order.index(known.status) < order.index(finding.status):
            worst[finding.name] = finding
    return worst


def test_spell() -> None:
    assert spell([3]) == "rank 3"
    assert spell([5, 0, 1, 2, 7]) == "ranks 0-2, 5, 7"


@pytest.mark.parametrize(("n", "nodes"), [(2, 1), (4, 2), (1, 1)])
def test_nothing_is_wrong(n: int, nodes: int) -> None:
    found = findings(ranks(n, nodes=nodes))
    assert {f.status for f in found.values()} <= {"ok", "skip"}, found
    assert "cuda" in found and "devices" in found


def test_threads_on_cpus_of_their_own() -> None:
    """Whole cores do not always go round evenly: a rank may have more CPUs than an equal share."""
    facts = ranks(2)
    facts[1]["cpus"] = [2, 3, 4, 5]
    for fact in facts:
        fact["variables"]["OMP_NUM_THREADS"] = str(len(fact["cpus"]))
    assert "omp" not in findings(facts)
    facts[0]["variables"]["OMP_NUM_THREADS"] = "3"
    assert findings(facts)["omp"].found.startswith("rank 0: ")


def test_paddle_does_not_load_paddlempi() -> None:
    """Every rank of a script without the import would be a job of its own."""
    facts = ranks(2)
    for fact in facts:
        fact["paddle"] = "3.3.1"
    found = findings(facts)["paddle"]
    assert (found.status, found.found[:7]) == ("warn", "3.3.1: ")
    assert "import paddlempi.paddle" in found.advice


WRONG: list[tuple[str, Any, str, str]] = [
    # a key in rank 1's facts, its value, the check with its status, and words of its text
    ("sums", ["f: [1] and not [2]"], "all_reduce fail", "rank 1: f: [1]"),
    ("cma.error", "Operation not permitted", "cma warn", "ptrace_scope is 1"),
    ("limits.nofile", 256, "limits warn", "ulimit -n"),
    ("limits.memlock", 65536, "limits warn", "ulimit -l unlimited"),
    ("variables.OMP_NUM_THREADS", "64", "omp warn", "OMP_NUM_THREADS=2"),
    ("variables.GOMAXPROCS", "1", "gomaxprocs warn", "rank 1: GOMAXPROCS"),
    ("cpus", [0, 1], "binding warn", "let the launcher bind"),
    ("core.heap.why", "no memfd", "heap warn", "no memfd"),
    ("core.heap.left", 63 << 20, "heap warn", "limits leave 63 MiB"),
    ("core.heap.left", 64 << 20, "heap ok", "map each other's heaps"),
    ("cuda.ipc.error", "CUDA_ERROR_NOT_SUPPORTED", "ipc warn", "--ipc=host"),
    ("cuda.peers", [], "peer access ok", "all reach"),
    ("cuda.bandwidth.device_to_host", 3e9, "pinned warn", "NUMA node"),
    ("cuda.transfer", "byte 3", "cuda-aware fail", "PADDLEMPI_CUDA_AWARE=0"),
    ("cuda.error", "CUDA_ERROR_ECC", "gpu fail", "CUDA_ERROR_ECC"),
    ("cuda.device", None, "devices fail", "hides them"),
    ("core.cuda.error", "no driver", "cuda fail", "rank 1: no driver"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[0])
def test_what_one_rank_lacks(case: tuple[str, Any, str, str]) -> None:
    path, value, expected, text = case
    facts = ranks(2)
    place: Any = facts[1]
    *outer, last = path.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    found = findings(facts)
    name, _, status = expected.rpartition(" ")
    assert found[name].status == status, found[name]
    assert text in found[name].found + found[name].advice


def test_deaths_that_are_not_seen_on_other_nodes() -> None:
    facts = ranks(4, nodes=2)
    assert findings(facts)["deaths"].status == "ok"
    for fact in facts:
        fact["core"]["liveness"]["off"] = "rank 3 could not take part"
    facts[3]["core"]["liveness"]["off"] = "rank 3 on host node1 could not connect to rank 2"
    found = findings(facts)["deaths"]
    assert found.status == "warn" and found.found.endswith("could not connect to rank 2")
    for fact in facts:
        fact["core"]["liveness"] = {"after": 0, "off": "PADDLEMPI_DEAD_AFTER is 0", "dead": []}
    assert findings(facts)["deaths"].status == "ok", "the user wants it so"
    assert findings(ranks(2))["deaths"].status == "skip"


def test_more_ranks_than_cpus_and_than_gpus() -> None:
    facts = ranks(4, devices=1)
    for fact in facts:
        fact["cpus"] = [0, 1]
        fact["shm"]["free"] = 1 << 20
    found = findings(facts)
    assert found["binding"].status == "warn" and "more ranks than CPUs" in found["binding"].found
    assert found["/dev/shm"].status == "warn" and "--shm-size" in found["/dev/shm"].advice
    assert found["shared gpu"].found == "node0: ranks 0-3 share GPU-0"
    assert "set_device(0)" in found["devices"].advice
    found = findings(ranks(4, devices=2))
    assert "% torch.cuda.device_count()" in found["devices"].advice


def test_no_gpu_is_wrong_only_where_one_was_asked_for() -> None:
    facts = ranks(2)
    for fact in facts:
        fact["core"]["cuda"] |= {"driver": "", "error": "no CUDA driver", "devices": []}
        fact["cuda"] = None
    assert findings(facts)["cuda"].status == "skip"
    facts[1]["variables"]["PADDLEMPI_CUDA"] = "/x"
    assert findings(facts)["cuda"].status == "fail"


def test_awareness() -> None:
    facts = ranks(2)
    for fact in facts:
        fact["cuda"] |= {
            "aware": {"aware": False, "how": "asked", "reason": "says 0"},
            "transfer": None,
        }
    found = findings(facts)["cuda-aware"]
    assert found.status == "ok" and found.found == "no: asked: says 0"
    claims = copy.deepcopy(facts)
    for fact in claims:
        fact["cuda"]["aware"] = {"aware": False, "how": "tried", "reason": "the child died"}
    assert findings(claims)["cuda-aware"].status == "warn"
    for fact in facts:
        fact["cuda"]["aware"] = {"aware": True, "how": "set", "reason": "so"}
        fact["cuda"]["trial"] = {"aware": False, "how": "tried", "reason": "the child died"}
    found = findings(facts)["cuda-aware"]
    assert found.status == "fail" and "the child died" in found.found


@pytest.mark.parametrize(
    ("allowed", "ipc", "aware", "nodes", "reduce", "move"),
    [
        (None, None, True, 1, "ipc", "ipc"),
        (None, "refused", True, 1, "staged", "direct"),
        (None, None, True, 2, "staged", "direct"),
        (None, None, False, 2, "staged", "staged"),
        ("direct", None, True, 1, "none", "direct"),
        ("staged", None, True, 1, "staged", "staged"),
    ],
)
def test_path(
    allowed: str | None, ipc: str | None, aware: bool, nodes: int, reduce: str, move: str
) -> None:
    facts = ranks(2, nodes=nodes)
    for fact in facts:
        fact["variables"]["PADDLEMPI_CUDA_PATHS"] = allowed
        fact["cuda"]["ipc"]["error"] = ipc
        fact["cuda"]["aware"]["aware"] = aware
    found = findings(facts)["gpu path"]
    assert f"all_reduce: {reduce}" in found.found and f"broadcast: {move}" in found.found
    assert found.status == ("fail" if reduce == "none" else "ok")


def test_what_does_not_start() -> None:
    (fact,) = ranks(1)
    fact["core"] |= {"initialized": False}
    fact |= {"sums": None, "cma": None, "cuda": None}
    fact["start_error"] = "the launcher belongs to another MPI"
    found = findings([fact])
    assert found["mpi"].status == "fail" and "another MPI" in found["mpi"].found
    fact["start_error"] = None
    fact["core"] |= {"mpi": None, "mpi_error": "no libmpi: pip install. Looked at:\n  /usr/lib"}
    found = findings([fact])
    assert found["mpi"].status == "fail" and found["mpi"].found == "no libmpi: pip install."
    assert "info lists" in found["mpi"].advice
    fact["core"]["mpi_error"] = "/nope is named by --mpi, but there is no such file"
    found = findings([fact])
    assert found["mpi"].found == fact["core"]["mpi_error"] and not found["mpi"].advice
    fact |= {"core": None, "core_error": "no _core"}
    assert findings([fact])["core"].status == "fail"
