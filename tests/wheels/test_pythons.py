"""The x86-64 wheel in the Pythons that this machine has, and on a system with an old glibc."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest
from packaging.tags import cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
DEBIAN = ROOT / ".debian-old"

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="this machine is not of x86-64"
)

# Two ranks without MPI.
RANKS = """
import numpy as np
import paddlempi as dist
dist.init_process_group()
x = np.full(100_000, dist.get_rank() + 1.0, "float32")
dist.all_reduce(x)
assert (x == 3).all()
dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
print("right", flush=True)
"""

# Unit tests that need no framework, and one of ranks.
TESTS = (
    *("test_api_collectives.py", "test_api_work.py", "test_exchange.py", "test_ops.py"),
    "test_trace_stacks.py",
)

# The interpreter has a module of subinterpreters under one name or another.
SUBINTERPRETER = """
import paddlempi
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = '''
import paddlempi
try:
    paddlempi.init_process_group()
except paddlempi.errors.UnsupportedError as error:
    print(error, flush=True)
'''
print(interpreters.run_string(interpreters.create(), code) or "")
"""


@cache
def interpreters() -> dict[str, str]:
    """Return the Pythons of this machine by version: those on PATH and of pyenv."""
    found: dict[str, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
    for version in VERSIONS:
        paths = [shutil.which(f"python{version}") or ""]
        paths += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
        for path in filter(None, paths):
            words = [path, "-c", "import ensurepip, venv"]
            if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                found[version] = path
                break
    return found


def wheel() -> Path:
    (found,) = (ROOT / "dist" / "published").glob("*_x86_64.whl")
    return found


def run(command: list[str], **more: object) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of a new environment with the wheel, and what the tests need."""
    version = request.param
    if version not in interpreters():
        pytest.skip(f"this machine has no Python {version}")
    folder = tmp_path_factory.mktemp(f"python{version}")
    run([interpreters()[version], "-m", "venv", "--without-pip", str(folder)])
    made = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", made, "install", "--no-compile"]
    pins = ["-c", str(ROOT / "constraints.txt")]
    needs = ["numpy", "pytest", "ml-dtypes", "hypothesis"]
    run([*pip, "--only-binary", ":all:", *pins, *needs])
    run([*pip, "--no-index", "--no-deps", str(wheel())])
    return made


def test_the_wheel_works(python: str, tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    command = str(Path(python).with_name("paddlempi"))
    told = run([command, "run", "-np", "2", str(program)])
    assert told.count("right") == 2
    tests = [str(ROOT / "tests" / "unit" / "core" / name) for name in TESTS]
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT)
    told = run([python, "-c", "import sys; print(*sys.version_info[:2])"])
    if tuple(map(int, told.split())) >= (3, 11):  # older ones have it under yet another name
        told = run([python, "-c", SUBINTERPRETER])
        assert "paddlempi runs in the main interpreter of a process alone" in told


def test_a_free_threaded_python_finds_no_wheel() -> None:
    """By the tags that the pip of such a Python takes, which are those of packaging."""
    platforms = ["manylinux_2_17_x86_64"]
    _, _, _, tags = parse_wheel_filename(wheel().name)
    assert tags & set(cpython_tags((3, 13), ["cp313"], platforms))
    assert not tags & set(cpython_tags((3, 13), ["cp313t"], platforms))


def test_the_sources_say_why_to_a_free_threaded_python() -> None:
    """Its build ends with one sentence before it asks for a compiler."""
    code = (
        "import sysconfig; real = sysconfig.get_config_var; "
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else real(name); "
        "import backend; backend.get_requires_for_build_wheel()"
    )
    assert not sysconfig.get_config_var("Py_GIL_DISABLED")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "build")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "paddlempi does not run on a free-threaded Python" in last
    assert "use the ordinary build of Python, 3.10 or newer" in last


def test_glibc_2_31(tmp_path: Path) -> None:
    """Debian 11: its Python is older than 3.10, and loads the core all the same."""
    reason = DEBIAN / ".reason"
    if reason.exists():
        pytest.skip(reason.read_text().strip())
    libraries = [DEBIAN / "lib" / "x86_64-linux-gnu", DEBIAN / "usr" / "lib" / "x86_64-linux-gnu"]
    run([sys.executable, "-m", "zipfile", "-e", str(wheel()), str(tmp_path)])
    code = (
        "import importlib.util as u, json, platform, sys; "
        "s = u.spec_from_file_location('paddlempi._core', sys.argv[1]); m = u.module_from_spec(s); "
        "print(platform.libc_ver()[1], json.loads(m.control('info', '{}'))['build'])"
    )
    command = [str(libraries[0] / "ld-2.31.so"), "--library-path", ":".join(map(str, libraries))]
    command += [str(DEBIAN / "usr" / "bin" / "python3.9"), "-c", code]
    told = run([*command, str(tmp_path / "paddlempi" / "_core.abi3.so")])
    assert told.startswith("2.31 go1.")
