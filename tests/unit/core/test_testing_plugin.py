"""The pytest plugin in real jobs: mpirun runs pytest on every rank, these tests read the report."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from paddlempi.testing import Result, run
from paddlempi.testing.launch import mpirun_path

PLUGIN = "paddlempi.testing.plugin"
INSTALLED = any(
    point.value == PLUGIN for point in importlib.metadata.entry_points(group="pytest11")
)

Ranks = Callable[..., Result]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Return a function that runs a test file's source under mpirun and `pytest --mpi`.

    ``plugins`` lets pytest load every plugin that is installed, as users' runs do. That takes each
    rank a second, because hypothesis is among them.
    """
    try:
        mpirun_path()
    except FileNotFoundError as error:
        pytest.skip(f"no MPI in this environment: {error}")

    def start(
        np: int, source: str, *options: str, timeout: float = 60.0, plugins: bool = False
    ) -> Result:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
        command = [sys.executable, "-m", "pytest", "--mpi", "--color=no", "test_it.py", *options]
        env = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        if not plugins:
            env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if not (plugins and INSTALLED):
            command[3:3] = ["-p", PLUGIN]
        return run(np, command, cwd=tmp_path, timeout=timeout, env=env)

    return start


def closing(result: Result) -> str:
    """Return the closing line of the report. Fail unless there is exactly one."""
    lines = re.findall(r"^=+ (.* in [\d.]+s.*?) =+$", result.stdout, re.MULTILINE)
    assert len(lines) == 1, result.output
    return re.sub(r" in [\d.]+s.*", "", lines[0])


def test_pass_on_every_rank(ranks: Ranks) -> None:
    result = ranks(3, "def test_a(mpi_place): assert mpi_place.size == 3", plugins=True)
    assert result.returncode == 0, result.output
    assert closing(result) == "1 passed"
    assert "mpi: 3 ranks" in result.stdout


def test_every_rank_runs_it(ranks: Ranks, tmp_path: Path) -> None:
    """The tests here that expect a pass would not notice a harness whose ranks run nothing."""
    result = ranks(
        3,
        """
        from pathlib import Path
        def test_a(mpi_place):
            Path(f"ran-{mpi_place.rank}").touch()
        """,
    )
    assert closing(result) == "1 passed"
    assert sorted(p.name for p in tmp_path.glob("ran-*")) == ["ran-0", "ran-1", "ran-2"]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_fail_on_one_rank(ranks: Ranks, bad: int) -> None:
    result = ranks(
        3,
        f"""
        def test_a(mpi_place):
            print("printed by", mpi_place.rank)
            assert mpi_place.rank != {bad}, "this one"
        def test_b(): pass
        """,
    )
    assert result.returncode != 0
    assert closing(result) == "1 failed, 1 passed"
    assert f"rank {bad} of 3" in result.stdout
    assert f"[rank {bad}] AssertionError: this one" in result.stdout
    for rank in range(3):
        assert f"rank {rank}: Captured stdout call" in result.stdout
        assert f"printed by {rank}" in result.stdout


def test_same_failure_is_shown_once(ranks: Ranks) -> None:
    result = ranks(2, "def test_a(): assert 1 == 2")
    assert closing(result) == "1 failed"
    assert result.stdout.count("def test_a(): assert 1 == 2") == 1
    assert "every rank" in result.stdout


def test_different_failures_are_all_shown(ranks: Ranks) -> None:
    result = ranks(2, "def test_a(mpi_place): assert False, f'reason {mpi_place.rank}'")
    assert "reason 0" in result.stdout
    assert "reason 1" in result.stdout


@pytest.mark.parametrize("phase", ["setup", "teardown"])
def test_fixture_fails_on_one_rank(ranks: Ranks, phase: str) -> None:
    before, after = ("fail()", "") if phase == "setup" else ("", "fail()")
    result = ranks(
        2,
        f"""
        import pytest
        @pytest.fixture
        def thing(mpi_place):
            def fail():
                assert mpi_place.rank == 0, "not here"
            {before}
            yield
            {after}
        def test_a(thing): print("the body ran")
        """,
    )
    assert result.returncode != 0
    assert closing(result) == ("1 error" if phase == "setup" else "1 passed, 1 error")
    assert f"ERROR at {phase} of test_a" in result.stdout
    # No rank enters a body that another rank will not enter.
    assert ("the body ran" in result.stdout) == (phase == "teardown")


