"""A training loop with Paddle. A guard lets the script run as one process or as many."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
import report
from paddle import nn


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1D(12), nn.Tanh())
        self.head = nn.Linear(12, 3)
        self.other = nn.Linear(12, 3)  # the second head: only odd steps use it
        self.never = nn.Linear(2, 2)  # no step uses this layer, on any rank

    def forward(self, x: paddle.Tensor, odd: bool) -> paddle.Tensor:
        return (self.other if odd else self.head)(self.body(x))


class Rows(paddle.io.Dataset):
    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(rows)
        self.x = random.standard_normal((rows, 6)).astype(np.float32)
        self.y = (self.x[:, 0] > 0).astype(np.int64) + (self.x[:, 1] > 0.5)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.x[index], self.y[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()

    paddle.seed(3 + rank)
    network = Network()
    model = network
    if size > 1:
        model = paddle.DataParallel(network, find_unused_parameters=True)
    schedule = paddle.optimizer.lr.StepDecay(0.1, step_size=2, gamma=0.5)
    optimizer = paddle.optimizer.Momentum(
        schedule,
        parameters=model.parameters(),
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
        weight_decay=0.01,
    )
    rows = Rows(46)
    sampler = paddle.io.DistributedBatchSampler(rows, batch_size=4, shuffle=True)
    loader = paddle.io.DataLoader(rows, batch_sampler=sampler, num_workers=2)

    losses, means = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x, step % 2 == 1), y)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(loss.item())
            total = loss.detach()
            if size > 1:
                dist.all_reduce(total)
            means.append(total.item() / size)
        schedule.step()
        if epoch == 1 and rank == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            paddle.save(model.state_dict(), str(args.out / "model.pdparams"))
    final = report.digest(p for p in network.parameters() if not p.stop_gradient)
    # The statistics of BatchNorm. With Paddle's DataParallel every rank keeps its own statistics.
    # paddlempi's DataParallel gives rank 0's statistics to all ranks.
    seen = report.digest(p for p in network.parameters() if p.stop_gradient)

    parts: list[paddle.Tensor] = []
    objects: list[object] = []
    if size > 1:
        dist.barrier()
        dist.all_gather(parts, paddle.to_tensor([rank, len(losses)]))
        dist.all_gather_object(objects, {"rank": rank})
    model.set_state_dict(paddle.load(str(args.out / "model.pdparams")))
    report.write(
        args.out,
        rank,
        backend=dist.get_backend() if size > 1 else None,
        ranks=size,
        losses=losses,
        means=means,
        rate=schedule.get_lr(),
        weights=final,
        statistics=seen if rank == 0 else None,
        gathered=[part.tolist() for part in parts],
        objects=objects,
        restored=report.digest(network.parameters()),
    )


if __name__ == "__main__":
    main()
