"""Communication of JAX programs: docs/jax.md.

Importing this module imports JAX. It neither starts MPI nor makes JAX's CPU client. It sets
``MPITRAMPOLINE_LIB`` where that is not set.
"""

from . import _library

_library.announce()  # before jaxlib is loaded, which looks then for its MPI

from ._private import check_releases  # noqa: E402

check_releases()

from ._start import initialize  # noqa: E402 (only of a release that it knows)

__all__ = ["initialize"]
