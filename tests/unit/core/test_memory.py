"""``empty``, ``zeros`` and ``empty_like``: arguments, errors, and the life of their memory.

Programs that allocate run in processes of their own, because they load the core. None starts MPI.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi import _native, errors, memory


def run(program: Callable[[], None], *before: str) -> None:
    """Run a function as the program of a process that has the core to itself."""
    head = "import numpy as np, paddlempi as dist\nfrom paddlempi import _native, errors\n"
    parts = head, inspect.getsource(heap), inspect.getsource(program)
    source = "\n".join((*parts, f"{program.__name__}()", "print('done')"))
    ended = subprocess.run(
        [*before, sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0 and ended.stdout == "done\n", ended.stdout + ended.stderr


def heap() -> tuple[int, int]:
    """Return how many bytes the heap has reserved, and how many are allocated."""
    found = _native.control("info", sys_prefix="/usr")["heap"]
    return found["reserved"], found["used"]


@pytest.mark.parametrize("make", [dist.empty, dist.zeros])
def test_wrong_arguments(make: Any) -> None:
    name = make.__name__
    with pytest.raises(errors.ArgumentError, match=rf"{name}: shape=\(2, -1\)"):
        make((2, -1))
    with pytest.raises(errors.ArgumentError, match=f"{name}: shape=-1 "):
        make(-1)
    for shape in (2.0, (2, 1.5), "12", None):
        with pytest.raises(errors.DtypeError, match=re.escape(f"{name}: shape={shape!r} is")):
            make(shape)
    with pytest.raises(errors.ArgumentError, match=f"{name}: framework='jax' is none of 'numpy'"):
        make(3, framework="jax")
    for dtype in ("float", "O", object, np.dtype("U3"), None, 3, np.dtype(">f4")):
        with pytest.raises(errors.DtypeError, match=f"{name}: dtype="):
            make(3, dtype)


def test_empty_like_of_no_tensor() -> None:
    for model in ([1, 2], 3.0, None, memoryview(b"12"), np.float32(3)):
        with pytest.raises(errors.DtypeError, match=f"empty_like: a {type(model).__qualname__} is"):
            dist.empty_like(model)
    with pytest.raises(errors.DtypeError, match="empty_like: dtype="):
        dist.empty_like(np.zeros(3, ">i4"))


def test_where_shared_memory_is_refused(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, and ordinary memory."""

    def refuse(size: int) -> int:
        raise errors.OutOfMemoryError("no memfd here")

    monkeypatch.setattr(fresh_core, "heap_alloc", refuse, raising=False)
    monkeypatch.setattr(memory, "_warned", False)
    with pytest.warns(RuntimeWarning, match="collectives copy them: no memfd here") as seen:
        first = dist.zeros((2, 3), "int16")
        second = dist.empty_like(first)
    assert len(seen) == 1 and seen[0].filename == __file__
    assert first.tolist() == [[0, 0, 0], [0, 0, 0]]
    second[...] = first + 1
    assert second.sum() == 6


def test_init_warns_once(fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_warned", False)
    fresh_core.no_heaps = "rank 4, on this node, cannot share memory"
    with pytest.warns(RuntimeWarning, match="init_process_group: no shared .* rank 4, on") as seen:
        dist.init_process_group()
    assert len(seen) == 1 and seen[0].filename == __file__
    dist.destroy_process_group()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.init_process_group()


def test_nothing_is_allocated_for_no_elements(fresh_core: FakeCore) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in (0, (3, 0, 2)):
            assert dist.empty(shape, "float64").size == 0
    assert fresh_core.controls == []


def shapes_and_dtypes() -> None:
    for shape in (5, np.int64(5), (2, 3), [4], (), (np.int32(2), 1), (1,) * 8):
        for dtype in ("float32", np.int8, np.dtype("complex128"), bool, "uint16", np.bool_):
            tensor = dist.zeros(shape, dtype)
            like = np.zeros(shape, dtype)
            assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype)
            assert not tensor.any()
            assert tensor.flags.writeable and tensor.flags.c_contiguous
            assert tensor.ctypes.data % 64 == 0
            again = dist.empty_like(tensor)
            assert (again.shape, again.dtype) == (like.shape, like.dtype)
            assert again.ctypes.data != tensor.ctypes.data
    assert dist.empty_like(np.zeros((4, 6), "int32").T[::2]).shape == (3, 4)
    dirty = dist.empty(1000)
    dirty[...] = 7
    del dirty
    assert not dist.zeros(1000).any(), "zeros gave what was there before"


def dtypes_of_ml_dtypes() -> None:
    try:
        dist.empty(3, "bfloat16")
    except errors.DtypeError as error:
        assert "ml_dtypes" in str(error)
    else:
        raise AssertionError("NumPy has no bfloat16")
    assert heap()[1] == 0, "what could not be used was not freed"
    import ml_dtypes

    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        tensor = dist.zeros((3, 2), name)
        assert tensor.dtype == getattr(ml_dtypes, name)
        assert dist.empty_like(tensor).dtype == tensor.dtype


def freed_with_the_last_reference() -> None:
    import gc

    gc.disable()  # the reference count alone frees
    assert heap()[1] == 0
    first = dist.empty(1000)
    assert heap() == (64 << 20, 4032)  # a multiple of a cache line
    second = dist.empty(1, "int8")
    assert heap() == (64 << 20, 4096)
    view = memoryview(first[3:7].reshape(2, 2))
    del first
    assert heap()[1] == 4096, "a view uses it"
    del view
    assert heap()[1] == 64
    del second
    assert heap() == (64 << 20, 0), "the segment stays warm"


