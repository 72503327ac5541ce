"""The programs of the documents: every job runs those of a page."""

from __future__ import annotations

from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]
