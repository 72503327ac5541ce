"""Faults of a device, injected by the fake driver: errors or fallbacks follow, and no hang."""

from __future__ import annotations

from collections.abc import Callable

import job
import pytest


def succeed(program: Callable[[], object], **settings: str) -> None:
    """Run a job of 2 ranks that must succeed. It stages in pieces of 4 KiB."""
    env = {"PADDLEMPI_CUDA_PATHS": "staged", "PADDLEMPI_CUDA_CHUNK": "4096", **settings}
    job.succeed(2, program, env=env)


def no_use_of_a_device() -> None:
    import os

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    class Somewhere:
        """A tensor as a framework would give it. No code looks at the memory."""

        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4,),
            "typestr": "<f4",
            "data": (0x7F0000000000, False),
            "version": 3,
        }

    rank = start()
    text = os.environ["TEXT"]
    works()
    for _ in range(2):
        with raises(errors.UnsupportedError, "all_reduce", text):
            dist.all_reduce(Somewhere())
        with raises(errors.UnsupportedError, text):
            dist.isend(Somewhere(), 1 - rank)
        # The other rank has a tensor in host memory. Its error names the rank that refused.
        with raises(
            errors.UnsupportedError if rank else errors.RefusedError, text if rank else "1"
        ):
            dist.broadcast(Somewhere() if rank else np.zeros(4, np.float32), 0)
        works()
    done()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"PADDLEMPI_CUDA": "/nonexistent/libcuda.so"}, "no CUDA driver"),
        ({"PMPI_FAKECUDA_VERSION": "10020"}, "CUDA 10.2"),
        ({"PMPI_FAKECUDA_DEVICES": "0"}, "no CUDA device"),
        ({"PMPI_FAKECUDA_FAIL": "cuInit:*:999"}, "cuInit"),
    ],
    ids=["no driver", "too old", "no device", "does not start"],
)
def test_no_use_of_a_device(settings: dict[str, str], text: str) -> None:
    """Tensors in host memory still work. The error says what is missing."""
    succeed(no_use_of_a_device, TEXT=text, **settings)


def memory_that_is_gone() -> None:
    import numpy as np
    from device import DeviceTensor, driver, new_stream
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    stream = new_stream()
    good = DeviceTensor(np.full(3000, rank + 1.0), stream=stream)
    gone = DeviceTensor(np.full(70_000, rank + 1.0), stream=stream, offset=1 << 16)
    gone.numpy()
    with driver().on(0):
        driver().cuMemFree_v2(gone.base_ptr)
    for _ in range(2):
        with raises(errors.ArgumentError, "freed"):
            dist.all_reduce(gone)
        with raises(errors.ArgumentError, "freed"):
            dist.send(gone, 1 - rank)
        with raises(
            errors.ArgumentError if rank else errors.RefusedError, "freed" if rank else "1"
        ):
            dist.reduce(gone if rank else DeviceTensor(np.zeros(70_000), stream=stream), 0)
    dist.all_reduce(good)
    assert (good.numpy() == 3).all()
    done()


def test_memory_that_is_gone() -> None:
    succeed(memory_that_is_gone)


def no_pinned_memory() -> None:
    import os

    import numpy as np
    from device import DeviceTensor, new_stream
    from ranks_tools import dist, done, errors, raises, start

    rank = start(timeout=10)
    stream = new_stream()
    here = os.environ["WHERE"] == "all" or rank == 1
    if here:
        os.environ["PMPI_FAKECUDA_PINNED"] = "1"
    for _ in range(2):
        for n in (5, 3000):
            tensor = DeviceTensor(np.full(n, rank + 1, np.int32), stream=stream)
            dist.all_reduce(tensor)
            assert (tensor.numpy() == 3).all()
            scaled = DeviceTensor(np.full(n, rank + 1, np.float32), stream=stream)
            dist.all_reduce(scaled, dist.ReduceOp.PREMUL_SUM(0.5))
            assert (scaled.numpy() == 1.5).all()
            outs = [DeviceTensor(np.zeros(n, np.int32), stream=stream) for _ in range(2)]
            dist.all_gather(outs, DeviceTensor(np.full(n, rank, np.int32), stream=stream))
            assert all((out.numpy() == source).all() for source, out in enumerate(outs))
            if rank == 0:
                dist.send(tensor, 1)
            else:
                dist.recv(outs[0], 0)
                assert (outs[0].numpy() == 3).all()
    if os.environ["WHERE"] == "all":
        # Kernels cannot reach pageable memory.
        view = DeviceTensor(np.full(60, rank, np.int32), stream=stream)[::2]
        with raises(errors.OutOfMemoryError, "pinned", "contiguous"):
            dist.all_reduce(view)
        del os.environ["PMPI_FAKECUDA_PINNED"]
    done()


