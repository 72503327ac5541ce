"""``trace show`` over made-up traces: who is behind, how, and who waits for whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paddlempi._rank_names import name_ranks
from paddlempi.cli import main
from paddlempi.cli.trace import judge
from paddlempi.trace import rings
from rings_made import message, operation, ring, write


def judged(folder: Path, *made: dict[str, Any]) -> judge.Judgement:
    return judge.judge(rings.read_folder(write(folder, *made)))


def how(finding: judge.Finding) -> list[str]:
    return [part.how for part in finding.parts]


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["trace", "show", *options, str(folder)]) == 0
    return capsys.readouterr().out


def test_rank_that_never_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = judged(
        tmp_path,
        ring(0, 3, [operation(1, 1.0, 1.1), operation(2, 90.0)]),
        ring(1, 3, [operation(1, 1.0, 1.1), operation(2, 91.0)]),
        ring(2, 3, [operation(1, 1.05, 1.1)]),
    )
    assert found.behind == (2,)
    [finding] = found.findings
    assert how(finding) == ["waits", "waits", "never came"]
    assert (finding.seq, finding.behind, finding.waiting, finding.over) == (2, (2,), (0, 1), False)
    text = shown(tmp_path, capsys)
    assert "Behind: rank 2.\n  rank 2 is process 1002 on here.\n" in text
    assert "all_reduce(float32[8], SUM), number 2 of the group of all 3 ranks (under way):" in text
    assert (
        "rank 2 never came: its last operation was all_reduce(float32[8], SUM), number 1 of the "
        "group of all 3 ranks, 98.900 s ago" in text
    )
    assert "ranks 0 and 1 wait, since 10.000 s" in text
    waits = {w.rank: w for w in found.waits}
    assert waits[2].others == pytest.approx(10.0 + 9.0 + 2 * 0.05)
    assert waits[2].share == pytest.approx(1.0)
    assert waits[0].itself == pytest.approx(10.05)
    assert text.endswith(
        "\nAll ranks together have waited 19.100 s, of which 19.100 s (100%) for rank 2.\n"
    )


def test_the_python_line_of_the_rank_that_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = ring(1, 2, [])
    calls = [f"train.py:{line} in step" for line in range(30)]
    late["python"] = [calls, ["threading.py:9 in run"]]
    write(tmp_path, ring(0, 2, [operation(1, 1.0)]), late)
    text = shown(tmp_path, capsys)
    assert "rank 1 is process 1001 on here, in Python:\n    train.py:0 in step\n" in text
    assert "\n    ... and 20 more calls and 1 more threads (--json has all)\n" in text
    data = json.loads(shown(tmp_path, capsys, "--json"))
    assert data["ranks"][1]["python"] == late["python"]


def test_rank_that_comes_with_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"ended": 2.0, "outcome": "mismatch", "arrived": 2.0}
    found = judged(
        tmp_path,
        ring(0, 3, [operation(1, 1.0, **ended)]),
        ring(1, 3, [operation(1, 1.0, count=9, **ended)]),
        ring(2, 3, [operation(1, 1.0, **ended)]),
    )
    assert found.behind == ()
    [finding] = found.findings
    assert how(finding) == ["failed", "came with something else", "failed"]
    assert finding.behind == (1,)
    assert finding.over
    text = shown(tmp_path, capsys)
    assert "rank 1 came with something else: all_reduce(float32[9], SUM) (mismatch)" in text
    assert "No operation is under way." in text


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float64"},
        {"reduce_op": "MAX"},
        {"operation": "barrier", "dtype": None, "reduce_op": None, "count": 0},
        {"operation": "broadcast", "reduce_op": None, "root": 1},
        {"detail": "00000000000000ab"},
    ],
)
def test_what_may_differ(tmp_path: Path, other: dict[str, Any]) -> None:
    found = judged(
        tmp_path,
        ring(0, 3, [operation(1, 1.0)]),
        ring(1, 3, [operation(1, 1.0)]),
        ring(2, 3, [operation(1, 1.0, **other)]),
    )
    assert found.findings[0].behind == (2,)


def test_shares_of_an_all_to_all_may_differ(tmp_path: Path) -> None:
    common = {"operation": "all_to_all", "reduce_op": None, "algorithm": "mpi_uneven"}
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, count=-1, **common)]),
        ring(1, 2, [operation(1, 1.0, count=4, **common)]),
    )
    assert how(found.findings[0]) == ["moves", "moves"]
    assert found.behind == ()


def test_stopped_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = judged(
        tmp_path,
        ring(0, 3, [operation(1, 1.0, algorithm="mapped")]),
        ring(1, 3, [operation(1, 2.0, algorithm="mapped")], state="stopped"),
        ring(2, 3, [operation(1, 1.0, algorithm="mapped")]),
    )
    assert found.behind == (1,)
    assert how(found.findings[0]) == ["moves"] * 3
    text = shown(tmp_path, capsys)
    assert "The process of rank 1 (1001 on here) was stopped." in text
    assert "are in the middle" in text


def test_stopped_before_it_saw_the_others(tmp_path: Path) -> None:
    """It waits in its call for members that have come meanwhile, and gone on."""
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, 1.5), operation(2, 1.6)]),
        ring(1, 2, [operation(1, 0.9)], state="stopped"),
    )
    assert found.behind == (1,)
    assert [how(f) for f in found.findings] == [["waits", "never came"], ["ended", "moves"]]
    assert [f.behind for f in found.findings] == [(1,), (1,)]


def test_dead_in_the_middle(tmp_path: Path) -> None:
    """The others have given it up; the trace of the dead rank says that it waits."""
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, 2.0, "peer_died", arrived=1.0)]),
        ring(1, 2, [operation(1, 0.9)], state="ended"),
    )
    assert found.behind == (1,)
    [finding] = found.findings
    assert how(finding) == ["failed", "moves"]
    assert (finding.behind, finding.waiting) == ((1,), (0,))


def test_all_are_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [ring(r, 2, [operation(1, 1.0, algorithm="mpi")]) for r in range(2)]
    found = judged(tmp_path, *made)
    assert found.behind == ()
    assert "Nobody is behind" in shown(tmp_path, capsys)


def test_phases_between_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = {"algorithm": "levels", "rail": 1}
    wire = levels | {"phase": "between the nodes", "partner": 3}
    found = judged(
        tmp_path,
        ring(0, 4, [operation(1, 1.0, **levels, phase="on the node", partner=None)]),
        ring(1, 4, [operation(1, 1.0, **wire)]),
        ring(2, 4, [operation(1, 1.0, 5.0, **(wire | {"outcome": "timeout"}))]),
        ring(3, 4, [operation(1, 1.0, 5.0, **wire)]),
    )
    assert [part.where for part in found.findings[0].parts] == [
        "on the node, on rail 1",
        "between the nodes, on rail 1, with rank 3",
        "between the nodes, on rail 1, with rank 3",
        "",
    ]
    text = shown(tmp_path, capsys)
    assert "rank 1 is in the middle: between the nodes, on rail 1, with rank 3" in text
    assert "(timeout), between the nodes, on rail 1, with rank 3" in text


def test_others_have_ended(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, 1.5)]),
        ring(1, 2, [operation(1, 1.0, algorithm="mpi")]),
    )
    assert how(found.findings[0]) == ["ended", "moves"]
    assert found.behind == (1,)


def test_rank_that_comes_too_late(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, 31.0, "timeout")]),
        ring(1, 2, [operation(1, 40.0, 40.1, "group_broken")]),
    )
    [finding] = found.findings
    assert how(finding) == ["failed", "came too late"]
    assert finding.behind == (1,)
    assert found.waits[0].rank == 1
    assert found.waits[0].others == pytest.approx(30.0)  # rank 0 did not wait longer


def test_refusal(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0)]),
        ring(1, 2, [operation(1, 1.0, refusing=True, dtype=None, count=0, reduce_op=None)]),
    )
    assert how(found.findings[0]) == ["waits", "refused"]


def test_rank_without_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = judged(tmp_path, ring(0, 2, [operation(1, 1.0)]))
    assert found.absent == (1,)
    assert how(found.findings[0]) == ["waits", "unknown"]
    assert "No trace of rank 1." in shown(tmp_path, capsys)


def test_ring_that_has_forgotten(tmp_path: Path) -> None:
    """A rank whose ring begins later has gone on; it did not fail to come."""
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, **{"async": True}, algorithm="mpi")]),
        ring(1, 2, [operation(2000, 50.0, 51.0)]),
    )
    assert how(found.findings[0]) == ["moves", "unknown"]
    assert all(w.others == 0 for w in found.waits)


def test_traces_that_were_not_taken_together(tmp_path: Path) -> None:
    """The job went on between the traces of two ranks: the first one is not behind."""
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, algorithm="mpi")], taken=2.0),
        ring(1, 2, [operation(1, 1.0, 2.5), operation(2, 2.6)], taken=3.0),
    )
    assert found.behind == ()
    assert sorted(map(how, found.findings)) == [["moves", "ended"], ["unknown", "waits"]]
    assert all(w.others == 0 for w in found.waits)


def test_chain_of_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2 in another group: rank 2 is behind."""
    pair = {2: [1, 2]}
    found = judged(
        tmp_path,
        ring(0, 3, [operation(1, 10.0)]),
        ring(1, 3, [operation(1, 20.0, group=2)], pair),
        ring(2, 3, [], pair),
    )
    assert found.behind == (2,)
    text = shown(tmp_path, capsys)
    assert "it is in all_reduce(float32[8], SUM), number 1 of the group of ranks 1 and 2" in text
    assert "rank 2 never came: it has submitted no operation" in text


