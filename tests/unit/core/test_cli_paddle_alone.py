"""``paddlempi run -- mpirun ... python train.py`` says that a Paddle script lacks the import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paddlempi.cli import paddle_alone

PADDLE = "import paddle\npaddle.distributed.init_parallel_env()\n"
OURS = "import paddlempi.paddle\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command is run, with some programs."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "alone.py": PADDLE,
        "with_us.py": OURS + PADDLE,
        "as_world.py": "import paddlempi as dist, paddle\n",
        "numpy_only.py": "import numpy\nx = 'import paddle'\n",
        "deep.py": "from package.model import Model\n",
        "deep_with_us.py": "import package.model, package.ours\n",
        "late.py": "def main():\n    from paddle.distributed import fleet\n",
        "by_name.py": "import importlib\nimportlib.import_module('paddle')\n",
        "on_top.py": "from paddlenlp.trainer import Trainer\n",
        "broken.py": "import paddle\nthis is no Python\n",
        "package/__init__.py": "",
        "package/__main__.py": "from . import model\n",
        "package/model.py": "from .layers import Linear\n",
        "package/layers.py": "import paddle.nn as nn\nfrom . import model\n",
        "package/ours.py": "from paddlempi import paddle\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 2 python alone.py",
        "/opt/x/bin/mpiexec.hydra -n 2 -ppn 1 /usr/bin/python3.11 -u -X dev -W error alone.py -m x",
        "srun -n 2 env A=1 python late.py",
        "mpirun -np 2 python -m alone",
        "mpirun -np 2 python -m package",
        "mpirun -np 2 python deep.py --lr 1",
        "mpirun -np 2 python by_name.py",
        "mpirun -np 2 python on_top.py",
        "mpirun -np 2 ./alone.py",
    ],
)
def test_a_script_without_the_import(command: str) -> None:
    said = paddle_alone.warning(command.split())
    assert "imports Paddle and not paddlempi" in said
    assert "python -m paddlempi run SCRIPT" in said


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 2 python with_us.py",
        "mpirun -np 2 python as_world.py",
        "mpirun -np 2 python -m paddlempi run alone.py",
        "mpirun -np 2 python numpy_only.py",
        "mpirun -np 2 python deep_with_us.py",
        "mpirun -np 2 python absent.py",
        "mpirun -np 2 python broken.py",  # Python will say it
        "mpirun -np 2 python",
        "mpirun -np 2 hostname",
        "python -m paddle.distributed.launch alone.py",  # its ranks find each other, over gloo
        "bash job.sh alone.py",
    ],
)
def test_nothing_to_say(command: str) -> None:
    assert paddle_alone.warning(command.split()) == ""


def test_a_command_of_a_shell() -> None:
    command = ["mpirun", "-np", "2", "bash", "-c"]
    assert paddle_alone.warning([*command, "A=1 exec python -u alone.py > log"])
    assert paddle_alone.warning([*command, "python with_us.py"]) == ""


def test_code_on_the_command_line() -> None:
    command = ["mpirun", "-np", "2", "python", "-c"]
    assert paddle_alone.warning([*command, PADDLE]).startswith("python -c imports Paddle")
    assert paddle_alone.warning([*command, OURS + PADDLE]) == ""


def test_run_says_it_once_and_goes_on(folder: Path) -> None:
    mpirun = folder / "mpirun"
    mpirun.write_text("#!/bin/sh\nexit 3\n")
    mpirun.chmod(0o755)
    command = [str(mpirun), "-np", "2", "python", "alone.py"]
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "run", "--restarts", "1", "--", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    first, *rest = done.stderr.splitlines()
    assert first.startswith("paddlempi run: alone.py imports Paddle and not paddlempi")
    assert not any("imports Paddle" in line for line in rest)
