"""All that this package uses of JAX's private modules, and the releases of JAX that have it so.

Every release is tried before it is named here, because JAX changes these modules without notice.
"""

from __future__ import annotations

import jax

from ..errors import UnsupportedError

__all__ = ["RELEASES", "check_releases"]

RELEASES = ("0.10.1", "0.10.2")
"""The releases of JAX that this package works with."""


def check_releases() -> None:
    """Raise UnsupportedError if this is another release of JAX."""
    if jax.__version__ not in RELEASES:
        raise UnsupportedError(
            f"paddlempi.jax works with jax {' and '.join(RELEASES)}, and this is jax "
            f"{jax.__version__}: install one of them, or a newer paddlempi"
        )
