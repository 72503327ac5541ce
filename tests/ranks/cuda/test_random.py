"""tests/ranks/core/test_properties.py with every other tensor in device memory.

Random shapes, strides (also backwards), dtypes, splits and groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import test_properties
from kinds import TensorsKind
from paddlempi.testing import World
from test_properties import *  # noqa: F403


@pytest.fixture(scope="module", autouse=True)
def on_the_device(mpi_world: World) -> Iterator[None]:
    """TensorsKind replaces NumpyKind in the module of the properties."""
    kind = TensorsKind(mpi_world.rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_properties, "NumpyKind", lambda: kind)
        yield
