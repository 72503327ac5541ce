"""Trains train_ps_dlrm.py in several modes in one job: each word is MODE:BESIDE:OUT:OPTION..."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import train_ps_dlrm

for words in sys.argv[1:]:
    mode, beside, out, *options = words.split(":")
    try:
        right = train_ps_dlrm.main(
            [f"--mode={mode}", f"--beside={beside}", f"--out={out}", *options]
        )
        assert right, f"{mode}: the AUC is another one"
    except SystemExit as ended:  # of a rank that only serves
        assert ended.code == 0, ended.code
