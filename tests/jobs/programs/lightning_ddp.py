"""Lightning: DDP, metrics of all ranks, a checkpoint callback, and workers that load the data.

The program does not know what starts it: mpirun, or anything that sets RANK and the like.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import report
import safetensors.torch
import torch
from paddlempi.torch.checkpoint import StorageWriter
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
        )
        self.history: list[dict[str, float]] = []
        self.means: list[list[Any]] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        logits = self.layers(x)
        right = (logits.argmax(1) == y).sum()
        self.log("val_loss", nn.functional.cross_entropy(logits, y), sync_dist=True)
        self.log("right", right, reduce_fx="sum", sync_dist=True)
        self.log("least_right", right, reduce_fx="min", sync_dist=True)
        # Lightning also averages the batch sizes, which are int64: here 31 rows on both ranks.
        ones = y == 1
        loss = nn.functional.cross_entropy(logits[ones], y[ones])
        self.log("loss_of_ones", loss, batch_size=int(ones.sum()), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        numbers = {name: metrics[name].item() for name in sorted(metrics)}
        self.history.append({"epoch": self.current_epoch, **numbers})

    def on_train_end(self) -> None:
        for mine in (3 - 10 * self.global_rank, 3 - 11 * self.global_rank, 1 + self.global_rank):
            mean = self.trainer.strategy.reduce(torch.tensor(mine), reduce_op="mean")
            self.means.append([mean.item(), str(mean.dtype)])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class SavedByAll(pl.Callback):
    """Writes a checkpoint of each epoch: one safetensors file for the model, by all ranks."""

    def __init__(self, folder: Path) -> None:
        self.writer = StorageWriter(folder)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        weights, states = get_state_dict(module, trainer.optimizers)
        state = {"model": weights, "optimizer": states, "epoch": trainer.current_epoch}
        checkpoint.save(state, storage_writer=self.writer)


def loader(rows: int, workers: int) -> DataLoader[Any]:
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return DataLoader(TensorDataset(x, y), batch_size=8, num_workers=workers)


def trainer(args: argparse.Namespace, **more: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=args.backend),
        max_epochs=3,
        default_root_dir=args.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--workers", type=int, default=2, help="processes that load the data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    pl.seed_everything(7, workers=True)
    train, validation = loader(70, args.workers), loader(54, args.workers)

    best = ModelCheckpoint(dirpath=args.out / "best", monitor="val_loss", save_top_k=1)
    every = ModelCheckpoint(dirpath=args.out / "every", filename="{epoch}", save_top_k=-1)
    model = Classifier()
    first = trainer(args, callbacks=[best, every, SavedByAll(args.out / "all")])
    first.fit(model, train, validation)

    # Go on from the checkpoint of the first epoch, as after a crash. The end must be the same.
    # Workers would fetch rows of the first epoch before Lightning tells the sampler of the second.
    train, validation = loader(70, workers=0), loader(54, workers=0)
    again = Classifier()
    second = trainer(args, enable_checkpointing=False)
    second.fit(again, train, validation, ckpt_path=args.out / "every" / "epoch=0.ckpt")
    weights_again = report.digest(again.state_dict().values())
    tested = second.validate(again, validation, ckpt_path=best.best_model_path, verbose=False)

    saved = safetensors.torch.load_file(args.out / "all" / "model.safetensors")
    report.write(
        args.out,
        first.global_rank,
        backend=torch.distributed.get_backend(),
        ranks=first.world_size,
        environment=type(first.strategy.cluster_environment).__name__,
        history=model.history,
        means=model.means,
        best=[Path(best.best_model_path).name, best.best_model_score.item()],
        weights=report.digest(model.state_dict().values()),
        saved=report.digest(saved[name] for name in model.state_dict()),
        history_again=again.history,
        weights_again=weights_again,
        tested=tested[0],
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