def test_circle(tmp_path: Path) -> None:
    """Two ranks that wait for each other in different groups are both behind."""
    other = {2: [0, 1]}
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 10.0)], other),
        ring(1, 2, [operation(1, 10.0, group=2)], other),
    )
    assert found.behind == (0, 1)
    assert "number 1 of 2" in found.findings[0].group


def test_receive_that_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = judged(
        tmp_path,
        ring(0, 2, [message(10.0, "recv", 1)]),
        ring(1, 2, [operation(1, 1.0, 2.0, "mismatch")]),
    )
    assert found.behind == (1,)
    text = shown(tmp_path, capsys)
    assert "recv(float32[8]) from rank 1 of the group (tag 5) of the group of all 2 ranks" in text
    assert "rank 1 is awaited: its last operation was all_reduce(float32[8], SUM)" in text


def test_sendrecv_and_any_rank(tmp_path: Path) -> None:
    found = judged(
        tmp_path,
        ring(0, 3, [message(10.0, "sendrecv", 1, peers=[1, 2], tags=[3, -1])]),
        ring(1, 3, [message(10.0, "recv", -1)]),
        ring(2, 3, []),
    )
    assert "sendrecv(float32[8]) to rank 1 of the group (tag 3) from rank 2 of the group" in [
        f.what for f in found.findings
    ]
    assert found.behind == (1, 2)