def test_rank_counts(ranks: Ranks) -> None:
    source = """
        import pytest
        @pytest.mark.mpi(ranks=2)
        def test_two(): pass
        @pytest.mark.mpi(ranks=[1, 3])
        def test_one_or_three(): pass
        @pytest.mark.mpi(min=2)
        def test_at_least_two(): pass
        @pytest.mark.parametrize("n", [pytest.param(3, marks=pytest.mark.mpi(ranks=3)), 0])
        def test_param(n, mpi_place): assert n in (0, mpi_place.size)
        """
    assert closing(ranks(2, source)) == "3 passed, 2 deselected"
    assert closing(ranks(3, source)) == "4 passed, 1 deselected"


def test_wrong_marker(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        import pytest
        @pytest.mark.mpi(rank=2)
        def test_a(): pass
        """,
    )
    assert result.returncode != 0
    assert "test_it.py::test_a: the marker is mpi(ranks=" in result.output


def test_no_test_for_this_count_is_no_success(ranks: Ranks) -> None:
    result = ranks(2, "import pytest\n@pytest.mark.mpi(ranks=3)\ndef test_a(): pass")
    assert result.returncode != 0
    assert closing(result) == "1 deselected"


def test_ranks_option_notices_a_job_of_another_size(ranks: Ranks) -> None:
    result = ranks(2, "def test_a(): pass", "--mpi-ranks=4")
    assert result.returncode != 0
    assert "--mpi-ranks=4, but the launcher" in result.output


def test_parametrize_and_k(ranks: Ranks) -> None:
    source = """
        import pytest
        @pytest.mark.parametrize("x", range(4))
        def test_a(x): assert x != 3
        """
    assert closing(ranks(2, source)) == "1 failed, 3 passed"
    assert closing(ranks(2, source, "-k", "not 3")) == "3 passed, 1 deselected"


def test_exit_first_stops_every_rank_together(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        def test_a(mpi_place): assert mpi_place.rank == 0
        def test_b(): pass
        """,
        "-x",
    )
    assert result.returncode != 0
    assert closing(result) == "1 failed"


def test_last_failed_is_all_ranks(ranks: Ranks) -> None:
    source = """
        def test_a(): pass
        def test_b(mpi_place): assert mpi_place.rank == 0
        """
    ranks(2, source)
    assert closing(ranks(2, source, "--lf")) == "1 failed, 1 deselected"


def test_skips_and_xfails(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        import pytest
        def test_skipped(): pytest.skip("everywhere")
        def test_skipped_on_one(mpi_place):
            if mpi_place.rank: pytest.skip("not here")
        @pytest.mark.xfail
        def test_xfails(): assert False
        @pytest.mark.xfail(strict=True)
        def test_xfails_on_one(mpi_place): assert mpi_place.rank == 0
        @pytest.mark.xfail(strict=True)
        def test_passes_against_expectation(): pass
        """,
        "-rs",
    )
    assert closing(result) == "1 failed, 2 skipped, 2 xfailed"
    assert "not here (on rank 1 of 2)" in result.stdout
    assert ": everywhere\n" in result.stdout


def test_different_order_names_the_first_difference(ranks: Ranks) -> None:
    result = ranks(
        3,
        """
        import os, pytest
        last = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "2"
        @pytest.mark.parametrize("x", ["a", "c", "b"] if last else ["a", "b", "c"])
        def test_a(x): pass
        """,
    )
    assert result.returncode != 0
    assert closing(result) == "1 error"
    assert "The first difference is test number 2" in result.stdout
    assert "rank 0: test_it.py::test_a[b]" in result.stdout
    assert "rank 2: test_it.py::test_a[c]" in result.stdout


def test_import_error_on_one_rank(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        import os
        if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
            import no_such_module
        def test_a(): pass
        """,
    )
    assert result.returncode != 0
    assert closing(result) == "1 error"
    assert "rank 1 of 2" in result.stdout
    assert "no_such_module" in result.stdout


HANG = """
    import time
    def test_before(): pass
    def test_hangs(mpi_place):
        print("so far", mpi_place.rank)
        if mpi_place.rank == 1:
            the_place_where_it_hangs()
    def the_place_where_it_hangs():
        time.sleep(1000)
    def test_after(): pass
    """


def test_hang_on_one_rank(ranks: Ranks, tmp_path: Path) -> None:
    result = ranks(3, HANG, "--mpi-timeout=3", "--junitxml=report.xml")
    assert not result.timed_out
    assert result.returncode != 0
    assert closing(result) == "1 failed, 1 passed, 1 not run"
    assert "rank 1 did not finish within the deadline of 3 s (ranks 0, 2 waited)" in result.stdout
    assert "in the_place_where_it_hangs" in result.stdout
    assert "so far 1" in result.stdout
    assert "test_it.py::test_after" in result.stdout
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_hang_on_rank_0(ranks: Ranks) -> None:
    result = ranks(2, HANG.replace("rank == 1", "rank == 0"), "--mpi-timeout=3")
    assert result.returncode != 0
    assert closing(result) == "1 failed, 1 passed, 1 not run"
    assert "rank 0 did not finish" in result.stdout


