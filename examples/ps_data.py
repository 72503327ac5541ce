"""The data of the programs train_ps*.py: planted clicks and ratings, scikit-learn's tumours, words.

The words are those of Python's own sources. What is planted is known: how likely each click is, and
what each rating would be without noise. So is the quality that nobody can beat.
"""

from __future__ import annotations

import collections
import itertools
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Fields of a click, and how many ids each has; their frequencies fall as those of words do.
FIELDS = {"user": 200_000, "item": 100_000, "query": 50_000, "site": 1000, "device": 50, "hour": 24}
EXPONENT = 1.1
NUMBERS = 4  # of a click, beside its ids
_SPREAD = 0x9E3779B97F4A7C15  # odd, so different ids stay different


@dataclass
class Samples:
    """Samples of a binary classification.

    Attributes:
        ids: int64, [n, fields]: any numbers, some of them negative.
        numbers: float32, [n, m].
        labels: float32, [n]: 0 or 1.
        best: scores that nobody can beat, [n]; None if they are not known.
    """

    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray
    best: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, chosen: slice | np.ndarray) -> Samples:
        best = None if self.best is None else self.best[chosen]
        return Samples(self.ids[chosen], self.numbers[chosen], self.labels[chosen], best)


def _ids(field: int, numbers: np.ndarray) -> np.ndarray:
    """Return ids that no other field has, all over the int64."""
    wide = numbers.astype(np.uint64) * np.uint64(len(FIELDS) + 64) + np.uint64(field)
    return (wide * np.uint64(_SPREAD)).view(np.int64)


def _zipf(random: np.random.Generator, kinds: int, n: int) -> np.ndarray:
    """Return numbers from 1 to ``kinds``, of which k has a frequency of about k**-EXPONENT."""
    u = random.random(n)
    return ((1 - u * (1 - kinds ** (1 - EXPONENT))) ** (1 / (1 - EXPONENT))).astype(np.int64)


