"""Load ``paddlempi.torch.environment`` without torch, which ``paddlempi.torch`` would import."""

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
    """Return the module, under its own name but not in ``sys.modules``."""
    path = Path(paddlempi.__file__).parent / "torch" / "environment.py"
    spec = importlib.util.spec_from_file_location("paddlempi.torch.environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
