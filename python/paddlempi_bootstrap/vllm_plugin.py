"""The code that vLLM runs through the entry-point group ``vllm.general_plugins``.

vLLM calls it in its driver, its engine and every worker. With ``PADDLEMPI_VLLM=1`` it makes the
groups of vLLM's CPU platform groups over MPI, and lets vLLM exchange tensors by them
(:mod:`paddlempi.torch.vllm_communicator`). It is no platform of vLLM's, of which only one may be
active.
"""

from __future__ import annotations

import os

__all__ = ["SETTING", "TRIED", "register"]

SETTING = "PADDLEMPI_VLLM"
"""1: the workers of vLLM's CPU platform exchange their tensors over MPI."""

TRIED = "0.32.0"
"""The versions of vLLM with which this was tried."""


def register() -> None:
    """The entry point. Does nothing unless it is asked to.

    Raises:
        ValueError: the setting has a value that it does not have.
        ImportError: this vLLM lacks a name that this module needs.
    """
    asked = os.environ.get(SETTING, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"{SETTING}={asked!r}: it must be 1, or 0 or not set")
    if asked != "1":
        return
    import vllm
    from vllm.platforms.cpu import CpuPlatform

    for name in ("dist_backend", "get_device_communicator_cls"):
        if not hasattr(CpuPlatform, name):
            raise ImportError(
                f"{SETTING}=1: paddlempi does not know this vLLM ({vllm.__version__}): CpuPlatform "
                f"has no {name}; use a version that was tried ({TRIED}), or unset {SETTING}"
            )
    # Not "mpi", which vLLM would not take where PADDLEMPI_TORCH=0 says that there is none.
    CpuPlatform.dist_backend = "paddlempi"
    CpuPlatform.get_device_communicator_cls = classmethod(_communicator)


def _communicator(platform: type) -> str:
    return "paddlempi.torch.vllm_communicator.Communicator"
