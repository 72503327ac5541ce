"""``--level table``: tables of embeddings in one process, on one thread.

The gradients lie ready, and autograd is left out where that is possible: torch's optimizer gets a
sparse tensor of the ids and gradients. fbgemm updates in its backward, which is called for an
output that its forward has made before.

Times are the processor time of the whole process, which other programs disturb less than the clock
on the wall. All contenders compute on one thread, so it also counts what helpers do.
"""

from __future__ import annotations

import importlib
import time
import warnings
from argparse import Namespace
from typing import Any

from ..collectives import OURS, WrongResultError
from .batches import RATE, Batches, moved_right
from .findings import Findings
from .measured import Call, Turn, summary, take_turns

__all__ = ["measure"]

BAG, TBE = "EmbeddingBag", "fbgemm TBE"
LOOKUP, SGD, ADAGRAD = "lookup", "sgd", "row-wise adagrad"
EPSILON = 1e-8


class Contender:
    """One implementation: ``lookup`` and the updates are functions of the number of a batch.

    ``begin`` is called before each call of an update, and its time does not count.
    """

    def __init__(self, lookup: Call) -> None:
        self.lookup = lookup
        self.updates: dict[str, Call] = {}
        self.begin: dict[str, Call] = {}
        self.lookups: dict[str, Call] = {}
        """The lookup in the table that an update changes."""
        self.bytes_of_a_row: dict[str, float] = {}

    def turn(self, what: str) -> Turn:
        """Return what it does in a round; its updates do not have ``what`` if it cannot."""
        if what == LOOKUP:
            return Turn({what: self.lookup})
        call = {what: self.updates[what]}
        return Turn(call, self.begin[what]) if what in self.begin else Turn(call)


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure tables."""
    import numpy as np

    torch = _optional("torch", findings, BAG)
    fbgemm = _optional("fbgemm_gpu", findings, TBE) if torch else None
    if torch is None:
        findings.absent(TBE, "there is no torch")
    else:
        torch.set_num_threads(1)
    findings.about["torch"] = getattr(torch, "__version__", None)
    findings.about["fbgemm"] = getattr(fbgemm, "__version__", None)
    findings.say(
        f"# processor time of one thread; Zipf ids over {chosen.rows}; "
        f"torch {findings.about['torch']}, fbgemm {findings.about['fbgemm']}"
    )
    sizes = findings.more["bytes_of_a_row"] = []
    for dim in chosen.dims:
        batches = Batches(np, dim, chosen.rows, dim, max(chosen.batches))
        contenders = {OURS: _ours(batches)}
        if torch:
            contenders[BAG] = _bag(torch, batches)
        if fbgemm:
            contenders[TBE] = _tbe(torch, batches)
        for batch in chosen.batches:
            batches.draw(batch)
            for name, contender in contenders.items():
                _check(name, contender, batches)
            for what in (LOOKUP, SGD, ADAGRAD):
                able = {n: c for n, c in contenders.items() if what in (LOOKUP, *c.updates)}
                turns = {name: contender.turn(what) for name, contender in able.items()}
                show = findings.watch(batches.case(), what)
                times = take_turns(turns, chosen.rounds, time.process_time_ns, show)
                findings.add(summary(batches.case(), what, times[what]))
        for what, size in contenders[OURS].bytes_of_a_row.items():
            findings.say(f"{dim:>4} {what}: {size:.1f} bytes a row")
            sizes.append({"dim": dim, "optimizer": what, "bytes": size})


def _optional(module: str, findings: Findings, contender: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:  # a library that does not fit this torch raises anything
        findings.absent(contender, f"import {module}: {error}")
        return None


def _ours(batches: Batches) -> Contender:
    from .... import ps

    np = batches.np
    tables = {
        SGD: ps.Table(batches.dim, ps.SGD(RATE), ps.Uniform()),
        ADAGRAD: ps.Table(batches.dim, ps.RowWiseAdagrad(RATE, epsilon=EPSILON), ps.Uniform()),
    }
    for one in tables.values():
        for begin in range(0, batches.rows, 50_000):
            one.pull(np.arange(begin, min(begin + 50_000, batches.rows)))
    out = np.empty((len(batches.gradients), batches.dim), np.float32)

    def pull(one: Any) -> Call:
        return lambda round_: one.pull(batches.ids_of(round_), out[: batches.batch])

    contender = Contender(pull(tables[SGD]))

    def push(one: Any) -> Call:
        return lambda round_: one.push(batches.ids_of(round_), batches.gradient())

    for what, one in tables.items():
        contender.lookups[what], contender.updates[what] = pull(one), push(one)
        contender.bytes_of_a_row[what] = one.bytes() / len(one)
    return contender


def _bag(torch: Any, batches: Batches) -> Contender:
    bag = torch.nn.EmbeddingBag(batches.rows, batches.dim, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(bag.parameters(), RATE)

    def lookup(round_: int) -> Any:
        with torch.no_grad():
            return bag(torch.from_numpy(batches.ids_of(round_)), torch.arange(batches.batch))

    def begin(round_: int) -> None:
        bag.weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(batches.ids_of(round_))[None],
            torch.from_numpy(batches.gradient()),
            bag.weight.shape,
            check_invariants=False,
        )

    contender = Contender(lookup)
    contender.updates[SGD], contender.lookups[SGD] = lambda round_: optimizer.step(), lookup
    contender.begin[SGD] = begin
    return contender


def _tbe(torch: Any, batches: Batches) -> Contender:
    ops = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")

    def make(optimizer: Any) -> Any:
        made = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(batches.rows, batches.dim, common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
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

    def forward(what: str) -> Call:
        def call(round_: int) -> Any:
            ids = torch.from_numpy(batches.ids_of(round_))
            return modules[what](ids, torch.arange(batches.batch + 1))

        return call

    def lookup(what: str) -> Call:
        def call(round_: int) -> Any:
            with torch.no_grad():
                return forward(what)(round_)

        return call

    def begin(what: str) -> Call:
        return lambda round_: outputs.update({what: forward(what)(round_)})

    def update(what: str) -> Call:
        return lambda round_: outputs[what].backward(torch.from_numpy(batches.gradient()))

    contender = Contender(lookup(SGD))
    for what in modules:
        contender.lookups[what] = lookup(what)
        contender.begin[what], contender.updates[what] = begin(what), update(what)
    return contender


def _check(name: str, contender: Contender, batches: Batches) -> None:
    """Compare the rows after one update with a formula, in float64; Adagrad's sums are unknown."""
    np = batches.np
    for what, lookup in contender.lookups.items():
        before = np.array(lookup(0), np.float64)
        contender.turn(what).begin(0)
        contender.updates[what](0)
        moved = np.array(lookup(0), np.float64) - before
        if not moved_right(batches, moved, what == ADAGRAD):
            raise WrongResultError(f"bench: {name}, {what}, dim {batches.dim}: the rows are wrong")
