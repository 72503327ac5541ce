"""A table of embeddings that exists once in the job, and that all ranks read.

    mpirun -np 4 python examples/window_embedding.py

Every rank has a part of the table's rows in a window. Sentences are lists of words, which occur as
often as words of a language do (Zipf). A rank embeds its part of the sentences, each as the mean of
its words' rows. It reads the rows where they lie, and the ranks that have them do nothing for it.
It keeps the rows that it has read.

Rank 0 compares the result with that of one process that has the whole table.
"""

import argparse
import sys
import time

import numpy as np
import paddlempi as dist


def rows_of(words: range, dim: int) -> np.ndarray:
    """Return the rows of some words, the same wherever they are computed."""
    return np.stack(
        [np.random.default_rng(word).standard_normal(dim, np.float32) for word in words]
    )


def sentences_of(count: int, length: int, words: int) -> np.ndarray:
    """Return the words of all sentences, the same on every rank."""
    return (np.random.default_rng(1).zipf(1.3, (count, length)) - 1) % words


class Table:
    """Reads rows of a table that is spread over the ranks, and keeps them.

    Args:
        words: the number of rows.
        dim: their length.
    """

    def __init__(self, words: int, dim: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.dim = dim
        self.first = [words * i // size for i in range(size + 1)]
        own = range(self.first[rank], self.first[rank + 1])
        self.window = dist.Window((len(own), dim))
        self.window.local[...] = rows_of(own, dim)
        self.window.fence()  # all parts are there
        self.kept: dict[int, np.ndarray] = {}

    def row(self, word: int) -> np.ndarray:
        row = self.kept.get(word)
        if row is None:
            owner = int(np.searchsorted(self.first, word, "right")) - 1
            row = self.kept[word] = self.window[owner][word - self.first[owner]].get()
        return row

    def embed(self, sentence: np.ndarray) -> np.ndarray:
        return np.mean([self.row(int(word)) for word in sentence], axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=2_000)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    sentences = sentences_of(options.sentences, 12, options.words)
    table = Table(options.words, options.dim)
    part = slice(len(sentences) * rank // size, len(sentences) * (rank + 1) // size)
    began = time.perf_counter()
    mine = np.stack([table.embed(sentence) for sentence in sentences[part]])
    seconds = time.perf_counter() - began
    everyone: list[tuple[np.ndarray, int, float]] = [(mine, 0, 0.0)] * size
    dist.all_gather_object(everyone, (mine, len(table.kept), seconds))
    equal = True
    if rank == 0:
        found = np.concatenate([vectors for vectors, _, _ in everyone])
        whole = rows_of(range(options.words), options.dim)
        equal = np.array_equal(found, np.stack([np.mean(whole[s], axis=0) for s in sentences]))
        row = 4 * options.dim
        for number, (_, read, spent) in enumerate(everyone):
            has = table.first[number + 1] - table.first[number]
            print(
                f"rank {number}: {has * row / 1e6:.1f} of {options.words * row / 1e6:.1f} MB, "
                f"read {read} rows in {spent:.2f} s"
            )
        print(f"the sentences equal those of one process: {'yes' if equal else 'NO'}")
    table.window.free()
    dist.destroy_process_group()
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
