"""Models whose embeddings lie on parameter servers: clicks, tumours, and the words of Python.

    python examples/train_ps_layers.py --out alone.json       # one process: the reference
    mpirun -np 4 python -m paddlempi run --roles trainer:2,pserver:2 \\
        examples/train_ps_layers.py --beside alone.json       # or both: make train-ps

* clicks: a wide and deep model (Cheng et al., 2016) on made-up clicks, whose ids nobody has listed
  before, and whose probabilities are known; so is the AUC that nobody can beat.
* tumours: the same model on scikit-learn's breast cancers.
* words: word2vec (skip-gram with negative sampling, Mikolov et al., 2013) on the sources and
  documentation strings of Python's standard library. It ends with words and their nearest ones.

The trainers divide every batch among them, and the servers take the mean of their gradients. So all
qualities are those of one process, but for rounding. With --mode async nobody waits: a push changes
rows at once, and so do those of the dense parameters, which then lie on the servers too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import ps_data
import torch
from paddlempi import ps
from ps_trainer import Alone, OnServers, Trainer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

SHOWN = ("file", "error", "string", "list", "thread", "socket", "minutes", "decode")
RELATED = (
    "read write, min max, true false, get set, key value, first last, left right, open close, "
    "int float, list tuple, minutes seconds, request response, encode decode, server client, "
    "input output, upper lower, width height, month year, start stop, send recv, "
    "subtract multiply, sin cos, stdin stdout, username password, row column"
)


class Progress:
    """Takes the steps of a training, and shows ten times on the first trainer how it goes."""

    def __init__(self, trainer: Trainer, name: str, steps: int) -> None:
        self.trainer, self.name, self.steps = trainer, name, steps
        self.began, self.rows = time.perf_counter(), trainer.rows
        self.done = 0
        self.since: list[float] = []  # this trainer's parts of the losses since the last line
        self.losses: list[float] = []  # of all trainers, for each line

    def step(self, loss: torch.Tensor) -> None:
        """Take the loss of this trainer's part of a step."""
        self.since.append(loss.item() / self.trainer.size)
        self.done += 1
        if 10 * self.done // self.steps == 10 * (self.done - 1) // self.steps:
            return
        self.losses.append(self.trainer.total(sum(self.since) / len(self.since)))
        self.since = []
        rows = self.trainer.total(self.trainer.rows - self.rows)
        speed = rows / (time.perf_counter() - self.began)
        say(
            self.trainer,
            f"{self.name}: step {self.done:5d} of {self.steps}  loss {self.losses[-1]:.4f}  "
            f"{speed:11,.0f} rows/s",
        )


def say(trainer: Trainer, text: str) -> None:
    if trainer.rank == 0:
        print(text, flush=True)


def batches(count: int, size: int, epochs: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the samples of each step: on every trainer the same ones."""
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(count)
        for begin in range(0, count - size + 1, size):
            yield order[begin : begin + size]


# Clicks and tumours


class WideAndDeep(torch.nn.Module):
    """A weight of every id, and layers over the ids' vectors and the numbers."""

    def __init__(self, trainer: Trainer, name: str, samples: ps_data.Samples, rate: float) -> None:
        super().__init__()
        dim, fields, numbers = 16, samples.ids.shape[1], samples.numbers.shape[1]
        adagrad = ps.Adagrad(rate, epsilon=1e-8)
        self.wide = trainer.embedding(f"{name}/wide", 1, adagrad, ps.Zeros())
        self.deep = trainer.embedding(f"{name}/deep", dim, adagrad, ps.Normal(std=0.05))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(fields * dim + numbers, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, 1),
        )

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        deep = torch.cat([self.deep(ids).flatten(1), numbers], 1)
        return self.wide(ids).sum((1, 2)) + self.layers(deep).squeeze(1)


