"""``--level model``: training steps of one model on two ranks, against TorchRec.

Every rank trains and has half of all rows. The model has ``FEATURES`` embeddings of ``--rows`` rows
in all, and an MLP behind them; a step is the forward, the backward and the update, with SGD.
TorchRec has an EmbeddingCollection with row-wise shards. Contenders begin with the same values and
get the same samples, so their losses must be the same. A time is that of the slower rank.
"""

from __future__ import annotations

import importlib
import time
import warnings
from argparse import Namespace
from typing import Any

from .... import collectives, group, ps
from ..collectives import AGAIN, OURS, WrongResultError, of_all_ranks
from ..contenders import front
from ..sampling import shuffled, slowest
from .findings import Findings
from .measured import WARM, Row, summary
from .rivals import of_all

__all__ = ["measure"]

FEATURES = 8
GLOO, OVER_US = "TorchRec, gloo", "TorchRec, paddlempi"
CLOSE = 1e-3  # how far two losses may be apart, relatively


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure ``--rounds`` steps of ``--batches`` ids on each rank. Collective over two ranks."""
    front("torch")
    warnings.filterwarnings("ignore", category=FutureWarning)  # TorchRec's, of torch
    from ....torch import bench_model

    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    findings.about["torch"] = torch.__version__
    findings.say(f"# torch {torch.__version__}, {FEATURES} features, {chosen.rows} rows in all")
    ps.init("trainer+pserver:2", timeout=chosen.timeout)
    try:
        losses = findings.more["losses"] = []
        for dim in chosen.dims:
            model = bench_model.Model(FEATURES, max(1, chosen.rows // FEATURES), dim)
            steps = _made(model, f"bench {dim}", findings)
            for batch in chosen.batches:
                samples = max(1, batch // FEATURES)
                rows, of_each = _compare(model, steps, samples, chosen.rounds)
                findings.add(rows)
                losses.append({"dim": dim, "samples": samples, "losses": of_each})
                for row in rows:
                    mean = sum(of_each[row.contender]) / len(of_each[row.contender])
                    rate = 1e6 * samples * group.get_world_size() / row.p50_us
                    findings.say(
                        f"{row.contender:>24}: {rate:,.0f} samples/s, mean loss {mean:.5f}"
                    )
    finally:
        ps.shutdown()


def _made(model: Any, name: str, findings: Findings) -> dict[str, Any]:
    """Return the contenders that can be made. Collective."""
    steps = {OURS: model.ours(name)}
    for contender, backend in ((GLOO, "gloo"), (OVER_US, "mpi")):
        made, reason = of_all(lambda backend=backend: model.torchrec(backend, name))  # type: ignore[misc]
        if reason:
            findings.absent(contender, reason)
        else:
            steps[contender] = made
    steps[AGAIN] = model.ours(f"{name} again")
    return steps


def _compare(
    model: Any, steps: dict[str, Any], samples: int, rounds: int
) -> tuple[list[Row], dict[str, list[float]]]:
    """Return the figures of the steps, and the losses by contender; a loss is that of rank 0."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(-WARM, rounds):
        given = model.samples(round_ + WARM, samples, group.get_rank())
        for name in shuffled(list(steps), round_ + WARM):
            ready = steps[name].ready(given)
            collectives.barrier()
            before = time.perf_counter_ns()
            loss = steps[name].step(ready)
            took = time.perf_counter_ns() - before
            losses[name].append(loss)
            if round_ >= 0:
                times[name].append(took / 1e3)
    slow = {name: slowest(mine) for name, mine in times.items()}
    wrong = [name for name in steps if not _close(losses[name], losses[OURS])]
    for name in filter(None, of_all_ranks(",".join(wrong))):
        raise WrongResultError(f"bench: {name}, dim {model.dim}: the losses differ from {OURS}'s")
    case = {"dim": model.dim, "samples": samples}
    return list(summary(case, "step", slow)), losses


def _close(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) <= CLOSE * abs(b) for a, b in zip(one, other, strict=True))
