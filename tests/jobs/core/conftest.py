"""All of these tests run under the wheel of Open MPI, and those of the contract under each MPI."""

from __future__ import annotations

from contract import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
