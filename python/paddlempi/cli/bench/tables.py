"""Measures tables of embeddings in one process, on one thread: ``python -m paddlempi bench ps``.

Batches are of ids with a Zipf distribution (exponent 1.05), whose ranks are spread over the ids at
random. Contenders take turns in random order. The gradients lie ready, and autograd is left out
where that is possible: torch's optimizer gets a sparse tensor of the ids and gradients. fbgemm
updates in its backward, which is called for an output that its forward has made before.

Times are the processor time of the whole process, which other programs disturb less than the clock
on the wall. All contenders compute on one thread, so it also counts what helpers do.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import __version__, _native
from ...errors import ArgumentError
from .collectives import AGAIN, LEAST_ROUNDS, OURS, WrongResultError
from .figures import Quartiles, quantile, quartiles, ratio_differs, ratios
from .sampling import shuffled

__all__ = ["RATE", "WARM", "Batches", "Row", "line", "moved_right", "run", "summary"]

BAG, TBE = "EmbeddingBag", "fbgemm TBE"
LOOKUP, SGD, ADAGRAD = "lookup", "sgd", "row-wise adagrad"
RATE, EPSILON = 0.01, 1e-8
BATCHES = 4  # in turn
WARM = 2


@dataclass(frozen=True)
class Row:
    """The figures of one contender.

    Attributes:
        least_us, p50_us: of the times of single calls.
        ratio: quartiles of its times divided by paddlempi's of the same rounds; None for paddlempi.
        least_ratio: its shortest time by paddlempi's shortest, which a busy machine disturbs least.
        differs: whether the two differ (:func:`~.figures.ratio_differs`); None for paddlempi, its
            control, and fewer than ten rounds.
    """

    dim: int
    batch: int
    unique: int
    what: str
    contender: str
    rounds: int
    least_us: float
    p50_us: float
    ratio: Quartiles | None
    least_ratio: float | None
    differs: bool | None

    def record(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self) | {"ratio": None if self.ratio is None else list(self.ratio)}


class Contender:
    """One implementation: ``lookup`` and the updates return functions of the number of a batch.

    ``begin`` is called before each call of an update, and its time does not count.
    """

    def __init__(self, lookup: Callable[[int], Any]) -> None:
        self.lookup = lookup
        self.updates: dict[str, Callable[[int], Any]] = {}
        self.begin: dict[str, Callable[[int], Any]] = {}
        self.lookups: dict[str, Callable[[int], Any]] = {}
        """The lookup in the table that an update changes."""
        self.bytes_of_a_row: dict[str, float] = {}


def run(chosen: Namespace) -> int:
    """Measure tables; print the figures. Return 0, or 1 after an error."""
    try:
        if chosen.json and not Path(chosen.json).parent.is_dir():
            raise ArgumentError(f"bench: {chosen.json}: there is no folder for it")
        _measure(chosen)
    except (ArgumentError, WrongResultError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def _measure(chosen: Namespace) -> None:
    import numpy as np

    absent: dict[str, str] = {}
    torch = _optional("torch", absent, BAG)
    fbgemm = _optional("fbgemm_gpu", absent, TBE) if torch else None
    if torch:
        torch.set_num_threads(1)
    core = _native.control("info")
    found = {
        "paddlempi": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": core["cpus"],
        "kernels": core["kernels"],
        "torch": getattr(torch, "__version__", None),
        "fbgemm": getattr(fbgemm, "__version__", None),
    }
    print(
        f"# paddlempi {__version__}, {core['kernels']}, processor time of one thread; "
        f"Zipf ids over {chosen.rows}; "
        f"torch {found['torch']}, fbgemm {found['fbgemm']}"
    )
    for name, reason in absent.items():
        print(f"not measured: {name}: {reason}")
    print(
        f"{'dim':>5} {'ids':>6} {'unique':>6} {'':<16} {'contender':<16} {'least us':>10} "
        f"{'p50 us':>10}  time : paddlempi's, of the least, median (quartiles)",
        flush=True,
    )
    rows: list[Row] = []
    sizes: list[dict[str, Any]] = []
    for dim in chosen.dims:
        generator = np.random.default_rng(dim)
        table = Batches(np, generator, chosen.rows, dim, max(chosen.batches))
        contenders: dict[str, Contender] = {OURS: _ours(table)}
        if torch:
            contenders[BAG] = _bag(torch, table)
        if fbgemm:
            contenders[TBE] = _tbe(torch, table)
        for batch in chosen.batches:
            table.draw(batch)
            for name, contender in contenders.items():
                _check(np, name, contender, table)
            for what in (LOOKUP, SGD, ADAGRAD):
                measured = list(_cell(what, contenders, table, chosen.rounds))
                rows += measured
                print(*map(line, measured), sep="\n", flush=True)
        for what, size in contenders[OURS].bytes_of_a_row.items():
            print(f"{dim:>4} {what}: {size:.1f} bytes a row")
            sizes.append({"dim": dim, "optimizer": what, "bytes": size})
    if chosen.json:
        options = {k: getattr(chosen, k) for k in ("dims", "batches", "rows", "rounds")}
        record = {**found, "options": options, "rows": [row.record() for row in rows]}
        record |= {"bytes_of_a_row": sizes, "not_measured": absent}
        Path(chosen.json).write_text(json.dumps(record, indent=1))


def _optional(module: str, absent: dict[str, str], contender: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:  # a library that does not fit this torch raises anything
        absent[contender] = f"import {module}: {error}"
        return None


class Batches:
    """The ids and gradients of the present size of a batch."""

    def __init__(self, np: Any, generator: Any, rows: int, dim: int, most: int) -> None:
        self.np, self.rows, self.dim = np, rows, dim
        weights = 1 / np.arange(1, rows + 1) ** 1.05
        self._sums = np.cumsum(weights / weights.sum())
        self._of_rank = generator.permutation(rows)
        self._generator = generator
        self.gradients = generator.normal(size=(most, dim)).astype(np.float32)
        self.ids: list[Any] = []
        self.batch = 0

    def draw(self, batch: int) -> None:
        """Draw the batches of ids."""
        np, self.batch = self.np, batch
        self.ids = []
        for _ in range(BATCHES):
            rank = np.searchsorted(self._sums, self._generator.random(batch))
            self.ids.append(self._of_rank[np.minimum(rank, self.rows - 1)].astype(np.int64))

    def ids_of(self, round_: int) -> Any:
        return self.ids[round_ % BATCHES]

    def gradient(self) -> Any:
        return self.gradients[: self.batch]


def _ours(table: Batches) -> Contender:
    from ... import ps

    np = table.np
    tables = {
        SGD: ps.Table(table.dim, ps.SGD(RATE), ps.Uniform()),
        ADAGRAD: ps.Table(table.dim, ps.RowWiseAdagrad(RATE, epsilon=EPSILON), ps.Uniform()),
    }
    for one in tables.values():
        for begin in range(0, table.rows, 50_000):
            one.pull(np.arange(begin, min(begin + 50_000, table.rows)))
    out = np.empty((len(table.gradients), table.dim), np.float32)

    def pull(one: Any) -> Callable[[int], Any]:
        return lambda round_: one.pull(table.ids_of(round_), out[: table.batch])

    contender = Contender(pull(tables[SGD]))

    def push(one: Any) -> Callable[[int], Any]:
        return lambda round_: one.push(table.ids_of(round_), table.gradient())

    for what, one in tables.items():
        contender.lookups[what], contender.updates[what] = pull(one), push(one)
        contender.bytes_of_a_row[what] = one.bytes() / len(one)
    return contender


def _bag(torch: Any, table: Batches) -> Contender:
    bag = torch.nn.EmbeddingBag(table.rows, table.dim, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(bag.parameters(), RATE)

    def lookup(round_: int) -> Any:
        with torch.no_grad():
            return bag(torch.from_numpy(table.ids_of(round_)), torch.arange(table.batch))

    def begin(round_: int) -> None:
        bag.weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(table.ids_of(round_))[None],
            torch.from_numpy(table.gradient()),
            bag.weight.shape,
            check_invariants=False,
        )

    contender = Contender(lookup)
    contender.updates[SGD], contender.lookups[SGD] = lambda round_: optimizer.step(), lookup
    contender.begin[SGD] = begin
    return contender


def _tbe(torch: Any, table: Batches) -> Contender:
    ops = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")

    def make(optimizer: Any) -> Any:
        made = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(table.rows, table.dim, common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
            optimizer=optimizer,
            learning_rate=RATE,
            eps=EPSILON,
            pooling_mode=common.PoolingMode.SUM,  # of bags of one id: faster than no pooling
        )
        made.init_embedding_weights_uniform(-0.05, 0.05)
        return made

    modules = {
        SGD: make(ops.OptimType.EXACT_SGD),
        ADAGRAD: make(ops.OptimType.EXACT_ROWWISE_ADAGRAD),
    }
    outputs: dict[str, Any] = {}

    def forward(what: str) -> Callable[[int], Any]:
        def call(round_: int) -> Any:
            ids = torch.from_numpy(table.ids_of(round_))
            return modules[what](ids, torch.arange(table.batch + 1))

        return call

    def lookup(what: str) -> Callable[[int], Any]:
        def call(round_: int) -> Any:
            with torch.no_grad():
                return forward(what)(round_)

        return call

    def begin(what: str) -> Callable[[int], Any]:
        return lambda round_: outputs.update({what: forward(what)(round_)})

    def update(what: str) -> Callable[[int], Any]:
        return lambda round_: outputs[what].backward(torch.from_numpy(table.gradient()))

    contender = Contender(lookup(SGD))
    for what in modules:
        contender.lookups[what] = lookup(what)
        contender.begin[what], contender.updates[what] = begin(what), update(what)
    return contender


def _nothing(round_: int) -> None:
    """What most contenders do before a call."""


def _check(np: Any, name: str, contender: Contender, table: Batches) -> None:
    """Compare the rows after one update with a formula, in float64; Adagrad's sums are unknown."""
    for what, lookup in contender.lookups.items():
        before = np.array(lookup(0), np.float64)
        contender.begin.get(what, _nothing)(0)
        contender.updates[what](0)
        moved = np.array(lookup(0), np.float64) - before
        if not moved_right(np, table, moved, what == ADAGRAD):
            raise WrongResultError(f"bench: {name}, {what}, dim {table.dim}: the rows are wrong")


