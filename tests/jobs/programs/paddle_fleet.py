"""Paddle's fleet in collective mode: distributed_model and distributed_optimizer."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import paddle
import report
from paddle import nn
from paddle.distributed import fleet


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    rank, size = fleet.worker_index(), fleet.worker_num()

    paddle.seed(7 + rank)
    network = nn.Sequential(
        nn.Embedding(20, 8), nn.Flatten(), nn.Linear(24, 10), nn.GELU(), nn.Linear(10, 1)
    )
    optimizer = fleet.distributed_optimizer(
        paddle.optimizer.AdamW(
            0.02, parameters=network.parameters(), grad_clip=nn.ClipGradByGlobalNorm(0.5)
        )
    )
    model = fleet.distributed_model(network)
    random = np.random.default_rng(1)
    ids = random.integers(0, 20, (64, 3))
    targets = (ids.sum(axis=1, keepdims=True) / 30).astype(np.float32)

    losses = []
    for step in range(16):
        mine = slice(4 * step + 2 * rank, 4 * step + 2 * rank + 2)
        x, y = paddle.to_tensor(ids[mine]), paddle.to_tensor(targets[mine])
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    total = paddle.to_tensor(losses)
    paddle.distributed.all_reduce(total)
    state = optimizer.state_dict()
    report.write(
        args.out,
        rank,
        backend=paddle.distributed.get_backend(),
        ranks=size,
        first=fleet.is_first_worker(),
        losses=losses,
        total=total.tolist(),
        weights=report.digest(network.parameters()),
        moments=report.digest(state[name] for name in sorted(state) if "moment" in name),
    )


if __name__ == "__main__":
    main()
