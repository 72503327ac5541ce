"""Communication of JAX programs: docs/jax.md.

Importing this module imports JAX. It neither starts MPI nor makes JAX's CPU client.
"""

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
    "recv",
    "reduce_scatter",
    "send",
    "sendrecv",
]