def moved_right(np: Any, table: Batches, moved: Any, adagrad: bool = False) -> bool:
    """Whether an update with the first batch has moved the rows of its ids as it should."""
    unique, place = np.unique(table.ids[0], return_inverse=True)
    sums = np.zeros((len(unique), table.dim))
    np.add.at(sums, place, table.gradient())
    step = -RATE * sums[place]
    if not adagrad:
        return bool(np.allclose(moved, step, rtol=1e-3, atol=1e-4))
    length = np.linalg.norm(moved, axis=1)  # at most the learning rate's; the direction is known
    most = RATE * table.dim**0.5 * (1 + 1e-3) + 1e-6
    right = (length <= most).all() and (length > 0).all()
    cosine = (moved * step).sum(1) / length / np.linalg.norm(step, axis=1)
    return bool(right and cosine.min() > 0.99)


def _cell(
    what: str, contenders: dict[str, Contender], table: Batches, rounds: int
) -> Iterator[Row]:
    calls: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {}
    for name, contender in contenders.items():
        if what == LOOKUP:
            calls[name] = contender.lookup, _nothing
        elif what in contender.updates:
            begin = contender.begin.get(what, _nothing)
            calls[name] = contender.updates[what], begin
    calls[AGAIN] = calls[OURS]
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(-WARM, rounds):
        for name in shuffled(list(calls), round_ + WARM):
            call, begin = calls[name]
            begin(round_)
            before = time.process_time_ns()
            call(round_)
            took = time.process_time_ns() - before
            if round_ >= 0:
                times[name].append(took / 1e3)
    unique = len(table.np.unique(table.ids[0]))
    return summary(table.dim, table.batch, unique, what, times)


