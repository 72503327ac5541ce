"""examples/serve_increments.py: each answer is of one step, and the last is served at the end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from example import DEADLINE, FOLDER
from paddlempi import ps
from paddlempi.testing import launch

NAME = str(FOLDER / "serve_increments.py")


def test_serves_while_training_goes_on(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    inner = [sys.executable, "-m", "paddlempi", "run", "--roles", "trainer:2,pserver:1", NAME]
    ranks = launch.command(3, [*inner, "--model", model, "--keep", "0", "--steps", "200"])
    served = [sys.executable, NAME, "--model", model, "--serve", "127.0.0.1:0"]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(ranks.argv, env=ranks.env, stdout=pipe, stderr=subprocess.STDOUT) as job,
        subprocess.Popen(served, stdout=pipe, text=True) as server,
    ):
        try:
            assert server.stdout and job.stdout
            line = server.stdout.readline()
            found = re.fullmatch(r"serves step 20 at (127\.0\.0\.1:\d+)\n", line)
            assert found, line
            asked = f"http://{found[1]}/scores?user=3&items=1,2,250"
            answers = []
            while not answers or answers[-1]["step"] < 200:
                with urllib.request.urlopen(asked, timeout=DEADLINE) as reply:
                    answers.append(json.load(reply))
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(asked.replace("user=3", "user=x"), timeout=DEADLINE)
            output = job.communicate(timeout=DEADLINE)[0].decode()
            assert job.returncode == 0, output
            server.send_signal(signal.SIGINT)
            told = server.stdout.read()  # to its end: communicate loses what readline has read
            assert server.wait() == 0
        finally:
            server.kill()
            job.kill()
    assert re.findall(r"serves step (\d+)", told) == [str(step) for step in range(40, 220, 20)]
    steps = [answer["step"] for answer in answers]
    assert steps == sorted(steps)
    assert output.count("published step") == 10, output
    for step in set(steps):
        cut = ps.load(tmp_path / "model" / "cuts", step=step)
        wanted = cut["items"].pull(np.array([1, 2, 250])) @ cut["users"].pull(np.array([3]))[0]
        for answer in answers:
            if answer["step"] == step:
                assert answer["scores"] == wanted.tolist()
