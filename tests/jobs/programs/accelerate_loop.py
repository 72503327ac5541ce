"""A training loop with accelerate. The backend is given, or accelerate chooses it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import report
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from paddlempi.torch.checkpoint import StorageReader, StorageWriter
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, TensorDataset


def save(folder: Path, model: nn.Module, optimizer: Any) -> None:
    """Write one safetensors file for the model, by all ranks."""
    weights, states = get_state_dict(model, optimizer.optimizer)
    writer = StorageWriter(folder)
    checkpoint.save({"model": weights, "optimizer": states}, storage_writer=writer)


def load(folder: Path, model: nn.Module, optimizer: Any) -> None:
    weights, states = get_state_dict(model, optimizer.optimizer)
    state = {"model": weights, "optimizer": states}
    checkpoint.load(state, storage_reader=StorageReader(folder))
    set_state_dict(
        model, optimizer.optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", help="default: what accelerate chooses")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    handlers = [InitProcessGroupKwargs(backend=args.backend)] if args.backend else []
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=handlers)
    set_seed(3)

    x = torch.randn(37, 5)
    y = x @ torch.arange(5.0) + 0.1 * torch.randn(37)
    rows = TensorDataset(x, y, torch.arange(37))
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.8)
    train, test = DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=4)
    model, optimizer, schedule, train, test = accelerator.prepare(
        model, optimizer, schedule, train, test
    )

    losses = []
    for epoch in range(3):
        model.train()
        for inputs, targets, _ in train:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
        if epoch == 1:
            accelerator.save_state(str(args.out / "state"))
            save(args.out / "all", model, optimizer)

    model.eval()
    outputs, seen = [], []
    for inputs, _, index in test:
        with torch.no_grad():
            prediction = model(inputs).squeeze(1)
        # 37 rows do not divide evenly: gather_for_metrics drops the rows that occur twice.
        prediction, index = accelerator.gather_for_metrics((prediction, index))
        outputs.append(prediction)
        seen += index.tolist()
    final = report.digest(model.parameters())

    load(args.out / "all", model, optimizer)
    loaded = report.digest(model.parameters())
    accelerator.load_state(str(args.out / "state"))
    part = torch.full((2 + accelerator.process_index,), float(accelerator.process_index))
    report.write(
        args.out,
        accelerator.process_index,
        backend=torch.distributed.get_backend(),
        ranks=accelerator.num_processes,
        kind=str(accelerator.distributed_type),
        losses=losses,
        rate=schedule.get_last_lr(),
        outputs=torch.cat(outputs).tolist(),
        seen=seen,
        weights=final,
        loaded=loaded,
        restored=report.digest(model.parameters()),
        padded=accelerator.pad_across_processes(part).tolist(),
        objects=gather_object([{"rank": accelerator.process_index}]),
        told=broadcast_object_list([accelerator.process_index, "from rank 0"]),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
