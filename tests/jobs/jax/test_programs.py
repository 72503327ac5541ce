"""Real programs, each of which compares itself with one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jax_job import ROOT, succeed

MORE = [("train_jax.py", 4, "node"), ("fft_jax.py", 2, None)]


@pytest.mark.parametrize(
    ("program", "ranks", "mpi"),
    [
        ("train_jax.py", 2, None),
        ("fft_jax.py", 4, "node"),
        *(MORE if "TEST_ALL" in os.environ else []),
    ],
)
def test_examples(tmp_path: Path, program: str, ranks: int, mpi: str | None) -> None:
    output = succeed(ranks, ROOT / "examples" / program, tmp_path, mpi=mpi)
    assert output.count("as in one process") == 1, output


def test_monte_carlo(tmp_path: Path) -> None:
    output = succeed(2, ROOT / "examples" / "ising_jax.py", tmp_path)
    assert output.count("as in one process") == 1, output


TOOLS = """
from jax.experimental import multihost_utils as tools
from paddlempi import io

expected = np.arange(3) + np.arange(size)[:, None]
assert (tools.process_allgather(np.arange(3) + rank) == expected).all()
assert tools.broadcast_one_to_all(np.float32(7 + rank)) == 7
tools.sync_global_devices("here")
tools.assert_equal({"a": np.ones(2)})
try:
    tools.assert_equal(np.ones(2) * rank)
    assert size == 1
except AssertionError:
    pass
local = np.arange(12, dtype=np.float32).reshape(2, 6) + 100 * rank
whole = tools.host_local_array_to_global_array(local, mesh, P("x"))
assert whole.shape == (2 * size, 6)
assert (tools.global_array_to_host_local_array(whole, mesh, P("x")) == local).all()


# A checkpoint of a sharded array, docs/jax.md
def shard(array):
    part = array.addressable_shards[0]
    return io.Shard(np.asarray(part.data), array.shape, [s.start or 0 for s in part.index])


io.save_file({"w": shard(whole)}, "model.safetensors")
columns = NamedSharding(mesh, P(None, "x"))
with io.open_file("model.safetensors") as file:
    saved = file.get_slice("w")
    again = jax.make_array_from_callback(whole.shape, columns, lambda index: saved[index])
assert (mine(jax.jit(lambda a, b: abs(a - b).max())(whole, again)) == 0).all()
print("done", flush=True)
"""


def test_multihost_utils_and_checkpoints(tmp_path: Path) -> None:
    assert succeed(2, TOOLS, tmp_path).count("done") == 2
