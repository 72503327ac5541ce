"""Imports go down only: the rooms of the core and of the Python package, and what each may see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = "github.com/paddlempi/paddlempi"

# What a Go package may import of this module. op, status and dl know the standard library alone.
GO = {
    "gocore/op": (),
    "gocore/status": (),
    "gocore/dl": (),
    "gocore/cuda": ("gocore/dl", "gocore/op", "gocore/status"),
    "gocore/cuda/cudafake": (),
    "gocore/mem": ("gocore/cuda", "gocore/op", "gocore/status"),
    "gocore/reduce": ("gocore/op", "gocore/status"),
    "gocore/segment": ("gocore/status",),
    "gocore/work": ("gocore/status",),
    "gocore/launcher": (),
    "gocore/netif": ("gocore/dl", "gocore/status"),
    "gocore/mpi": ("gocore/dl", "gocore/launcher", "gocore/op", "gocore/status"),
    "gocore/mpi/mpifake": ("gocore/mpi", "gocore/op", "gocore/status"),
    "gocore/topo": ("gocore/mpi", "gocore/mem", "gocore/op", "gocore/status"),
    "gocore/arrive": (
        "gocore/mpi",
        "gocore/mem",
        "gocore/op",
        "gocore/segment",
        "gocore/status",
    ),
    "gocore/coll/ipc": ("gocore/cuda", "gocore/mem", "gocore/status"),
    "gocore/coll": (
        "gocore/arrive",
        "gocore/coll/ipc",
        "gocore/cuda",
        "gocore/mem",
        "gocore/mpi",
        "gocore/op",
        "gocore/reduce",
        "gocore/status",
        "gocore/topo",
        "gocore/work",
    ),
    "gocore/group": (
        "gocore/arrive",
        "gocore/coll",
        "gocore/coll/ipc",
        "gocore/cuda",
        "gocore/dl",
        "gocore/mem",
        "gocore/mpi",
        "gocore/op",
        "gocore/segment",
        "gocore/status",
        "gocore/topo",
        "gocore/work",
    ),
    "gocore/diagnose": (
        "gocore/cuda",
        "gocore/dl",
        "gocore/launcher",
        "gocore/mem",
        "gocore/mpi",
        "gocore/status",
        "gocore/work",
    ),
    "gocore": (
        "gocore/diagnose",
        "gocore/group",
        "gocore/launcher",
        "gocore/mpi",
        "gocore/netif",
        "gocore/op",
        "gocore/reduce",
        "gocore/status",
        "gocore/work",
    ),
    "capi": ("gocore", "gocore/op", "gocore/status"),
    "tools/opgen": ("gocore/launcher",),
}

# The Python package from the bottom up: a module imports from the floors below its own. Modules of
# one room share an entry.
PYTHON = (
    ("errors", "_ops"),
    ("reduce_op",),
    ("_native",),
    ("tensors",),
    ("_buffer",),
    ("_exit",),
    ("group",),
    ("rank_list", "launcher", "future"),
    ("work",),
    ("arguments",),
    ("collectives",),
    ("p2p",),
    ("objects",),
    ("context", "communicator"),
    ("__init__",),
    ("torch", "paddle"),
    ("cli", "testing", "__main__"),
)

# The fronts: the only ones that may import a framework, their own.
FRONTS = {"torch": {"torch", "numpy"}, "paddle": {"paddle", "numpy"}}

# Inside a front, from the bottom up.
TORCH = (
    ("environment", "errors", "reduce_op", "arguments", "profile"),
    ("work", "world"),
    ("store", "issue", "sparse"),
    ("process_group",),
    ("mixed",),
    ("activation",),
    ("__init__",),
)

# In these two the modules of one floor do not import each other either.
PADDLE = (
    # Paddle itself: its names, what of it is replaced, what it is told
    ("private", "patches", "environment"),
    ("world", "autograd", "watched"),
    # small things that need nothing or little of that
    ("task", "parameters", "selected_rows", "compression", "refusal", "checkpoint", "batch_norm"),
    # paddle.distributed
    ("process_group", "fleet"),
    ("functions",),
    # gradients and parameters that all ranks have alike
    ("buckets", "late_steps"),
    ("replicas", "sparse", "overlap", "usage"),
    ("reducer",),
    ("gradients",),
    ("zero",),
    ("data_parallel", "optimizers"),
    ("activation",),
    ("__init__",),
)

# The describers of tensors; each may import the framework that it is named after.
TENSORS = (
    ("kind",),
    ("plain", "cuda_array", "numpy", "torch", "paddle"),
    ("dlpack",),
    ("__init__",),
)

# Known by protocol and through sys.modules; who has none of them can use the package all the same.
FRAMEWORKS = {"numpy", "paddle", "torch", "cupy", "jax", "mpi4py", "ml_dtypes"}


def go_files() -> Iterator[Path]:
    for folder in ("capi", "gocore", "tools"):
        yield from (ROOT / folder).rglob("*.go")


def go_imports(path: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    specs = re.findall(r"^import\s*\((.*?)^\)|^import\s+([^\n(]*)$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"\n]+)"', "\n".join(block or line for block, line in specs))


@pytest.mark.parametrize("folder", sorted({str(p.parent.relative_to(ROOT)) for p in go_files()}))
def test_go_imports_go_down(folder: str) -> None:
    assert folder in GO, f"{folder} is a new room: say here what it may import"
    for path in (ROOT / folder).glob("*.go"):
        for name in go_imports(path):
            if path.name.endswith("_test.go"):
                continue
            assert "." not in name.partition("/")[0] or name.startswith(MODULE), (
                f"{path}: {name}: outside tests the core needs the standard library alone"
            )
            if name.startswith(MODULE):
                inner = name.removeprefix(MODULE + "/")
                assert inner in GO[folder], f"{path} imports {inner}"


def python_files() -> Iterator[Path]:
    yield from (ROOT / "python" / "paddlempi").rglob("*.py")


def is_module(name: str) -> bool:
    place = ROOT / "python" / "paddlempi" / name
    return place.is_dir() or place.with_suffix(".py").is_file()


def floor(module: str) -> int:
    """The floor of a module, named from the package down (``testing.plugin``)."""
    for number, names in enumerate(PYTHON):
        if module.partition(".")[0] in names:
            return number
    raise AssertionError(f"{module} is a new module: say here on which floor it stands")


class Imports(ast.NodeVisitor):
    """Collects what a module imports when it runs; what stands under TYPE_CHECKING does not."""

    def __init__(self, package: list[str]) -> None:
        self.package = package
        self.found: list[str] = []

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [alias.name for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) - node.level + 1] if node.level else []
        name = ".".join([*base, *([node.module] if node.module else [])])
        if name == "paddlempi":
            names = [alias.name for alias in node.names]
            self.found += [f"paddlempi.{n if is_module(n) else '__init__'}" for n in names]
        elif name in ("paddlempi.torch", "paddlempi.paddle", "paddlempi.tensors"):
            self.found += [f"{name}.{alias.name}" for alias in node.names]
        else:
            self.found.append(name)


@pytest.mark.parametrize(
    "path", sorted(python_files()), ids=lambda p: str(p.relative_to(ROOT / "python"))
)
def test_python_imports_go_down(path: Path) -> None:
    parts = path.relative_to(ROOT / "python").with_suffix("").parts
    imports = Imports(list(parts[:-1]))
    imports.visit(ast.parse(path.read_text()))
    own = parts[1]
    for name in imports.found:
        first, _, inner = name.partition(".")
        outer = own in ("testing", "cli")  # tools for tests and people, not the way of a tensor
        if name.split(".")[:2] == ["paddlempi", own]:
            continue
        allowed = first not in FRAMEWORKS or outer or first in FRONTS.get(own, ())
        allowed = allowed or parts[1:] == ("tensors", first)  # the describer of its tensors
        assert allowed, f"{path} imports {first}"
        if first == "paddlempi" and inner and inner.partition(".")[0] != own:
            below = floor(inner) < floor(own)
            room = floor(inner) == floor(own)
            assert below or (room and not outer), f"{path} imports {inner}, which stands above it"


def inner_imports(room: str, floors: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, str]]:
    """Which module of a room imports which other one, also inside functions."""
    paths = sorted((ROOT / "python" / "paddlempi" / room).glob("*.py"))
    stand = [name for names in floors for name in names]
    assert sorted(path.stem for path in paths) == sorted(stand), "say of each where it stands"
    for path in paths:
        imports = Imports(["paddlempi", room])
        imports.visit(ast.parse(path.read_text()))
        for name in imports.found:
            if name.startswith(f"paddlempi.{room}."):
                yield path.stem, name.split(".")[2]


def test_imports_inside_torch_go_down() -> None:
    floors = {name: number for number, names in enumerate(TORCH) for name in names}
    for module, inner in inner_imports("torch", TORCH):
        assert floors[inner] <= floors[module], f"torch/{module} imports {inner}"


@pytest.mark.parametrize(("room", "table"), [("paddle", PADDLE), ("tensors", TENSORS)])
def test_imports_inside_a_room_go_down(room: str, table: tuple[tuple[str, ...], ...]) -> None:
    floors = {name: number for number, names in enumerate(table) for name in names}
    for module, inner in inner_imports(room, table):
        assert floors[inner] < floors[module], f"{room}/{module} imports {inner}"