def _uniform(ids: np.ndarray, salt: int) -> np.ndarray:
    """Return a number from 0 to 1 for every id, always the same one (splitmix64)."""
    h = ids.view(np.uint64) + np.uint64(salt * _SPREAD % 2**64)
    h = (h ^ h >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ h >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((h ^ h >> np.uint64(31)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(ids: np.ndarray, salt: int) -> np.ndarray:
    """Return a normal number for every id, always the same one (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(1 - _uniform(ids, 2 * salt)))
    return radius * np.cos(2 * np.pi * _uniform(ids, 2 * salt + 1))


def clicks(n: int, seed: int) -> Samples:
    """Return clicks of which the probabilities are planted, the same for the same arguments.

    The logarithm of the odds is a sum: a weight of every id, the product of four hidden numbers of
    the user's and the item's ids, and a part for the numbers. No model can do better than the
    probabilities themselves.
    """
    random = np.random.default_rng(seed)
    ids = np.stack([_ids(f, _zipf(random, kinds, n)) for f, kinds in enumerate(FIELDS.values())], 1)
    numbers = random.standard_normal((n, NUMBERS)).astype(np.float32)
    user, item = np.ascontiguousarray(ids[:, 0]), np.ascontiguousarray(ids[:, 1])
    odds = -1.0 + numbers @ np.array([0.4, -0.3, 0.2, 0.0])
    for field in range(len(FIELDS)):
        odds += 0.5 * _normal(np.ascontiguousarray(ids[:, field]), 1)
    for hidden in range(4):
        odds += 0.4 * _normal(user, 10 + hidden) * _normal(item, 20 + hidden)
    labels = (random.random(n) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    return Samples(ids, numbers, labels, odds)


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return how often a sample with label 1 has a higher score than one with label 0."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal scores share their ranks
    ones = np.count_nonzero(labels)
    return float((ranks[labels != 0].sum() - ones * (ones + 1) / 2) / ones / (len(labels) - ones))


# Clicks with the shape of Criteo's: 13 counts and 26 ids, each field with numbers of its own from
# 0. Its fields with more ids are cut, so that the program ends in a minute.
COUNTS = 13
CARDINALITIES = (
    *(1460, 583, 20_000, 20_000, 305, 24, 12_517, 633, 3, 20_000, 5683, 20_000, 3194),
    *(27, 14_992, 20_000, 10, 5652, 2173, 4, 20_000, 18, 15, 20_000, 105, 20_000),
)


def advertising(shard: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return one shard of planted clicks, the same for the same arguments.

    The logarithm of the odds is a sum: a part for the logarithm of each count, a weight of each id,
    and the products of two hidden numbers of neighbouring fields' ids.

    Returns:
        The counts, float32, [n, 13]; the ids, int64, [n, 26]; the labels 0 or 1, float32, [n]; and
        the odds' logarithms, which are the scores that nobody can beat, [n].
    """
    random = np.random.default_rng([1, shard])
    logarithms = np.abs(random.normal(0, 1.5, (n, COUNTS)))
    counts = np.floor(np.expm1(logarithms)).astype(np.float32)
    ids = np.stack([_zipf(random, kinds + 1, n) - 1 for kinds in CARDINALITIES], 1)
    odds = -1.2 + (np.log1p(counts) - 0.9) @ (0.3 * np.cos(np.arange(COUNTS)))
    hidden = []
    for field in range(len(CARDINALITIES)):
        salted = ids[:, field] * 64 + field
        odds += 0.25 * _normal(salted, 1)
        hidden.append((_normal(salted, 2), _normal(salted, 3)))
    for one, other in itertools.pairwise(hidden):
        odds += 0.12 * (one[0] * other[0] + one[1] * other[1])
    labels = (random.random(n) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    return counts, ids, labels, odds


# Ratings: how many users and items there are, and the noise of a rating.
USERS, ITEMS, NOISE = 8000, 2000, 0.5


def ratings(shard: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one shard of planted ratings, the same for the same arguments.

    A rating is the sum of a mean, a part of the user's and one of the item's, the product of four
    hidden numbers of each, and noise. Nobody's error is less than the noise.

    Returns:
        The users and the items, int64, [n], of which items are as frequent as words; and the
        ratings, float32, [n].
    """
    random = np.random.default_rng([2, shard])
    users, items = random.integers(0, USERS, n), _zipf(random, ITEMS + 1, n) - 1
    found = 3.5 + 0.4 * _normal(users, 4) + 0.4 * _normal(items, 5) + random.normal(0, NOISE, n)
    for hidden in range(4):
        found += 0.4 * _normal(users, 6 + hidden) * _normal(items, 10 + hidden)
    return users, items, found.astype(np.float32)


def tumours() -> tuple[Samples, Samples]:
    """Return scikit-learn's breast cancers, for training and test; each number also as a decile."""
    from sklearn.datasets import load_breast_cancer  # which takes seconds

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    numbers = data.data[order].astype(np.float32)
    test = len(order) // 4
    mean, deviation = numbers[test:].mean(0), numbers[test:].std(0)
    deciles = np.quantile(numbers[test:], np.linspace(0.1, 0.9, 9), axis=0)
    ids = (numbers[:, None, :] > deciles[None]).sum(1)
    ids = np.stack([_ids(64 + f, ids[:, f]) for f in range(ids.shape[1])], 1)
    labels = data.target[order].astype(np.float32)
    samples = Samples(ids, (numbers - mean) / deviation, labels)
    return samples.part(slice(test, None)), samples.part(slice(test))


class Text:
    """The words of the sources and documentation strings of Python's standard library.

    Attributes:
        words: the words by their numbers, the most frequent first.
        counts: how often each appears.
        text: the numbers of the words in order; rare words are left out.
    """

    def __init__(self, most: int, vocabulary: int) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
        found: list[str] = []
        for path in sorted(library.rglob("*.py")):
            if left_out.isdisjoint(path.relative_to(library).parts) and len(found) < most:
                text = path.read_text(encoding="utf-8", errors="replace").lower()
                found += re.findall(r"[a-z]{2,}", text)
        del found[most:]
        common = collections.Counter(found).most_common(vocabulary)
        self.words = [word for word, _ in common]
        self.counts = np.array([count for _, count in common])
        self.number = {word: i for i, word in enumerate(self.words)}
        self.text = np.array([self.number[w] for w in found if w in self.number], np.int64)

    def pairs(self, window: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return words and words near them, in random order; few of the most frequent words."""
        random = np.random.default_rng(seed)
        share = self.counts[self.text] / len(self.text)
        text = self.text[random.random(len(share)) < np.sqrt(1e-4 / share)]
        near = [(text[d:], text[:-d]) for d in range(1, window + 1)]
        centres = np.concatenate([side for a, b in near for side in (a, b)])
        contexts = np.concatenate([side for a, b in near for side in (b, a)])
        order = random.permutation(len(centres))
        return centres[order], contexts[order]

    def drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return random words, with a frequency of the power 3/4 of theirs, as in word2vec."""
        weights = np.cumsum(self.counts**0.75)
        return np.searchsorted(weights / weights[-1], random.random(shape), side="right")
