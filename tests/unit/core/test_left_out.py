"""What CI leaves out: only groups that exist, and only while nobody touches what they depend on."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("left_out", ROOT / "tools" / "left_out.py")
assert spec is not None and spec.loader is not None
left_out = importlib.util.module_from_spec(spec)
spec.loader.exec_module(left_out)
ALL = [name for names in left_out.GROUPS for name in names]


def commit(repo: Path, path: str, days: int) -> None:
    """Commit a file, as if that many days ago."""
    (repo / path).parent.mkdir(parents=True, exist_ok=True)
    (repo / path).write_text(path)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "-A"], check=True)
    then = subprocess.run(
        ["date", "-d", f"{days} days ago", "+%s"], capture_output=True, text=True, check=True
    )
    date = f"@{then.stdout.strip()} +0000"
    env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run([*git, "commit", "-q", "-m", path], check=True, env=env)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for paths in left_out.GROUPS.values():
        for path in paths:
            commit(tmp_path, f"{path}/file", 3)
    return tmp_path


def test_paths_exist() -> None:
    for paths in left_out.GROUPS.values():
        for path in paths:
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", [p for paths in left_out.GROUPS.values() for p in paths])
def test_what_was_touched_runs(repo: Path, path: str) -> None:
    assert left_out.left_out(repo) == ALL
    commit(repo, f"{path}/other", 0)
    names = {name for names, paths in left_out.GROUPS.items() if path in paths for name in names}
    assert left_out.left_out(repo) == [name for name in ALL if name not in names]


def groups(verb: str, *words: str) -> set[str]:
    """Return the groups of tests that a verb of the Makefile starts."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    plan = subprocess.run(
        ["make", "--dry-run", verb, *words], cwd=ROOT, env=env, capture_output=True, text=True
    )
    (line,) = [s for s in plan.stdout.splitlines() if "--output-sync=target" in s]
    return {word for word in line.split() if word.startswith("test-")}


def test_the_makefile_leaves_out_what_is_named() -> None:
    everything = groups("test")
    assert everything >= set(ALL)
    assert groups("test", f"LEAVE_OUT={' '.join(ALL)}") == everything - set(ALL)
    assert groups("test-all", f"LEAVE_OUT={' '.join(ALL)}") >= everything
