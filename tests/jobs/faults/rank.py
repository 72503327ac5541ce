"""The program of every rank of the matrix: ``rank.py PLACE`` runs the plan in PLACE/plan.json.

Every rank appends a line to PLACE/rank-N.jsonl for each cell: what its operation came to, and what
could be done afterwards. The plan also has folders for ``sys.path`` and variables, because not all
launchers hand the environment on to other hosts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

PLACE = Path(sys.argv[1])
PLAN = json.loads((PLACE / "plan.json").read_text())
os.environ.update(PLAN["env"])
sys.path[:0] = PLAN["path"]

import injecting  # noqa: E402 (PLAN has the folders)
import numpy as np  # noqa: E402
import paddlempi as dist  # noqa: E402
from operations import CLASSES, WrongValuesError  # noqa: E402
from ranks_tools import works  # noqa: E402

Facts = dict[str, Any]
STAGE = injecting.Stage(PLACE, PLAN["mpi"])
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])


def outcome(call: Any) -> Facts:
    """Return what a call comes to: "right" or the class of its error, and when."""
    facts: Facts = {"outcome": "right"}
    try:
        call()
    except WrongValuesError as error:
        facts = {"outcome": "wrong values", "text": str(error)}
    except (dist.Error, KeyboardInterrupt, MemoryError, OSError, RuntimeError) as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        facts = {"outcome": names[0], "text": str(error), "ranks": [*getattr(error, "ranks", ())]}
    except Exception as error:
        if "the fault of the victim" in str(error):
            raise
        facts = {"outcome": type(error).__name__, "text": traceback.format_exc()}
    return facts | {"at": time.time()}


def report(facts: Facts) -> None:
    with open(PLACE / f"rank-{RANK}.jsonl", "a") as file:
        file.write(json.dumps(facts) + "\n")


def begin() -> None:
    """Make the world, with the front that the plan's operations belong to."""
    if PLAN["front"] == "torch":
        import paddlempi.torch
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group("mpi")
    elif PLAN["front"] == "paddle":
        import paddlempi.paddle

        paddlempi.paddle.init()
    else:
        dist.init_process_group("mpi", timeout=60.0)


def usable(cells: list[Facts]) -> None:
    """Run cells that leave the world usable, one after the other."""
    begin()
    for number, cell in enumerate(cells):
        STAGE.number = number
        began = time.time()
        operation = CLASSES[cell["class"]](cell["limit"])
        for _ in range(2 if cell["warm"] else 0):
            operation.round()
        dist.barrier()
        fault = injecting.USABLE[cell["fault"]]
        facts = outcome(lambda: fault(operation, STAGE))  # noqa: B023 (called at once)
        dist.monitored_barrier(timeout=30.0)
        operation.middle = lambda: None
        facts["group"] = outcome(operation.works)["outcome"]
        dist.monitored_barrier(timeout=30.0)
        facts["end"] = outcome(operation.end)["outcome"]
        facts["world"] = outcome(works)["outcome"]
        report({"number": number, "began": began, **facts})
    dist.barrier()


def ending(cell: Facts) -> None:
    """Run a cell that ends a rank or the job."""
    if cell["fault"] == "mpi4py finalizes MPI":
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
    begin()
    others = list(range(dist.get_world_size() - 1))
    pair = dist.new_group(others)
    operation = CLASSES[cell["class"]](cell["limit"])
    dist.barrier()
    fault, comes = injecting.ENDING[cell["fault"]], cell["class"] != "arrival"
    if cell["fault"] in ("Ctrl-C to all", "exception"):  # no code catches it
        fault(operation, STAGE, comes)
    facts = outcome(lambda: fault(operation, STAGE, comes))
    if facts["outcome"] == "right":  # the cable was healed in time
        report({"number": 0, **facts, "world": outcome(works)["outcome"]})
        return
    if RANK in others or PLAN["stays"]:
        facts["group"] = outcome(operation.works)["outcome"]
        if RANK in others:
            facts["world"] = outcome(lambda: survivors_work(pair, others))["outcome"]
            facts["new"] = outcome(lambda: works(dist.new_group(others)))["outcome"]
        report({"number": 0, **facts})
        STAGE.seen("over", len(others))
    # MPI cannot be finalized with a dead rank.
    os._exit(0)


def survivors_work(pair: Any, others: list[int]) -> None:
    """The ranks that live go on in a group that they had."""
    works(pair)
    got = np.zeros(3)
    dist.sendrecv(np.ones(3), others[1 - dist.get_rank()], got)
    assert got.all()


def edge(cell: Facts) -> None:
    """Run a cell whose operation is init, destroy or exit. The victim is struck before it."""
    is_victim = PLAN["ranks"] - 1 == RANK
    what = cell["class"]
    if what == "init":
        facts = outcome(lambda: before(cell["fault"], is_victim, begin))
        if facts["outcome"] == "right":
            facts["world"] = outcome(works)["outcome"]
        report({"number": 0, **facts})
        return
    begin()
    works()
    if what == "destroy":
        work = dist.all_reduce(np.ones(1000), async_op=True)
        facts = outcome(lambda: before(cell["fault"], is_victim, dist.destroy_process_group))
        work = None  # noqa: F841 (kept until here)
        if not is_victim or facts["outcome"] == "right":
            report({"number": 0, **facts})
        return
    report({"number": 0, "outcome": "right", "at": time.time()})
    before(cell["fault"], is_victim, lambda: None)


def before(fault: str, is_victim: bool, call: Any) -> None:
    """Strike the victim, then let it come."""
    if not is_victim:
        if fault == "Ctrl-C to one":
            time.sleep(4 * injecting.WAITING)
        call()
        return
    if fault in injecting.ENDING:
        time.sleep(injecting.WAITING)
        injecting.die(fault, STAGE)
        if fault == "exit in a thread":
            time.sleep(injecting.LOOP)
    elif fault == "late by 3 s":
        STAGE.struck()
        time.sleep(injecting.LATE)
    elif fault == "SIGSTOP and CONT":
        injecting.strike_later(f"sleep {injecting.LATE}; kill -CONT {os.getpid()}", STAGE, 0.0)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "fork in the middle":
        STAGE.struck()
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    elif fault == "sys.exit in a thread":
        injecting.die(fault, STAGE)
    elif fault == "Ctrl-C to one":
        injecting.strike_later(f"kill -INT {os.getpid()}", STAGE, injecting.WAITING)
    elif fault == "wrong argument":
        STAGE.struck()
        os.environ["PADDLEMPI_ALGO"] = "nothing:fast"
    elif fault in ("no memory", "no descriptors"):
        raise NotImplementedError
    call()


def main() -> None:
    kind, cells = PLAN["kind"], PLAN["cells"]
    if kind == "usable":
        usable(cells)
    elif kind == "ending":
        ending(cells[0])
    else:
        edge(cells[0])
    with suppress(OSError):
        (PLACE / f"end-{RANK}").touch()


main()
