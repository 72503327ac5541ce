"""Part of the matrix runs under every MPI, as the contract says; most under Open MPI's wheel."""

from __future__ import annotations

from contract import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
