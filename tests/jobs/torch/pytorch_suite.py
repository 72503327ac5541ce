"""PyTorch's own tests of its process groups, over our backend. The program of every rank.

The wheels of PyTorch contain the tests: ``DistributedTest._DistTestBase``. PyTorch runs it once
for every backend, which the variable ``BACKEND`` names. Decorators skip what a backend lacks, and
most of what they skip for "mpi" works here. So there are three passes: as for MPI, as for Gloo,
and as on machines with GPUs, where a CPU stands in for them. A pass runs the tests that the pass
before has skipped.

Every test has a default group of its own. The outcomes go to the file that ``SUITE_RESULTS``
names. One line has ``[test, [[outcome, pass, reason], ... of every rank]]``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fnmatch
import importlib
import importlib.util
import json
import os
import sys
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT = 60.0
"""Seconds that a test may take: what hangs longer prints its stacks and ends the job."""

SUITE = "torch.testing._internal.distributed.distributed_test"

Outcome = list[str]
"""``["ok" | "skip" | "fail", which pass, the reason]``."""


def use_expecttest() -> None:
    """If ``expecttest`` is missing, install a stand-in. These tests use only its base class."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in


def load(backend: str) -> Any:
    """Import PyTorch's module. Its decorators see ``backend``, the bodies of its tests see MPI."""
    sys.modules.pop(SUITE, None)
    os.environ["BACKEND"] = backend
    suite: Any = importlib.import_module(SUITE)
    suite.BACKEND = "mpi"
    os.environ["BACKEND"] = "mpi"  # for other backends torch skips small worlds
    # These tests expect the spans of torch's C++ in a trace: one span for several tensors, and a
    # mark on asynchronous ones, which Python cannot set. tests/ranks/torch tests our spans.
    suite.PROFILING_SUPPORTED_BACKENDS = suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []
    return suite


class Ranks:
    """Lets the ranks exchange outcomes through a file store, not through the tested backend."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        import torch.distributed as dist

        self.rank, self.size = rank, size
        self._store = dist.FileStore(str(folder / "ranks"), size)

    def exchange(self, name: str, mine: Outcome, limit: float) -> list[Outcome]:
        """Return what every rank gives under a name, by rank."""
        self._store.set(f"{name}/{self.rank}", json.dumps(mine))
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        self._store.wait(keys, timedelta(seconds=limit))
        return [json.loads(self._store.get(key)) for key in keys]


def case(suite: Any, label: str, ranks: Ranks, folder: Path) -> type[Any]:
    """Return the class of the tests, with what PyTorch's class for multi-process tests sets."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_utils import TestCase

    class OverMPI(suite.DistributedTest._DistTestBase, TestCase):  # type: ignore[misc]
        world_size = str(ranks.size)
        init_method = f"file://{folder}/init"
        skip_return_code_checks: tuple[object, ...] = ()

        def setUp(self) -> None:
            super().setUp()
            self.rank = ranks.rank

            self.barriers = 0

        def _init_group_test(self, **named: Any) -> Any:
            if ranks.size < 3:
                self.skipTest("its group is that of ranks 1 and 2")
            return super()._init_group_test(**named)

        # PyTorch's tests of all_reduce know the expected result, but do not check it. This does.

        def _test_all_reduce_helper(self, *args: Any, **named: Any) -> None:
            self.expected = args[6]
            super()._test_all_reduce_helper(*args, **named)

        def call_dist_op(
            self, title: str, is_async: bool, op: Any, *args: Any, **more: Any
        ) -> None:
            super().call_dist_op(title, is_async, op, *args, **more)
            if op is dist.all_reduce and not more.get("profile_cuda"):
                self.assertEqual(args[0], torch.full_like(args[0], self.expected))

        def _barrier(self, *_: object, **__: object) -> None:
            self.barriers += 1
            ranks.exchange(f"{label}/{self._testMethodName}/{self.barriers}", [], LIMIT / 3)

    return OverMPI


def run(test: Any, label: str) -> Outcome:
    """Run one test in this rank."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    codes = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    try:
        test.setUp()
        getattr(test, test._testMethodName)()
        test.tearDown()
    except unittest.SkipTest as reason:
        return ["skip", label, str(reason)]
    except SystemExit as end:
        if end.code in codes:
            return ["skip", label, codes[end.code]]
        return ["fail", label, f"exit code {end.code}"]
    except BaseException:
        return ["fail", label, traceback.format_exc()]
    return ["ok", label, ""]


def run_on_all(test: Any, label: str, ranks: Ranks) -> list[Outcome]:
    """Run one test in a world of its own. Return the outcomes of all ranks."""
    import torch.distributed as dist

    method = getattr(test, test._testMethodName)
    if getattr(method, "__unittest_skip__", False):
        return [["skip", label, method.__unittest_skip_why__]] * ranks.size
    print(f"{test._testMethodName} ({label})", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    dist.set_debug_level(dist.DebugLevel.OFF)  # some tests leave it higher
    dist.init_process_group("mpi", timeout=timedelta(seconds=LIMIT / 2))
    mine = run(test, label)
    outcomes = ranks.exchange(f"{label}/{test._testMethodName}", mine, LIMIT)
    if dist.is_initialized():  # some tests end it themselves
        dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    return outcomes


def main() -> None:
    """Run the passes of ``SUITE_PASSES`` with all tests but those of ``SUITE_EXCLUDED``."""
    import paddlempi.torch  # noqa: F401 (sets RANK, WORLD_SIZE, MASTER_ADDR ...)
    import torch

    use_expecttest()
    torch.set_num_threads(1)
    results = Path(os.environ["SUITE_RESULTS"])
    folder = results.parent
    os.environ["TEMP_DIR"] = str(folder)
    (folder / "test_dir").mkdir(exist_ok=True)
    ranks = Ranks(folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    excluded = os.environ["SUITE_EXCLUDED"].split()
    left: set[str] | None = None
    for label in os.environ["SUITE_PASSES"].split():
        suite = load("mpi" if label == "mpi" else "gloo")
        stack = contextlib.ExitStack()
        if label == "gpu":
            import cpu_for_cuda

            cpu_for_cuda.enter(suite, stack)
        tests = case(suite, label, ranks, folder)
        with stack:
            skipped = set()
            for name in sorted(dir(tests) if left is None else left):
                if not name.startswith("test_"):
                    continue
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in excluded):
                    continue
                outcomes = run_on_all(tests(name), label, ranks)
                if outcomes[0][0] == "skip":
                    skipped.add(name)
                if ranks.rank == 0:
                    with results.open("a") as lines:
                        print(json.dumps([name, outcomes]), file=lines)
        left = skipped


if __name__ == "__main__":
    main()
