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
    names = {
        name
        for names, paths in left_out.GROUPS.items()
        if any(f"{path}/".startswith(f"{one}/") for one in paths)
        for name in names
    }
    assert left_out.left_out(repo) == [name for name in ALL if name not in names]


def pin(repo: Path, text: str, days: int) -> None:
    (repo / "constraints.txt").write_text(text)
    commit(repo, "any", days=days)


def test_another_version_runs_all(tmp_path: Path) -> None:
    repo = tmp_path
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    pin(repo, "a==1.0\nb==2.0\n", days=2)
    assert not left_out.another_version(repo)
    pin(repo, "# sorted\nb==2.0\na==1.0\n", days=0)
    assert not left_out.another_version(repo)
    pin(repo, "a==1.0\nb==2.0\nc==1.0\n", days=0)
    assert not left_out.another_version(repo)  # nothing that ran before may run otherwise
    pin(repo, "a==1.0\nb==2.1\n", days=0)
    assert left_out.another_version(repo)


def test_all_runs_where_nobody_knows_what_was_pinned(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    pin(tmp_path, "a==1.0\n", days=0)
    assert left_out.another_version(tmp_path)
