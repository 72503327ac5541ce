"""Jobs of their own for what needs another world than tests/paddle_ranks has, or ends one.

``job.py`` and ``ranks_tools.py`` are those of tests/faults.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("paddle", reason="paddle is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
