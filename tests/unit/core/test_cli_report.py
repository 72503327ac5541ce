"""``python -m paddlempi report``: one file, with no secret of the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRACE = '{"rank": 0, "said": "by the dump"}'


def report(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paddlempi", "report", *words]
    env = os.environ | variables
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def test_what_it_takes(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "rank-0.json").write_text(TRACE)
    secrets = {"MY_TOKEN": "s3cret", "SLURM_JWT": "s3cret", "OMPI_PASSWORD": "s3cret"}
    done = report(
        tmp_path,
        SLURM_NTASKS="2",
        PADDLEMPI_REPORT_AFTER="31",
        PADDLEMPI_TRACE=str(traces),
        **secrets,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "paddlempi-report.txt").read_text()
    titles = [line[5:-5] for line in text.splitlines() if line.startswith("==== ")]
    parts = ["versions", "variables", "limits", "info", "doctor", "trace show", "rank-0.json"]
    assert titles == parts
    for expected in ("SLURM_NTASKS=2", "PADDLEMPI_REPORT_AFTER=31", "/dev/shm: ", TRACE):
        assert expected in text
    assert "failed, " in text and "(status " in text  # of the doctor
    assert "s3cret" not in text and "MY_TOKEN" not in text
    listed = done.stdout.splitlines()
    assert [line[:12].strip() for line in listed[:-1]] == parts
    assert listed[-1].startswith("paddlempi-report.txt: names of hosts")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = report(tmp_path, "-o", "absent/file")
    assert (
        done.returncode == 1 and done.stderr == "report: absent/file: No such file or directory\n"
    )
