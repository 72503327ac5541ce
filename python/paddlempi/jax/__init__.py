"""Communication of JAX programs: docs/jax.md.

Importing this module imports JAX. It neither starts MPI nor makes JAX's CPU client.
"""

from ._private import check_releases

__all__: list[str] = []

check_releases()
