"""A program that is spread over servers has the numbers of one process, for each optimizer."""

from __future__ import annotations

from pathlib import Path

import job


def program() -> None:
    import equal_torch
    from ranks_tools import done, start

    start()
    try:
        equal_torch.main()
    except SystemExit as ended:  # a server
        assert ended.code == 0
    done()


def test_after_100_steps_it_is_one_process() -> None:
    job.succeed(4, program, path=str(Path(__file__).parent), timeout=240)
