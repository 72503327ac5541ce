"""A copy of the tree, in which one mutant at a time is built and tried."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from mutants.changes import Mutant

PACKAGE = Path("python", "paddlempi")
# The built files of the package.
CORE = ("_core.abi3.so", "libpaddlempi_trampoline.so")
# A key in a folder that includes a header of another one: Go does not see that it has changed.
KEY = "mutant_key.h"
TAGS = "pymodule,grpcnotrace,netgo,osusergo"
BUILD_LIMIT = 600
TRAMPOLINE = (
    "import sys, pathlib; sys.path.insert(0, 'tools/build'); import core; "
    f"core.build_trampoline(pathlib.Path({str(PACKAGE / CORE[1])!r}).resolve())"
)


def run(command: list[str], tree: Path, limit: float, **env: str) -> str:
    """Return "" if a command succeeds, else "failed" or "limit"."""
    # Without it each process would compile the frameworks anew.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = subprocess.Popen(
        command,
        cwd=tree,
        env=inherited | env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=os.setpgrp,  # not a new session, because Linux ignores nice between sessions
    )
    try:
        return "failed" if started.wait(limit) else ""
    except subprocess.TimeoutExpired:
        return "limit"
    finally:  # also after Ctrl-C
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGTERM)  # launch ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


class Tree:
    """The copy. One that an earlier run has left is taken again, with the sources of then."""

    def __init__(self, root: Path, folder: Path, environments: Path) -> None:
        self.folder = folder
        self.environments = environments
        self._unchanged = folder.with_name(f"{folder.name}.core")
        self._changed = folder.with_name(f"{folder.name}.changed")
        self._built = False  # by a mutant
        if (folder / ".complete").exists():
            self._restore()
        else:
            self.remove()
            self._copy(root)
            (folder / ".complete").touch()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._unchanged, ignore_errors=True)
        self._changed.unlink(missing_ok=True)

    def _copy(self, root: Path) -> None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.check_output(command, cwd=root, text=True).split("\0")
        driver = Path("build", "libcuda_fake.so")  # no file of git, but of tests/ranks/cuda
        for name in [*filter(None, names), str(driver)]:
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)
        for environment in self.environments.glob(".venv-*"):  # some tests look for another MPI's
            (self.folder / environment.name).symlink_to(environment)

    # The mutant.

    def apply(self, mutant: Mutant) -> bool:
        """Change a line. Tell whether it was there."""
        path = self.folder / mutant.file
        text = path.read_text() if path.exists() else ""
        changed = mutant.apply(text)
        if changed is None:
            return False
        # A run that is killed leaves it for the next one.
        self._changed.write_text(json.dumps([mutant.file, text]))
        self._write(path, changed)
        for package in self.packages(mutant.file)[:-1]:
            (self.folder / package / KEY).write_text(f"// {zlib.crc32(mutant.key.encode())}\n")
        return True

    def restore(self) -> None:
        """Take the mutant back, and what was built of it."""
        self._restore()
        if self._built:
            self._put(self._unchanged)

    def _restore(self) -> None:
        if self._changed.exists():
            file, text = json.loads(self._changed.read_text())
            self._write(self.folder / file, text)
            for room in ("gocore", "capi"):
                for key in (self.folder / room).rglob(KEY):
                    key.unlink()
            self._changed.unlink()

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Python takes its bytecode for new if the file was changed in the same second.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    # What is built.

    def packages(self, file: str) -> list[str]:
        """Return the folders of the packages that a file is compiled into, its own the last."""
        known, todo = set(), {file}
        while todo:
            known |= todo
            todo = {by for name in todo for by in self._included_by.get(name, ())} - known
        own = str(Path(file).parent)
        folders = {re.sub(r"/testdata(/.*)?$", "", str(Path(name).parent)) for name in known}
        with_go = {name for name in folders if self._has_go(name)}
        return [*sorted(with_go - {own}), own] if file.endswith((".go", ".c", ".h")) else [own]

    def _has_go(self, folder: str) -> bool:
        return any((self.folder / folder).glob("*.go"))

    @cached_property
    def _included_by(self) -> dict[str, set[str]]:
        """The files of Go and C that include a file."""
        found: dict[str, set[str]] = {}
        paths = (path for room in ("gocore", "capi") for path in (self.folder / room).rglob("*"))
        for path in paths:
            if path.suffix not in (".go", ".c", ".h"):
                continue
            for name in re.findall(r'^\s*#\s*include "(.+)"', path.read_text(), re.MULTILINE):
                target = os.path.relpath((path.parent / name).resolve(), self.folder.resolve())
                found.setdefault(target, set()).add(str(path.relative_to(self.folder)))
        return found

    @cached_property
    def _tested(self) -> dict[str, set[str]]:
        """The packages of the tree that each package of tests is linked of."""
        listed = subprocess.check_output(
            [*self.go("list", "-test", "-json=ImportPath,Deps", "./gocore/...")],
            cwd=self.folder,
            text=True,
        )
        module = re.findall(r"^module (\S+)", (self.folder / "go.mod").read_text(), re.MULTILINE)[0]
        found, rest, decoder = {}, listed.lstrip(), json.JSONDecoder()
        while rest:
            package, end = decoder.raw_decode(rest)
            rest = rest[end:].lstrip()
            path = package["ImportPath"]
            if path.endswith(".test"):
                linked = {name.split(" ")[0] for name in package.get("Deps", ())}
                here = {name.removeprefix(module + "/") for name in linked if module in name}
                found[path.removesuffix(".test").removeprefix(module + "/")] = here
        return found

    def go(self, *words: str) -> list[str]:
        return [sys.executable, "tools/go.py", *words]

    def go_tests(self, mutant: Mutant) -> list[list[str]]:
        """Return the commands of Go's tests of a mutant: of its packages, then of importers."""
        own = set(self.packages(mutant.file))
        affected = {name for name, linked in self._tested.items() if own & linked}
        steps = [sorted(own & affected), sorted(affected - own)]
        return [self.go_test(*(f"./{name}" for name in step)) for step in steps if step]

    def go_test(self, *words: str) -> list[str]:
        return self.go("test", "-vet=off", "-failfast", "-timeout", "0", *words)

    def compiles(self, mutant: Mutant) -> bool:
        """Tell whether what a mutant is in compiles, as far as one knows without the rest."""
        if mutant.language == "Python":
            try:
                compile((self.folder / mutant.file).read_text(), mutant.file, "exec")
            except SyntaxError:
                return False
            return True
        packages = [name for name in self.packages(mutant.file) if self._has_go(name)]
        commands = []
        if packages:  # compiled, not linked
            folders = (f"./{name}" for name in packages)
            commands.append(self.go("list", "-export", "-tags", TAGS, *folders))
        if mutant.language == "C" and mutant.file.startswith("capi/"):
            self._built = True
            commands.append([sys.executable, "-c", TRAMPOLINE])
        return not any(run(command, self.folder, BUILD_LIMIT) for command in commands)

    def build(self) -> bool:
        """Build the core of the tree as it is. Tell whether it worked."""
        self._built = True
        core = self.go("build", "-buildmode=c-shared", "-tags", TAGS, "-ldflags=-s -w")
        core += ["-o", str(PACKAGE / CORE[0]), "./capi/main"]
        trampoline = [sys.executable, "-c", TRAMPOLINE]
        return not any(run(each, self.folder, BUILD_LIMIT) for each in (core, trampoline))

    def prepare(self, python: Path | None) -> None:
        """Have the core of the unchanged tree: that of an environment if it was built of it."""
        if self._put(self._unchanged):
            return
        if not (python and self._put(installed(python), self._id())) and not self.build():
            raise SystemExit("the unchanged tree does not compile")
        self._built = False
        kept = self._unchanged.with_suffix(".part")  # of a run that is killed here
        kept.mkdir(parents=True, exist_ok=True)
        for name in CORE:
            shutil.copy2(self.folder / PACKAGE / name, kept / name)
        kept.replace(self._unchanged)

    def _id(self) -> bytes:
        command = [sys.executable, "tools/build/core.py", "--id"]
        return subprocess.check_output(command, cwd=self.folder).strip()

    def _put(self, folder: Path, contains: bytes = b"") -> bool:
        """Copy the built files of a folder here, if the core contains some bytes."""
        self._built = False
        if not (folder / CORE[0]).exists() or contains not in (folder / CORE[0]).read_bytes():
            return False
        for name in CORE:
            (self.folder / PACKAGE / name).unlink(missing_ok=True)
            shutil.copy2(folder / name, self.folder / PACKAGE / name)
        return True


def installed(python: Path) -> Path:
    """Return the folder of the package in an environment."""
    return next(iter(python.parents[1].glob("lib/python3*/site-packages/paddlempi")), Path())


def fails(commands: Iterable[list[str]], tree: Tree, limit: float) -> str:
    """Return why a stage fails, twice; "" if it passes. A busy machine may miss a deadline once."""
    env = {"PYTHONPATH": str(tree.folder / "python")}
    for command in commands:
        why = run(command, tree.folder, limit, **env)
        if why == "failed":
            why = run(command, tree.folder, limit, **env)
        if why:
            return why
    return ""
