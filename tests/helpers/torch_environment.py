"""``paddlempi.torch.environment`` where there is no torch: its package would import it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import paddlempi

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def load() -> Any:
    """The module, under its own name and not in ``sys.modules``."""
    path = Path(paddlempi.__file__).parent / "torch" / "environment.py"
    spec = importlib.util.spec_from_file_location("paddlempi.torch.environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
