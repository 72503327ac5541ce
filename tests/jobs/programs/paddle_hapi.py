"""Paddle's high-level API: Model.fit with metrics, validation and checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import report
from paddle import nn


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.never = nn.Linear(16, 16)  # no step uses this layer, on any rank
        self.last = nn.Linear(16, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.last(nn.functional.relu(self.first(x)))


class Rows(paddle.io.Dataset):
    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(rows)
        self.x = random.standard_normal((rows, 6)).astype(np.float32)
        self.y = ((self.x[:, 0] > 0).astype(np.int64) + (self.x[:, 1] > 0.5))[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.x[index], self.y[index]


class History(paddle.callbacks.Callback):
    """Collects what fit and evaluate report after every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, Any]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(plain(logs))

    def on_eval_end(self, logs: Any = None) -> None:
        self.epochs.append(plain(logs))


def plain(logs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).astype(float).tolist() for name, value in logs.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    paddle.seed(5)
    network = Network()
    model = paddle.Model(network)
    model.prepare(
        paddle.optimizer.Adam(0.01, parameters=model.parameters()),
        nn.CrossEntropyLoss(),
        [paddle.metric.Accuracy(topk=(1, 2))],
    )
    history = History()
    model.fit(
        Rows(50),
        Rows(22),
        batch_size=4,
        epochs=3,
        verbose=0,
        num_workers=1,
        save_dir=str(args.out / "epochs"),
        callbacks=[history],
    )
    final = report.digest(network.parameters())
    evaluated = model.evaluate(Rows(18), batch_size=4, verbose=0)
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.barrier()  # until rank 0 has written its checkpoints
    model.load(str(args.out / "epochs" / "1"))
    [outputs] = model.predict(Rows(10), batch_size=4, stack_outputs=True, verbose=0)
    report.write(
        args.out,
        paddle.distributed.get_rank(),
        backend=paddle.distributed.get_backend() if paddle.distributed.is_initialized() else None,
        ranks=paddle.distributed.get_world_size(),
        history=history.epochs,
        evaluated=plain(evaluated),
        weights=final,
        restored=report.digest(network.parameters()),
        outputs=outputs.tolist(),
    )


if __name__ == "__main__":
    main()
