"""A part of the cells runs in CI, under the wheel of Open MPI, which lets ranks outlive one."""

from __future__ import annotations

from contract import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
