"""Communication of JAX programs: docs/jax.md.

Importing this module imports JAX. It neither starts MPI nor makes JAX's CPU client. It sets
``MPITRAMPOLINE_LIB`` if that is not set and jaxlib is not loaded yet.
"""

from . import _library  # noqa: F401 (it comes before jaxlib)
from ._start import initialize
from .functions import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    recv,
    reduce_scatter,
    send,
    sendrecv,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "initialize",
    "recv",
    "reduce_scatter",
    "send",
    "sendrecv",
]
