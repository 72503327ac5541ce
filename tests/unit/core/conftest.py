"""Fixtures: this process is rank 1 of 3, over a core that only records calls."""

from api_fake import core, fresh_core

__all__ = ["core", "fresh_core"]
