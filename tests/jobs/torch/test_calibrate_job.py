"""python -m paddlempi bench --calibrate on two ranks: the file has everything."""

from __future__ import annotations

import re
from pathlib import Path

import job
from paddlempi.cli.bench.calibrate_calls import OPERATIONS, SIZES
from paddlempi.planner import machine

WORDS = [*job.PADDLEMPI, "bench", "--calibrate"]


def test_a_machine_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    result = job.run(2, [*WORDS, str(file), "--seconds", "2"], timeout=200).result
    assert result.returncode == 0, result.output
    found = machine.read(str(file))
    assert (found.nodes, found.ranks, found.tuned) == (1, 2, ())
    assert 0 < found.rss < found.memory and found.cpus > 0 and found.threads > 0
    kinds = {(row.operation, row.nodes, row.ranks, row.bytes) for row in found.collectives}
    assert kinds == {(name, 1, 2, size) for name in (*OPERATIONS, "send") for size in SIZES}
    assert len(found.collectives) == len(kinds)
    for row in found.collectives:
        assert row.caller.middle > 0 and row.seconds.middle > 0, row
        # Half a round trip has half a call.
        assert row.operation == "send" or row.caller.middle <= row.seconds.middle, row
        assert (row.way == "") == (row.operation == "send"), row
    # 16 MiB of weights and 16 KiB of biases; FSDP2 gathers them twice, but for those of the root
    steps = {step.kind: step for step in found.steps}
    assert {kind: step.units for kind, step in steps.items()} == {"ddp": 2, "fsdp2": 12, "tp": 3}
    whole = (16 << 20) + (16 << 10)
    assert [steps[kind].bytes for kind in ("ddp", "fsdp2")] == [whole, 3 * whole]
    assert steps["tp"].bytes == 3 * 4 * 32 * 1024  # results of three layers
    for step in found.steps:
        assert min(step.plain.low, step.silent.low, step.step.low, step.alone.low) > 0
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:-1]] == [
        *("a node (1x2)", "a rank computes, alone", "a rank computes, all ranks"),
        *("ddp mlp-16M", "fsdp2 mlp-16M", "tp mlp-16M"),
    ]
    assert re.fullmatch(rf"\d+ s: {file}", lines[-1])


def test_one_rank_has_no_others(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    result = job.run(1, [*WORDS, str(file)], timeout=100).result
    assert result.returncode == 1, result.output
    assert "one rank has no others to communicate with; start it with mpirun" in result.stderr
    assert not file.exists()