def grows_and_gives_back() -> None:
    mib = 1 << 20
    tensors = [dist.zeros(30 * mib, "uint8") for _ in range(5)]
    assert heap() == (192 * mib, 150 * mib)
    large = dist.zeros(100 * mib + 1, "uint8")
    assert heap()[0] == (192 + 102) * mib
    for number, tensor in enumerate(tensors):
        tensor[:] = number
    large[:] = 9
    assert [int(tensor.max()) for tensor in tensors] == [0, 1, 2, 3, 4]
    del tensors, tensor
    assert heap()[0] == (64 + 102) * mib, "one empty segment is kept"
    del large
    assert heap() == (102 * mib, 0), "the longest one"
    again = dist.empty(64 * mib, "uint8")
    assert heap()[0] == 102 * mib
    again[:] = 1


def many() -> None:
    import random

    random.seed(5)
    sizes = [random.randrange(1, 3000) for _ in range(5000)]
    tensors = [dist.empty(size, "uint8") for size in sizes]
    for number, tensor in enumerate(tensors):
        tensor[:] = number % 251
    kept = random.sample(range(len(tensors)), 2500)
    held = {number: tensors[number] for number in kept}
    del tensors, tensor
    more = [dist.empty(random.randrange(1, 3000), "uint8") for _ in range(2000)]
    for tensor in more:
        tensor[:] = 252
    assert all((held[number] == number % 251).all() for number in kept), "overwritten"
    used = sum(-(-size // 64) * 64 for size in [*(sizes[n] for n in kept), *map(len, more)])
    assert heap()[1] == used
    held.clear()
    del more, tensor
    assert heap()[1] == 0


def threads() -> None:
    import random
    import threading

    wrong = []

    def work(seed):
        mine = random.Random(seed)
        held = []
        for _ in range(400):
            if held and mine.random() < 0.5:
                tensor = held.pop(mine.randrange(len(held)))
                if not (tensor == seed).all():
                    wrong.append(seed)
            else:
                tensor = dist.empty(mine.randrange(1, 20_000), "uint8")
                tensor[:] = seed
                held.append(tensor)
            del tensor

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, "two threads got the same memory"
    assert heap()[1] == 0


def forks() -> None:
    import multiprocessing
    import os

    tensor, gone = dist.empty(100_000), dist.empty(10)
    tensor[...] = 3
    used = heap()[1]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert (tensor == 3).all()
            tensor[...] = 4
            assert (tensor == 4).all()
            del gone  # the child frees nothing
            for call in (lambda: dist.empty(3), lambda: dist.zeros(3), heap):
                try:
                    call()
                except errors.ForkError:
                    continue
                raise AssertionError("no ForkError")
            assert dist.empty(0).size == 0
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tensor == 3).all(), "the child wrote into its parent's tensor"
    assert heap()[1] == used
    gone[...] = 1

    def change(pipe):
        before = tensor[:5].tolist()
        tensor[:] = -1
        pipe.send((before, float(tensor.sum())))

    fork = multiprocessing.get_context("fork")
    for value in (5, 6):
        tensor[...] = value
        here, there = fork.Pipe()
        process = fork.Process(target=change, args=(there,))
        process.start()
        assert here.poll(60)
        assert here.recv() == ([value] * 5, -100_000.0)
        process.join(60)
        assert process.exitcode == 0
        assert (tensor == value).all()
    # A segment that came after the fork, and a child of a child.
    large = dist.zeros((70 << 20) // 4)
    child = os.fork()
    if child == 0:
        large[-1] = 1
        grandchild = os.fork()
        if grandchild == 0:
            right = large[-1] == 1 and (tensor == 6).all()
            large[:] = 2
            os._exit(0 if right else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        os._exit(code or int(large[-1] != 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert large[-1] == 0


def left_over_at_exit() -> None:
    """Tensors that live at the end of the process, also in modules and cycles."""
    import sys

    sys.kept = dist.zeros(10)
    cycle = [dist.zeros(10)]
    cycle.append(cycle)


def limited_files() -> None:
    """Ordinary memory beyond ``ulimit -f``, and no SIGXFSZ."""
    import resource
    import warnings

    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, 100 << 20))
    inside = dist.zeros(1000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        beyond = [dist.zeros(60 << 20, "uint8") for _ in range(3)]
    assert len(seen) == 1 and "ulimit -f" in str(seen[0].message), seen
    for tensor in beyond:
        tensor[:] = 1
    inside[:] = 1
    assert heap()[0] <= 100 << 20


def limited_memory() -> None:
    """Ordinary memory where the address space does not hold a segment (``ulimit -v``)."""
    import resource
    import warnings

    dist.zeros(10)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (80 << 20), now + (80 << 20)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first = dist.zeros(70 << 20, "uint8")
        try:
            dist.zeros(70 << 20, "uint8")
            raise AssertionError("there is no room for both")
        except MemoryError:
            pass
    assert len(seen) == 1 and "cannot map" in str(seen[0].message), seen
    first[:] = 1


@pytest.mark.parametrize(
    "program",
    [
        shapes_and_dtypes,
        dtypes_of_ml_dtypes,
        freed_with_the_last_reference,
        grows_and_gives_back,
        many,
        threads,
        forks,
        left_over_at_exit,
        limited_files,
        limited_memory,
    ],
    ids=lambda program: program.__name__,
)
def test_program(program: Callable[[], None]) -> None:
    run(program)
