"""accelerate, and transformers' Trainer, which starts torch.distributed through accelerate."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest
from paddlempi.testing import launch
from ports import unused

needs_accelerate = programs.needs("torch", "accelerate")


def check_loop(ours: programs.Numbers, torchrun: programs.Numbers) -> None:
    programs.same(ours, torchrun)
    assert [numbers["backend"] for numbers in ours + torchrun] == ["mpi"] * 2 + ["gloo"] * 2
    for rank, numbers in enumerate(ours):
        assert numbers["ranks"] == 2 and numbers["kind"] == "DistributedType.MULTI_CPU"
        assert sum(numbers["losses"][-5:]) < sum(numbers["losses"][:5])
        assert numbers["seen"] == list(range(37)) and len(numbers["outputs"]) == 37
        assert numbers["padded"] == [float(rank)] * (2 + rank) + [0.0] * (1 - rank)
        assert numbers["objects"] == [{"rank": 0}, {"rank": 1}]
        assert numbers["told"] == [0, "from rank 0"]
        assert numbers["weights"] == ours[0]["weights"] != numbers["restored"]
        assert numbers["loaded"] == numbers["restored"]


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> programs.Numbers:
    """Run the loop over gloo: without a named backend, as docs/torch.md says."""
    out = tmp_path_factory.mktemp("torchrun")
    return programs.over_torchrun("accelerate_loop", out, PADDLEMPI_TORCH="0")


@needs_accelerate
def test_accelerate_chooses_mpi_under_mpirun(torchrun: programs.Numbers, tmp_path: Path) -> None:
    check_loop(programs.over_mpi("accelerate_loop", tmp_path), torchrun)


@needs_accelerate
def test_accelerate_under_torchrun(torchrun: programs.Numbers, tmp_path: Path) -> None:
    check_loop(programs.over_torchrun("accelerate_loop", tmp_path), torchrun)


@needs_accelerate
def test_accelerate_is_told_to_take_mpi(torchrun: programs.Numbers, tmp_path: Path) -> None:
    check_loop(programs.over_mpi("accelerate_loop", tmp_path, "--backend=mpi"), torchrun)


@programs.needs("torch", "transformers", "accelerate")
def test_transformers_trainer(tmp_path: Path) -> None:
    ours = programs.over_mpi("transformers_trainer", tmp_path / "mpi")
    options = "--backend=gloo", "--workers=0"
    gloo = programs.over_gloo("transformers_trainer", tmp_path / "gloo", *options)
    programs.same(ours, gloo)
    under = programs.over_torchrun("transformers_trainer", tmp_path / "torchrun", options[1])
    programs.same(under, gloo)
    for numbers in ours + under:
        assert numbers["backend"] == "mpi" and numbers["ranks"] == 2
        losses = [entry["eval_loss"] for entry in numbers["log"] if "eval_loss" in entry]
        assert len(losses) == 2 and losses[1] < losses[0]
        assert numbers["best"] == ["checkpoint-6", losses[1]]
        # 21 rows do not divide evenly: the Trainer drops the rows that occur twice.
        assert [e["eval_rows"] for e in numbers["log"] if "eval_rows" in e] == [21, 21]
        assert numbers["weights"] == ours[0]["weights"]
        assert numbers["predictions"] == ours[0]["predictions"]


@programs.needs("torch", "transformers", "safetensors")
def test_llama_is_saved_by_four_ranks(tmp_path: Path) -> None:
    """transformers loads it in one process, and two ranks go on with it."""
    saved = f"--saved={tmp_path / 'saved'}"
    trained = programs.over_mpi("llama_checkpoint", tmp_path / "a", "--part=train", saved, ranks=4)
    (read,) = programs.alone("llama_checkpoint", tmp_path / "b", "--part=read", saved)
    resumed = programs.over_mpi("llama_checkpoint", tmp_path / "c", "--part=resume", saved)
    for numbers in trained + resumed:
        assert numbers["logits"] == pytest.approx(read["logits"], abs=1e-5)
        assert numbers["losses"] == pytest.approx(trained[0]["losses"], abs=1e-5)
    losses = trained[0]["losses"]
    assert losses[-1] < losses[0]


@programs.needs("torch", "transformers")
def test_tensor_parallel_generation(tmp_path: Path) -> None:
    """transformers names gloo itself: PADDLEMPI_TORCH_GLOO makes mpi of it."""
    gloo = programs.over_torchrun("llama_generate", tmp_path / "gloo")
    ours = programs.over_torchrun("llama_generate", tmp_path / "mpi", PADDLEMPI_TORCH_GLOO="mpi")
    programs.same(ours, gloo)
    assert [numbers["backend"] for numbers in ours + gloo] == ["mpi"] * 2 + ["gloo"] * 2
    for numbers in ours:
        assert numbers["ranks"] == 2 and len({*numbers["tokens"]}) > 20
        assert numbers["tokens"] == numbers["alone"]


@programs.needs("torch", "transformers")
def test_the_example_of_tensor_parallel_generation() -> None:
    example = str(programs.FOLDER.parents[2] / "examples" / "generate_tp.py")
    command = [sys.executable, example, "--check", "--tokens=8"]
    result = launch.run(2, command, mpi="node", timeout=programs.DEADLINE)
    assert result.returncode == 0 and not result.timed_out, result.output
    assert "2 ranks over mpi" in result.output
    assert "the same tokens as on one rank" in result.output


@programs.needs("torch", "transformers")
def test_bench_of_inference(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    words = ["bench", "inference", "--rounds=2", f"--json={file}"]
    command = [sys.executable, "-m", "paddlempi", *words]
    result = launch.run(2, command, mpi="node", timeout=programs.DEADLINE)
    assert result.returncode == 0 and not result.timed_out, result.output
    found = json.loads(file.read_text())["inference"]
    assert found["sums"] == [256 * 512 * 4] * 16 + [512 * 4] * 16
    assert found["same_tokens"] == {"paddlempi": True, "gloo": True}
    assert found["not_measured"].keys() == {"vllm"}
    for name in ("paddlempi", "gloo", "no communication"):
        for times in found["ms"][name].values():
            assert len(times) == 2 and min(times) > 0
    assert "16 all_reduces of 2048 bytes a token" in result.stdout


@programs.needs("torch", "transformers")
def test_a_rank_that_dies_while_it_generates_is_named(tmp_path: Path) -> None:
    program = str(programs.FOLDER / "llama_generate.py")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused())}
    ranks = [
        subprocess.Popen(
            [sys.executable, program, f"--out={tmp_path}", "--dies"],
            env={
                **programs.plain_environment(),
                **shared,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "PADDLEMPI_TORCH_GLOO": "mpi",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        killed = ranks[1].wait(programs.DEADLINE)
        ended = time.time()
        output, _ = ranks[0].communicate(timeout=programs.DEADLINE)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert (killed, ranks[0].returncode) == (-9, 0), output
    found = json.loads((tmp_path / "rank0.json").read_text())
    assert found["error"] == "PeerDiedError" and found["ranks_of_error"] == [1]
    assert "all_reduce(" in found["words"]
    # Below 1 s on a machine that is idle.
    assert found["told"] - ended < 10, found
