"""Everything that is replaced in Paddle is put back as it was, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Iterator

import paddle
import paddle.distributed as dist
import paddlempi.paddle
import pytest
from paddle.base.framework import EagerParamBase
from paddlempi.paddle import functions, patches, watched


@pytest.fixture
def uninstalled() -> Iterator[None]:
    paddlempi.paddle.uninstall()
    yield
    paddlempi.paddle.uninstall()
    paddlempi.paddle.install()


class Base:
    inherited = own = 1


class Place(Base):
    own = 2


@pytest.mark.usefixtures("uninstalled")
def test_put_back() -> None:
    before = dict(vars(Place))
    patches.replace([(Place, name, 3) for name in ("own", "inherited", "new")])
    patches.replace([(Place, "own", 4)])
    assert (Place.own, Place.inherited, vars(Place)["new"]) == (4, 3, 3)
    assert patches.original(Place, "own") == 2
    patches.put_back()
    assert dict(vars(Place)) == before
    assert patches.original(Place, "own") == 2


@pytest.mark.usefixtures("uninstalled")
def test_uninstall_is_whole() -> None:
    """uninstall also puts back what ``watch_gradients`` has replaced, before or after install."""
    own = dist.new_group
    parameters = dict(vars(EagerParamBase))
    watched.watch_gradients()
    assert dict(vars(EagerParamBase)) != parameters
    assert not paddlempi.paddle.installed()
    paddlempi.paddle.install()
    assert dist.new_group is functions.new_group
    watched.watch_gradients()
    paddlempi.paddle.uninstall()
    assert dist.new_group is own
    assert dict(vars(EagerParamBase)) == parameters
    assert paddle.DataParallel is not paddlempi.paddle.DataParallel
