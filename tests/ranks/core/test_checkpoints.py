"""checkpoint and latest_checkpoint, called by all ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from paddlempi import errors
from ranks_tools import works


@pytest.fixture
def here(dist: ModuleType, rank: int) -> Iterator[Path]:
    """A directory that does not exist, in a folder that all ranks see."""
    with tempfile.TemporaryDirectory() as mine:
        paths = [mine]
        dist.broadcast_object_list(paths, src=0)
        yield Path(paths[0], "a", "b")
        dist.barrier()


def names(here: Path) -> list[str]:
    return sorted(path.name for path in here.iterdir())


def write(dist: ModuleType, here: Path, step: int, keep: int | None = None) -> None:
    with dist.checkpoint(here, step, keep=keep) as folder:
        assert folder.name == f"step-{step:08d}.partial"
        (folder / str(dist.get_rank())).write_text(str(step))


def test_every_rank_writes_its_part(dist: ModuleType, here: Path, size: int) -> None:
    assert dist.latest_checkpoint(here) is None
    write(dist, here, 3)
    last = dist.latest_checkpoint(here)
    assert last == (3, here / "step-00000003")
    assert names(last.path) == [str(rank) for rank in range(size)]
    dist.barrier()
    write(dist, str(here), 3)  # the same step again, in place of the first
    assert names(here) == ["step-00000003"]


def test_the_newest_are_kept(dist: ModuleType, here: Path) -> None:
    for step in (9, 10, 100):
        write(dist, here, step)
    write(dist, here, 11, keep=2)
    assert names(here) == ["step-00000011", "step-00000100"]
    dist.barrier()
    write(dist, here, 12, keep=1)  # this one stays, although its step is not the greatest
    assert names(here) == ["step-00000012"]


def test_unfinished_ones_do_not_count(dist: ModuleType, here: Path, rank: int) -> None:
    write(dist, here, 3)
    if rank == 0:
        (here / "step-00000007.partial").mkdir()
        (here / "step-00000007.partial" / "0").write_text("half")
        (here / "step-00000008.replaced").mkdir()
        (here / "step-00000009").write_text("no folder")
        (here / "notes").mkdir()
    dist.barrier()
    assert dist.latest_checkpoint(here).step == 3
    write(dist, here, 4)
    assert names(here) == ["notes", "step-00000003", "step-00000004", "step-00000009"]


@pytest.mark.mpi(min=2)
def test_only_what_all_ranks_see_counts(
    dist: ModuleType, here: Path, rank: int, size: int, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    for step in (1, 2, 5 + rank):
        (mine / f"step-{step:08d}").mkdir(parents=True)
    assert dist.latest_checkpoint(mine) == (2, mine / "step-00000002")


@pytest.mark.mpi(min=2)
def test_a_block_that_fails_on_one_rank(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    """That rank raises its own exception, the others a RefusedError. Nothing became complete."""
    write(dist, here, 3)
    kind = OSError if rank == size - 1 else errors.RefusedError
    with pytest.raises(kind, match="disk full") as caught, dist.checkpoint(here, 4):
        if rank == size - 1:
            raise OSError("disk full")
    if rank != size - 1:
        assert caught.value.ranks == (size - 1,)
    assert dist.latest_checkpoint(here).step == 3
    works()


@pytest.mark.mpi(min=2)
def test_ranks_that_do_not_agree(dist: ModuleType, here: Path, rank: int) -> None:
    with (
        pytest.raises(errors.RefusedError, match=r"with step=4, .* rank 0 with step=3, ") as caught,
        dist.checkpoint(here, 4 if rank == 1 else 3),
    ):
        raise AssertionError("the block must not run")
    assert caught.value.ranks == (1,)
    assert dist.latest_checkpoint(here) is None
    kind = errors.ArgumentError if rank == 1 else errors.RefusedError
    for step, keep, words in (
        (-1, None, "step=-1: it must be a number from 0 up"),
        (3, 0, "keep=0"),
    ):
        with (
            pytest.raises(kind, match=words),
            dist.checkpoint(here, step if rank == 1 else 3, keep=keep if rank == 1 else None),
        ):
            raise AssertionError("the block must not run")
    works()


@pytest.mark.mpi(min=2)
def test_a_directory_that_is_not_shared(dist: ModuleType, rank: int, tmp_path: Path) -> None:
    kind = errors.RefusedError if rank == 0 else FileNotFoundError
    with (
        pytest.raises(kind, match="a file system that all hosts share"),
        dist.checkpoint(tmp_path / str(rank), 1),
    ):
        raise AssertionError("the block must not run")
    works()
