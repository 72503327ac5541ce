"""A neural language model on the words of Python's sources: of one process, and of many.

    python examples/train_ps_words.py --out alone.json
    mpirun -np 5 python -m paddlempi run --roles trainer:2,pserver:2,master:1 \\
        examples/train_ps_words.py --beside alone.json

The model is that of Bengio et al. (2003), in Paddle: the vectors of four words go through a layer
and a softmax over all words, which says what the fifth is. The vectors are rows of a table on the
servers, and the softmax's weights are blocks there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import paddle
import ps_data
from paddlempi import ps
from ps_program import Arrays, Course, batches, options_of

WORDS, BEFORE, DIM, HIDDEN = 2000, 4, 32, 64
BATCH, SHARD, SHARDS = 256, 512, 320
NEAR = 0.03  # of the loss, in nats


class NextWord(paddle.nn.Layer):
    """The logits of the next word, by the words before it."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = paddle.nn.Embedding(WORDS, DIM, sparse=True)
        self.hidden = paddle.nn.Linear(BEFORE * DIM, HIDDEN)
        self.words = paddle.nn.Linear(HIDDEN, WORDS)

    def forward(self, before: paddle.Tensor) -> paddle.Tensor:
        return self.words(paddle.tanh(self.hidden(self.vectors(before).flatten(1))))


def samples(text: np.ndarray, places: range) -> Arrays:
    """Return the words before some places of a text, int64, [n, 4], and the words there, [n]."""
    at = np.asarray(places)
    return text[at[:, None] + np.arange(-BEFORE, 0)], text[at]


def main(arguments: Sequence[str] | None = None) -> bool:
    options = options_of(__doc__, SHARDS, NEAR, arguments)
    paddle.seed(0)
    model = NextWord()
    optimizer = paddle.optimizer.Adagrad(0.1, parameters=model.parameters())
    order = np.random.default_rng(0).permutation(options.shards + 16)  # neighbours are much alike
    places = [range(BEFORE + k * SHARD, BEFORE + (k + 1) * SHARD) for k in order.tolist()]
    shards, tests = places[:-16], places[-16:]

    if options.roles:  # these lines make it a program of trainers and servers
        mode = {"mode": options.mode, "geo_step": options.geo_step}
        plan = ps.transpile(model, optimizer, options.roles, **mode)
        model, optimizer = plan.model, plan.optimizer
        shards = ps.tasks(shards)

    end = BEFORE + len(places) * SHARD
    text = ps_data.Text(2 * end, WORDS).text
    assert len(text) >= end, f"Python's sources have {len(text)} words, and not {end}"
    parts = zip(*(samples(text, places) for places in tests), strict=True)
    before, words = map(paddle.to_tensor, map(np.concatenate, parts))

    @paddle.no_grad()
    def loss() -> float:
        return float(paddle.nn.functional.cross_entropy(model(before), words))

    course = Course("loss", loss, options, options.shards * SHARD // BATCH)
    for batch in batches(shards, partial(samples, text), BATCH, options.trainers):
        before_, words_ = map(paddle.to_tensor, batch)
        paddle.nn.functional.cross_entropy(model(before_), words_).backward()
        optimizer.step()
        optimizer.clear_grad()
        course.step()
    right = course.end(higher_is_better=False)
    if course.first:
        shares = np.bincount(text[:end], minlength=WORDS) + 1
        alone = -np.log(shares / shares.sum())[words.numpy()].mean()
        print(f"loss of the words' frequencies: {alone:.4f}", flush=True)
    if options.roles:
        ps.shutdown()
    return right


if __name__ == "__main__":
    sys.exit(not main())
