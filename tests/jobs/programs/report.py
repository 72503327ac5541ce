"""What a program reports to the test that started it: numbers, in one file for every rank."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def digest(tensors: Iterable[Any]) -> str:
    """Return a hash of the dtypes, shapes and bits of some tensors of torch or Paddle."""
    whole = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().numpy()
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()


def write(folder: Path, rank: int, **numbers: Any) -> None:
    """Write the numbers of this rank to a file in ``folder``. JSON keeps every digit of a float.

    A program calls this last. Only ``destroy_process_group`` may follow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(numbers))
    if numbers["backend"] == "gloo":
        # A thread of torch's gloo needs the interpreter to drop the tensors of the last operation.
        # If the interpreter has begun to shut down, the thread aborts the process.
        time.sleep(0.5)
