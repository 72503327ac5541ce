"""What CI leaves out: only groups that exist, and only while nobody touches what they depend on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import left_out

ROOT = left_out.ROOT
ALL = [name for names in left_out.GROUPS for name in names]
PATHS = sorted({path for paths in left_out.GROUPS.values() for path in paths})


def commit(repo: Path, *paths: str, days: int) -> None:
    """Commit files, as if that many days ago."""
    for path in paths:
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(path)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "-A"], check=True)
    date = f"@{int(time.time()) - days * 86400} +0000"
    env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run([*git, "commit", "-q", "-m", paths[0]], check=True, env=env)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit(tmp_path, *(f"{path}/file" for path in PATHS), days=3)
    return tmp_path


def test_paths_exist() -> None:
    for path in PATHS:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", PATHS)
def test_what_was_touched_runs(repo: Path, path: str) -> None:
    assert left_out.left_out(repo) == ALL
    commit(repo, f"{path}/other", days=0)
    names = {name for names, paths in left_out.GROUPS.items() if path in paths for name in names}
    assert left_out.left_out(repo) == [name for name in ALL if name not in names]