@pytest.mark.parametrize("sums", ["host", "device"])
@pytest.mark.parametrize("where", ["all", "one"])
def test_no_pinned_memory(where: str, sums: str) -> None:
    """The staging pool is pageable memory then: slower, but the results are right."""
    succeed(no_pinned_memory, WHERE=where, PADDLEMPI_CUDA_REDUCE=sums)


def a_broken_kernel() -> None:
    """A kernel of the program fails on one rank. That rank raises, and the other rank does, too."""
    import os

    import numpy as np
    from device import DeviceTensor, fault, hold, new_stream, pending
    from ranks_tools import dist, done, errors, raises, start

    rank = start(timeout=3)
    stream = new_stream()
    tensor = DeviceTensor(np.full(3000, rank + 1.0), stream=stream)
    tensor.numpy()
    later = os.environ["HOW"] == "async"
    words = ("CUDA_ERROR_ILLEGAL_ADDRESS (700)", "kernel of the program's own")

    def call() -> None:
        work = dist.all_reduce(tensor, async_op=later)
        if later:
            work.wait()

    if os.environ["WHEN"] == "before":
        if rank == 1:
            fault(stream)
            while pending():
                pass
        for _ in range(2):
            with raises(
                errors.CudaError if rank else errors.RefusedError, *(words if rank else "1")
            ):
                call()
        if rank == 1:
            with raises(errors.CudaError, *words):
                dist.send(tensor, 0)
    elif rank == 1:
        with hold(stream):
            fault(stream)
            work = dist.all_reduce(tensor, async_op=True)
        with raises(errors.CudaError, *words):
            work.wait()
        with raises(errors.CudaError, *words):
            call()
    else:
        with raises(errors.CudaError, "rank 1 of the group", ranks=[1], most=20):
            call()
    done()


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_broken_kernel(when: str, how: str) -> None:
    env = {"PADDLEMPI_CUDA_PATHS": "staged", "WHEN": when, "HOW": how}
    ended = job.run(2, a_broken_kernel, env=env)
    # MPI is not finalized after a world broke. Launchers may call that an abnormal end.
    assert ended.result.stdout.count("done\n") == 2, ended.output
    assert when == "meanwhile" or ended.returncode == 0, ended.output


def a_call_that_fails() -> None:
    """The driver refuses a copy in the middle, on one rank. The error ends that rank's program."""
    import numpy as np
    from device import DeviceTensor, fail, new_stream
    from ranks_tools import dist, start

    rank = start()
    tensor = DeviceTensor(np.full(9000, rank + 1.0), stream=new_stream())
    dist.all_reduce(tensor)
    assert (tensor.numpy() == 3).all()
    if rank == 1:
        fail("cuMemcpyAsync:9:1")
    dist.all_reduce(tensor)


def test_a_call_that_fails() -> None:
    env = {"PADDLEMPI_CUDA_PATHS": "staged", "PADDLEMPI_CUDA_CHUNK": "4096"}
    ended = job.run(2, a_call_that_fails, env=env)
    assert ended.returncode != 0
    assert "CudaError: cuMemcpyAsync on CUDA device 0: CUDA_ERROR_INVALID_VALUE (1)" in ended.output


def a_failure_that_is_caught() -> None:
    """A call of the driver fails on one rank. All ranks raise, whatever was under way."""
    import os

    import numpy as np
    from device import DeviceTensor, fail, new_stream
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    stream = new_stream()
    share = DeviceTensor(np.full(7000 - 3000 * rank, rank + 1.0), stream=stream)
    shares = [DeviceTensor(np.zeros(7000 - 3000 * r), stream=stream) for r in range(2)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(shares[0]),
        "broadcast": lambda: dist.broadcast(shares[0], 1),
        "all_gather": lambda: dist.all_gather(shares, share),  # uneven: not in pieces
        "reduce_scatter": lambda: dist.reduce_scatter(share, shares),
    }
    call = calls[os.environ["CALL"]]
    call()
    shares[0].numpy()
    if rank == 1:
        fail(os.environ["FAIL"])
        with raises(errors.CudaError, "CUDA device 0", most=20):
            call()
    else:
        with raises(errors.CudaError, "rank 1 of the group", ranks=[1], most=20):
            call()
    done()


