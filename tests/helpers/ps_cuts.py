"""Cuts of tables that a test makes up, in the format of docs/ps-checkpoint.md."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Content", "config_of", "write_cut"]

_CHUNK = 100  # rows


class Content(NamedTuple):
    """What a cut has of a table; of a dense parameter its blocks."""

    config: dict[str, Any]
    ids: Any
    rows: Any
    """[n, dim], of float32, float16, or of uint16: the bits of bfloat16."""
    states: Any


def config_of(dim: int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """Return the config of a table with Adagrad."""
    numbers = {"weight_decay": 0, "clip_value": None, "clip_norm": None, "epsilon": 1e-10}
    return {
        "dim": dim,
        "dtype": dtype,
        "seed": 7,
        "num_ids": 0,
        "memory_limit": 0,
        "refuse": True,
        "initializer": {"name": "uniform", "a": -0.5, "b": 0.5},
        "optimizer": {
            "name": "adagrad",
            "learning_rate": 0.25,
            "initial_accumulator": 0,
            **numbers,
        },
        **more,
    }


def write_cut(
    directory: Path,
    step: int,
    tables: dict[str, Content],
    servers: int = 1,
    *,
    seed: int = 0,
    **manifest: Any,
) -> Path:
    """Write a cut whose rows are dealt to servers, in an order of their own."""
    folder = directory / f"cut-{step:08d}"
    folder.mkdir(parents=True)
    random = np.random.default_rng((seed, step))
    listed, parts = [], []
    names = sorted(tables)
    for name in names:
        config, ids, rows, states = tables[name]
        listed.append(
            {
                "name": name,
                "dtype": config["dtype"],
                "dim": config["dim"],
                "state_len": states.shape[1],
                "steps": step,
                "rows": len(ids),
                "config": config,
            }
        )
    for server in range(servers):
        head = struct.pack("<8sIIIIq", b"PMPIPART", 1, server, servers, 0, step)
        data, index, counts = [head], b"", []
        for number, name in enumerate(names):
            _, ids, rows, states = tables[name]
            mine = random.permutation(np.flatnonzero(ids % servers == server))
            counts.append(len(mine))
            for first in range(0, len(mine), _CHUNK):
                some = mine[first : first + _CHUNK]
                of_ids = ids[some].tobytes()
                rest = _padded(rows[some].tobytes()) + _padded(states[some].tobytes())
                data += [of_ids, rest]
                index += struct.pack(
                    "<IIII", number, len(some), zlib.crc32(of_ids), zlib.crc32(rest)
                )
        part = folder / f"part-{server:05d}-of-{servers:05d}-{step:016x}"
        part.write_bytes(b"".join(data) + index)
        parts.append(
            {
                "file": part.name,
                "bytes": part.stat().st_size,
                "chunks": len(index) // 16,
                "crc32": zlib.crc32(index),
                "rows": counts,
                "version": 10 * step + server,
            }
        )
    said = {"format": 1, "step": step, "tables": listed, "parts": parts, "extra": None, **manifest}
    text = json.dumps(said)
    (folder / "manifest.json").write_text(
        f'{{"crc32":"{zlib.crc32(text.encode()):08x}","manifest":{text}}}\n'
    )
    return folder


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