def test_waiting_side_by_side_counts_once(tmp_path: Path) -> None:
    together = {"async": True}
    found = judged(
        tmp_path,
        ring(0, 2, [operation(1, 1.0, 9.0, **together), operation(2, 2.0, 9.0, **together)]),
        ring(1, 2, [operation(1, 5.0, 9.0), operation(2, 8.0, 9.0)]),
    )
    assert found.waits[0].rank == 1
    assert found.waits[0].others == pytest.approx(7.0)


def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [ring(r, 2, [operation(1, 1.0, 1.5)]) for r in range(2)]
    assert judged(tmp_path, *made).findings == ()
    text = shown(tmp_path, capsys)
    assert "No operation is under way." in text
    assert text.endswith("\nNo rank has waited for another.\n")


def test_shares_of_the_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank's share is what the others have waited for it where it came last."""
    came = ((1.0, 1.2, 4.0), (5.0, 6.0, 5.5), (7.0, 7.0, 9.0))  # when, to three collectives
    made = [
        ring(r, 3, [operation(seq + 1, at[r], max(at) + 0.01) for seq, at in enumerate(came)])
        for r in range(3)
    ]
    waits = {w.rank: w for w in judged(tmp_path, *made).waits}
    assert waits[2].others == pytest.approx(3.0 + 2.8 + 2.0 + 2.0)
    assert waits[1].others == pytest.approx(1.0 + 0.5)
    assert waits[0].others == 0
    assert waits[2].share == pytest.approx(9.8 / 11.3)
    assert waits[0].itself == pytest.approx(3.0 + 1.0 + 2.0)
    text = shown(tmp_path, capsys)
    assert "  2                 9.800 s        87%           0.500 s\n" in text
    assert "waited 11.300 s, of which 9.800 s (87%) for rank 2.\n" in text