def test_deadline_of_one_test(ranks: Ranks) -> None:
    marked = HANG.replace(
        "def test_hangs", "import pytest\n    @pytest.mark.mpi(timeout=3)\n    def test_hangs"
    )
    result = ranks(2, marked)
    assert closing(result) == "1 failed, 1 passed, 1 not run"
    assert "deadline of 3 s" in result.stdout


def test_hang_that_holds_the_gil(ranks: Ranks) -> None:
    """No Python thread can report while the GIL is held. C code prints stacks and ends the job."""
    result = ranks(
        2,
        """
        import ctypes
        def test_a(mpi_place):
            if mpi_place.rank == 0:
                ctypes.PyDLL(None).sleep(1000)
        """,
        "--mpi-timeout=3",
    )
    assert not result.timed_out
    assert result.returncode != 0
    assert "test_a" in result.stderr


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)", "os._exit(0)"])
@pytest.mark.parametrize("dead", [0, 1])
def test_dead_rank(ranks: Ranks, end: str, dead: int) -> None:
    result = ranks(
        2,
        f"""
        import os
        def test_ok(): pass
        def test_dies(mpi_place):
            if mpi_place.rank == {dead}:
                {end}
        """,
    )
    assert not result.timed_out
    assert result.returncode != 0
    # If the launcher kills rank 0 before it can report, the hub names the test.
    assert re.search(r"rank [01] ended while test_it.py::test_dies ran", result.output)


def test_rank_that_leaves_the_session(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        import pytest
        def test_a(mpi_place):
            if mpi_place.rank == 1: pytest.exit("enough")
        def test_b(): pass
        """,
    )
    assert not result.timed_out
    assert result.returncode != 0
    assert "rank 1 stopped: Exit: enough" in result.stdout


def test_internal_error_on_another_rank_is_shown(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_logfinish(nodeid, location):\n"
        "    import os\n"
        "    if os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1':\n"
        "        raise RuntimeError('a broken plugin')\n"
    )
    result = ranks(2, "def test_a(): pass\ndef test_b(): pass")
    assert result.returncode != 0
    assert "a broken plugin" in result.stdout


def test_forked_children_have_no_part(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        import multiprocessing
        def test_a():
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
        def test_b(): pass
        """,
    )
    assert result.returncode == 0, result.output
    assert closing(result) == "2 passed"


def test_agree_fails_alike_on_all_ranks(ranks: Ranks) -> None:
    result = ranks(
        3,
        """
        import pytest
        def test_a(mpi_place, mpi_agree):
            with pytest.raises(AssertionError, match="failed on rank 2(.|\\n)*my reason"):
                with mpi_agree():
                    assert mpi_place.rank != 2, "my reason"
            with mpi_agree():
                pass
        """,
    )
    assert result.returncode == 0, result.output
    assert closing(result) == "1 passed"


def test_hypothesis_shrinks_in_lock_step(ranks: Ranks) -> None:
    result = ranks(
        2,
        """
        from hypothesis import given, settings, strategies as st, HealthCheck
        @settings(database=None, deadline=None,
                  suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(x=st.integers())
        def test_a(mpi_place, mpi_agree, x):
            with mpi_agree():
                assert mpi_place.rank == 0 or x < 100
        """,
        "--mpi-timeout=30",
        plugins=True,
    )
    assert closing(result) == "1 failed", result.output
    assert "x=100" in result.stdout


def test_xdist_is_refused(ranks: Ranks) -> None:
    result = ranks(2, "def test_a(): pass", "--numprocesses=2", plugins=True)
    assert result.returncode != 0
    assert "exclude each other" in result.output


def test_idle_plugin_imports_nothing(tmp_path: Path) -> None:
    code = f"""
        import sys
        import {PLUGIN}
        heavy = [m for m in sys.modules if m.split(".")[0] in
                 ("mpi4py", "numpy", "torch", "paddle") or m.startswith("paddlempi._core")
                 or m == "paddlempi.testing.session"]
        assert not heavy, heavy
        """
    script = tmp_path / "idle.py"
    script.write_text(textwrap.dedent(code))
    path = os.pathsep.join(p for p in sys.path if p)
    import subprocess

    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0
