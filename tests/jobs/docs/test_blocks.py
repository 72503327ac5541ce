"""The programs in the README and in docs/ run as they are printed.

tests/helpers/blocks.py says how a block is marked. Those of a page share a job. With ``TEST_ALL``
every job starts under mpirun. Without it, most programs of torch and Paddle run in ranks that are
forked from a process that has imported the framework, without an MPI (``docs/testing.md``): to
import it takes longer than what they do. Under mpirun are then those of NumPy, those of COLD, and
the commands, of which every framework has some.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import contract
import pytest
from blocks import BLOCKS, ROOT, Block, blocks
from paddlempi._processes import MARK, kill_marked
from paddlempi.testing import launch, run

DEADLINE = 600  # some start five ranks of torch twice
RUNNER = Path(__file__).with_name("run_blocks.py")
NO_GPU = not any(Path("/dev").glob("nvidia[0-9]*"))

# What is imported before the fork, by the framework.
MODULES = {"torch": ("torch", "torch._dynamo", "torch.nn.parallel"), "paddle": ("paddle",)}
COLD = {"docs/torch.md"}  # other frameworks find out there which launcher has started them

TYPED = [block for block in BLOCKS if "run" in block.words]


def groups() -> dict[str, list[Block]]:
    """Return the programs that share a job, by the name of the job."""
    found = defaultdict(list)
    for block in BLOCKS:
        typed = block.file and any(block.file in commands.text for commands in on_page(block))
        if block.runs and not typed:
            kind = "pytest" if block.is_test else "gpu" if "gpu" in block.words else "python"
            page = str(block.page.relative_to(ROOT))
            if kind == "python" and block.ranks > 1 and page not in COLD:
                kind = "-".join([kind, *frameworks(block)])
            found[f"{page}-{kind}-{block.ranks}"].append(block)
    return found


def frameworks(program: Block) -> list[str]:
    """Return what of MODULES is imported before the ranks of a program are forked."""
    if "os.environ[" in program.text:  # it sets what a framework reads while it is imported
        return []
    imports = re.findall(r"^(?:import|from) (\w+)", program.text, re.M)
    return [name for name in MODULES if name in imports]


def on_page(block: Block) -> list[Block]:
    """Return the commands that run on the page of a program."""
    return [typed for typed in TYPED if typed.page == block.page]


# The environment of JAX has no other framework. A folder of tests is called jax, too.
IN_JAX = importlib.util.find_spec("jaxlib") is not None
GROUPS = {name: found for name, found in groups().items() if ("jax.md" in name) == IN_JAX}


@pytest.mark.parametrize("name", GROUPS)
def test_programs_run(name: str, tmp_path: Path) -> None:
    programs = GROUPS[name]
    if "-gpu-" in name and NO_GPU:
        pytest.skip("this machine has no GPU")
    ranks = programs[0].ranks
    if "-pytest-" in name:
        for program in programs:
            (tmp_path / f"test_{program.line}.py").write_text(program.text)
        options = ["-q", "-p", "no:cacheprovider", *(["--mpi"] if ranks > 1 else [])]
        output = job(ranks, ["-m", "pytest", *options, str(tmp_path)], tmp_path)
        assert f"{len(programs)} passed" in output
        return
    page, lines = str(programs[0].page), [str(program.line) for program in programs]
    # A name without frameworks is that of programs that start as they are printed.
    modules = [m for word, ms in MODULES.items() if f"-{word}-" in name for m in ms]
    output = job(ranks, [str(RUNNER), page, *lines], tmp_path, modules)
    for program in programs:
        assert output.count(f"ran {program}\n") == ranks, output


def job(ranks: int, words: list[str], folder: Path, modules: Sequence[str] = ()) -> str:
    """Run a Python program on ranks, or one process without a launcher. Return what it printed.

    Args:
        modules: what is imported before the ranks are forked. None: they start under mpirun.
    """
    command = [sys.executable, *words]
    if ranks > 1:
        warm = modules if modules and not contract.ALL else False
        result = run(ranks, command, timeout=DEADLINE, cwd=folder, warm=warm)
        assert result.returncode == 0, result.output
        return result.stdout
    env = {key: value for key, value in os.environ.items() if "MPI" not in key}
    return ended(command, folder, env)


def ended(command: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run a command that must end well. Return what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("block", TYPED, ids=str)
def test_commands_run(block: Block, tmp_path: Path) -> None:
    """Beside the programs of the page, in a shell that has activated the environment."""
    for program in blocks(block.page):
        if program.file:
            (tmp_path / program.file).write_text(program.text)
    script = tmp_path / "typed.sh"
    script.write_text(f"set -e\n{block.commands}")
    mark = uuid.uuid4().hex
    env = {
        **launch.command(1, ["true"]).env,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        MARK: mark,
    }
    try:
        done = ended(["bash", str(script)], tmp_path, env)
    finally:
        kill_marked(mark, 0.0)
    assert done.strip()  # a reader sees something
