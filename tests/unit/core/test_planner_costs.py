"""How long calls take by a machine's measurements, and what is said of plans."""

from __future__ import annotations

import json

import pytest
from paddlempi.errors import ArgumentError
from paddlempi.planner.costs import Costs
from paddlempi.planner.machine import Collective, Compute, Machine, Range, Step
from paddlempi.planner.plans import Memory, Plan, Plans


def spread(middle: float, part: float = 0.1) -> Range:
    return Range(middle, middle * (1 - part), middle * (1 + part))


def rows(operation: str, nodes: int, ranks: int, latency: float, rate: float) -> list[Collective]:
    return [
        Collective(operation, nodes, ranks, n, spread(latency + n / rate), spread(1e-6))
        for n in (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
    ]


def machine(*collectives: list[Collective], steps: tuple[Step, ...] = ()) -> Machine:
    return Machine(
        made="2026-12-01T00:00:00+00:00",
        version="0",
        processor="a processor",
        cpus=2,
        memory=8 << 30,
        mpi="an MPI",
        nodes=2,
        ranks=2,
        threads=1,
        rss=100 << 20,
        alone=Compute(spread(4e10), spread(1e10), spread(50)),
        together=Compute(spread(2e10), spread(5e9), spread(20)),
        collectives=tuple(row for of in collectives for row in of),
        steps=steps,
    )


NODE = rows("all_reduce", 1, 2, 2e-6, 5e9)
NETWORK = rows("all_reduce", 2, 1, 3e-5, 1e9)


def test_a_measured_length_is_what_was_measured() -> None:
    found = Costs(machine(NODE)).collective("all_reduce", 1 << 20, 1, 2)
    assert found == pytest.approx(NODE[3].seconds)


def test_between_lengths_it_lies_between() -> None:
    costs = Costs(machine(NODE))
    found = costs.collective("all_reduce", 1 << 18, 1, 2)
    assert NODE[2].seconds.middle < found.middle < NODE[3].seconds.middle
    assert found.low < found.middle < found.high


def test_beyond_the_longest_the_rate_stays() -> None:
    found = Costs(machine(NODE)).collective("all_reduce", 1 << 26, 1, 2)
    assert found.middle == pytest.approx(4 * NODE[-1].seconds.middle)


def test_one_member_sends_nothing() -> None:
    assert Costs(machine(NODE)).collective("all_reduce", 1 << 20, 1, 1) == Range(0, 0, 0)


def test_more_nodes_take_longer_and_are_less_known() -> None:
    costs = Costs(machine(NODE, NETWORK))
    known, more, most = (costs.collective("all_reduce", 1 << 24, n, 1) for n in (2, 4, 64))
    # What leaves a node: 2 (N - 1) / N of the tensor.
    assert more.middle == pytest.approx(1.5 * known.middle, rel=0.01)
    assert most.middle == pytest.approx(2 * 63 / 64 * known.middle, rel=0.02)

    def width(found: Range) -> float:
        return (found.high - found.low) / found.middle

    assert width(known) < width(more) < width(most)
    assert costs.measured("all_reduce", 2, 1)
    assert not costs.measured("all_reduce", 4, 1)


def test_nodes_of_several_ranks_are_put_together() -> None:
    costs = Costs(machine(NODE, NETWORK))
    found = costs.collective("all_reduce", 1 << 20, 2, 2)
    assert found.middle == pytest.approx(NODE[3].seconds.middle + NETWORK[3].seconds.middle)


def test_nothing_is_made_up() -> None:
    with pytest.raises(ArgumentError, match="nothing is known of all_reduce over a network"):
        Costs(machine(NODE)).collective("all_reduce", 8, 4, 1)
    with pytest.raises(ArgumentError, match="over several ranks on a node"):
        Costs(machine(NETWORK)).collective("all_reduce", 8, 1, 4)
    with pytest.raises(ArgumentError, match="nothing is known of broadcast"):
        Costs(machine(NODE, NETWORK)).collective("broadcast", 8, 2, 2)


def test_how_much_of_collectives_a_step_shows() -> None:
    step = Step(
        "ddp", "m", 2, 2, 2, 1 << 24, spread(0.010), spread(0.011), spread(0.026), spread(0.010)
    )
    costs = Costs(machine(NODE, steps=(step,)))
    found = costs.exposed("ddp")
    assert found.middle == pytest.approx(1.5)
    assert found.low < 1.5 < found.high
    assert costs.exposed("fsdp2").middle == 1.0  # not measured


def test_a_rank_computes_slower_beside_others() -> None:
    costs = Costs(machine())
    # Half of the CPUs, so 40 ms for a step of 20; 10 more are those of the memory.
    bound, light = (costs.busy(spread(0.020), traffic) for traffic in (105e6, 0))
    assert bound.middle == pytest.approx(0.050)
    assert bound.low < 0.050 < bound.high
    assert light.middle == pytest.approx(0.040)


def plan(kind: str, seconds: float, refused: str = "") -> Plan:
    memory = Memory(1, 2, 3, 4, 5, 6)
    return Plan(kind, {"shard": 4}, 2, 2, spread(seconds), memory=memory, refused=refused)


def test_the_fastest_comes_first_and_the_refused_last() -> None:
    plans = Plans((plan("tp", 0.1, "too large"), plan("ddp", 0.3), plan("fsdp2", 0.2)))
    assert [one.kind for one in plans] == ["fsdp2", "ddp", "tp"]
    assert plans.best is plans[0]
    assert [one.kind for one in plans.possible] == ["fsdp2", "ddp"]
    assert plans.best.memory is not None
    assert plans.best.memory.total == 21
    read = json.loads(plans.json())
    assert read[2]["refused"] == "too large"
    assert read[0]["mesh"] == {"shard": 4}


def test_no_plan_is_possible() -> None:
    with pytest.raises(ArgumentError, match=r"tp shard 4: too large"):
        assert Plans((plan("tp", 0.1, "too large"),)).best