@pytest.mark.parametrize(
    ("call", "fail", "sums"),
    [
        ("all_reduce", "cuMemcpyAsync:1:1", "host"),
        ("all_reduce", "cuMemcpyAsync:7:719", "host"),
        ("all_reduce", "cuLaunchKernel:2:719", "device"),
        ("broadcast", "cuEventRecord:3:719", "host"),
        ("all_gather", "cuStreamWaitEvent:1:719", "host"),
        ("reduce_scatter", "cuMemcpyAsync:2:719", "host"),
    ],
)
def test_a_failure_that_is_caught(call: str, fail: str, sums: str) -> None:
    env = {
        "PADDLEMPI_CUDA_PATHS": "staged",
        "PADDLEMPI_CUDA_CHUNK": "4096",
        "PADDLEMPI_CUDA_REDUCE": sums,
        "CALL": call,
        "FAIL": fail,
    }
    ended = job.run(2, a_failure_that_is_caught, env=env)
    assert ended.result.stdout.count("done\n") == 2, ended.output


def after_a_fork() -> None:
    import os

    import numpy as np
    from device import DeviceTensor, new_stream
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    tensor = DeviceTensor(np.full(3000, rank + 1.0), stream=new_stream())
    dist.all_reduce(tensor)
    assert (tensor.numpy() == 3).all()
    child = os.fork()
    if child == 0:
        code = 9
        try:
            with raises(errors.ForkError, "fork", most=3.0):
                dist.all_reduce(tensor)
            with raises(errors.ForkError, "fork", most=3.0):
                dist.isend(tensor, 0)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tensor.fill_from(np.full(3000, rank + 1.0))
    dist.all_reduce(tensor)
    assert (tensor.numpy() == 3).all()
    done()


def test_after_a_fork() -> None:
    succeed(after_a_fork)


def the_driver_started_before_a_fork() -> None:
    """A forked child that calls init for itself cannot use the driver that its parent has used."""
    import os

    import numpy as np
    from device import DeviceTensor
    from ranks_tools import done

    tensor = DeviceTensor(np.ones(5))
    tensor.numpy()
    child = os.fork()
    if child == 0:
        code = 9
        try:
            from ranks_tools import dist, errors, raises, start

            start()
            with raises(errors.UnsupportedError, "fork", "spawn"):
                dist.all_reduce(tensor)
            dist.barrier()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done()


def test_the_driver_started_before_a_fork() -> None:
    # The ranks themselves never call init, which Open MPI takes for a failure.
    ended = job.run(2, the_driver_started_before_a_fork)
    assert ended.result.stdout.count("done\n") == 2, ended.output


def test_kernels_that_a_driver_does_not_take() -> None:
    """The driver cannot load a module. Calls that need a kernel raise, others still work."""
    succeed(no_kernels, PMPI_FAKECUDA_FAIL="cuModuleLoadData:*:222")


def no_kernels() -> None:
    import numpy as np
    from device import DeviceTensor, new_stream
    from ranks_tools import dist, done, errors, raises, start

    rank = start(timeout=5)
    stream = new_stream()
    tensor = DeviceTensor(np.full(3000, rank + 1.0), stream=stream)
    dist.all_reduce(tensor)
    assert (tensor.numpy() == 3).all()
    with raises(errors.CudaError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        dist.all_reduce(tensor[::2])
    done()


def settings_that_cannot_be() -> None:
    import os

    import numpy as np
    from device import DeviceTensor, new_stream
    from ranks_tools import dist, done, errors, raises, start, works

    wrong = {
        "PADDLEMPI_CUDA_PATHS": "staged,ipx",
        "PADDLEMPI_CUDA_CHUNK": "0",
        "PADDLEMPI_CUDA_REDUCE": "gpu",
    }
    for name, value in wrong.items():
        before = os.environ.get(name)
        os.environ[name] = value
        with raises(errors.ArgumentError, name, value):
            dist.init_process_group("mpi")
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    os.environ["PADDLEMPI_CUDA_PATHS"] = "direct"
    rank = start()
    tensor = DeviceTensor(np.full(30, rank + 1.0), stream=new_stream())
    for _ in range(2):
        with raises(errors.UnsupportedError, "PADDLEMPI_CUDA_PATHS", "staged"):
            dist.all_reduce(tensor)
        works()
    done()


def test_settings_that_cannot_be() -> None:
    succeed(settings_that_cannot_be)
