"""Files that ranks on several hosts write into a folder that they share."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import errors, io

ROWS, COLUMNS = 1501, 644


def part(whole: Any, dim: int, rank: int, size: int) -> io.Shard:
    cuts = [whole.shape[dim] * i // size for i in (rank, rank + 1)]
    offsets = [0, 0]
    offsets[dim] = cuts[0]
    index = (slice(*cuts),) if dim == 0 else (slice(None), slice(*cuts))
    return io.Shard(whole[index], whole.shape, offsets)


def main() -> None:
    dist.init_process_group("mpi", timeout=60)
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = Path(sys.argv[1]) / "files"
    if rank == 0:
        folder.mkdir()
    dist.barrier()
    whole = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    tensors = {
        "rows": part(whole, 0, rank, size),
        "columns": part(whole + 1, 1, rank, size),
        "copies": whole + 2,
    }
    io.save_file(tensors, folder / "m.safetensors", metadata={"format": "pt"})
    digest = hashlib.md5((folder / "m.safetensors").read_bytes()).hexdigest()
    with dist.checkpoint(folder, 1) as place:
        io.save_file(tensors, place / "m.safetensors", "1MB")
    saved = dist.latest_checkpoint(folder)
    assert saved is not None
    found = io.load_file(saved.path / "m.safetensors")
    names = ("rows", "columns", "copies")
    right = all(np.array_equal(found[name], whole + i) for i, name in enumerate(names))
    mine = {"columns": part(np.zeros_like(whole), 0, rank, size)}
    io.load_file(folder / "m.safetensors", mine)
    right &= np.array_equal(mine["columns"].array, part(whole + 1, 0, rank, size).array)
    # A folder that each host has for itself: its name is the same, and what is in it is not.
    alone = folder / os.uname().nodename
    alone.mkdir(exist_ok=True)
    os.chdir(alone)
    try:
        io.save_file(tensors, "alone")
        refused = ""
    except (errors.RefusedError, FileNotFoundError) as error:
        refused = str(error)
    ranks_report.write({"rank": rank, "digest": digest, "right": bool(right), "refused": refused})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