def summary(
    dim: int, batch: int, unique: int, what: str, times: dict[str, list[float]]
) -> Iterator[Row]:
    """Yield the rows of times in us, which have one time for each contender and round."""
    ours = times[OURS]
    control = quartiles(ratios(times[AGAIN], ours))
    for name, mine in times.items():
        ratio = None if name == OURS else quartiles(ratios(mine, ours))
        compared = name not in (OURS, AGAIN) and len(ours) >= LEAST_ROUNDS
        yield Row(
            dim=dim,
            batch=batch,
            unique=unique,
            what=what,
            contender=name,
            rounds=len(mine),
            least_us=min(mine),
            p50_us=quantile(mine, 0.5),
            ratio=ratio,
            least_ratio=None if ratio is None else min(mine) / min(ours),
            differs=ratio_differs(ratio, control) if ratio and compared else None,
        )


def line(row: Row) -> str:
    """Return the line of a row."""
    text = (
        f"{row.dim:>5} {row.batch:>6} {row.unique:>6} {row.what:<16} {row.contender:<16} "
        f"{row.least_us:>10.1f} {row.p50_us:>10.1f}"
    )
    if row.ratio is not None:
        text += f"  {row.least_ratio:.2f}, {row.ratio.show()}"
    if row.contender == AGAIN:
        text += "  the control"
    elif row.differs is False:
        text += "  no difference"
    return text
