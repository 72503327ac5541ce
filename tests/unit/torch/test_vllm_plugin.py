"""What vLLM runs in all of its processes, with a fake of vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest


def plugin() -> Any:
    """Return the function that vLLM calls, as vLLM finds it."""
    (found,) = entry_points(group="vllm.general_plugins", name="paddlempi")
    return found.load()


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake of vLLM's platform."""

    class CpuPlatform:
        dist_backend = "gloo"

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return "theirs"

    names = ("vllm", "vllm.platforms", "vllm.platforms.cpu")
    modules = {name: ModuleType(name) for name in names}
    modules["vllm"].__version__ = "0.1"  # type: ignore[attr-defined]
    modules["vllm.platforms.cpu"].CpuPlatform = CpuPlatform  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("PADDLEMPI_VLLM", raising=False)
    return CpuPlatform


@pytest.mark.parametrize("value", [None, "", "0"])
def test_it_does_nothing_unless_it_is_asked(
    platform: Any, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("PADDLEMPI_VLLM", value)
    plugin()()
    assert (platform.dist_backend, platform.get_device_communicator_cls()) == ("gloo", "theirs")


def test_it_changes_the_platform_of_the_cpu(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_VLLM", "1")
    derived = type("ZenCpuPlatform", (platform,), {})
    for _ in range(2):  # vLLM may call it again
        plugin()()
    for kind in (platform, derived):
        assert kind.dist_backend == "paddlempi"
        path = kind.get_device_communicator_cls()
        assert path == "paddlempi.torch.vllm_communicator.Communicator"


def test_wrong_values_and_other_versions(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_VLLM", "yes")
    with pytest.raises(ValueError, match="PADDLEMPI_VLLM='yes'"):
        plugin()()
    monkeypatch.setenv("PADDLEMPI_VLLM", "1")
    del platform.get_device_communicator_cls
    with pytest.raises(ImportError, match=r"0\.1\): CpuPlatform has no get_device_communicator"):
        plugin()()
    assert platform.dist_backend == "gloo"
