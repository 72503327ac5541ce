"""DeepSpeed on the CPU: ZeRO stages 2 and 3, and checkpoints. None of its kernels is compiled."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import report
import torch
from torch import nn

# Without this line DeepSpeed compiles this kernel at its start, with the machine's C++ compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def config(stage: int) -> dict[str, Any]:
    return {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": stage == 3},
        "optimizer": {"type": "Adam", "params": {"lr": 0.02, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "reduce_bucket_size": 100,  # of 590 parameters: several buckets
            "allgather_bucket_size": 100,
            "stage3_param_persistence_threshold": 10,
        },
    }


def train(stage: int, out: Path) -> dict[str, Any]:
    torch.manual_seed(11)
    rank = torch.distributed.get_rank()
    x = torch.randn(48, 7)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 9), nn.Tanh(), nn.Linear(9, 2))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(stage)
    )
    dtype = next(engine.module.parameters()).dtype

    def loss_of(step: int) -> torch.Tensor:
        rows = slice(8 * step + 4 * rank, 8 * step + 4 * rank + 4)
        return nn.functional.cross_entropy(engine(x[rows].to(dtype)).float(), y[rows])

    losses, norms = [], []
    for epoch in range(3):
        for step in range(6):
            loss = loss_of(step)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            norms.append(float(engine.get_global_grad_norm() or 0))
        if epoch == 1:
            engine.save_checkpoint(str(out / f"zero{stage}"))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        final = report.digest(p.float() for p in engine.module.parameters())

    # Repeat the third epoch from the checkpoint. It must end with the same weights.
    engine.load_checkpoint(str(out / f"zero{stage}"))
    for step in range(6):
        engine.backward(loss_of(step))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        again = report.digest(p.float() for p in engine.module.parameters())
    return {
        "losses": losses,
        "norms": norms,
        "rate": engine.get_lr(),
        "weights": final,
        "weights_again": again,
    }


def sums() -> list[list[float]]:
    """Return what DeepSpeed's sum for inference makes of tensors of some dtypes, and of a group.

    Its own operator, which is not compiled here, would sum over all ranks, whatever the group.
    """
    rank = torch.distributed.get_rank()
    alone = [torch.distributed.new_group([other]) for other in range(2)][rank]
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        x = torch.arange(3).to(dtype) + rank
        deepspeed.comm.inference_all_reduce(x)
        y = torch.full((2,), rank + 1).to(dtype)
        deepspeed.comm.inference_all_reduce(y, group=alone)
        found.append([*x.tolist(), *y.tolist()])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend=args.backend)
    report.write(
        args.out,
        torch.distributed.get_rank(),
        backend=torch.distributed.get_backend(),
        ranks=torch.distributed.get_world_size(),
        sums=sums(),
        zero2=train(2, args.out),
        zero3=train(3, args.out),
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
