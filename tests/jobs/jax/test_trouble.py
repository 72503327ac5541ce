"""What goes wrong in XLA's collectives ends them, with the core's text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jax_job import BEGIN, run, succeed

ERRORS = """
add = mapped(lambda a: lax.psum(a, "x"))
fine = spread(np.ones(4))
assert (mine(add(fine)) == size).all()


def error_of(call):
    try:
        call().block_until_ready()
    except Exception as error:  # JAX raises one of two, by which thread runs the program
        assert isinstance(error, (ValueError, jax.errors.JaxRuntimeError)), type(error)
        return str(error)
    raise SystemExit("no error")


# Other lengths on other ranks: the error has both, and the group goes on.
n = 4 + rank % 2
odd = jax.make_array_from_process_local_data(rows, np.ones(n), (size * n,))
text = error_of(lambda: add(odd))
assert f"rank {rank}, MPI_Allreduce: " in text, text
assert "float32[4]" in text and "float32[5]" in text, text
assert (mine(add(fine)) == size).all()

# A rank that does not come in time.
if rank == 1:
    time.sleep(3)
text = error_of(lambda: add(fine))
assert "MPI_Allreduce" in text and ("timed out after 2" in text or "gave up" in text), text
print("done", flush=True)
"""


def test_mismatch_and_deadline(tmp_path: Path) -> None:
    assert succeed(2, ERRORS, tmp_path, options="timeout=2").count("done") == 2


DEATH = """
add = mapped(lambda a: lax.psum(a, "x"))
fine = spread(np.ones(4))
add(fine).block_until_ready()
if rank == 1:
    import os
    os.kill(os.getpid(), 9)
began = time.monotonic()
try:
    add(fine).block_until_ready()
except Exception as error:
    print("found", round(time.monotonic() - began), error, flush=True)
    raise
"""


def test_death(tmp_path: Path) -> None:
    """The other ranks get an error that names the rank, long before JAX notices."""
    script = tmp_path / "program.py"
    script.write_text(BEGIN.format(options="") + DEATH)
    words = ["-m", "paddlempi", "run", "-np", "3", "--keep-survivors", str(script)]
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    found = re.findall(r"found (\d+) .*MPI_Allreduce: .*rank\(s\) \[1\] died", done.stdout)
    assert len(found) == 2 and max(map(int, found)) < 20, done.stdout


INTERRUPTED = """
import os, signal, threading

add = mapped(lambda a: lax.psum(a, "x"))
long = spread(np.ones({count}))
add(long).block_until_ready()
if rank == 1:
    time.sleep(60)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    add(long).block_until_ready()
except Exception as error:  # JAX's error may come first, and is followed by the interrupt
    assert "interrupted" in str(error), error
    time.sleep(60)
finally:
    print("after", round(time.monotonic() - began), flush=True)
"""


@pytest.mark.parametrize("count", [4, 1 << 20])
def test_ctrl_c(tmp_path: Path, count: int) -> None:
    """A short program runs on the main thread, a long one on a thread of XLA."""
    ended = run(2, INTERRUPTED.replace("{count}", str(count)), tmp_path, mpi="node")
    after = re.search(r"after (\d+)", ended.output)
    assert after and int(after[1]) < 20, ended.output
    assert ended.returncode == 130, ended.output


RAISES = """
add = mapped(lambda a: lax.psum(a, "x"))
fine = spread(np.ones(4))
add(fine).block_until_ready()
if rank == 1:
    raise ValueError("of rank 1")
add(fine).block_until_ready()
"""


def test_a_rank_that_raises_ends_the_job(tmp_path: Path) -> None:
    """JAX's shutdown in it would wait for the others, which wait for it."""
    ended = run(2, RAISES, tmp_path)
    assert ended.returncode == 1 and "of rank 1" in ended.output, ended.output


LATE = """
import paddlempi as dist
import jax
import paddlempi.jax

dist.init_process_group("mpi", timeout=20)
if dist.get_rank() == 1:
    jax.devices()
try:
    paddlempi.jax.initialize()
    raise SystemExit("no error")
except dist.errors.ArgumentError as error:
    assert error.ranks == (1,) and "rank 1: JAX has made its devices already" in str(error), error
print("done", flush=True)
"""


def test_too_late(tmp_path: Path) -> None:
    """All ranks raise if one of them has used JAX before."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    assert succeed(2, script, tmp_path).count("done") == 2


SLURM = """
assert jax.numpy.ones(3).sum() == 3
assert mine(mapped(lambda a: lax.psum(a, "x"))(spread(np.ones(1)))) == size
print("done", flush=True)
"""


def test_slurms_variables_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX would take the number of processes and the coordinator from them."""
    others = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "elsewhere[1-2]",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
    }
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    assert succeed(2, SLURM, tmp_path, mpi="node").count("done") == 2


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_other_releases_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """Also another jaxlib, which may ask its MPI for other names."""
    module = "jax" if name == "jax" else "jax.lib"
    script = tmp_path / "other.py"
    script.write_text(
        f"import jax, jax.lib\n{module}.__version__ = '0.9.2'\nimport paddlempi.jax\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"UnsupportedError: paddlempi.jax works with {name} 0.10.1 and 0.10.2" in done.stderr
    assert f"this is {name} 0.9.2" in done.stderr