def classify(
    trainer: Trainer,
    name: str,
    samples: ps_data.Samples,
    test: ps_data.Samples,
    batch: int,
    epochs: int,
    rate: float,
) -> tuple[float, list[float]]:
    """Train a model, and return its AUC on other samples, and its losses."""
    torch.manual_seed(1)
    model = WideAndDeep(trainer, name, samples, rate)
    optimizer = trainer.optimizer(name, torch.optim.Adam(model.parameters(), 0.002))
    loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")
    progress = Progress(trainer, name, epochs * (len(samples) // batch))
    for chosen in batches(len(samples), batch, epochs):
        part = samples.part(trainer.part(chosen))
        guess = model(torch.from_numpy(part.ids), torch.from_numpy(part.numbers))
        # The mean over the whole batch, after the mean over the trainers.
        loss = loss_of(guess, torch.from_numpy(part.labels)) * (trainer.size / batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss)
    auc = 0.0
    if trainer.rank == 0:
        with torch.no_grad():
            guess = model(torch.from_numpy(test.ids), torch.from_numpy(test.numbers))
        auc = roc_auc_score(test.labels, guess.numpy())
    return trainer.total(auc), progress.losses


def clicks(trainer: Trainer, options: argparse.Namespace) -> dict[str, object]:
    samples, test = ps_data.clicks(options.clicks, 0), ps_data.clicks(100_000, 1)
    auc, losses = classify(trainer, "clicks", samples, test, 2000, 1, 0.05)
    best = roc_auc_score(test.labels, test.best)
    say(trainer, f"clicks: AUC {auc:.4f}; of the planted probabilities {best:.4f}")
    return {"quality": auc, "losses": losses, "good": auc > 0.5 + 0.75 * (best - 0.5)}


def tumours(trainer: Trainer, options: argparse.Namespace) -> dict[str, object]:
    samples, test = ps_data.tumours()
    auc, losses = classify(trainer, "tumours", samples, test, 60, 6, 0.02)
    linear = LogisticRegression(max_iter=1000).fit(samples.numbers, samples.labels)
    known = roc_auc_score(test.labels, linear.decision_function(test.numbers))
    say(trainer, f"tumours: AUC {auc:.4f}; of scikit-learn's logistic regression {known:.4f}")
    return {"quality": auc, "losses": losses, "good": auc > known - 0.02}


# Words


def words(trainer: Trainer, options: argparse.Namespace) -> dict[str, object]:
    dim, negatives, batch = 64, 5, 4000
    text = ps_data.Text(options.words, 8000)
    adagrad = ps.Adagrad(0.1, epsilon=1e-8)
    ins = trainer.embedding("words/in", dim, adagrad, ps.Normal(std=0.5 / dim))
    outs = trainer.embedding("words/out", dim, adagrad, ps.Zeros())
    optimizer = trainer.optimizer("words", None)
    centres, contexts = text.pairs(4, 0)
    steps = len(centres) // batch
    progress = Progress(trainer, "words", steps)
    say(trainer, f"words: {len(text.text):,} of {len(text.words):,} kinds, {steps * batch:,} pairs")
    random = np.random.default_rng(2)
    labels = torch.zeros(1, 1 + negatives)
    labels[:, 0] = 1
    for step in range(steps):
        drawn = trainer.part(text.drawn(random, (batch, negatives)))
        chosen = slice(step * batch, (step + 1) * batch)
        near = np.concatenate([trainer.part(contexts[chosen])[:, None], drawn], 1)
        centre = ins(torch.from_numpy(trainer.part(centres[chosen])))
        guess = (outs(torch.from_numpy(near)) @ centre.unsqueeze(2)).squeeze(2)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            guess, labels.expand_as(guess), reduction="sum"
        ) * (trainer.size / batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss)
    rank = 0.0
    if trainer.rank == 0:
        rank = nearest(text, ins)
    rank = trainer.total(rank)
    return {"quality": rank, "losses": progress.losses, "good": rank < len(text.words) / 40}


def nearest(text: ps_data.Text, layer: torch.nn.Module) -> float:
    """Print the nearest words of some, and return the median rank of words that belong together."""
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(layer(torch.arange(len(text.words)))).numpy()
    vectors = vectors - vectors.mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for word in filter(text.number.get, SHOWN):
        order = np.argsort(-(vectors @ vectors[text.number[word]]))
        print(f"  {word:8s} {' '.join(text.words[other] for other in order[1:8])}")
    ranks = []
    for pair in RELATED.split(", "):
        one, other = (text.number.get(word) for word in pair.split())
        if one is not None and other is not None:
            for a, b in ((one, other), (other, one)):
                near = vectors @ vectors[a]
                ranks.append((near > near[b]).sum())  # the word itself is one of them
    median = float(np.median(ranks))
    print(f"words: the partner of a word has rank {median:.0f} of {len(text.words)} in the median")
    return median


TASKS: dict[str, Callable[[Trainer, argparse.Namespace], dict[str, object]]] = {
    "clicks": clicks,
    "tumours": tumours,
    "words": words,
}


def check(trainer: Trainer, found: dict[str, dict], beside: dict[str, dict], near: float) -> bool:
    """Print the results beside those of one process.

    Returns:
        Whether the qualities are good, and no loss is further than ``near`` from the other one.
    """
    right = True
    for name, result in found.items():
        text = f"{name}: quality {result['quality']:.4f}, loss {result['losses'][-1]:.4f}"
        right &= bool(result["good"])
        if name in beside:
            other = beside[name]
            text += f"; of one process {other['quality']:.4f} and {other['losses'][-1]:.4f}"
            right &= abs(result["losses"][-1] - other["losses"][-1]) < near
        say(trainer, text)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--clicks", type=int, default=600_000, help="samples to train on")
    parser.add_argument("--words", type=int, default=1_000_000, help="words of text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="compare with these results")
    options = parser.parse_args()

    torch.set_num_threads(1)  # the ranks share the cores
    if os.environ.get("PADDLEMPI_ROLES"):
        ps.init(mode=options.mode)  # serves in a rank that only serves, and ends it
        trainer: Trainer = OnServers(options.mode)
        say(trainer, f"{trainer.size} trainers, {len(ps.pservers())} servers, {options.mode}")
    else:
        trainer = Alone()
        say(trainer, "1 process")
    found = {name: TASKS[name](trainer, options) for name in options.tasks}
    for line in trainer.report():
        say(trainer, line)
    beside = json.loads(options.beside.read_text()) if options.beside else {}
    right = check(trainer, found, beside, near=0.01 if options.mode == "sync" else 0.2)
    if options.out and trainer.rank == 0:
        options.out.write_text(json.dumps(found))
    if isinstance(trainer, OnServers):
        ps.shutdown()
    if not right:
        sys.exit(1)


if __name__ == "__main__":
    main()
