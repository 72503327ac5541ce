"""Paddle's private names: a name that has moved is reported before anything is replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddlempi.errors import UnsupportedError
from paddlempi.paddle import private

PACKAGE = Path(private.__file__).parent


@pytest.mark.parametrize(
    ("table", "place", "name"),
    [
        (table, place, name)
        for table in ("NAMES", "STATIC")
        for place, names in getattr(private, table).items()
        for name in names
    ],
)
def test_each_is_missed(table: str, place: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = getattr(private, table)
    find = private._find

    class Without:
        """The place, without one name."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                raise AttributeError(asked)
            return getattr(self.real, asked)

    private.check(names)
    monkeypatch.setattr(
        private, "_find", lambda asked: Without(find(asked)) if asked == place else find(asked)
    )
    with pytest.raises(UnsupportedError, match=rf"has no {re.escape(place)}\.{name}: this version"):
        private.check(names)


def test_a_module_that_is_gone() -> None:
    with pytest.raises(UnsupportedError, match=r"has no paddle\.gone\.away\.name: "):
        private.check({"paddle.gone.away": ("name",)})


def test_an_object() -> None:
    optimizer = paddle.optimizer.SGD(0.1, parameters=paddle.nn.Linear(1, 1).parameters())
    private.check_object(optimizer, ("_grad_clip",))
    with pytest.raises(UnsupportedError, match=r"has no paddle\.optimizer\.sgd\.SGD\._gone"):
        private.check_object(optimizer, ("_grad_clip", "_gone"))


def test_the_import_says_it() -> None:
    code = """
import paddle
from paddle.distributed import collective
del collective._new_ring_id, paddle.nn.clip.merge_selected_rows
import paddlempi.paddle
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "has no paddle.distributed.collective._new_ring_id, paddle.nn.clip.merge" in ended.stderr


def test_the_table_is_whole() -> None:
    """The table lists all private names that the modules take from Paddle's own modules."""
    known = {name for names in private.NAMES.values() for name in names}
    touched = set()
    for path in PACKAGE.glob("*.py"):
        text = path.read_text()
        touched |= set(
            re.findall(
                r"\b(?:paddle_core|paddle_core\.eager|collective|groups|parallel|parallel_helper|"
                r"paddle\.Tensor|paddle\._C_ops)\.(_\w+)\b",
                text,
            )
        )
    assert touched and touched <= known, touched - known
