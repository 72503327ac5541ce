"""paddlempi.launch in a process that has used torch, as a notebook's kernel has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import paddlempi as dist
import torch

def cell(add):
    dist.init_process_group(timeout=60)
    x = torch.ones(512, 512) @ torch.ones(512, 512) + add
    dist.all_reduce(x)
    x.requires_grad_()
    (x * x).sum().backward()
    return x[0, 0].item(), x.grad[0, 0].item(), torch.get_num_threads()

if __name__ == "__main__":
    torch.set_num_threads(2)
    x = torch.ones(1024, 1024, requires_grad=True)
    (x @ x).sum().backward()  # the threads of OpenMP are there now
    print(dist.launch(cell, 2, (1.0,), method="fork"))
"""


def test_the_kernel_has_computed_on_several_threads(tmp_path: Path) -> None:
    program = tmp_path / "kernel.py"
    program.write_text(PROGRAM)
    # timeout ends the ranks, too, if they hang.
    done = subprocess.run(
        ["timeout", "-k", "5", "120", sys.executable, str(program)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[(1026.0, 2052.0, 1)] * 2}\n"
