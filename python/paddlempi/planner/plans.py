"""What is said of the ways to cut a model: their costs, or why they are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError
from .machine import Range

__all__ = ["KINDS", "Memory", "Plan", "Plans"]

KINDS = ("ddp", "fsdp2", "hsdp", "tp", "fsdp2+tp", "pipeline")
"""The ways to cut a model; a pipeline has replicas where it has fewer stages than ranks."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, at the moment of the step when it holds the most."""

    process: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    communication: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Plan:
    """One way to cut a model over a job, and what a step of it will cost.

    Attributes:
        kind: of ``KINDS``.
        mesh: the dimensions of the device mesh, the outermost first, with their lengths: of
            "replicate", "shard", "tensor" and "stage".
        nodes, ranks: the job: ranks on each of the nodes.
        seconds: of a step; None if it was refused.
        compute, overhead, communication: the seconds of the step that are computation, Python and
            hooks of the wrapper, and waiting for collectives.
        memory: of the rank that holds the most; None where it is not known.
        wire: bytes that a rank sends in a step.
        collectives: how many calls a step makes.
        dominates: what most of the step's time goes into.
        notes: what makes the range wider.
        refused: why it cannot be taken; "" if it can.
    """

    kind: str
    mesh: dict[str, int]
    nodes: int
    ranks: int
    seconds: Range | None = None
    compute: float = 0.0
    overhead: float = 0.0
    communication: float = 0.0
    memory: Memory | None = None
    wire: int = 0
    collectives: int = 0
    dominates: str = ""
    notes: tuple[str, ...] = ()
    refused: str = ""

    @property
    def name(self) -> str:
        """The kind with its mesh: "hsdp replicate 2 x shard 4"."""
        return f"{self.kind} " + " x ".join(f"{k} {n}" for k, n in self.mesh.items())


@dataclass(frozen=True)
class Plans(Sequence[Plan]):
    """All plans of a job: first those that can be taken, the fastest first, then the refused."""

    plans: tuple[Plan, ...] = field(default=())

    def __post_init__(self) -> None:
        def order(plan: Plan) -> tuple[bool, float]:
            return (bool(plan.refused), plan.seconds.middle if plan.seconds else 0.0)

        object.__setattr__(self, "plans", tuple(sorted(self.plans, key=order)))

    def __getitem__(self, at: Any) -> Any:
        return self.plans[at]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    @property
    def possible(self) -> tuple[Plan, ...]:
        """Those that can be taken, the fastest first."""
        return tuple(plan for plan in self.plans if not plan.refused)

    @property
    def best(self) -> Plan:
        """The fastest.

        Raises:
            ArgumentError: none can be taken; its text has the reasons.
        """
        for plan in self.possible:
            return plan
        reasons = "; ".join(f"{plan.name}: {plan.refused}" for plan in self.plans)
        raise ArgumentError(f"plan: no way to cut this model can be taken: {reasons}")

    def json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps([dataclasses.asdict(plan) for plan in self.plans], indent=1)
