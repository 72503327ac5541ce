"""The Trainer of transformers, on a small model with random weights. Nothing is downloaded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import report
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCABULARY = 50


class Sequences(Dataset[dict[str, Any]]):
    """Rows of numbers that count up, so that a model can learn what comes next."""

    def __init__(self, rows: int) -> None:
        starts = torch.randint(VOCABULARY, (rows, 1), generator=torch.Generator().manual_seed(rows))
        self.rows = (starts + torch.arange(12)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def metrics(predictions: Any) -> dict[str, float]:
    logits, labels = predictions
    guesses = np.argmax(logits[:, :-1], axis=-1)
    return {"accuracy": float((guesses == labels[:, 1:]).mean()), "rows": len(labels)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--workers", type=int, default=1, help="processes that load the data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    set_seed(5)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    training = TrainingArguments(
        output_dir=str(args.out / "checkpoints"),
        use_cpu=True,
        ddp_backend=args.backend,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        load_best_model_at_end=True,
        dataloader_num_workers=args.workers,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training,
        train_dataset=Sequences(38),
        eval_dataset=Sequences(21),
        compute_metrics=metrics,
    )
    trained = trainer.train()
    predicted = trainer.predict(Sequences(9))

    timing = ("runtime", "per_second")
    report.write(
        args.out,
        training.process_index,
        backend=torch.distributed.get_backend(),
        ranks=training.world_size,
        log=[
            {name: value for name, value in entry.items() if not name.endswith(timing)}
            for entry in trainer.state.log_history
        ],
        loss=trained.training_loss,
        best=[Path(trainer.state.best_model_checkpoint).name, trainer.state.best_metric],
        predictions=report.digest([torch.from_numpy(predicted.predictions)]),
        weights=report.digest(trainer.model.parameters()),
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
