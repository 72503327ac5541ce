"""Imports go down only, in the core and in the Python package.

``tools/rooms.py`` lists the rooms of the core, and the tuples below list the modules of Python.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import rooms
import uses

ROOT = rooms.ROOT
GO = {room.folder: room for room in rooms.ROOMS}
MODULE = "github.com/paddlempi/paddlempi"

# The rooms that may import gocore/mpi (docs/adr/0028-the-seam.md): the root and the rooms that were
# cut from it, the diagnosis, the algorithms that call MPI, its fake. The list only gets shorter.
MPI = {
    "gocore",
    "gocore/control",
    "gocore/join",
    "gocore/registry",
    "gocore/diagnose",
    "gocore/coll",
    "gocore/pmi",
    "gocore/rollcall",
    "gocore/mpi/mpifake",
}

# The floors of the Python package, from the bottom up. A module imports modules of lower floors, or
# of its own floor. A folder is one entry, but for modules of it that have their own.
PYTHON = (
    ("errors", "_ops", "_pages", "_rank_names", "_units", "tensor_types"),
    ("reduce_op", "_log", "_marks", "_processes", "_progress", "group_arguments"),
    ("_native",),
    ("tensors",),
    ("_buffer",),
    ("_exit", "_daemons", "memory", "startup"),
    ("group",),
    ("rank_list", "startup.unused_rank", "startup.reform", "future"),
    ("work",),
    ("arguments",),
    ("collectives",),
    ("topology",),
    ("p2p",),
    ("objects", "prepared"),
    ("together",),
    ("window_proxy",),
    (
        "context",
        "communicator",
        "checkpoints",
        "preemption",
        "jobs",
        "window",
        "startup.launch",
        "startup.handles",
    ),
    ("io", "elasticity", "planner"),
    ("ps",),
    ("__init__",),
    ("torch", "paddle", "jax"),
    ("trace",),
    ("testing",),
    ("cli", "__main__"),
)

# Every front, and the frameworks that it may import.
FRONTS = {
    "torch": {"torch", "numpy"},
    "paddle": {"paddle", "numpy"},
    "jax": {"jax", "numpy"},
    "io": {"numpy"},
    "elasticity": {"numpy"},
}

# The floors inside the fronts and inside tensors, from the bottom up.
TORCH = (
    (
        "environment",
        "errors",
        "reduce_op",
        "arguments",
        "profile",
        "backward",
        "dynamo",
        "ddp_buckets",
        "fsdp_buffers",
        "group_names",
        "snapshots",
        "blocked_threads",
    ),
    ("callback_order",),
    ("reducers", "work", "world"),
    ("store", "issue", "sparse"),
    ("argument_checks", "operators", "window"),
    ("dispatch", "registered"),
    ("messages",),
    ("process_group",),
    ("mixed", "reconfigure", "stateless"),
    ("activation",),
    ("parts", "planner"),  # imported by elastic jobs, and when a plan is made or applied
    ("__init__", "bench"),
    ("states",),  # from here on imported when paddlempi.ps needs them
    ("embedding", "distributed_optimizer"),
    ("transpiler",),
    ("checkpoint_reader",),  # imported by programs that use it
    ("checkpoint",),
    ("bench_model", "bench_inference", "bench_calibrate"),
    ("vllm_communicator",),  # imported by vLLM
)

# In PADDLE, JAX, TENSORS and IO the modules of one floor do not import each other.
PADDLE = (
    # Paddle itself: its names, its attributes that are replaced, the variables that it reads
    ("private", "patches", "environment"),
    ("world", "autograd", "watched"),
    # modules that need little or nothing of the floors below
    ("task", "parameters", "selected_rows", "compression", "refusal", "checkpoint", "batch_norm"),
    # paddle.distributed
    ("process_group", "fleet"),
    ("functions",),
    # gradients and parameters that are the same on all ranks
    ("buckets", "late_steps"),
    ("replicas", "sparse", "overlap", "usage"),
    ("reducer",),
    ("gradients",),
    ("zero",),
    ("data_parallel", "optimizers"),
    ("activation", "bench"),
    ("parts", "planner"),  # imported by elastic jobs, and when a plan is made or applied
    ("__init__",),
    ("states",),  # from here on imported when paddlempi.ps needs them
    ("embedding", "distributed_optimizer"),
    ("transpiler",),
    # imported when a static program is transpiled
    ("static_operators", "static_updates"),
    ("static_states",),
    ("static_program",),
    ("static_transpiler",),
)

JAX = (
    ("_late", "_private"),
    ("_library", "calls"),
    ("_start", "functions"),
    ("__init__",),
    # imported by those who need them
    ("arrays", "mpi4jax"),
)

# The describers. A describer may import the framework that it is named after. That of Paddle may
# import NumPy, which Paddle needs itself.
TENSORS = (
    ("kind",),
    ("plain", "cuda_array", "numpy", "torch", "paddle"),
    ("dlpack",),
    ("__init__",),
)

IO = (
    ("dtypes", "posix"),
    ("header", "places", "values", "by_mpi"),
    ("layout", "tiles", "elements", "opened"),
    ("shards", "commit", "writer"),
    ("reader", "saving"),
    ("file", "states"),
    ("__init__",),
)

# The package works without any of these: it finds their tensors by protocol and in sys.modules.
FRAMEWORKS = {"numpy", "paddle", "torch", "cupy", "jax", "mpi4py", "ml_dtypes"}


def go_files() -> Iterator[Path]:
    for folder in ("capi", "gocore", "tools"):
        yield from (ROOT / folder).rglob("*.go")


def go_imports(path: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    specs = re.findall(r"^import\s*\((.*?)^\)|^import\s+([^\n(]*)$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"\n]+)"', "\n".join(block or line for block, line in specs))


@pytest.mark.parametrize("folder", sorted({str(p.parent.relative_to(ROOT)) for p in go_files()}))
def test_go_imports_are_those_of_the_list(folder: str) -> None:
    assert folder in GO, f"{folder} is a new room: add it to tools/rooms.py"
    inner, outer = set(), set()
    allowed = GO[folder].modules.split()
    for path in (ROOT / folder).glob("*.go"):
        if path.name.endswith("_test.go"):
            continue
        for name in go_imports(path):
            if name.startswith(MODULE):
                inner.add(name.removeprefix(MODULE + "/"))
            else:
                if "." not in name.partition("/")[0]:
                    continue  # the standard library
                modules = [module for module in allowed if f"{name}/".startswith(f"{module}/")]
                assert modules, f"{path} imports {name}, which tools/rooms.py does not list"
                outer.update(modules)
    assert sorted(outer) == sorted(allowed), f"{folder}: tools/rooms.py lists other modules"
    assert inner == set(GO[folder].imported), f"{folder}: tools/rooms.py lists other imports"


def test_few_rooms_import_mpi() -> None:
    found = {room.folder for room in rooms.ROOMS if "gocore/mpi" in room.imported}
    assert found <= MPI, "ask transport.Comm for it, which mpi.Communicator implements"


def test_the_c_of_rooms_uses_that_of_the_list() -> None:
    found = uses.c_of_rooms(GO)
    for folder, room in GO.items():
        assert found.get(folder, set()) == set(room.c_used), f"{folder}: tools/rooms.py, c="


def test_the_rooms_stand_in_order() -> None:
    order = list(GO)
    for folder, room in GO.items():
        assert (ROOT / folder).is_dir(), folder
        for name in (*room.imported, *room.c_used):
            assert order.index(name) > order.index(folder), f"{name} must stand below {folder}"


def test_the_table_of_rooms_is_up_to_date() -> None:
    page = rooms.PAGE.read_text()
    assert page == rooms.written(page), "run make generate"


def test_no_files_use_each_other_in_a_circle() -> None:
    assert uses.circles(uses.python()) == []
    assert uses.circles(uses.c()) == []


def test_the_files_of_a_room_use_those_below() -> None:
    ordered = [room.folder.partition("/")[2] for room in rooms.ROOMS if room.files]
    assert ordered == ["control", "lifecycle", "join", "registry"]
    assert rooms.upward() == []


def test_circles_are_found() -> None:
    found = uses.circles({"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": ["d"], "f": []})
    assert found == [["a", "b", "c"], ["d", "e"]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that writes a file of the tree which ``uses`` looks at."""
    monkeypatch.setattr(uses, "ROOT", tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def test_uses_of_a_go_file_are_found(write: Callable[[str, str], None]) -> None:
    for name, text in {
        "top": "package room\n\nfunc Top() { below(); t.quiet(); x.Loud() } // beside",
        "below": "package room\n\nvar (\n\tlow = 1\n)\n\nfunc below() { beside := 2; use(beside) }",
        "beside": 'package room\n\ntype beside struct{}\n\nfunc (b beside) quiet() { s("low") }\n\n'
        "func (b beside) Loud() { _ = low }",
    }.items():
        write(f"room/{name}.go", text)
    assert uses.upward("room", ["top.go", "beside.go", "below.go"]) == []
    assert uses.upward("room", ["below.go", "beside.go", "top.go"]) == [
        ("beside.go", "below.go"),
        ("top.go", "below.go"),
        ("top.go", "beside.go"),
    ]


def test_uses_of_c_are_found(write: Callable[[str, str], None]) -> None:
    for name, text in {
        "both.h": "int one(void);\nint two(void);\n",
        "one.c": '#include "both.h"\nint one(void) {\n\treturn two();\n}\n',
        "two.c": '#include "both.h"\nstatic int own;\nint two(void) {\n\treturn own; // one()\n}\n',
        "three.c": "int own = 3;\n",
    }.items():
        write(f"capi/{name}", text)
    assert uses.c() == {
        "capi/both.h": set(),
        "capi/one.c": {"capi/both.h", "capi/two.c"},
        "capi/two.c": {"capi/both.h"},
        "capi/three.c": set(),
    }


def test_uses_of_c_between_rooms_are_found(write: Callable[[str, str], None]) -> None:
    for name, text in {
        "capi/call.h": "int carry(int n);\n",
        "capi/call.c": '#include "_cgo_export.h"\n__attribute__((weak, visibility("hidden"))) '
        "int quick(const struct op *op);\n",
        "gocore/top.c": "int quick(const struct op *op) {\n\treturn 0;\n}\nint limit = 3;\n",
        "gocore/low.go": 'package low\n\n// #include "../capi/call.h" // above\nimport "C"\n',
        "gocore/low.c": "extern int limit; // int quick(void);\nvoid goExit(int code);\n",
        "gocore/exit.go": 'package gocore\n\n/*\n#cgo CFLAGS: -O2\n*/\nimport "C"\n\n'
        "//export goExit\nfunc goExit(code C.int) {}\n",
    }.items():
        write(name, text)
    assert uses.c_of_rooms(["capi", "gocore"]) == {"capi": {"gocore"}, "gocore": {"capi"}}
    write("gocore/low.go", 'package low\n\n// #include "call.h"\nimport "C"\n')
    with pytest.raises(AssertionError, match="which is not there"):
        uses.c_of_rooms(["capi", "gocore"])
    write("gocore/low.go", 'package low\n\n// #cgo CFLAGS: -O2 -I../capi\nimport "C"\n')
    with pytest.raises(AssertionError, match="give the path"):
        uses.c_of_rooms(["capi", "gocore"])


def exported_types(folder: str) -> set[str]:
    """Return the exported types of a Go package, without those that protoc generates."""
    found: set[str] = set()
    for path in (ROOT / folder).glob("*.go"):
        if not path.name.endswith(("_test.go", ".pb.go")):
            found |= uses.declared(uses.without_comments(path.read_text()), "type")
    return {name for name in found if name[0].isupper()}


@pytest.mark.parametrize("folder", [name for name in GO if name.startswith("gocore")])
def test_the_glossary_has_the_exported_types(folder: str) -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    marked = re.findall(r"\*\*([^*]+)\*\*|\*([a-z][\w ]*)\*", page)
    words = {"".join(pair).lower().removesuffix("s") for pair in marked}
    row = re.search(rf"^\| `{folder}` \| (.*) \|$", page, re.MULTILINE)
    listed = set(re.findall(r"`([A-Z]\w*)`", row[1] if row else ""))
    named = {name for name in exported_types(folder) if name.lower().removesuffix("s") in words}
    assert listed == exported_types(folder) - named, f"{folder}: docs/glossary.md lists other types"


def python_files() -> Iterator[Path]:
    yield from (ROOT / "python" / "paddlempi").rglob("*.py")


def is_module(name: str) -> bool:
    place = ROOT / "python" / "paddlempi" / name
    return place.is_dir() or place.with_suffix(".py").is_file()


def floor(module: str) -> int:
    """Return the floor of a module, whose name begins below the package (``testing.plugin``)."""
    first, *more = module.split(".")
    for name in (f"{first}.{more[0]}", first) if more else (first,):
        for number, names in enumerate(PYTHON):
            if name in names:
                return number
    raise AssertionError(f"{module} is a new module: add it to PYTHON, on its floor")


# From these packages modules are imported, not names.
EXPANDED = {f"paddlempi.{name}" for name in ("torch", "paddle", "tensors", "startup")}


class Imports(ast.NodeVisitor):
    """Collects the imports of a module, except those under TYPE_CHECKING, which never run."""

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
        elif name in EXPANDED:
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
    own, module = parts[1], ".".join(parts[1:])
    for name in imports.found:
        first, _, inner = name.partition(".")
        outer = own in ("testing", "cli", "trace")  # no collective passes through these
        if name.split(".")[:2] == ["paddlempi", own] and floor(inner) == floor(module):
            continue
        allowed = first not in FRAMEWORKS or outer or first in FRONTS.get(own, ())
        allowed = allowed or parts[1:] == ("tensors", first)  # a describer
        allowed = allowed or (*parts[1:], first) == ("tensors", "paddle", "numpy")
        assert allowed, f"{path} imports {first}"
        if first == "paddlempi" and inner:
            below = floor(inner) < floor(module)
            room = floor(inner) == floor(module)
            assert below or (room and not outer), f"{path} imports {inner}, which stands higher"


def test_bootstrap_imports_neither_the_package_nor_a_framework() -> None:
    """``import torch`` runs it, in every process."""
    names = sorted(path.stem for path in (ROOT / "python" / "paddlempi_bootstrap").glob("*.py"))
    code = "import sys\nbefore = set(sys.modules)\n"
    code += "".join(f"import paddlempi_bootstrap.{name}\n" for name in names if name[0] != "_")
    code += "print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = {*done.stdout.split()} - sys.stdlib_module_names
    assert others == {"paddlempi_bootstrap"}


def inner_imports(room: str, floors: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, str]]:
    """Yield (module, imported module) for all imports inside a room, also in functions."""
    folder = ROOT / "python" / "paddlempi" / room
    listed = [name for names in floors for name in names]
    found = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
    assert sorted(found) == sorted(listed), f"the floors of {room} do not list its modules"
    for path in sorted(folder.rglob("*.py")):
        module, *inside = path.relative_to(folder).with_suffix("").parts
        imports = Imports(["paddlempi", room, *([module] if inside else [])])
        imports.visit(ast.parse(path.read_text()))
        for name in imports.found:
            inner = name.split(".")[2] if name.startswith(f"paddlempi.{room}.") else module
            if inner != module:
                yield module, inner


def test_imports_inside_torch_go_down() -> None:
    floors = {name: number for number, names in enumerate(TORCH) for name in names}
    for module, inner in inner_imports("torch", TORCH):
        assert floors[inner] <= floors[module], f"torch/{module} imports {inner}"


@pytest.mark.parametrize(
    ("room", "table"), [("paddle", PADDLE), ("jax", JAX), ("tensors", TENSORS), ("io", IO)]
)
def test_imports_inside_a_room_go_down(room: str, table: tuple[tuple[str, ...], ...]) -> None:
    floors = {name: number for number, names in enumerate(table) for name in names}
    for module, inner in inner_imports(room, table):
        assert floors[inner] < floors[module], f"{room}/{module} imports {inner}"
