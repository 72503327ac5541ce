"""A small language model with sparse embeddings, data-parallel over MPI with Paddle.

    mpirun -np 2 python examples/train_language.py
    mpirun -np 2 python examples/train_language.py --zero 1   # each optimizer state on one rank
    mpirun -np 2 python examples/train_language.py --zero 2   # gradients too; no sparse ones

The text is the docstrings of scikit-learn. From four words the model guesses the next
(Bengio et al., "A Neural Probabilistic Language Model", 2003). A step uses few rows of
the embedding, and only the gradients of these rows are sent.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import json
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore", message="No ccache found")  # from Paddle; harmless here
import paddle  # noqa: E402
import paddlempi as dist  # noqa: E402
import sklearn  # noqa: E402

CONTEXT = 4
FOLDERS = ("cluster", "ensemble", "linear_model", "metrics", "neighbors", "svm", "tree")


def text() -> list[str]:
    """Return the words of the docstrings of some packages of scikit-learn, in lower case."""
    words: list[str] = []
    for folder in FOLDERS:
        for path in sorted((Path(sklearn.__file__).parent / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    words += re.findall(r"[a-z]+|[.,:;()]", (ast.get_docstring(node) or "").lower())
    return words


def examples(words: list[str], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every four words in a row, and the word that follows; as numbers, 0: a rare word."""
    common = [word for word, _ in collections.Counter(words).most_common(size - 1)]
    number = {word: i for i, word in enumerate(common, 1)}
    ids = np.array([number.get(word, 0) for word in words])
    return np.stack([ids[i : len(ids) - CONTEXT + i] for i in range(CONTEXT)], 1), ids[CONTEXT:]


class Model(paddle.nn.Layer):
    def __init__(self, vocabulary: int, sparse: bool, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(vocabulary, width, sparse=sparse)
        self.hidden = paddle.nn.Linear(CONTEXT * width, hidden)
        self.output = paddle.nn.Linear(hidden, vocabulary)

    def forward(self, words: paddle.Tensor) -> paddle.Tensor:
        return self.output(paddle.tanh(self.hidden(self.embedding(words).flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=240, help="words a step, over all ranks")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--zero", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--losses", metavar="FILE", help="write the losses as JSON")
    options = parser.parse_args()

    dist.init_process_group("mpi", framework="paddle")
    rank, size = dist.get_rank(), dist.get_world_size()
    contexts, targets = examples(text(), options.vocabulary)
    paddle.seed(1)
    model = Model(options.vocabulary, sparse=options.zero < 2)
    if options.zero < 2:  # at level 2 the optimizer reduces every gradient to its owner
        model = paddle.DataParallel(model)
    dist.get_context().zero_opt_level = options.zero
    optimizer = paddle.optimizer.Adam(options.lr, parameters=model.parameters(), lazy_mode=True)
    loss_of = paddle.nn.CrossEntropyLoss()
    if rank == 0:
        print(f"{size} rank(s), {len(targets)} words of text", flush=True)

    curve: list[float] = []
    began = time.perf_counter()
    random = np.random.default_rng(0)
    for step in range(options.steps):
        # All ranks draw the same numbers, and each rank takes its part of them.
        chosen = random.integers(0, len(targets), options.batch)[rank::size]
        loss = loss_of(model(paddle.to_tensor(contexts[chosen])), paddle.to_tensor(targets[chosen]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        total = np.array([float(loss)])
        dist.all_reduce(total, dist.ReduceOp.AVG)
        curve.append(float(total[0]))
        if rank == 0 and (step + 1) % 50 == 0:
            speed = (step + 1) * options.batch / (time.perf_counter() - began)
            perplexity = np.exp(np.mean(curve[-50:]))
            print(
                f"step {step + 1:4d}  perplexity {perplexity:7.1f}  {speed:7.0f} words/s",
                flush=True,
            )

    bits = hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest()
    hashes: list[str] = [""] * size
    dist.all_gather_object(hashes, bits)
    equal = len(set(hashes)) == 1
    # The perplexity of a model that knows the frequencies of the words only.
    frequency = np.bincount(targets, minlength=options.vocabulary) / len(targets)
    baseline = np.exp(-(frequency[frequency > 0] * np.log(frequency[frequency > 0])).sum())
    reached = np.exp(np.mean(curve[-50:]))
    if rank == 0:
        print(f"perplexity {reached:.1f}, of the words' frequencies alone {baseline:.1f}")
        print(f"parameters equal bit for bit on all {size} ranks: {'yes' if equal else 'NO'}")
        if options.losses:
            Path(options.losses).write_text(json.dumps(curve))
    dist.destroy_process_group()
    if not equal or reached > baseline:
        sys.exit(1)


if __name__ == "__main__":
    main()
