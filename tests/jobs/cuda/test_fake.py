"""The fake CUDA driver, on which the other tests of this folder rely.

The programs run in processes of their own, because most of them break something on purpose.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import device
import job
import numpy as np
import pytest

IMPORTS = """\
import ctypes, gc, os, signal, subprocess, sys, time
import device
import numpy as np
"""


class Run:
    """Runs a function as a program. Its arguments must be literals."""

    def __call__(
        self, program: Callable[..., None], *args: object, **env: str
    ) -> subprocess.CompletedProcess[str]:
        body = textwrap.dedent(inspect.getsource(program))
        source = f"{IMPORTS}\n{body}\n{program.__name__}(*{args!r})\n"
        inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(
            [sys.executable, "-c", source],
            env={**inherited, "PYTHONPATH": job.HERE, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def well(self, program: Callable[..., None], *args: object, **env: str) -> str:
        """Run a program that must succeed. Return what it wrote."""
        ended = self(program, *args, **env)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def run() -> Run:
    return Run()


def test_values_arrive_and_come_back(run: Run) -> None:
    def program() -> None:
        for kind in device.KINDS:
            values = np.arange(24, dtype=np.float32).reshape(4, 6)
            t = device.DeviceTensor(values, kind=kind, device=1, offset=256)
            assert (t.numpy() == values).all()
            assert (t[1::2, 2:].T.numpy() == values[1::2, 2:].T).all()
            t.fill_from(values + 1)
            assert (t.numpy() == values + 1).all()

    run.well(program)


def test_the_host_cannot_touch_device_memory(run: Run) -> None:
    def program() -> None:
        t = device.DeviceTensor(np.ones(4))
        t.numpy()
        device.driver().raw("fakecuda_open_guard")
        assert np.frombuffer(ctypes.string_at(t.data_ptr, 32)).tolist() == [1.0] * 4
        device.driver().raw("fakecuda_close_guard")
        print("closed", flush=True)
        ctypes.string_at(t.data_ptr, 1)

    ended = run(program)
    assert ended.stdout.split() == ["closed"]
    assert ended.returncode == -signal.SIGSEGV


def test_streams_keep_no_order_but_that_of_events(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        stale = {False: 0, True: 0}
        s, other = device.new_stream(), device.new_stream()
        t = device.DeviceTensor(np.zeros(4, np.int32), stream=s)
        for i in range(80):
            ordered = i % 2 == 1
            t.fill_from(np.full(4, i + 1, np.int32))
            if ordered:
                device.wait(other, s)
            out = np.zeros(4, np.int32)
            with cuda.on(0):
                cuda.cuMemcpyAsync(out.ctypes.data, t.data_ptr, out.nbytes, other)
            stale[ordered] += int(out[0] != i + 1)
            device.synchronize(s)
        assert stale[True] == 0, stale
        assert 2 <= stale[False] <= 38, stale  # the order is sometimes right by chance

    run.well(program, PMPI_FAKECUDA_SEED="7", PMPI_FAKECUDA_DELAY="4000")


def test_an_event_stands_for_what_was_queued_when_it_was_recorded(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        s, other, free = (device.new_stream() for _ in range(3))
        t = device.DeviceTensor(np.zeros(4), stream=s)
        device.synchronize(s)
        with cuda.on(0):
            event = cuda.get("cuEventCreate", 2)
            assert cuda.raw("cuEventQuery", event) == 0  # never recorded
            with device.hold(s):
                t.fill_from(np.ones(4))
                cuda.cuStreamWaitEvent(other, event, 0)  # nothing to wait for
                cuda.cuStreamSynchronize(other)
                cuda.cuEventRecord(event, s)
                cuda.cuStreamWaitEvent(other, event, 0)
                assert cuda.raw("cuEventQuery", event) == 600
                cuda.cuEventRecord(event, free)  # a stream that waits already does not notice
                cuda.cuStreamSynchronize(free)
                assert cuda.raw("cuEventQuery", event) == 0
                assert cuda.raw("cuStreamQuery", other) == 600
            cuda.cuStreamSynchronize(other)
        assert device.pending() == 0

    run.well(program)


@pytest.mark.parametrize("blocking", [True, False])
def test_blocking_streams_alone_are_ordered_with_the_legacy_one(run: Run, blocking: bool) -> None:
    def program(blocking: bool) -> None:
        cuda = device.driver()
        s = device.new_stream(blocking=blocking)
        t = device.DeviceTensor(np.zeros(1), stream=0)
        t.numpy()
        for first, second in [(s, 0), (1, s)]:
            with cuda.on(0), device.hold(first):
                cuda.cuMemsetD8Async(t.data_ptr, 1, 8, first)
                cuda.cuMemsetD8Async(t.data_ptr, 2, 8, second)
                time.sleep(0.02 if blocking else 0)
                while not blocking and cuda.raw("cuStreamQuery", second):
                    time.sleep(0.001)
                assert cuda.raw("cuStreamQuery", second) == (600 if blocking else 0)
            with cuda.on(0):
                cuda.cuCtxSynchronize()
            assert (t.numpy().tobytes() == b"\2" * 8) is blocking

    run.well(program, blocking)


def test_pageable_memory_is_taken_at_once_and_pinned_memory_late(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        pageable = np.zeros(4)
        pinned = device.DeviceTensor(np.zeros(4), kind="pinned")
        for source, seen in [(pageable.ctypes.data, 0.0), (pinned.data_ptr, 5.0)]:
            t = device.DeviceTensor(np.ones(4))
            device.synchronize(t.stream)
            with cuda.on(0), device.hold(t.stream):
                cuda.cuMemcpyAsync(t.data_ptr, source, 32, t.stream)
                ctypes.memmove(source, np.full(4, 5.0).ctypes.data, 32)
                assert device.driver().raw("fakecuda_pending_writes", t.data_ptr + 31, 1) == 1
                assert device.driver().raw("fakecuda_pending_writes", t.data_ptr + 32, 1) == 0
            assert t.numpy().tolist() == [seen] * 4

    run.well(program)


def test_kernels_run_on_the_host_and_late(run: Run) -> None:
    def program() -> None:
        t = device.DeviceTensor(np.arange(1000, dtype=np.float32))
        with device.hold(t.stream):
            t.add(1.0)
            t.add(2.0)
        assert (t.numpy() == np.arange(1000) + 3).all()
        for name, error in [("fakecuda_ad", 500), ("fakecuda_has_none", 302)]:
            try:
                device.function(device.PTX, name)
            except device.DriverError as caught:
                assert caught.code == error, (name, caught)
            else:
                raise AssertionError(name)

    run.well(program)


@pytest.mark.parametrize(("version", "error"), [(11000, 0), (10020, 222)])
def test_an_old_driver_refuses_newer_ptx(run: Run, version: int, error: int) -> None:
    def program(version: int, error: int) -> None:
        cuda = device.driver()
        assert cuda.get("cuDriverGetVersion") == version
        with cuda.on(0):
            module = ctypes.c_uint64()
            text = device.PTX.encode()
            assert cuda.raw("cuModuleLoadData", ctypes.byref(module), text) == error

    run.well(program, version, error, PMPI_FAKECUDA_VERSION=str(version))


def test_what_is_known_of_a_pointer(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()

        def known(address: int) -> list[int]:
            which = (ctypes.c_int * 6)(2, 8, 9, 10, 11, 12)
            got = [ctypes.c_uint64() for _ in which]
            pointers = (ctypes.c_void_p * 6)(*map(ctypes.addressof, got))
            cuda.cuPointerGetAttributes(6, which, pointers, address)
            return [value.value for value in got]

        for kind, memory_type, managed, ipc in [
            ("plain", 2, 0, 1), ("pool", 2, 0, 0), ("managed", 2, 1, 0), ("pinned", 1, 0, 0),
        ]:  # fmt: skip
            t = device.DeviceTensor(np.zeros(8), kind=kind, device=1, offset=64)
            assert known(t.data_ptr) == [memory_type, managed, 1, ipc, t.base_ptr, 128], kind
        pageable = np.zeros(1)
        assert known(pageable.ctypes.data)[0] == 0
        value = ctypes.c_uint64()
        asked = cuda.raw("cuPointerGetAttribute", ctypes.byref(value), 2, pageable.ctypes.data)
        assert asked == 1

    run.well(program)


def test_memory_ends_and_freed_memory_is_used_again(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        with cuda.on(1):
            first = cuda.get("cuMemAlloc_v2", 60000)
            value = ctypes.c_uint64()
            assert cuda.raw("cuMemAlloc_v2", ctypes.byref(value), 50000) == 2
            assert cuda.raw("cuMemHostAlloc", ctypes.byref(value), 50000, 1) == 2
            cuda.cuMemFree_v2(first)
            assert cuda.raw("cuMemsetD8Async", first, 0, 1, 0) == 1  # freed memory
            assert cuda.get("cuMemAlloc_v2", 60000) == first

    run.well(program, PMPI_FAKECUDA_MEMORY="100000", PMPI_FAKECUDA_PINNED="40000")


def test_a_tensor_that_is_gone_is_overwritten_in_stream_order(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        t = device.DeviceTensor(np.zeros(4))
        t.numpy()
        other, address, stream = device.new_stream(), t.data_ptr, t.stream
        seen = np.zeros(32, np.uint8)
        with device.hold(other):
            with cuda.on(0):
                cuda.cuMemsetD8Async(address, 7, 32, other)
            t.record_stream(other)
            del t
            gc.collect()
            time.sleep(0.02)
            assert device.pending() > 1
        device.synchronize(stream)
        with cuda.on(0):
            cuda.cuMemcpyAsync(seen.ctypes.data, address, 32, stream)
        assert (seen == 0xEE).all()
        assert device.DeviceTensor(np.zeros(4), stream=stream).data_ptr == address

    run.well(program)


def test_memory_and_events_of_another_process(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()

        class Handle(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_char * 64),)

        def send(*handles: Handle) -> None:
            sys.stdout.buffer.write(b"".join(bytes(h) for h in handles))
            sys.stdout.buffer.flush()

        t = device.DeviceTensor(np.arange(4.0), offset=512)
        device.synchronize(t.stream)
        memory, signal_ = Handle(), Handle()
        with cuda.on(0):
            if len(sys.argv) == 1:  # the first process starts the second
                event = cuda.get("cuEventCreate", 6)
                cuda.cuIpcGetMemHandle(ctypes.byref(memory), t.data_ptr)
                cuda.cuIpcGetEventHandle(ctypes.byref(signal_), event)
                opened = ctypes.c_uint64()
                assert cuda.raw("cuIpcOpenMemHandle_v2", ctypes.byref(opened), memory, 1) == 201
                source = sys.orig_argv[sys.orig_argv.index("-c") + 1]
                other = subprocess.Popen(
                    [sys.executable, "-c", source, "second"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                other.stdin.write(bytes(memory) + bytes(signal_))
                other.stdin.flush()
                assert other.stdout.readline() == b"unrecorded\n"
                with device.hold(t.stream):
                    t.fill_from(np.full(4, 9.0))
                    cuda.cuEventRecord(event, t.stream)
                    other.stdin.write(b"go\n")
                    other.stdin.flush()
                    assert other.stdout.readline() == b"waiting\n"
                assert other.stdout.readline() == b"seen\n"
                assert t.numpy().tolist() == [9.0, 9.0, 9.0, 1.5]  # the other process wrote 1.5
                other.stdin.close()
                assert other.wait(30) == 0
                return
            ctypes.memmove(ctypes.addressof(memory), sys.stdin.buffer.read(64), 64)
            ctypes.memmove(ctypes.addressof(signal_), sys.stdin.buffer.read(64), 64)
            base = cuda.get("cuIpcOpenMemHandle_v2", memory, 1)
            assert cuda.get("cuIpcOpenMemHandle_v2", memory, 1) == base
            event = cuda.get("cuIpcOpenEventHandle", signal_)
            stream = device.new_stream()
            cuda.cuStreamWaitEvent(stream, event, 0)
            cuda.cuStreamSynchronize(stream)
            print("unrecorded", flush=True)
            assert sys.stdin.buffer.readline() == b"go\n"
            cuda.cuStreamWaitEvent(stream, event, 0)
            time.sleep(0.02)
            assert cuda.raw("cuStreamQuery", stream) == 600
            assert cuda.raw("cuEventQuery", event) == 600
            print("waiting", flush=True)
            seen, mark = np.zeros(4), np.full(1, 1.5)
            cuda.cuMemcpyAsync(seen.ctypes.data, base + 512, 32, stream)
            assert seen.tolist() == [9.0] * 4, seen
            cuda.cuMemcpyAsync(base + 512 + 24, mark.ctypes.data, 8, stream)
            cuda.cuStreamSynchronize(stream)
            cuda.cuEventSynchronize(event)
            print("seen", flush=True)
            sys.stdin.buffer.read()
            cuda.cuIpcCloseMemHandle(base)
            cuda.cuMemsetD8Async(base, 0, 1, stream)  # it was opened twice
            cuda.cuIpcCloseMemHandle(base)
            assert cuda.raw("cuMemsetD8Async", base, 0, 1, stream) == 1

    run.well(program)


@pytest.mark.parametrize("kind", ["pool", "managed"])
def test_memory_without_ipc_is_refused(run: Run, kind: str) -> None:
    def program(kind: str) -> None:
        t = device.DeviceTensor(np.zeros(4), kind=kind)
        handle = (ctypes.c_char * 64)()
        with device.driver().on(0):
            assert device.driver().raw("cuIpcGetMemHandle", handle, t.data_ptr) == 1

    run.well(program, kind)


def test_ipc_can_be_refused_altogether(run: Run) -> None:
    def program() -> None:
        t = device.DeviceTensor(np.zeros(4))
        handle = (ctypes.c_char * 64)()
        with device.driver().on(0):
            assert device.driver().raw("cuIpcGetMemHandle", handle, t.data_ptr) == 304

    run.well(program, PMPI_FAKECUDA_IPC="0")


@pytest.mark.parametrize("enabled", [True, False])
def test_kernels_reach_other_devices_where_peer_access_is_enabled(run: Run, enabled: bool) -> None:
    def program(enabled: bool) -> None:
        cuda = device.driver()
        here = device.DeviceTensor(np.zeros(8, np.float32))
        there = device.DeviceTensor(np.ones(8, np.float32), device=1)
        device.synchronize(there.stream, 1)
        if enabled:
            with cuda.on(0):
                cuda.cuCtxEnablePeerAccess(cuda.get("cuDevicePrimaryCtxRetain", 1), 0)
        print("launched", flush=True)
        here.add(2.0, to=there)
        device.synchronize(here.stream)
        assert there.numpy().tolist() == [3.0] * 8

    ended = run(program, enabled)
    assert ended.stdout == "launched\n", ended.stderr
    assert ended.returncode == (0 if enabled else -signal.SIGSEGV), ended.stderr


def test_a_stream_says_that_it_is_captured(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        s = device.new_stream()
        with cuda.on(0):
            status = ctypes.c_int(-1)
            for captured in (0, 1):
                cuda.fakecuda_capture(s, captured)
                cuda.cuStreamIsCapturing(s, ctypes.byref(status))
                assert status.value == captured
            assert cuda.raw("cuStreamSynchronize", s) == 900

    run.well(program)


def test_calls_fail_when_told_to(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        value = ctypes.c_uint64()
        with cuda.on(0):
            codes = [cuda.raw("cuMemHostAlloc", ctypes.byref(value), 64, 1) for _ in range(4)]
            assert codes == [0, 0, 2, 0], codes
            assert cuda.raw("cuStreamCreate", ctypes.byref(value), 0) == 304
            assert cuda.raw("cuStreamCreate", ctypes.byref(value), 0) == 304
            device.fail("cuMemHostAlloc:1:1")
            assert cuda.raw("cuMemHostAlloc", ctypes.byref(value), 64, 1) == 1
            assert cuda.raw("cuStreamCreate", ctypes.byref(value), 0) == 0
        assert device.calls("cuMemHostAlloc") == 5
        assert device.calls("cuMemAlloc_v2") == 0

    run.well(program, PMPI_FAKECUDA_FAIL="cuMemHostAlloc:3:2,cuStreamCreate:*:304")


def test_a_broken_kernel_spoils_its_device_for_good(run: Run) -> None:
    def program() -> None:
        cuda = device.driver()
        s = device.new_stream()
        with device.hold(s):
            device.fault(s)
            device.DeviceTensor(np.zeros(1)).numpy()  # the kernel has not run yet
        with cuda.on(0):
            assert cuda.raw("cuStreamSynchronize", s) == 700
            assert cuda.raw("cuStreamCreate", ctypes.byref(ctypes.c_uint64()), 0) == 700
        device.DeviceTensor(np.zeros(1), device=1).numpy()

    run.well(program)


def test_contexts_belong_to_threads_and_nothing_works_without_init(run: Run) -> None:
    def program() -> None:
        library = ctypes.CDLL(os.environ["PADDLEMPI_CUDA"])
        assert library.cuCtxSynchronize() == 3
        device.driver()
        assert library.cuCtxSynchronize() == 201
        with device.driver().on(0):
            assert library.cuCtxSynchronize() == 0

    run.well(program)


def test_a_forked_child_has_no_driver(run: Run) -> None:
    def program() -> None:
        device.DeviceTensor(np.zeros(4)).numpy()
        child = os.fork()
        if child == 0:
            count = ctypes.c_uint64()
            code = device.driver().raw("cuDeviceGetCount", ctypes.byref(count))
            os._exit(code * 10 + device.driver().raw("cuInit", 0))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 33
        device.DeviceTensor(np.zeros(4)).numpy()

    run.well(program)


def test_visible_devices(run: Run) -> None:
    def program(count: int, bus: bytes) -> None:
        assert device.device_count() == count
        name = ctypes.create_string_buffer(32)
        device.driver().cuDeviceGetPCIBusId(name, 32, count - 1)
        assert name.value == bus

    run.well(program, 3, b"0000:03:00.0", PMPI_FAKECUDA_DEVICES="3")
    run.well(program, 1, b"0000:02:00.0", CUDA_VISIBLE_DEVICES="1")
