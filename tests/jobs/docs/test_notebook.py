"""The cells of docs/notebooks.md, in a kernel of Jupyter, print what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blocks import Block, blocks

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 60  # seconds

PAGE = [*blocks(ROOT / "docs" / "notebooks.md")]


def printed(messages: list[dict[str, Any]]) -> list[str]:
    """Return the lines below a cell: what was printed, and its value."""
    text = ""
    for message in messages:
        content = message["content"]
        if message["msg_type"] == "stream":
            text += content["text"]
        elif message["msg_type"] == "execute_result":
            text += content["data"]["text/plain"] + "\n"
        elif message["msg_type"] == "error":
            text += "\n".join(content["traceback"])
    return text.splitlines()


def test_the_cells_print_what_the_page_says() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        cells = [n for n, block in enumerate(PAGE) if "notebook" in block.words]
        assert len(cells) == 2
        for n in cells:
            messages: list[dict[str, Any]] = []
            reply = client.execute_interactive(
                PAGE[n].text, timeout=LIMIT, output_hook=messages.append
            )
            lines, shown = printed(messages), expected(PAGE[n + 1])
            assert sorted(lines) == sorted(shown), f"{PAGE[n]}"
            assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def expected(block: Block) -> list[str]:
    """Return the lines of the block that follows a cell."""
    assert block.language == "text"
    return block.text.splitlines()
