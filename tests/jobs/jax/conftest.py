"""Tests that run jobs with JAX: they need another world than tests/ranks/jax has, or end one."""

from __future__ import annotations

import importlib.util

import pytest
from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]

# It is not imported: every worker of pytest would take seconds for that.
if importlib.util.find_spec("jaxlib") is None:
    pytest.skip("jax is not installed", allow_module_level=True)
