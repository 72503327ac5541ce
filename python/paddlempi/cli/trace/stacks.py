"""The Python stacks of other processes, which take no part: they may hang, or be stopped.

``of(pids)`` runs this file as a program, by the Python of these processes. There it learns from
itself where CPython keeps what (a thread, its frames, their code and lines), because that differs
from release to release. Then it reads the same places in the memory of each process. It is a
program of its own because it needs to be that Python, with no other threads. It imports nothing of
this package.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["of"]

_MOST_THREADS, _MOST_FRAMES, _MOST_TEXT = 64, 64, 4096
_TRIES = 5  # the process goes on while its memory is read
_WORD = 8


Stacks = list[list[str]]
"""The stack of each thread, the main thread first, as ``FILE:LINE in NAME``. The innermost frame
comes first."""


def of(pids: Iterable[int]) -> dict[int, Stacks | str]:
    """Return the stacks of each process, or why they cannot be read."""
    found: dict[int, Stacks | str] = {}
    pythons: dict[str, list[int]] = {}
    for pid in pids:
        try:
            python = os.readlink(f"/proc/{pid}/exe")
        except OSError as error:
            found[pid] = str(error)
            continue
        if re.fullmatch(r"python[\d.]*t?", os.path.basename(python)):
            pythons.setdefault(python, []).append(pid)
        else:
            found[pid] = f"its program is {python}, and no python of its own"
    for python, its in pythons.items():
        try:
            found |= _asked(python, its)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            found |= dict.fromkeys(its, f"{python} does not read it: {error}")
    return found


def _asked(python: str, pids: Sequence[int]) -> dict[int, Stacks | str]:
    """Let a Python read the stacks of processes of its own kind."""
    done = subprocess.run(
        [python, "-I", "-S", __file__, *map(str, pids)],
        capture_output=True,
        text=True,
        timeout=20 + len(pids),
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return dict.fromkeys(pids, last)
    return dict(zip(pids, json.loads(done.stdout), strict=True))


class Unreadable(Exception):
    """What was read is not what it should be."""


class Memory:
    """The memory of a process."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def bytes(self, address: int, length: int) -> bytes:
        try:
            data = os.pread(self._file, length, address) if 0 < address < 1 << 62 else b""
        except OSError:
            data = b""
        if len(data) < length:
            raise Unreadable(f"no memory at {address:#x}")
        return data

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return as many words of a struct as can be read."""
        while count > 1:
            try:
                return struct.unpack(f"<{count}Q", self.bytes(address, _WORD * count))
            except Unreadable:
                count //= 2  # the struct ends before that
        return struct.unpack("<Q", self.bytes(address, _WORD))

    def word(self, address: int) -> int:
        return self.words(address, 1)[0]

    def int32(self, address: int) -> int:
        number: int = struct.unpack("<i", self.bytes(address, 4))[0]
        return number


# ---- where CPython keeps what ----


def _only(offsets: Sequence[int], what: str) -> int:
    if not offsets:
        raise Unreadable(f"this Python keeps {what} in another way")
    return offsets[0]


def _untagged(word: int) -> int:
    """Return a pointer without the marks that CPython 3.14 puts into its lowest bits."""
    return word & ~7


class Layout:
    """Where this Python keeps what: offsets in bytes, found in this process.

    Attributes:
        runtime: the address of ``_PyRuntime``.
        frame: the offsets that lead from a thread to its innermost frame.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        api = ctypes.pythonapi
        api.PyInterpreterState_Get.restype = api.PyThreadState_Get.restype = ctypes.c_void_p
        self.runtime = ctypes.addressof(ctypes.c_char.in_dll(api, "_PyRuntime"))
        self.code_type = id(types.CodeType)
        interpreter, first = api.PyInterpreterState_Get(), api.PyThreadState_Get()
        self.interpreter = self._find(self.runtime, interpreter, 1 << 13, "the interpreter")
        before = self._all(interpreter, first, 1 << 15)
        with _second_thread() as (second, inner):
            after = self._all(interpreter, second, 1 << 15)
            self.threads = _only([at for at in before if at in after], "its threads")
            self.next = self._find(second, first, 64, "the next thread")
            self._frames(second, inner)
        self._text()

    def _all(self, struct_at: int, value: int, count: int) -> list[int]:
        words = self._memory.words(struct_at, count)
        return [_WORD * i for i, word in enumerate(words) if word == value]

    def _find(self, struct_at: int, value: int, count: int, what: str) -> int:
        return _only(self._all(struct_at, value, count), what)

    def _frames(self, thread: int, inner: types.FrameType) -> None:
        """Learn from the frames of a thread that waits in a call."""
        outer = inner.f_back
        assert outer is not None
        inside = self._internal(inner), self._internal(outer)
        self.back = self._find(inside[0], inside[1], 12, "the calling frame")
        codes = inner.f_code, outer.f_code
        self.code = _only(
            [
                _WORD * i
                for i, word in enumerate(self._memory.words(inside[0], 12))
                if _untagged(word) == id(codes[0])
            ],
            "the code of a frame",
        )
        self.frame = self._path(thread, inside[0])
        self._instruction(inside, codes, (inner.f_lasti, outer.f_lasti))
        self.filename = self._find(id(codes[0]), id(codes[0].co_filename), 64, "a file's name")
        named = getattr(codes[0], "co_qualname", codes[0].co_name)
        self.name = self._find(id(codes[0]), id(named), 64, "a function's name")
        table = codes[0].co_linetable
        self.lines = self._find(id(codes[0]), id(table), 64, "the lines of a function")
        self.first = self._ints([(id(code), code.co_firstlineno) for code in codes], "a line")

    def _internal(self, frame: types.FrameType) -> int:
        """Return the address of what the interpreter knows as a frame."""
        if sys.version_info < (3, 11):
            return id(frame)
        for word in self._memory.words(id(frame), 8)[2:]:
            try:
                inside = self._memory.words(word, 12)
            except Unreadable:
                continue
            if id(frame.f_code) in map(_untagged, inside) and word != id(frame.f_code):
                return word
        raise Unreadable("this Python keeps frames in another way")

    def _path(self, thread: int, frame: int) -> tuple[int, ...]:
        """Return where a thread has its innermost frame, or what has it."""
        words = self._memory.words(thread, 64)
        if frame in words:
            return (_WORD * words.index(frame),)
        for i, word in enumerate(words):
            try:
                inside = self._memory.words(word, 4)
            except Unreadable:
                continue
            if frame in inside:
                return (_WORD * i, _WORD * inside.index(frame))
        raise Unreadable("this Python keeps the innermost frame in another way")

    def _instruction(
        self, frames: Sequence[int], codes: Sequence[types.CodeType], lasti: Sequence[int]
    ) -> None:
        """Learn how a frame says where it is."""
        if sys.version_info < (3, 11):
            self.at = self._ints(
                [(frame, at // 2) for frame, at in zip(frames, lasti, strict=True)],
                "an instruction",
            )
            return
        found = []
        for frame, code, at in zip(frames, codes, lasti, strict=True):
            begin, end = id(code) + 1, id(code) + sys.getsizeof(code)
            words = self._memory.words(frame, 12)
            found.append(
                {(_WORD * i, word - id(code) - at) for i, word in enumerate(words)
                 if begin <= word < end}
            )  # fmt: skip
        self.at, self.begin = _only(sorted(found[0] & found[1]), "an instruction")

    def _ints(self, known: Sequence[tuple[int, int]], what: str) -> int:
        """Return the offset of an int that structs have, whose values are known."""
        offsets = range(0, 40 * _WORD, 4)
        memory = self._memory
        return _only(
            [at for at in offsets if all(memory.int32(base + at) == v for base, v in known)], what
        )

    def _text(self) -> None:
        """Learn how a text says how many bytes a character has, and where they begin."""
        samples = ["".join([one, one]) for one in "a\xe9\u20ac\U0001f600"]
        self.kind = 0x7C if sys.version_info < (3, 14) else 0x1F0000  # the bits kind to ascii
        self.kinds = {}
        for text, width in zip(samples, (1, 1, 2, 4), strict=True):
            state = self._memory.word(id(text) + 4 * _WORD) & self.kind
            self.kinds[state] = (sys.getsizeof(text) - 3 * width, width)
        if len(self.kinds) < len(samples):
            raise Unreadable("this Python keeps text in another way")
        self.bytes = sys.getsizeof(b"") - 1


class _second_thread:
    """A thread that waits inside a call, while the ``with`` lasts: its state and inner frame."""

    def __enter__(self) -> tuple[int, types.FrameType]:
        self._go, ready, address = threading.Lock(), threading.Event(), []
        self._go.acquire()

        def inner() -> None:
            """It has another first line and another place than outer."""
            address.append(ctypes.pythonapi.PyThreadState_Get())
            ready.set()
            self._go.acquire()

        def outer() -> None:
            inner()

        self._thread = threading.Thread(target=outer)
        self._thread.start()
        ready.wait()
        while True:  # until it waits for the lock, below Python's own frames
            frame = sys._current_frames()[self._thread.ident or 0]
            if frame.f_code is inner.__code__:
                state = f"/proc/self/task/{self._thread.native_id}/stat"
                with open(state, encoding="ascii") as file:
                    if file.read().rpartition(")")[2].split()[0] == "S":
                        return address[0], frame

    def __exit__(self, *_: object) -> None:
        self._go.release()
        self._thread.join()


# ---- another process ----


def _where(pid: int | str, address: int = 0, file: str = "") -> tuple[str, int]:
    """Return the file that has an address, or is the one given, and where it begins in memory."""
    begins: dict[str, int] = {}
    key, end = "", 0
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, _, _, device, inode, *_ = line.split()
            low, high = (int(part, 16) for part in span.split("-"))
            if inode != "0":
                key = f"{device} {inode}"
            elif low != end:  # else it is zeros behind the data of the file before it
                key = ""
            end = high
            begins.setdefault(key, low)
            if low <= address < high or (key and key == file):
                return key, begins[key]
    raise Unreadable("it is another Python than this one" if file else "no such memory")


class Process:
    """A process of the same Python as this one."""

    def __init__(self, pid: int, layout: Layout) -> None:
        self._memory, self._layout = Memory(pid), layout
        file, here = _where("self", layout.runtime)
        self._shift = _where(pid, file=file)[1] - here

    def stacks(self) -> Iterator[list[str]]:
        """Yield the stack of each thread, the oldest thread, which is the main one, first."""
        layout, memory = self._layout, self._memory
        interpreter = memory.word(layout.runtime + self._shift + layout.interpreter)
        threads: list[int] = []
        at = memory.word(interpreter + layout.threads)
        while at and len(threads) < _MOST_THREADS:
            threads.append(at)
            at = memory.word(at + layout.next)
        for thread in reversed(threads):
            yield self._stack(thread)

    def _stack(self, thread: int) -> list[str]:
        """Return what a thread does; if it changes all the time, what could be read of it."""
        for _ in range(_TRIES):
            told: list[str] = []
            try:
                told.extend(self._frames(thread))
                break
            except Unreadable:
                continue
        return told

    def _frames(self, thread: int) -> Iterator[str]:
        layout, memory, at = self._layout, self._memory, thread
        for offset in layout.frame:
            at = memory.word(at + offset)
        left = _MOST_FRAMES
        while at and left:
            code = _untagged(memory.word(at + layout.code))
            # CPython 3.12 also has frames without code, or with its own, where C calls Python.
            if code and memory.word(code + _WORD) == layout.code_type + self._shift:
                told = self._told(at, code)
                if not told.startswith("<shim>"):
                    yield told
                left -= 1
            at = memory.word(at + layout.back)

    def _told(self, frame: int, code: int) -> str:
        layout, memory = self._layout, self._memory
        if sys.version_info < (3, 11):
            lasti = 2 * memory.int32(frame + layout.at)
        else:
            lasti = memory.word(frame + layout.at) - code - layout.begin
        table = memory.word(code + layout.lines)
        length = memory.word(table + 2 * _WORD)
        if length > 1 << 20:
            raise Unreadable(f"a table of {length} bytes")
        lines = (lambda: None).__code__.replace(
            co_linetable=memory.bytes(table + layout.bytes, length),
            co_firstlineno=memory.int32(code + layout.first),
        )
        line: Any = "?"
        for begin, end, number in lines.co_lines():
            if begin <= max(lasti, 0) < end and number is not None:
                line = number
        file, name = (self._text(memory.word(code + at)) for at in (layout.filename, layout.name))
        return f"{file}:{line} in {name}"

    def _text(self, at: int) -> str:
        layout, memory = self._layout, self._memory
        length = memory.word(at + 2 * _WORD)
        state = memory.word(at + 4 * _WORD) & layout.kind
        if length > _MOST_TEXT or state not in layout.kinds:
            raise Unreadable(f"no text at {at:#x}")
        header, width = layout.kinds[state]
        coding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width]
        return memory.bytes(at + header, length * width).decode(coding, "replace")


def _read(pid: int, layout: Layout) -> Stacks | str:
    try:
        return list(Process(pid, layout).stacks())
    except PermissionError:
        return (
            "this user may not read its memory: be root, or its user where "
            "kernel.yama.ptrace_scope is 0"
        )
    except (OSError, Unreadable) as error:
        return str(error)


def _main(pids: Sequence[int]) -> str:
    try:
        layout = Layout(Memory(os.getpid()))
    except (OSError, Unreadable) as error:
        sys.exit(str(error))
    return json.dumps([_read(pid, layout) for pid in pids])


if __name__ == "__main__":
    print(_main([int(pid) for pid in sys.argv[1:]]))
