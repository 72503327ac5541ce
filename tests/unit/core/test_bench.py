"""python -m paddlempi bench: values, figures, tables and pictures, in one process."""

from __future__ import annotations

import importlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_fake import FakeCore
from paddlempi.cli.bench import (
    calls,
    collectives,
    contenders,
    figures,
    inference,
    picture,
    report,
    sampling,
    steps,
    traffic,
)
from paddlempi.cli.bench.collectives import Row
from paddlempi.cli.bench.figures import Quartiles
from paddlempi.cli.bench.operations import (
    DTYPES,
    OPERATIONS,
    Segment,
    Values,
    pingpong,
    storage,
)
from paddlempi.cli.bench.ps import batches as ps_batches
from paddlempi.cli.bench.ps import measured, rival_grpcio
from paddlempi.errors import ArgumentError


def test_which_contenders_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On all ranks: here this one and another, which lacks mpi4py."""
    asked: list[str] = []
    monkeypatch.setattr(calls.importlib.util, "find_spec", lambda name: asked.append(name) or True)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda text: [text, text])
    assert calls._installed("numpy") == ["mpi4py", "gloo"]
    monkeypatch.setattr(collectives, "of_all_ranks", lambda text: [text, "gloo"])
    assert calls._installed("paddle") == ["gloo"]
    assert asked == ["mpi4py", "torch", "mpi4py", "paddle"]


def test_a_size_ends_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before ten rounds, and when the slowest rank says so."""
    monkeypatch.setattr(collectives, "slowest", lambda seconds: [seconds[0] + 1])
    monkeypatch.setattr(collectives.time, "monotonic", lambda: 100.0)
    plan = collectives.Plan([8], seconds=5)
    assert plan.over(10, 95.9) and not plan.over(10, 96.1) and not plan.over(9, 0)
    assert not collectives.Plan([8]).over(1000, 0)


# Messages of gRPC


def test_what_grpc_carries_is_checked() -> None:
    server = rival_grpcio.Server()
    batches = ps_batches.Batches(np, 1, 50, 3, 20)
    batches.draw(20)
    asked: list[bytes] = []

    def ask(message: bytes) -> bytes:
        asked.append(message)
        return server.one(message)

    turn = rival_grpcio.bare(ask, batches)
    unique = len(np.unique(batches.ids[0]))
    assert len(turn.calls["pull"](0)) == 4 * 3 * unique
    assert len(set(turn.calls["pull"](0))) > 100  # the bytes differ
    assert len(asked[-1]) == 24 + 8 * unique
    turn.calls["push"](0)
    assert len(asked[-1]) == 24 + (8 + 4 * 3) * unique
    for wrong in (
        lambda message: server.one(message[:-1] + b"?"),
        lambda message: server.one(message) + b"?",
    ):
        with pytest.raises(collectives.WrongResultError, match="the bytes are wrong"):
            rival_grpcio.bare(wrong, batches)


def test_sums_of_equal_ids() -> None:
    place = np.array([2, 0, 2, 1, 0])
    gradients = np.arange(10, dtype=np.float32).reshape(5, 2)
    sums = rival_grpcio.summed(np, place, gradients, 3)
    assert sums.tolist() == [[10, 12], [6, 7], [4, 6]]


def test_what_a_push_should_do_to_rows() -> None:
    batches = ps_batches.Batches(np, 1, 50, 3, 20)
    batches.draw(20)
    moved = np.zeros((50, 3))
    np.add.at(moved, batches.ids[0], -ps_batches.RATE * batches.gradient())
    rows = moved[batches.ids[0]]
    assert ps_batches.moved_right(batches, rows)
    rows[7, 1] += 0.01
    assert not ps_batches.moved_right(batches, rows)


# Values


