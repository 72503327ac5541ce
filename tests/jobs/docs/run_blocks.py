"""Run programs of a page one after another: ``run_blocks.py PAGE LINE...``, in every rank.

They share a process, because importing a framework takes longer than what they do. Each begins
with no name defined and no group of any library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))

from blocks import Block, blocks


def run(block: Block) -> None:
    """Run a program as ``python FILE`` does. Tracebacks have the lines of the page."""
    if "import deepspeed" in block.text and not os.environ.get("TEST_ALL"):
        import deepspeed

        # It would compile this kernel, for a minute, which no call of the program uses.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        exec(code, main.__dict__)
    except SystemExit as ended:
        if ended.code:
            raise


def end() -> None:
    """End what a program leaves to the end of its process."""
    import paddlempi

    ps = sys.modules.get("paddlempi.ps")
    if ps and ps.session.is_begun():
        ps.shutdown()
    for framework in (sys.modules.get(f"{name}.distributed") for name in ("torch", "paddle")):
        if framework and framework.is_initialized():
            framework.destroy_process_group()
    if paddlempi.is_initialized():
        paddlempi.destroy_process_group()


def main(page: str, *lines: str) -> None:
    for block in blocks(Path(page)):
        if str(block.line) in lines:
            run(block)
            end()
            print(f"ran {block}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
