"""The words of python -m paddlempi bench, and its help."""

from __future__ import annotations

import argparse
import io
import re

import pytest
from paddlempi import _progress
from paddlempi.cli import bench, main
from paddlempi.cli.bench import calibrate, calls, collectives, ps, report
from paddlempi.cli.bench.operations import OPERATIONS

OF_CALLS = "--min --max --sizes --dtype --framework --memory --iterations --warmup --seconds "
OF_CALLS += "--same-buffer --threads --against --table --plot"


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_to(parser.add_subparsers(dest="command"))
    return parser.parse_args(["bench", *words])


def test_arguments() -> None:
    words = ("broadcast", "reduce", "--min", "1K", "--max=4MiB", "--against", "gloo,mpi,gloo")
    chosen = parse("call", *words)
    assert chosen.operations == ["broadcast", "reduce"]
    assert (chosen.min, chosen.max) == (1024, 4 << 20)
    assert chosen.against == ["gloo", "mpi"]
    assert (chosen.framework, chosen.dtype, chosen.table) == ("numpy", "float32", False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: TOOL"),
        (["--seconds", "3"], "the following arguments are required: TOOL"),
        (["--calibrate"], "--calibrate: expected one argument"),
        (["--calibrate", "m.json", "--seconds", "0"], "'0': it must be a number of seconds"),
        (["--calibrate", "m.json", "allreduce"], "invalid choice: 'allreduce' (choose from "),
        (["step", "ddp", "--calibrate", "m.json"], "unrecognized arguments: --calibrate m.json"),
        (["allreduce"], "invalid choice: 'allreduce' (choose from "),
        (["call", "allreduce"], "'allreduce' is none of all_reduce"),
        (["all_reduce", "nosuch"], "barrier, all\n"),
        (["all_reduce", "io"], "'io' is none of all_reduce"),
        (["call", "--max", "4X"], "no number of bytes"),
        (["call", "--min", "0"], "no number of bytes"),
        (["io", "--iterations", "0"], "not above 0"),
        (["call", "--timeout", "soon"], "'soon': it must be a number of seconds"),
        (["step", "ddp", "--timeout", "0"], "'0': it must be a number of seconds"),
        (["call", "--warmup", "-1"], "is no number"),
        (["call", "--against", "nccl"], "'nccl' is none of usual, mpi, mpi4py, gloo, none"),
        (["call", "--against", "gloo,none"], "'gloo,none': none stands alone"),
        (["step", "ddp", "--against", "mpi4py"], "'mpi4py' is none of mpi, gloo, none"),
        (["step"], "the following arguments are required: KIND"),
        (["step", "ddp", "fsdp"], "invalid choice: 'fsdp' (choose from "),
        (["call", "--plot", "picture.png"], ".svg"),
        (["inference", "--dtype", "int32"], "invalid choice: 'int32'"),
        (["ps", "--dims", "16,x"], "'x' is no number"),
        (["ps", "--level", "both"], "invalid choice: 'both'"),
        (["ps", "--level", "dense", "--sizes", "4K,"], "no number of bytes"),
        (["barrier", "--sizes", "8;1K"], "no number of bytes"),
        (["call", "--threads", "1,0"], "'0' is not above 0"),
        (["call", "--seconds", "0"], "'0': it must be a number of seconds"),
    ],
)
def test_wrong_arguments(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["call", "--json", "nowhere/r.json"], "nowhere/r.json: there is no folder nowhere"),
        (["all_reduce", "--plot", "nowhere/p.svg"], "there is no folder nowhere"),
        (["call", "--min", "8K", "--max", "4K"], "--max 4096 is below --min 8192"),
        (["all", "--plot", "p.svg"], "a picture shows one operation"),
        (["barrier", "--plot", "p.svg"], "a picture shows one operation"),
        (["call", "--threads", "1,2", "--against", "mpi"], "--threads goes without --against"),
        (["ps", "--level", "dense", "--plot", "p.svg"], "--level dense: --plot is of modes"),
        (["step", "ddp", "--json", "nowhere/r.json"], "there is no folder nowhere"),
        (["inference", "--json", "nowhere/r.json"], "there is no folder nowhere"),
        (["ps", "--json", "nowhere/r.json"], "there is no folder nowhere"),
        (["io", "--json", "nowhere/r.json"], "there is no folder nowhere"),
        (["--calibrate", "m.json", "step", "ddp"], "--seconds go without TOOL, which is step"),
        (["--seconds", "3", "all_reduce"], "--seconds go without TOOL, which is all_reduce"),
    ],
)
def test_arguments_that_do_not_go_together(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before MPI starts."""
    assert main(["bench", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (True, "bench: nowhere/m.json: there is no folder nowhere"),
        (False, "torch is not installed, whose steps are measured: pip install torch"),
    ],
)
def test_what_a_calibration_needs(
    installed: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lambda name: name == "numpy" or installed or None  # noqa: E731
    monkeypatch.setattr(calibrate.importlib.util, "find_spec", found)
    assert main(["bench", "--calibrate", "nowhere/m.json"]) == 2
    assert expected in capsys.readouterr().err


def test_which_operations() -> None:
    for words, expected in (
        (["call"], ["all_reduce"]),
        (["call", "--max", "4K", "barrier"], ["barrier"]),
        (["all"], list(OPERATIONS)),
        (["barrier"], ["barrier"]),
        (["call", "reduce", "gather", "reduce"], ["reduce", "gather"]),
        (["reduce", "gather", "reduce"], ["reduce", "gather"]),
    ):
        chosen = parse(*words)
        calls._check(chosen)
        assert chosen.operations == expected


def test_which_contenders() -> None:
    for words, expected in (
        (["call"], None),  # the nodes of the job decide
        (["call", "--against", "mpi"], ["mpi"]),
        (["call", "--threads", "1,2,4"], None),
        (["step", "ddp", "--against", "none"], []),
    ):
        assert parse(*words).against == expected


def test_levels_of_ps() -> None:
    assert parse("ps").level == "table"
    chosen = parse("ps", "--level", "dense", "--sizes", "4K,1M")
    assert (chosen.level, chosen.sizes) == ("dense", [4096, 1 << 20])
    chosen = parse("ps", "--level", "dense")
    ps._check(chosen)
    assert chosen.sizes == [4096, 1 << 20, 64 << 20]


def test_sizes() -> None:
    assert collectives.sizes(8, 64) == [8, 16, 32, 64]
    assert collectives.sizes(24, 100) == [24, 48, 96]
    assert collectives.sizes(7, 7) == [7]
    assert parse("call", "--sizes", "8,1K,16MiB").sizes == [8, 1024, 16 << 20]


@pytest.mark.parametrize(
    ("tool", "own"),
    [
        ("call", OF_CALLS),
        ("step", "--model --rounds --against --table"),
        ("inference", "--dtype --rounds"),
        ("ps", "--level --dims --batches --rows --sizes --rounds --trainers --grpc-program --plot"),
        ("io", "--bytes --folder --iterations"),
    ],
)
def test_the_help_of_a_tool_is_one_screen_of_its_options(
    tool: str, own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["bench", tool, "--help"])
    told = capsys.readouterr().out
    named = re.findall(r"^  (?:-h, )?(--[\w-]+)", told, re.M)
    assert named == ["--help", *own.split(), "--json", "--timeout"]
    lines = told.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 80, told


def test_the_help_has_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    told = capsys.readouterr().out
    assert re.findall(r"^    (\w+)", told, re.M) == ["call", "step", "inference", "ps", "io"]
    assert "short for call OPERATION" in " ".join(told.split())


def test_lines_say_how_far_it_is_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(report.group, "get_rank", lambda: 0)
    stream = io.StringIO()
    bar = report.Bar(2, stream)
    for now, part in ((4, 0.2), (11, 0.5), (12, 0.6), (22, 1.0)):
        clock[0] = now
        bar.show("all_reduce", part)
    bar.clear()
    quarter = f"[{'#' * 7:<30}] all_reduce, about 33 s left\n"
    assert stream.getvalue() == quarter + f"[{'#' * 15:<30}] all_reduce, about 22 s left\n"
