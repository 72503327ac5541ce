"""Builds of the package, each from a copy of the tree and made once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "build"))

# The build takes all of these; another file of the root that it comes to need belongs here, too,
# and into the images of packaging/.
SOURCES = {
    *("LICENSE", "LICENSE-THIRD-PARTY", "MANIFEST.in", "README.md", "capi", "constraints.txt"),
    *("go.mod", "go.sum", "gocore", "pyproject.toml", "python", "setup.py", "tools"),
}

# All that PATH offers to a build from nothing: Python, and the programs that pip and zig start.
_BARE = ("python3", "sh", "env", "uname")

# If the tests run as root, a mount namespace also hides the headers, other go's, and gcc.
_HIDE = """
for folder in /usr/include /usr/local/go /usr/lib/go /usr/lib/gcc; do
    [ ! -d $folder ] || mount -t tmpfs none $folder || exit 97
done
exec "$@"
"""


@dataclass(frozen=True)
class Built:
    """A wheel, and what pip printed while it made the wheel."""

    wheel: Path
    output: str

    def unpack(self, folder: Path) -> Path:
        """Extract the core from the wheel into the folder and return its path."""
        with zipfile.ZipFile(self.wheel) as archive:
            return Path(archive.extract("paddlempi/_core.abi3.so", folder))


def copy_tree(folder: Path) -> Path:
    """Copy those of SOURCES that git tracks or would add. A build shows a missing file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *sorted(SOURCES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_in(folder: Path, command: list[str], env: dict[str, str]) -> str:
    """Run a command in a folder and return its standard output."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_source(tree: Path, folder: Path, env: dict[str, str]) -> Path:
    """Make the source distribution of a tree in a folder and return its path."""
    make = "import backend, sys; print(backend.build_sdist(sys.argv[1]))"
    env = {**env, "PYTHONPATH": str(tree / "tools" / "build")}
    return folder / run_in(tree, [sys.executable, "-c", make, str(folder)], env).split()[-1]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a source distribution and return its one folder, ``folder``."""
    with tarfile.open(archive) as sources:
        sources.extractall(folder.parent, filter="data")
    return (folder.parent / archive.name.removesuffix(".tar.gz")).rename(folder)


def pip(python: Path | str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run pip and return what it printed."""
    command = [str(python), "-m", "pip", *arguments]
    return run(command, env=env)


def run(command: list[str], *, env: dict[str, str] | None = None) -> str:
    """Run a command, which must succeed, and return what it printed."""
    done = subprocess.run(
        command,
        env={**os.environ, "PIP_QUIET": "0"} if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without go, without a C compiler, and without modules of earlier builds.

    What Go has compiled may be there: it is named by all that it was made from. C is compiled anew,
    because each build has a C compiler of its own.
    """
    folder = tmp_path_factory.mktemp("bare")
    path = folder / "bin"
    path.mkdir()
    for name in _BARE:
        found = shutil.which(name, path="/usr/bin:/bin") or shutil.which(name)
        assert found, f"{name} is not on PATH"
        (path / name).symlink_to(found)
    hidden = ("CC", "GOROOT", "GOPATH", "GOCACHE", "GOFLAGS", "PIP_CACHE_DIR", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    # The sources have the Go modules: a module proxy is not asked.
    env |= {"PATH": str(path), "HOME": str(folder), "PIP_QUIET": "0", "GOPROXY": "off"}
    env["GOCACHE"] = run([sys.executable, str(ROOT / "tools" / "go.py"), "env", "GOCACHE"]).strip()
    return env


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("source")
    return make_source(copy_tree(folder / "tree"), folder, dict(os.environ))


@pytest.fixture(scope="session")
def zig_built(
    tmp_path_factory: pytest.TempPathFactory, source: Path, bare: dict[str, str]
) -> Built:
    """The wheel that a machine without go and gcc builds from the source distribution."""
    folder = tmp_path_factory.mktemp("zig")
    tree = unpack(source, folder / "tree with blanks")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "-w",
        str(folder),
        str(tree),
    ]
    if os.geteuid() == 0 and can_unshare():
        unshare = shutil.which("unshare")
        assert unshare
        # The shell finds no mount on the bare PATH. The mounts vanish with the namespace.
        script = _HIDE.replace("mount ", f"{shutil.which('mount')} ")
        command = [unshare, "--mount", "/bin/sh", "-c", script, "sh", *command]
    output = run(command, env=bare)
    return Built(next(folder.glob("*.whl")), output)


def can_unshare() -> bool:
    """Return whether this user may mount in a namespace. Root in a container may not."""
    try:
        trial = "mount -t tmpfs none /usr/include"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", trial], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0
