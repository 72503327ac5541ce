"""Part of the matrix runs under every MPI; the rest under the wheel of Open MPI."""

from __future__ import annotations

from one_mpi import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
