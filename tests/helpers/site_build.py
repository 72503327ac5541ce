"""Builds the site of a tree, for tests/site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(tree: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree into a folder. With --quiet it would not be strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=300)
