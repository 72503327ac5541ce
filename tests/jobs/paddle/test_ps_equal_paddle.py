"""A program that is spread over servers has the numbers of one process, for each optimizer."""

from __future__ import annotations

from pathlib import Path

import job


def dynamic() -> None:
    import equal_paddle
    from ranks_tools import done, start

    start()
    try:
        equal_paddle.main()
    except SystemExit as ended:  # a server
        assert ended.code == 0
    done()


def static() -> None:
    import equal_static
    from ranks_tools import done, start

    start()
    try:
        equal_static.main()
    except SystemExit as ended:  # a server
        assert ended.code == 0
    done()


HERE = str(Path(__file__).parent)


def test_after_100_steps_layers_are_one_process() -> None:
    job.succeed(4, dynamic, path=HERE, timeout=240)


def test_after_100_steps_a_static_program_is_one_process() -> None:
    job.succeed(4, static, path=HERE, timeout=240, env={"FLAGS_enable_pir_api": "0"})
