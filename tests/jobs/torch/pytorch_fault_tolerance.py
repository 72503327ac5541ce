"""PyTorch's own tests of groups whose members change, over our backend.

argv[1] is PyTorch's ``test/distributed/test_c10d_fault_tolerance.py``, which no wheel contains.
PyTorch makes a class of its tests for each backend that it knows; here is one more. Prints one line
of JSON: ``{test: "ok" | "skipped" | "failed"}``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import unittest
from typing import Any

from pytorch_suite import use_expecttest


def tests_of(path: str) -> unittest.TestSuite:
    """Return the tests over our backend, and those that need none."""
    import paddlempi.torch  # noqa: F401 (is the backend)
    import torch

    use_expecttest()
    spec = importlib.util.spec_from_file_location("fault_tolerance", path)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    over_mpi = module._make_fault_tolerance_test_class("mpi", "cpu")
    # A spawned process imports torch anew, which takes most of the time.
    fork = torch.multiprocessing.get_context("fork").Process
    over_mpi._spawn_processes = lambda self: self._start_processes(fork)
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    return unittest.TestSuite([load(over_mpi), load(module.ReconfigureContractTest)])


def main() -> None:
    tests = tests_of(sys.argv[1])
    outcomes = {_name(case): "ok" for one in tests for case in one}  # type: ignore[union-attr]
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    outcomes |= {_name(case): "skipped" for case, _ in result.skipped}
    outcomes |= {_name(case): "failed" for case, _ in [*result.failures, *result.errors]}
    print(json.dumps(outcomes))


def _name(case: Any) -> str:
    return str(case.id().rpartition(".")[2])


if __name__ == "__main__":
    main()
