"""Checkpoints of one process that is killed while it writes one."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from paddlempi import checkpoint, checkpoints, latest_checkpoint

# Audit events of calls that change or open files.
CHANGES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}
KILLED = 41


def write(root: Path, text: str) -> None:
    with checkpoint(root, 7) as folder:
        for name in ("a", "b"):
            (folder / name).write_text(text)


def text_of_latest(root: Path) -> set[str]:
    last = latest_checkpoint(root)
    assert last is not None
    assert last.step == 7
    return {(last.path / name).read_text() for name in ("a", "b")}


def killed_at(root: Path, nth: int, text: str) -> bool:
    """Write a checkpoint in a child that ends before its nth call; return whether it ended so."""
    child = os.fork()
    if child == 0:
        calls = 0

        def hook(event: str, _: tuple[object, ...]) -> None:
            nonlocal calls
            if event in CHANGES:
                calls += 1
                if calls == nth:
                    os._exit(KILLED)

        status = 1
        try:
            sys.addaudithook(hook)
            write(root, text)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, KILLED)
    return os.waitstatus_to_exitcode(status) == KILLED


def refused(*_: object) -> bool:
    return False


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanges", "as NFS"])
def test_a_kill_at_each_call_leaves_a_whole_one(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(checkpoints, "_exchange", refused)
    nth = 1
    seen: set[str] = set()
    while True:
        root = tmp_path / str(nth)
        write(root, "old")
        killed = killed_at(root, nth, "new")
        found = text_of_latest(root)
        assert len(found) == 1, (nth, found)  # never a part of each
        seen |= found
        # The next one, also one that is killed at its first calls, finds a whole one and tidies up.
        for again in (1, 3, 5, 7):
            killed_at(root, again, "again")
            assert len(text_of_latest(root)) == 1
        write(root, "last")
        assert text_of_latest(root) == {"last"}
        assert [path.name for path in root.iterdir()] == ["step-00000007"]
        if not killed:
            break
        nth += 1
    assert seen == {"old", "new"}
    assert nth > 10


def test_one_that_waits_for_its_name_counts_and_gets_it(tmp_path: Path) -> None:
    write(tmp_path, "old")
    new = tmp_path / "step-00000007.new"
    new.mkdir()
    for name in ("a", "b"):
        (new / name).write_text("new")
    assert text_of_latest(tmp_path) == {"new"}
    with checkpoint(tmp_path, 8, keep=2):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000007", "step-00000008"]
    assert (tmp_path / "step-00000007" / "a").read_text() == "new"


def test_an_exchange_is_one_call(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "mine").touch()
    if not checkpoints._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("the file system of temporary files cannot exchange names")
    assert (tmp_path / "b" / "mine").exists()
    with pytest.raises(OSError) as error:
        checkpoints._exchange(tmp_path / "a", tmp_path / "none")
    assert error.value.errno == errno.ENOENT