def carry_out(name: str, given: list[Any], dtype: str) -> list[Any]:
    """Return what every rank must get, by the definition of the operation, from what they gave."""
    n = len(given)
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        total = sum(x.astype(np.float64) for x in given)
        if name == "reduce_scatter":
            return np.split(total, n)
        return [total] * n
    if name in ("all_gather", "gather"):
        return [np.concatenate(given)] * n
    if name == "broadcast":
        return [given[0]] * n
    if name == "scatter":
        return np.split(given[0], n)
    if name == "all_to_all":
        return [np.concatenate([np.split(x, n)[rank] for x in given]) for rank in range(n)]
    assert name == "sendrecv"
    return [given[rank - 1] for rank in range(n)]


def as_numbers(bits: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits


def as_bits(numbers: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(storage(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {"barrier", "pingpong"}))
def test_the_result_of_an_operation_is_what_the_check_expects(name: str, dtype: str) -> None:
    operation = OPERATIONS[name]
    for n in (1, 2, 3, 5, 8):
        shape = operation.shape(4000, storage(dtype).itemsize, n)
        values = Values(dtype, n, shape.total)
        for call in (0, 1, 12345):
            given = []
            for rank in range(n):
                segments = operation.gives(rank, n, shape.total)
                bits = np.zeros(shape.send or shape.recv, storage(dtype))
                if segments is not None:
                    values.write(bits, segments, call)
                    assert sum(segment.length for segment in segments) == len(bits)
                given.append(as_numbers(bits, dtype))
            for rank, result in enumerate(carry_out(name, given, dtype)):
                segments = operation.gets(rank, n, shape.total)
                if segments is None:
                    assert name in ("reduce", "gather") and rank != 0
                    continue
                bits = as_bits(result, dtype)
                assert len(bits) == shape.recv
                assert values.wrong(bits, segments, call) == ""
                bits[-1] += 1
                assert f"first element {len(bits) - 1}:" in values.wrong(bits, segments, call)


def test_the_two_of_a_pingpong_get_what_the_other_gives() -> None:
    operation = pingpong(0, 2)
    for rank, other in ((0, 2), (2, 0)):
        assert operation.gives(rank, 4, 8) == [Segment(False, rank, 0, 8)]
        assert operation.gets(rank, 4, 8) == [Segment(False, other, 0, 8)]
        assert operation.gets(rank, 4, 8) == operation.gives(other, 4, 8)
    for rank in (1, 3):
        assert operation.gives(rank, 4, 8) is operation.gets(rank, 4, 8) is None


def test_the_two_of_a_pingpong_are_on_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for node, expected in (([0, 0, 1, 1], (0, 2)), ([3, 1, 3], (0, 1)), ([0, 0, 0], (0, 1))):
        monkeypatch.setattr(contenders._native, "control", lambda _, node=node: {"node": node})
        assert contenders.pair() == expected


def test_the_way_is_the_algorithm_unless_the_core_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = contenders.Framework("numpy", "float32")
    ours = contenders._by(tensors, "paddlempi", "all_reduce", None, 1)
    for info, expected in (
        ({"algorithm": "inline"}, ("inline", "inline")),
        ({"algorithm": "mpi", "way": "mpi in pieces"}, ("mpi", "mpi in pieces")),
    ):
        monkeypatch.setattr(contenders._native, "control", lambda _, group, info=info: info)
        assert (ours.path(), ours.way()) == expected
    messages = contenders._by(tensors, "paddlempi", "pingpong", None, 1)
    assert (messages.path(), messages.way()) == ("", "")


def test_an_old_result_and_shares_of_another_rank_are_wrong() -> None:
    values = Values("float32", 4, 1024)
    for length in (1, 256, 512):
        bits = np.zeros(length, np.float32)
        values.write(bits, [Segment(False, 1, 0, length)], 7)
        assert values.wrong(bits, [Segment(False, 1, 0, length)], 7) == ""
        assert values.wrong(bits, [Segment(False, 1, 0, length)], 8)
        assert values.wrong(bits, [Segment(False, 2, 0, length)], 7)
        assert values.wrong(bits, [Segment(False, 1, 256, length)], 7)


def test_too_many_ranks_for_a_dtype() -> None:
    with pytest.raises(ArgumentError, match="61 ranks are too many for sums of int8"):
        Values("int8", 61, 8)
    Values("int8", 60, 8)


def test_shapes_and_bandwidths() -> None:
    assert OPERATIONS["all_gather"].shape(1000, 4, 4) == (62, 248, 248)
    assert OPERATIONS["reduce_scatter"].shape(1, 8, 3) == (3, 1, 3)
    assert OPERATIONS["all_reduce"].shape(6, 4, 2) == (0, 1, 1)
    factors = {name: operation.bus(4) for name, operation in OPERATIONS.items()}
    assert (factors["all_reduce"], factors["pingpong"]) == (1.5, 2)
    assert factors["broadcast"] == factors["reduce"] == factors["sendrecv"] == 1
    assert factors["all_gather"] == factors["reduce_scatter"] == factors["all_to_all"] == 0.75


# Figures


def test_quantiles() -> None:
    assert figures.quartiles([4, 1, 3, 2]) == (1, 2, 3)
    assert figures.quantile(range(1, 101), 0.99) == 99
    assert figures.quantile([5.0], 0.99) == 5
    assert figures.ratios([2, 9], [1, 3]) == [2, 3]
    assert Quartiles(1, 2.004, 3).show() == "2.00 (1.00 to 3.00)"


def test_whether_a_ratio_differs() -> None:
    """A ratio and its inverse are equally far from 1."""
    control = Quartiles(0.9, 1.0, 1.1)
    for middle, expected in ((1.2, False), (1.25, True), (1 / 1.2, False), (1 / 1.25, True)):
        near = Quartiles(middle - 0.01, middle, middle + 0.01)
        assert figures.ratio_differs(near, control) is expected
        assert not figures.ratio_differs(Quartiles(0.1, middle, 10), control)
    assert figures.differs(-3.0, Quartiles(-1, 0.5, 1.5))
    assert not figures.differs(2.0, Quartiles(-1, 0.5, 1.5))


def test_times_are_those_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < sampling.clock_cost() < 1e6
    now = [0]
    monkeypatch.setattr(sampling.time, "perf_counter_ns", lambda: now[0])

    def call(takes: int) -> None:
        now[0] += takes

    assert sampling.stamped([lambda: call(5), lambda: call(0), lambda: call(7)]) == [5, 0, 7]


def test_the_order_of_a_round_is_the_same_on_all_ranks() -> None:
    names = ["a", "b", "c"]
    orders = {tuple(sampling.shuffled(names, round_)) for round_ in range(100)}
    assert len(orders) == 6
    assert sampling.shuffled(names, 7) == sampling.shuffled(names, 7)


def samples(rounds: int = 20, **ms: float) -> dict[str, list[float]]:
    """Return samples around the given values; a round is slow for all contenders alike."""
    names = {"silent": steps.SILENT, "alone": steps.ALONE, "ours": "paddlempi"}
    names |= {"again": "paddlempi again"}
    return {
        names.get(name, name): [value + round_ % 5 for round_ in range(rounds)]
        for name, value in ms.items()
    }


def test_the_time_above_no_communication() -> None:
    ms = samples(silent=10, barrier=11, ours=13, gloo=19, alone=2, again=13)
    ms["paddlempi again"][::3] = [x + 1 for x in ms["paddlempi again"][::3]]
    row = steps.summary("ddp", "model", "4 MiB", ms, {})
    assert row.rounds == 20
    assert row.tanc_ms["paddlempi"] == (3, 3, 3)
    assert row.tanc_ms["barrier"] == (1, 1, 1)
    assert row.control_ms == (0, 0, 1)
    assert row.above_barrier == (3 - 1) / (2 + 2)  # the median of the samples of 2 is 4
    assert row.others == {"gloo": 3.0}
    close = steps.summary("ddp", "model", "", ms | {"gloo": ms["paddlempi"]}, {})
    assert close.others == {"gloo": None}
    few = {name: values[:5] for name, values in ms.items()}
    assert steps.summary("ddp", "model", "", few, {}).others == {"gloo": None}


def test_the_spread_of_a_ratio_is_that_of_five_parts_of_the_rounds() -> None:
    ms = samples(silent=10, barrier=11, ours=12, gloo=18, alone=2, again=12)
    ms["gloo"][:4] = [x + 2 for x in ms["gloo"][:4]]  # the first of the parts
    row = steps.summary("ddp", "model", "", ms, {})
    assert row.others == {"gloo": 4.0} and row.spread == {"gloo": (4.0, 5.0)}
    assert "4.00 times paddlempi's (4.00 to 5.00)" in "\n".join(report.step_lines(row))
    ms["paddlempi"][:4] = ms[steps.SILENT][:4]  # a part that has no time above no communication
    assert steps.summary("ddp", "model", "", ms, {}).spread == {}
    few = {name: values[:9] for name, values in ms.items()}
    assert steps.summary("ddp", "model", "", few, {}).spread == {}


# What leaves a node

INTERFACES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 9000000     10    0    0    0     0          0         0  9000000     10    0
  eth0:     700      7    0    0    0     0          0         0      900      9    0
eth1:    50      1    0    0    0     0          0         0       60      1    0
  br0:     750      8    0    0    0     0          0         0      960     10    0
"""


def test_the_counters_of_interfaces(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    assert traffic.read(table, tmp_path) is None
    table.write_text(INTERFACES)
    (tmp_path / "br0" / "lower_eth0").mkdir(parents=True)  # a bridge over eth0
    assert traffic.read(table, tmp_path) == (750, 960)
    assert traffic.read() is not None


def test_the_fewest_bytes_that_leave_a_node() -> None:
    two, four = [0, 0, 1, 1], [0, 1, 2, 3]
    assert traffic.least("all_reduce", 1000, two) == 1000
    assert traffic.least("all_reduce", 1000, four) == 1500
    assert traffic.least("all_gather", 1000, four) == 750
    assert traffic.least("reduce_scatter", 1000, four) == 750
    assert traffic.least("broadcast", 1000, four) == traffic.least("pingpong", 1000, two) == 1000
    assert traffic.least("all_to_all", 1000, two) == 2 * 500
    assert traffic.least("all_to_all", 1000, four) == 750
    assert traffic.least("all_to_all", 1200, [0, 0, 0, 1, 2, 2]) == 3 * 600  # of the first node
    for name in ("all_reduce", "broadcast", "all_to_all"):
        assert traffic.least(name, 1000, [0, 0]) == 0
    assert traffic.least("reduce", 1000, two) is None


def test_the_bytes_of_the_busiest_node_over_the_fewest() -> None:
    before, after = traffic.Passed(5, 7), traffic.Passed(15, 107)
    assert traffic.passed(before, after) == (10, 100)
    assert traffic.passed(None, after) is traffic.passed(before, None) is None
    taken = [traffic.Passed(10, 100), traffic.Passed(900, 900), traffic.Passed(150, 20)]
    # Ranks 0 and 1 share a node: what rank 0 has read counts.
    assert traffic.over_least(taken, [0, 0, 1], 100) == 1.5
    assert traffic.over_least([*taken[:2], None], [0, 0, 1], 100) is None
    # What must have left a node does not show in its interfaces.
    assert traffic.over_least(taken, [0, 0, 1], 160) is None


def test_shapes_of_nodes() -> None:
    assert traffic.shape([0, 0, 1, 1]) == traffic.shape([0, 1, 0, 1]) == "2 x 2"
    assert traffic.shape([0, 1, 1, 2, 2, 2]) == "1 + 2 + 3"


# Output


def row(contender: str, nbytes: int, p50: float, **more: Any) -> Row:
    fields: dict[str, Any] = {"ratio": None, "differs": None, "path": ""} | more
    return Row("all_reduce", nbytes, contender, 100, p50, 2 * p50, 1.5, 3.0, **fields)


def test_the_table_of_operations() -> None:
    ours = row("paddlempi", 4096, 12.5, path="mpi")
    again = row("paddlempi again", 4096, 12.5, path="mpi", ratio=Quartiles(0.98, 1.0, 1.02))
    other = row("gloo", 4096, 125.0, ratio=Quartiles(9, 10, 11), differs=True)
    alike = row("mpi", 4096, 12.6, ratio=Quartiles(0.9, 1.01, 1.1), differs=False)
    lines = report.operation_lines([ours, again, other, alike], False)
    head = report.heads("all_reduce", "numpy", "float32", True, False)[1]
    assert "traffic" not in head
    assert head.split()[:3] == ["bytes", "contender", "p50"]
    assert lines[0].split() == ["4096", "paddlempi", "12.50", "25.00", "1.500", "3.000", "mpi"]
    assert lines[1].endswith("1.00 (0.98 to 1.02)  the control")
    assert lines[2].split()[0] == "gloo" and lines[2].endswith("-            10.00 (9.00 to 11.00)")
    assert lines[3].endswith("no difference")
    assert other.record()["ratio"] == [9, 10, 11]


def test_the_table_of_operations_on_several_nodes() -> None:
    rows = [
        row("paddlempi", 1 << 20, 12.5, path="slices", counted=True, traffic=1.004),
        row("mpi4py", 1 << 20, 12.5, counted=True),
        row("gloo", 1 << 20, 12.5),
    ]
    shown = [line.split()[-2] for line in report.operation_lines(rows, True)]
    assert shown == ["1.00", "?", "-"]
    head = report.heads("all_reduce", "numpy", "float32", False, True)[1]
    assert head.split()[-2:] == ["traffic", "path"]
    assert rows[0].record()["traffic"] == 1.004


def test_the_headline_has_the_shape_of_several_nodes() -> None:
    found = {"paddlempi": "1", "mpi": {"name": "X"}, "ranks": 4, "nodes": 2, "cpus": 1}
    line = report.headline(found | {"shape": "2 x 2"})
    assert line == "# paddlempi 1, X, 4 ranks on 2 nodes (2 x 2), 1 CPU for rank 0"
    assert "(" not in report.headline(found | {"nodes": 1, "shape": "1 x 4"})


def test_the_table_of_steps() -> None:
    ms = samples(silent=10, barrier=11, ours=13, gloo=19, alone=2, again=13)
    text = "\n".join(report.step_lines(steps.summary("ddp", "m", "x", ms, {"mpi": "why"})))
    assert "ddp m: x; 20 rounds" in text
    assert "3.00 times paddlempi's" in text
    assert "of it a step shows 50 % beyond a barrier: the backward hides the rest" in text
    assert "3.00 times paddlempi's (3.00 to 3.00): more than paddlempi" in text
    assert "not measured: mpi: why" in text


def test_where_a_ratio_would_mean_nothing() -> None:
    ms = samples(silent=10, barrier=11, ours=13, gloo=19, alone=1, again=13)
    text = "\n".join(report.step_lines(steps.summary("ddp", "m", "x", ms, {})))
    assert "a step shows 67 % of" not in text and "67 % beyond a barrier" in text
    slow = ms | {steps.ALONE: [1.0] * 20}
    text = "\n".join(report.step_lines(steps.summary("ddp", "m", "x", slow, {})))
    assert "a step shows 200 % of it beyond a barrier: the backward hides nothing" in text
    # In half of the rounds a step over paddlempi takes no longer than one without communication.
    ms["paddlempi"][::2] = [x - 6 for x in ms["paddlempi"][::2]]
    text = "\n".join(report.step_lines(steps.summary("ddp", "m", "x", ms, {})))
    assert "no ratio: paddlempi adds too little to tell" in text and "times" not in text
    assert "a step over paddlempi shows no more of it than a barrier takes" in text


def test_the_picture_of_steps_has_a_bar_for_each_contender() -> None:
    text = picture.bars("a step", "grey", [("one", 10, {"paddlempi": 5.0, "gloo": 30.0})])
    bars = re.findall(r"width='([\d.]+)' height='18' fill='(#\w+)'", text)
    lengths = [float(length) for length, _ in bars]
    assert len({fill for _, fill in bars}) == 3
    assert lengths[0] == lengths[2] and lengths[1] / lengths[0] == pytest.approx(0.5, abs=0.01)
    assert lengths[3] / lengths[2] == pytest.approx(3, abs=0.01)
    assert "10.0 + 30.0 ms" in text and "width='0.0'" not in text
    quiet = picture.bars("a step", "grey", [("one", 10, {"paddlempi": -1.0})])
    assert "width='0.0' height='18'" in quiet and "10.0 + -1.0 ms" in quiet


def test_the_picture_of_a_step_needs_all_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/step_picture.py draws what docs/figures has."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    step_picture, rows = map(importlib.import_module, ("step_picture", "figures_rows"))
    ms = samples(silent=10, barrier=11, ours=13, mpi=15, gloo=19, alone=2, again=13)
    row = rows.step(steps.summary("ddp", "mlp-16M", "x", ms, {}).record())
    places = [{"where": where, "rows": [row]} for where in ("2 ranks, one node", "2 nodes (2 x 1)")]
    found = {"parts": {"step": {"tables": places[:1]}, "nodes": {"tables": places[1:]}}}
    text = step_picture.drawn(found)
    assert "2 ranks, one node: ddp mlp-16M" in text and "2 nodes (2 x 1): ddp" in text
    assert text.count("12.0 + 9.0 ms") == 2  # gloo, on each
    del row["bars"]["mpi"]
    assert step_picture.drawn(found) == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_only_on_the_terminal_of_rank_0(
    core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, stream, expected in (
        (0, Terminal(), True),
        (0, io.StringIO(), False),
        (1, Terminal(), False),
    ):
        monkeypatch.setattr(report.group, "get_rank", lambda rank=rank: rank)
        bar = report.Bar(2, stream)
        bar.show("all_reduce 8", 0.5)
        bar.next()
        bar.show("broadcast 8", 1.0)
        bar.clear()
        bar.clear()
        shown = stream.getvalue()
        assert bool(shown) is expected
        if expected:
            assert f"[{'#' * 7:<30}] all_reduce 8" in shown
            assert f"[{'#' * 30}] broadcast 8" in shown
            assert shown.endswith("\r\x1b[K") and shown.count("\r") == 3


def test_the_picture() -> None:
    rows = [row("paddlempi", 8, 1.0), row("paddlempi", 1 << 20, 100.0)]
    rows += [row("memcpy", 8, 2.0), row("memcpy", 1 << 20, 20.0), row("paddlempi again", 8, 1.0)]
    drawn = picture.draw("a title", rows)
    assert drawn.startswith("<svg") and "a title" in drawn and "1 Mi" in drawn
    assert drawn.count("<polyline") == 2 and "again" not in drawn
    # Both axes are logarithmic: 10 us is half way between 1 and 100.
    (line,) = [part for part in drawn.splitlines() if "#1060c0" in part and "polyline" in part]
    assert line.split("'")[1] == "70.0,370.0 630.0,40.0"
    picture.draw("one size", [row("paddlempi", 8, 1.0)])


def test_the_picture_of_losses() -> None:
    fall = [(0.5 * step, 10.0 ** (2 - step)) for step in range(5)]
    panels = [("one", {"sync": fall, "geo": fall[:1]}), ("two", {"sync": [], "geo": fall[::-1]})]
    drawn = picture.curves("a title", panels)
    assert drawn.startswith("<svg") and drawn.count("a title") == 1
    assert all(drawn.count(f">{words}<") == 1 for words in ("one", "two", "sync", "geo", "0.01"))
    lines = [part for part in drawn.splitlines() if "polyline" in part]
    assert len(lines) == 4
    # From 100 at the beginning to 0.01 after 2 seconds, straight on a logarithmic axis.
    assert lines[0].split("'")[1].split()[0] == "70.0,60.0"
    assert lines[0].split("'")[1].split()[-1] == "340.0,370.0"
    long = picture.curves("t", [("p", {"sync": [(float(k), 1.0) for k in range(10_000)]})])
    assert len(long) < 10_000
    picture.curves("nothing", [("p", {})])


# Turns


def test_turns() -> None:
    """Every contender makes its calls once in a round; those of another process tell the time."""
    made: list[tuple[str, int]] = []
    ticks = iter(range(0, 10**9, 1000))

    def call(name: str, took: int = 0) -> measured.Call:
        def called(round_: int) -> int:
            made.append((name, round_))
            return took

        return called

    turns = {
        collectives.OURS: measured.Turn({"a": call("a"), "b": call("b")}, call("begin")),
        "other": measured.Turn({"a": call("x", 5000), "b": call("y", 7000)}, itself=True),
    }
    parts: list[float] = []
    times = measured.take_turns(turns, 3, lambda: next(ticks), parts.append)
    assert parts == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert list(times) == ["a", "b", "a + b"]
    assert times["a"][collectives.OURS] == times["a"][collectives.AGAIN] == [1.0] * 3
    assert times["a"]["other"] == [5.0] * 3
    assert times["a + b"]["other"] == [12.0] * 3 and times["a + b"][collectives.AGAIN] == [2.0] * 3
    of_ours = [one for one in made if one[0] in ("begin", "a", "b")]
    assert of_ours[:3] == [("begin", -measured.WARM), ("a", -measured.WARM), ("b", -measured.WARM)]
    assert len(of_ours) == 2 * 3 * (3 + measured.WARM)


def test_figures_of_turns() -> None:
    rounds = 12
    times = {
        collectives.OURS: [10.0 + round_ % 2 for round_ in range(rounds)],
        "twice": [20.0 + 2 * (round_ % 2) for round_ in range(rounds)],
        "equal": [10.0 + (round_ + 1) % 2 for round_ in range(rounds)],
        collectives.AGAIN: [10.0 + round_ % 2 for round_ in range(rounds)],
    }
    rows = list(measured.summary({"dim": 16}, "sgd", times))
    assert [row.contender for row in rows] == list(times)
    ours, other, equal, again = rows
    assert (ours.least_us, ours.p99_us, ours.ratio, ours.differs) == (10.0, 11.0, None, None)
    assert (other.ratio, other.least_ratio, other.differs) == (Quartiles(2, 2, 2), 2, True)
    assert equal.differs is False and again.differs is None
    record = other.record()
    assert (record["dim"], record["ratio"]) == (16, [2, 2, 2]) and "case" not in record
    assert measured.head(other, "base").split()[:2] == ["dim", "contender"]
    assert "no difference" in measured.line(equal) and "the control" in measured.line(again)

    (one, two) = measured.summary({}, "pull", {"1 server": [1.0] * 12, "2": [2.0] * 12}, "1 server")
    assert one.ratio is None and two.ratio == Quartiles(2, 2, 2) and two.differs is None


# Inference


def test_the_table_of_inference() -> None:
    ms = {
        "no communication": {"token": [10.0] * 3, "prefill": [50.0] * 3},
        "paddlempi": {"token": [12.5] * 3, "prefill": [100.0] * 3},
        "gloo": {"token": [25.0] * 3, "prefill": [90.0] * 3},
    }
    lines = inference.lines(
        {
            "what": "a model",
            "prompt": 256,
            "tokens": 32,
            "rounds": 3,
            "sums": [4096, 4096, 16, 16],
            "ms": ms,
            "same_tokens": {"paddlempi": True, "gloo": False},
            "not_measured": {"vllm": "it is not installed"},
        }
    )
    assert "2 all_reduces of 16 bytes a token, of 4096 bytes for a prompt of 256" in lines[0]
    rows = {line[:16].strip(): line[16:].split() for line in lines[3:]}
    assert rows["paddlempi"] == ["80.0", "20%", "100.0", "50%"]
    ratio = ["2.00", "(2.00", "to", "2.00)"], ["0.90", "(0.90", "to", "0.90)"]
    assert rows["gloo"] == ["40.0", *ratio[0], "60%", "90.0", *ratio[1], "44%", "other", "tokens"]
    assert rows["no communication"][0] == "100.0" and "%" not in " ".join(rows["no communication"])
    assert lines[-1] == "not measured: vllm: it is not installed"
