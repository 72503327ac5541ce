"""What a program tells the test that started it: numbers, every rank in a file of its own."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def digest(tensors: Iterable[Any]) -> str:
    """A hash of the bits of tensors of torch or Paddle: equal where all of them are."""
    whole = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().numpy()
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()


def write(folder: Path, rank: int, **numbers: Any) -> None:
    """Leave the numbers of this rank in ``folder``. JSON has every digit of a float.

    The last that a program does but for ``destroy_process_group``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(numbers))
    if numbers["backend"] == "gloo":
        # Threads of torch's gloo want the interpreter to drop the tensors of the last operation,
        # and abort the process if it has begun to end by then.
        time.sleep(0.5)
