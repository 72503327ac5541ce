"""The address of the documents, for errors and advice: the package is installed without them."""

from __future__ import annotations

__all__ = ["PAGES"]

# [project.urls] in pyproject.toml and gocore/status have the same.
PAGES = "https://github.com/paddlempi/paddlempi/blob/main/docs"
