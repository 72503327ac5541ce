"""What docs/way.md says of some calls is what they do: the calls are traced once more."""

from __future__ import annotations

import subprocess

import pytest
import requirements
from mpis import ROOT


@pytest.mark.usefixtures("openmpi")
def test_calls_go_the_way_that_the_page_says() -> None:
    reason = requirements.hosts_missing()
    if reason:
        pytest.skip(reason)
    done = subprocess.run(
        [ROOT / ".venv-tools" / "bin" / "python", ROOT / "tools" / "way" / "way.py", "--compare"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
