"""``bench inference``: tokens a second of a model that is cut over the ranks."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ... import collectives, group, objects
from ...errors import ArgumentError, Error
from . import contenders, tool
from .collectives import OURS, WrongResultError
from .figures import Quartiles, quartiles, ratios
from .report import Bar, counted, environment, headline
from .sampling import shuffled, slowest

__all__ = ["add_to", "lines"]

PROMPT, TOKENS = 256, 32
SILENT = "no communication"


def add_to(tools: Any) -> None:
    """Add the tool to the parser of ``bench``."""
    parser = tools.add_parser(
        "inference",
        help="tokens a second of a language model",
        description="Measures tokens a second of a small language model that transformers cuts "
        "over the ranks, also over gloo, and over vLLM's operators where vLLM is installed.",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="float32"
    )
    tool.add_rounds(parser, "prompts")
    tool.complete(parser, _run)


def _run(chosen: Namespace) -> int:
    """Measure; rank 0 prints the figures. Return 0, or 1 after an error."""
    rank = 0
    try:
        group.init_process_group(timeout=chosen.timeout)
        rank = group.get_rank()
        tool.check_folders(chosen)
        _measure(chosen)
    except (ArgumentError, WrongResultError) as error:  # all ranks raise it alike
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        contenders.stop()
    return 0


def _measure(chosen: Namespace) -> None:
    """Measure all ways in turn. Collective over the world."""
    contenders.front("torch")
    for package in ("transformers", "accelerate"):  # it loads a model that is cut by the other
        if find_spec(package) is None:
            raise ArgumentError(f"bench: inference needs {package}: pip install {package}")
    made: Any = import_module("paddlempi.torch.bench_inference")
    engine = made.Engine(chosen.dtype)
    names = list(engine.ways)
    taken: dict[str, dict[str, list[float]]] = {n: {"prefill": [], "token": []} for n in names}
    tokens: dict[str, list[int]] = {}
    sums = engine.count(lambda: engine.decode(engine.prefill(PROMPT), 1))
    bar = Bar(chosen.rounds + 1)
    try:
        for round_ in range(-1, chosen.rounds):
            for number, name in enumerate(shuffled(names, round_ + 1)):
                bar.show(name, number / len(names))
                engine.use(name)
                collectives.barrier()
                begun, prefill = _timed(engine.prefill, PROMPT)
                tokens[name], decode = _timed(engine.decode, begun, TOKENS)
                if round_ >= 0:
                    taken[name]["prefill"].append(prefill)
                    taken[name]["token"].append(decode / TOKENS)
            bar.next()
    finally:
        bar.clear()
        engine.stop()
    ms = {n: {what: slowest(of) for what, of in found.items()} for n, found in taken.items()}
    _check(tokens[OURS])
    record = {
        **environment(),
        "inference": {
            "what": engine.what,
            "prompt": PROMPT,
            "tokens": TOKENS,
            "rounds": chosen.rounds,
            "sums": sums,
            "ms": ms,
            "same_tokens": {n: tokens[n] == tokens[OURS] for n in names if n != SILENT},
            "not_measured": engine.absent,
        },
    }
    if group.get_rank() == 0:
        print(headline(record), *lines(record["inference"]), sep="\n", flush=True)
    tool.write(chosen, record)


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what a call returns, and how many ms it took."""
    began = time.perf_counter()
    made = call(*arguments)
    return made, (time.perf_counter() - began) * 1e3


def _check(tokens: list[int]) -> None:
    """Raise WrongResultError on all ranks unless they have made the same tokens. Collective."""
    of_ranks: list[Any] = [None] * group.get_world_size()
    objects.all_gather_object(of_ranks, tokens)
    for rank, theirs in enumerate(of_ranks):
        if theirs != of_ranks[0]:
            raise WrongResultError(f"bench: inference: rank {rank} made other tokens than rank 0")


def lines(found: dict[str, Any]) -> list[str]:
    """Return the table of a record as lines."""
    ms: dict[str, dict[str, Sequence[float]]] = found["ms"]
    sums = found["sums"]
    half = len(sums) // 2
    sides = f"{'time : paddlempi':<20} {'share':>5}"
    text = [
        (
            f"# {found['what']}; {counted(half, 'all_reduce')} of {sums[-1]} bytes a token, of "
            f"{sums[0]} bytes for a prompt of {found['prompt']}"
        ),
        (
            f"# {counted(found['rounds'], 'round')} of a prompt and {found['tokens']} tokens; "
            "medians (quartiles); share: of the time that goes into the sums"
        ),
        f"{'':<16} {'tokens/s':>9}  {sides}   {'prefill ms':>10}  {sides}",
    ]
    for name in [OURS, *(n for n in ms if n not in (OURS, SILENT)), SILENT]:
        words = f"{name:<16}"
        for what in ("token", "prefill"):
            middle = quartiles(ms[name][what]).middle
            bare = quartiles(ms[SILENT][what]).middle
            shown = f"{1000 / middle:>9.1f}" if what == "token" else f"  {middle:>10.1f}"
            ratio: Quartiles = quartiles(ratios(ms[name][what], ms[OURS][what]))
            share = "" if name == SILENT else f"{max(0.0, 1 - bare / middle):.0%}"
            words += f" {shown}  {'' if name == OURS else ratio.show():<20} {share:>5}"
        if found["same_tokens"].get(name) is False:
            words += "  other tokens"
        text.append(words.rstrip())
    return text + [f"not measured: {n}: {why}" for n, why in found["not_measured"].items()]
