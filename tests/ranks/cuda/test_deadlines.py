"""Synchronous calls that wait for a held stream: deadline and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from types import ModuleType

import device
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    "ipc" in os.environ["PADDLEMPI_CUDA_PATHS"],
    reason="a collective by ipc does not wait for the stream",
)


@pytest.mark.mpi(min=2)
def test_a_stream_that_does_not_end(dist: ModuleType, rank: int, size: int) -> None:
    """At its deadline rank 0 raises TimeoutError, and the others an error that names it."""
    dist.barrier()  # because making the group has a deadline, too
    group = dist.new_group(timeout=timedelta(seconds=4 if rank == 0 else 40))
    stream = device.new_stream()
    with device.hold(stream):
        tensor = device.DeviceTensor(np.full(2000, rank + 1.0), stream=stream)
        expected = "CUDA device 0 has not come to it" if rank == 0 else r"rank\(s\) \[0\] refused"
        error = dist.errors.TimeoutError if rank == 0 else dist.errors.RefusedError
        if rank == 0:
            with pytest.raises(error, match=expected) as told:
                dist.all_reduce(tensor, group=group)
            assert told.value.ranks == (0,)
    if rank != 0:
        with pytest.raises(error, match=expected):
            dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, group=group)
    np.testing.assert_array_equal(tensor.numpy(), np.full(2000, size * (size + 1) / 2))
    dist.destroy_process_group(group)


def test_ctrl_c(dist: ModuleType, rank: int, size: int) -> None:
    """The signal interrupts every rank before anything was sent, while its device is busy."""
    stream = device.new_stream()
    with device.hold(stream):
        tensor = device.DeviceTensor(np.full(2000, rank + 1.0), stream=stream)
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(tensor)
        assert time.monotonic() - start < 20
        timer.join()
    dist.barrier()
    dist.all_reduce(tensor)
    np.testing.assert_array_equal(tensor.numpy(), np.full(2000, size * (size + 1) / 2))


@pytest.mark.mpi(min=2)
def test_a_message_that_was_not_sent_in_time(dist: ModuleType, rank: int) -> None:
    """Its sender is told at the deadline. The message is not sent later, and the next one is."""
    dist.barrier()  # because making the group has a deadline, too
    group = dist.new_group(timeout=timedelta(seconds=4 if rank == 0 else 40))
    if rank == 0:
        stream = device.new_stream()
        with device.hold(stream):
            tensor = device.DeviceTensor(np.full(3, 7.0), stream=stream)
            with pytest.raises(dist.errors.TimeoutError):
                dist.send(tensor, 1, group=group)
        tensor.numpy()  # the stream has come to its end
        dist.send(np.full(3, 8.0), 1, group=group)
    dist.barrier()
    if rank == 1:
        received = np.zeros(3)
        dist.recv(received, 0, group=group)
        np.testing.assert_array_equal(received, np.full(3, 8.0))
    dist.barrier()
    dist.destroy_process_group(group)
