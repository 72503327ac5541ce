"""A process that is rank 1 of 3 over a core that only records."""

from api_fake import core, fresh_core

__all__ = ["core", "fresh_core"]
