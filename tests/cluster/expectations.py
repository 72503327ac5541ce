"""What four ranks on two hosts must report, under every launcher."""

from __future__ import annotations

import re
from typing import Any

from hosts import Result

Reports = list[dict[str, Any]]


def assert_two_by_two(reports: Reports) -> None:
    """Assert that ranks 0 and 1 are on one host, 2 and 3 on the other, with right local ranks."""
    assert [r["start"]["error"] for r in reports] == [None] * 4
    assert [r["rank"] for r in reports] == [0, 1, 2, 3]
    assert {r["world_size"] for r in reports} == {4}
    assert [r["host"] for r in reports] == ["h1", "h1", "h2", "h2"]
    assert [r["local_rank"] for r in reports] == [0, 1, 0, 1]
    assert {r["local_size"] for r in reports} == {2}


def assert_results_right(reports: Reports) -> None:
    """Assert that every collective and message had the right result on every rank."""
    wrong = {(r["rank"], what) for r in reports for what, right in r["right"].items() if not right}
    assert not wrong
    assert all(len(r["right"]) == 8 for r in reports)


def assert_errors_everywhere(reports: Reports) -> None:
    """Assert that a mismatch and a refusal raised on every rank and named the right rank."""
    assert [r["mismatch"]["error"] for r in reports] == ["MismatchError"] * 4
    assert [r["mismatch"]["ranks"] for r in reports] == [[3]] * 4
    # The rank that refuses raises the error of its arguments; the other ranks raise RefusedError.
    assert [r["refusal"]["error"] for r in reports] == ["DtypeError"] + ["RefusedError"] * 3
    assert [r["refusal"]["ranks"] for r in reports[1:]] == [[0]] * 3


def assert_trained(result: Result) -> None:
    """Assert that examples/train.py printed an accuracy of 0.95 or more and equal parameters."""
    assert result.code == 0 and not result.timed_out, str(result)
    assert "parameters equal bit for bit on all 4 ranks: yes" in result.out, str(result)
    accuracies = re.findall(r"accuracy\D*(\d\.\d+)", result.text)
    assert accuracies and float(accuracies[-1]) >= 0.95, str(result)
