"""A rank that a warm server has forked becomes the process that would have started cold.

``docs/testing.md`` (Warm starts) says what stays different.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import gc
import importlib.machinery
import io
import os
import random
import signal
import sys
import time
import warnings
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

__all__ = ["Fresh", "run"]

_TORCH_SEED = 67280421310721
"""The seed of torch's generators before a program sets one."""

_kept: list[Any] = []
"""The ``__main__`` of the server, whose frames are below those of the script."""


@dataclass
class Fresh:
    """What Python has when it starts. Make it before the imports of others."""

    path: list[str] = field(default_factory=lambda: sys.path[_standard() :])
    filters: int = field(default_factory=lambda: len(warnings.filters))
    thresholds: tuple[int, ...] = field(default_factory=gc.get_threshold)
    no_bytecode: bool = sys.dont_write_bytecode


def _standard() -> int:
    """Return where the standard library begins in ``sys.path``: behind PYTHONPATH."""
    zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    names = [os.path.basename(entry) for entry in sys.path]
    return names.index(zipped) if zipped in names else 1


def run(fresh: Fresh, argv: list[str], variables: dict[str, str]) -> None:
    """Run a script as ``__main__``. Call it where the process ends when it returns or raises.

    Args:
        fresh: of the server, before its imports.
        argv: the script and its arguments.
        variables: the whole environment of the rank.
    """
    os.environ.clear()
    os.environ.update(variables)
    _restore(fresh)
    script = os.path.abspath(argv[0])
    sys.argv[:] = argv
    sys.orig_argv[:] = [sys.executable, *argv]
    beside = [] if os.environ.get("PYTHONSAFEPATH") else [os.path.dirname(os.path.realpath(script))]
    sys.path[:] = beside + _searched(fresh)
    main = ModuleType("__main__")
    main.__dict__.update(
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        __file__=script,
        __cached__=None,
        __builtins__=builtins,
        __annotations__={},
    )
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # what multiprocessing calls it
        sys.modules["__mp_main__"] = main
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        text = f"can't open file {script!r}: [Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: {text}\n")
        raise SystemExit(2) from None
    try:
        exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _trimmed(sys.excepthook, main)
        raise


def _trimmed(hook: Any, main: ModuleType) -> Any:
    """Return a hook for Python's end that shows a traceback from the script's first frame on.

    ``sys.last_traceback`` keeps all frames. Its first one is the outermost of the process, as
    ``paddlempi._exit`` wants it of an exception that ends a program.
    """

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        while trace is not None and trace.tb_frame.f_globals is not main.__dict__:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    return show


def _searched(fresh: Fresh) -> list[str]:
    """Return the ``sys.path`` of a fresh Python, without the folder of the script."""
    text = os.environ.get("PYTHONPATH", "")
    entries = [os.path.abspath(entry) for entry in text.split(os.pathsep)] if text else []
    return list(dict.fromkeys(entries + fresh.path))


def _restore(fresh: Fresh) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    gc.enable()
    gc.set_threshold(*fresh.thresholds)
    _restore_warnings(fresh)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if os.environ.get("PYTHONUNBUFFERED"):
        _unbuffer()
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    time.tzset()
    random.seed()
    _draw_for_runtimes()
    _restore_modules()


def _draw_for_runtimes() -> None:
    """Give this process bytes of its own where the kernel has left 16 random ones for programs.

    Go's runtime, which the core starts, seeds its random numbers with them (``getauxval(3)``). The
    C library has used them before this, and does not look at them again.
    """
    at_random = 25
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    address = getauxval(at_random)
    if address:
        ctypes.memmove(address, os.urandom(16), 16)


def _unbuffer() -> None:
    """Make the standard streams as ``python -u`` has them."""
    stdin: Any = sys.stdin
    stdin.reconfigure(write_through=True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        old: Any = getattr(sys, name)
        raw: Any = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            raw,
            encoding=old.encoding,
            errors=old.errors,
            write_through=True,
        )
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _restore_warnings(fresh: Fresh) -> None:
    """Put the filters of PYTHONWARNINGS where they were if the imports had come later."""
    text = os.environ.get("PYTHONWARNINGS", "")
    sys.warnoptions[:] = text.split(",") if text else []
    listed: Any = warnings.filters
    filters: list[Any] = listed
    imported = filters[: len(filters) - fresh.filters]
    del filters[: len(imported)]
    process: Any = getattr(warnings, "_processoptions", None)
    if process is not None:
        process(sys.warnoptions)
    filters[:0] = imported
    with warnings.catch_warnings():  # it tells the module that the filters have changed
        pass


def _restore_modules() -> None:
    """Let the modules forget what they read from the environment, or drew, at their import."""
    loaded: dict[str, Any] = sys.modules
    if "tempfile" in loaded:
        loaded["tempfile"].tempdir = None
    if "multiprocessing.process" in loaded:
        process = loaded["multiprocessing.process"]
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)
    if "numpy" in loaded:
        loaded["numpy"].random.seed()
    if "torch" in loaded:
        torch = loaded["torch"]
        torch.default_generator.manual_seed(_TORCH_SEED)
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads):
            torch.set_num_threads(int(threads))
        autoload = loaded.get("paddlempi_bootstrap.torch_autoload")
        if autoload is not None:  # it looks at the variables of the launcher
            autoload.autoload()
