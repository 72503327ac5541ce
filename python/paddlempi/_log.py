"""The log: Python's logger ``paddlempi``, and the variables that write it without a program's help.

A program that gives the logger a level finds our lines in its own log. ``PADDLEMPI_LOG=info``
writes them to stderr, and ``PADDLEMPI_LOG_FILE=%h.%p`` into a file for each process. Without any of
these nobody sees a line: Paddle, for one, writes what comes to the root logger to stderr.

What is logged happens once or rarely: the world begins and ends, groups are made and end, and what
we warn of. No call that moves data comes here. ``logging`` is imported only where the program has
done so, or a variable asks for lines.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from .errors import ArgumentError

__all__ = ["begin", "debug", "info", "set_rank", "wanted", "warn"]

_LEVEL = "PADDLEMPI_LOG"
_FILE = "PADDLEMPI_LOG_FILE"
_NONE = 100  # above every level
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}  # logging's numbers


class _State:
    logger: Any = None
    rank = "?"


def begin() -> None:
    """Read the variables, and write the log where they say. Later calls do nothing.

    Raises:
        ArgumentError: a variable has a value that means nothing, or the file cannot be written.
    """
    asked = bool(os.environ.get(_LEVEL) or os.environ.get(_FILE))
    if _State.logger is not None or not (asked or "logging" in sys.modules):
        return
    import logging

    logger = logging.getLogger("paddlempi")
    logger.addHandler(logging.NullHandler())  # else logging itself would print warnings
    if asked:
        level = os.environ.get(_LEVEL) or "info"
        if level.lower() not in _LEVELS:
            raise ArgumentError(f"{_LEVEL}={level}: it must be one of {', '.join(_LEVELS)}")
        handler = _handler()
        host = os.uname().nodename.replace("%", "%%")
        text = f"%(asctime)s {host} rank %(rank)s %(levelname)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
        handler.addFilter(_add_rank)
        logger.addHandler(handler)
        logger.setLevel(_LEVELS[level.lower()])
        logger.propagate = False  # the program's own handlers would write each line once more
    elif logger.level == logging.NOTSET:
        logger.setLevel(_NONE)
    _State.logger = logger


def _handler() -> Any:
    import logging

    pattern = os.environ.get(_FILE)
    if not pattern:
        return logging.StreamHandler()
    path = pattern.replace("%h", os.uname().nodename).replace("%p", str(os.getpid()))
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"{_FILE}={pattern}: {path}: {error.strerror}: name a file that this host can write"
        ) from None


def _add_rank(record: Any) -> bool:
    record.rank = _State.rank
    return True


def set_rank(rank: int | None) -> None:
    """Name this process's rank in the lines that follow; None: it has none."""
    _State.rank = "?" if rank is None else str(rank)


def wanted() -> bool:
    """Whether somebody sees lines of level info."""
    return _State.logger is not None and bool(_State.logger.isEnabledFor(_LEVELS["info"]))


def debug(text: str, *arguments: object) -> None:
    """Log what helps those who look for a mistake in this package."""
    _write("debug", text, *arguments)


def info(text: str, *arguments: object) -> None:
    """Log what a user may want to know of a job that runs well."""
    _write("info", text, *arguments)


def warn(text: str, category: type[Warning] = UserWarning, *, stacklevel: int) -> None:
    """Warn as ``warnings.warn`` does, and log it.

    Args:
        text: the warning.
        category: its class.
        stacklevel: the caller to name, as for ``warnings.warn`` in the function that calls this.
    """
    begin()
    _write("warning", "%s", text)
    warnings.warn(text, category, stacklevel=stacklevel + 1)


def _write(level: str, text: str, *arguments: object) -> None:
    if _State.logger is not None:
        _State.logger.log(_LEVELS[level], text, *arguments)
