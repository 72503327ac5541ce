"""PyTorch's own tests of its process groups, over our backend. :mod:`pytorch_suite` runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from outside import environment
from paddlempi.testing import launch

_WORDS = "expects gloo's or NCCL's words of a timeout; ours are 'timed out after 1s'"
_EVERY_RANK = "expects rank 0 alone to name the missing; here every rank does"
_STAND_IN = "wants more of a GPU than a CPU in its place has: fails through gloo too"
_CRASH = "torch crashes on a CPU: through gloo too"

EXCLUDED: dict[str, str] = {
    "test_barrier_timeout_full_group": _WORDS,
    "test_barrier_timeout_group": _WORDS,
    "test_monitored_barrier_failure_order": _EVERY_RANK,
    "test_monitored_barrier_gloo": _EVERY_RANK,
    "test_monitored_barrier_gloo_rank_0_timeout": "a deadline of 0 is refused, as a ValueError",
    "test_monitored_barrier_allreduce_hang*": _STAND_IN,
    "test_DistributedDataParallel_SyncBatchNorm*": "torch's SyncBatchNorm refuses a CPU",
    "test_sync_bn_logged": "torch's SyncBatchNorm refuses a CPU",
    "test_ddp_uneven_inputs*": "torch's SyncBatchNorm refuses a CPU; test_ddp_join.py has the rest",
    "test_ddp_inference": "torch's SyncBatchNorm refuses a CPU",
    "test_average_parameters": _STAND_IN,
    "test_ddp_apply_optim_in_backward*": _STAND_IN,
    "test_ddp_compile_static_graph": _STAND_IN,
    "test_ddp_device": _STAND_IN,
    "test_ddp_logging_data_gpu": _STAND_IN,
    "test_ddp_native_mixed_precision_*": _STAND_IN,
    "test_ddp_profiling_*": "expects every span to be marked asynchronous, which C++ alone can do",
    "test_ddp_shared_grad_acc_unused_params": _STAND_IN,
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd*": _STAND_IN,
    "test_ddp_control_flow_same_across_ranks": _CRASH,
    "test_ddp_multiple_nested_unused_params_error*": _CRASH,
    "test_ddp_zero_output_features": _CRASH,
}
"""Tests that are not run, as patterns, each with its reason."""

OLD = metadata.version("torch").startswith("2.8.")
RUNS = [
    pytest.param(2, None, "mpi gloo", 80, id="2"),
    pytest.param(3, None, "mpi gloo gpu", 115, id="3"),
    pytest.param(2, "node", "mpi", 70, id="without-mpi"),
]
"""Ranks, the launcher's MPI, the kinds of tests, and how many must pass.

If fewer pass, this PyTorch skips what another one runs. A run takes minutes: the oldest torch has
two ranks, and newer ones have three and more tests, and then the first kind without MPI.
"""


@pytest.mark.parametrize(("np", "mpi", "kinds", "least"), RUNS[:1] if OLD else RUNS[1:])
def test_pytorchs_own(np: int, mpi: str | None, kinds: str, least: int, tmp_path: Path) -> None:
    results = tmp_path / "results"
    job = launch.run(
        np,
        Path(__file__).with_name("pytorch_suite.py"),
        mpi=mpi,
        timeout=400,
        env={
            "SUITE_RESULTS": str(results),
            "SUITE_PASSES": kinds,
            "SUITE_EXCLUDED": " ".join(EXCLUDED),
        },
    )
    lines = results.read_text().splitlines() if results.exists() else []
    last = dict(json.loads(line) for line in lines)
    wrong = [
        f"{name}, rank {rank} of {np}, as for {label}:\n{reason}"
        for name, outcomes in last.items()
        for rank, (outcome, label, reason) in enumerate(outcomes)
        if outcome == "fail"
    ]
    assert not wrong, "\n\n".join(wrong)
    assert job.returncode == 0 and not job.timed_out, job.output[-20000:]
    came_to = Counter(outcomes[0][0] for outcomes in last.values())
    assert came_to["ok"] >= least, came_to


OF_NCCL = {"test_reconfigure_after_timeout": "skipped"}
"""What PyTorch's file asks of nccl2 alone: that the deadline of an operation revokes the group."""


@pytest.mark.skipif(OLD, reason="this torch has no reconfiguration")
def test_pytorchs_fault_tolerance() -> None:
    """``test_c10d_fault_tolerance.py``, as of commit 032af12a of PyTorch's main.

    ``tests/unit/torch/test_reconfigure.py`` has its cases, and runs wherever PyTorch's file is not.
    """
    folder = os.environ.get("PYTORCH_TESTS")
    if folder is None:
        pytest.skip("PYTORCH_TESTS is not set: PyTorch's test/distributed, which no wheel has")
    program = Path(__file__).with_name("pytorch_fault_tolerance.py")
    ran = subprocess.run(
        [sys.executable, program, Path(folder) / "test_c10d_fault_tolerance.py"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert ran.stdout, ran.stderr
    outcomes = json.loads(ran.stdout.splitlines()[-1])
    assert {name: came for name, came in outcomes.items() if came != "ok"} == OF_NCCL, ran.stderr
    assert len(outcomes) >= 13, sorted(outcomes)