def test_nobody_stands_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    came = ((1.0, 2.0), (4.0, 3.1))
    made = [
        ring(r, 2, [operation(seq + 1, at[r], max(at) + 0.01) for seq, at in enumerate(came)])
        for r in range(2)
    ]
    write(tmp_path, *made)
    text = shown(tmp_path, capsys)
    assert text.endswith("\nAll ranks together have waited 1.900 s. No rank stands out.\n")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, ring(0, 2, [operation(1, 1.0)]), ring(1, 2, []))
    data = json.loads(shown(tmp_path, capsys, "--json"))
    assert data["behind"] == [1]
    assert data["findings"][0]["parts"][1]["how"] == "never came"
    assert data["ranks"][0]["pid"] == 1000
    assert {w["rank"] for w in data["waits"]} == {0, 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "no trace of paddlempi"),
        ({"version": 2}, "its version is 2, not 1"),
        ({"operations": 3}, "operations is 3, which is no list"),
        ({"operations": [3]}, "3 is no operation"),
        ({"operations": [{}]}, "the operation has no number"),
        ({"operations": [operation(1, 1.0) | {"count": "8"}]}, "count is '8', which is no int"),
        ({"operations": [operation(1, 1.0) | {"seq": 1.5}]}, "seq is 1.5, which is no int"),
        ({"rank": 7}, "rank 7 of 2"),
        ({"groups": [{"id": 1, "key": "0", "rank": 0, "ranks": [0, 9]}]}, "rank 9 of 2"),
    ],
)
def test_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: str
) -> None:
    damaged = ring(0, 2, []) | change
    (tmp_path / "rank-0.json").write_text(json.dumps(damaged))
    assert main(["trace", "show", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "rank-0.json" in err
    assert words in err


def test_folder_without_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, words in ((tmp_path, "has no trace"), (tmp_path / "none", "is no folder")):
        assert main(["trace", "show", str(folder)]) == 1
        assert words in capsys.readouterr().err
    (tmp_path / "rank-0.json").write_text("{")
    assert main(["trace", "show", str(tmp_path)]) == 1
    write(tmp_path, ring(0, 2, []), ring(1, 3, []))
    assert main(["trace", "show", str(tmp_path)]) == 1
    assert "jobs of [2, 3] ranks" in capsys.readouterr().err


def test_a_folder_for_each_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``trace dump`` writes them if it finds several jobs on a host."""
    for job in ("a", "b"):
        write(tmp_path / f"job-{job}", ring(0, 2, []) | {"job": job})
    assert main(["trace", "show", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "has traces of 2 jobs; name the folder of one: " in err
    assert str(tmp_path / "job-a") in err and str(tmp_path / "job-b") in err
    assert main(["trace", "show", str(tmp_path / "job-a")]) == 0
    assert "Traces of 1 of 2 ranks" in capsys.readouterr().out
    # On the job's other host there was no other job.
    write(tmp_path, ring(1, 2, []) | {"job": "b"})
    assert main(["trace", "show", str(tmp_path)]) == 0
    assert "Traces of 2 of 2 ranks" in capsys.readouterr().out
    write(tmp_path, ring(0, 2, []) | {"job": "a"})
    assert main(["trace", "show", str(tmp_path)]) == 1
    assert "has traces of 2 jobs; put one job into a folder" in capsys.readouterr().err


def test_dump_needs_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "dump"]) == 2
    assert main(["trace", "dump", "--all", "3"]) == 2
    assert "give process ids, or --all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ((2,), "rank 2"),
        ((0, 1), "ranks 0 and 1"),
        ((0, 1, 2, 3, 7), "ranks 0 to 3 and 7"),
        (tuple(range(0, 80, 2)), "ranks " + ", ".join(map(str, range(0, 32, 2))) + " and 24 more"),
    ],
)
def test_names_of_ranks(ranks: tuple[int, ...], name: str) -> None:
    assert name_ranks(ranks) == name
