"""What tensors in GPU memory cost, compared with the hardware, with MPI and with NCCL.

    mpirun -np 2 python benchmarks/cuda.py [--json FILE]        # or: make bench-cuda

All ranks share one GPU, unless ``--spread`` gives every rank of a node its own. The contenders of a
table are measured in the same processes, in turn. The time of a block of calls divided by their
number is one sample. The results are ratios of times, computed round by round, with their
quartiles:

    staging         the slower of two lower bounds : all_reduce through pinned memory, with sums on
                    the host or the GPU, whichever is faster. The bounds are copies over the bus in
                    both directions at once, and MPI's all_reduce of host memory
    staging, sums   all_reduce through pinned memory with sums on the host : the same with sums on
                    the GPU
    one GPU         copies on the device of 2nS bytes, which all ranks together need at least :
                    all_reduce by CUDA IPC. Also MPI's all_reduce of device memory, if this MPI
                    takes it : ours
    small           all_reduce of 8 bytes : a barrier of the hosts and one launch
    gloo, nccl      its all_reduce : ours, for NCCL with NCCL_MULTI_RANK_GPU_ENABLE=1, if this
                    version knows it
    DDP             what a step of DistributedDataParallel takes above the same step without
                    communication: over gloo : over ours

Every result of ours is checked before it is timed. The benchmark needs a CUDA driver only; gloo and
NCCL come with torch. ``--fake LIBRARY`` runs it over the tests' driver, without a GPU, to test the
program.
"""

from __future__ import annotations

import argparse
import array
import bz2
import ctypes
import gc
import json
import math
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# torch imports a package of the same name as this file.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import paddlempi as dist  # noqa: E402
from paddlempi import _native  # noqa: E402
from paddlempi.cli.bench.figures import quartiles, ratios  # noqa: E402
from paddlempi.cli.bench.sampling import shuffled  # noqa: E402

STAGED = (1 << 20, 16 << 20, 256 << 20)
SHARED = (1 << 20, 64 << 20, 256 << 20)
KERNELS = Path(__file__).resolve().parents[1] / "gocore/cuda/kernels/kernels.bz2"

LAYERS, WIDTH = 4, 2048  # of the model of the table DDP

# The aims for the medians of the ratios: "small" at most this, the others at least.
AIMS = {
    "staging": 0.8,
    "one GPU": 0.6,
    "one GPU, MPI": 5.0,
    "small": 2.0,
    "gloo": 1.0,
    "nccl": 1.0,
    "DDP": 1.0,
}
FROM_BYTES = 64 << 20  # the aims of "one GPU" hold from this size on

Settings = dict[str, str]
Call = Callable[[], object]


class Contender(NamedTuple):
    """A call, and the settings of the world in which it is made."""

    call: Call
    settings: Settings
    end: Call  # waits for what the call has left queued


class Gpu:
    """A device and two streams of it, by the API of the CUDA driver."""

    def __init__(self, path: str, device: int) -> None:
        self._driver = ctypes.CDLL(path)
        self("cuInit", 0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(handle), device)
        name = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", name, 128, handle)
        self.name = name.value.decode()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self("cuCtxSetCurrent", context)
        self.stream, self.other = self._stream(), self._stream()

    def __call__(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code:
            raise SystemExit(f"{function} returned {code}")

    def _stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)  # non-blocking
        return stream

    def alloc(self, nbytes: int) -> ctypes.c_void_p:
        p = ctypes.c_void_p()
        self("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(nbytes))
        return p

    def pinned(self, nbytes: int) -> ctypes.c_void_p:
        p = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(p), ctypes.c_size_t(nbytes), 1)
        return p

    def copy(self, to: Any, src: Any, nbytes: int, stream: ctypes.c_void_p | None = None) -> None:
        self("cuMemcpyAsync", to, src, ctypes.c_size_t(nbytes), stream or self.stream)

    def wait(self) -> None:
        for stream in (self.stream, self.other):
            self("cuStreamSynchronize", stream)

    def kernel(self) -> Call:
        """Return a launch of the kernel that sums float32 elements, for one element."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _, _, rest = bz2.decompress(KERNELS.read_bytes()).partition(b"//# reduce_float32\n")
        text = ctypes.create_string_buffer(rest.partition(b"//# ")[0])
        self("cuModuleLoadData", ctypes.byref(module), text)
        self("cuModuleGetFunction", ctypes.byref(function), module, b"pmpi_reduce_float32_sum")
        block = (ctypes.c_uint64 * 195)()  # ReduceArgs of gocore/cuda/kernels.go
        x = self.alloc(8)
        block[0:3] = [2, 1, 1]
        block[3] = block[67] = x.value or 0
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        self._kept = block  # arguments has its address only, and does not keep it

        def launch() -> None:
            self("cuLaunchKernel", function, 1, 1, 1, 256, 1, 1, 0, self.stream, arguments, None)

        return launch


class Tensor:
    """Elements of float32 in device memory, which is never freed."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        self.gpu, self.count = gpu, count
        self.address = gpu.alloc(4 * count)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.count,),
            "typestr": "<f4",
            "data": (self.address.value, False),
            "version": 3,
            "stream": self.gpu.stream.value,
        }

    def fill(self, value: float) -> None:
        values = array.array("f", [value]) * self.count
        self.gpu.copy(self.address, ctypes.c_void_p(values.buffer_info()[0]), 4 * self.count)
        self.gpu.wait()

    def is_all(self, value: float) -> bool:
        found = array.array("f", bytes(4 * self.count))
        self.gpu.copy(ctypes.c_void_p(found.buffer_info()[0]), self.address, 4 * self.count)
        self.gpu.wait()
        return found.tobytes() == (array.array("f", [value]) * self.count).tobytes()


# Worlds. The settings are environment variables, which init_process_group reads.

_current: list[Settings] = []


def use_world(settings: Settings) -> None:
    """Make a world with these settings the current one, unless it is."""
    if _current and _current[0] == settings:
        return
    if _current:
        dist.barrier()
        dist.destroy_process_group()
    for name in ("PADDLEMPI_CUDA_PATHS", "PADDLEMPI_CUDA_REDUCE"):
        os.environ.pop(name, None)
    os.environ.update(settings)
    dist.init_process_group("mpi")
    _current[:] = [settings]


def paths(names: str, **more: str) -> Settings:
    return {"PADDLEMPI_CUDA_PATHS": names, **{f"PADDLEMPI_CUDA_{k}": v for k, v in more.items()}}


# Measuring


def block(contender: Contender, calls: int) -> float:
    """Return the microseconds of a call on the slowest rank, until its device work has ended."""
    use_world(contender.settings)
    contender.call()  # the first call of a world allocates more than others
    contender.end()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        contender.call()
    contender.end()
    took = (time.perf_counter() - start) / calls * 1e6
    slowest = array.array("d", [took])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest[0]


def sample(contenders: dict[str, Contender], calls: int, rounds: int) -> dict[str, list[float]]:
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 1):
        for name in shuffled(names, round_):
            took = block(contenders[name], calls)
            if round_ >= 1:  # the first one touches memory and fills caches
                samples[name].append(took)
    return samples


def ratio(over: list[float], under: list[float]) -> list[float]:
    return list(quartiles(ratios(over, under)))


class Bench:
    """Measures the contenders of one job, and collects the rows of all tables."""

    def __init__(self, gpu: Gpu, options: argparse.Namespace) -> None:
        self.gpu, self.options = gpu, options
        self.rows: list[dict[str, Any]] = []
        self.absent: dict[str, str] = {}
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self.rounds = options.rounds or (2 if options.fake else 15)

    def calls(self, nbytes: int) -> int:
        return 2 if self.options.fake else max(1, min(200, (64 << 20) // nbytes))

    def row(
        self,
        table: str,
        nbytes: int,
        samples: dict[str, list[float]],
        ratios: dict[str, list[float]],
    ) -> None:
        row: dict[str, Any] = {
            "table": table,
            "bytes": nbytes,
            "us": {name: statistics.median(values) for name, values in samples.items()},
            "ratios": ratios,
        }
        self.rows.append(row)
        if self.rank:
            return
        times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
        print(f"{table:10} {nbytes:>10}  us: {times}")
        for name, (low, middle, high) in ratios.items():
            text = f"    {name}: {middle:.2f} ({low:.2f} to {high:.2f})"
            aim = AIMS.get(name.partition(":")[0])
            if aim is not None and (not name.startswith("one GPU") or nbytes >= FROM_BYTES):
                reached = middle <= aim if name.startswith("small") else middle >= aim
                text += f"  aim {aim:g}: {'reached' if reached else 'not reached'}"
            print(text, flush=True)

    def ours(self, tensor: Any, settings: Settings) -> Contender:
        """Return our all_reduce, when its result has been checked."""
        use_world(settings)
        tensor.fill(self.rank + 1.0)
        dist.all_reduce(tensor)
        if not tensor.is_all(self.size * (self.size + 1) / 2):
            raise SystemExit(f"all_reduce with {settings} gave a wrong result")
        tensor.fill(0.0)  # so that repeated sums stay 0
        return Contender(lambda: dist.all_reduce(tensor), settings, self.gpu.wait)

    def staging(self, nbytes: int) -> None:
        gpu, tensor = self.gpu, Tensor(self.gpu, nbytes // 4)
        out, back, target = gpu.pinned(nbytes), gpu.pinned(nbytes), gpu.alloc(nbytes)
        host = array.array("f", bytes(nbytes))
        plain = paths("staged", REDUCE="host")

        def bus() -> None:
            gpu.copy(out, tensor.address, nbytes)
            gpu.copy(target, back, nbytes, gpu.other)

        contenders = {
            "staged": self.ours(tensor, plain),
            "staged, sums on the GPU": self.ours(tensor, paths("staged", REDUCE="device")),
            "bus": Contender(bus, plain, gpu.wait),
            "MPI on the host": Contender(lambda: dist.all_reduce(host), plain, gpu.wait),
        }
        us = sample(contenders, self.calls(nbytes), self.rounds)
        floor = [max(pair) for pair in zip(us["bus"], us["MPI on the host"], strict=True)]
        ours, device = us["staged"], us["staged, sums on the GPU"]
        best = ours if statistics.median(ours) <= statistics.median(device) else device
        ratios = {
            "staging: slower of bus and MPI : staged": ratio(floor, best),
            "sums on the host : on the GPU": ratio(ours, device),
        }
        self.row("staging", nbytes, us, ratios)

    def one_gpu(self, nbytes: int) -> None:
        gpu, tensor = self.gpu, Tensor(self.gpu, nbytes // 4)
        target = gpu.alloc(nbytes)
        mapped = paths("ipc")

        def floor() -> None:
            # A copy reads and writes S bytes, so that n copies move 2nS.
            for _ in range(self.size if self.rank == 0 else 0):
                gpu.copy(target, tensor.address, nbytes)

        contenders = {
            "ipc": self.ours(tensor, mapped),
            "floor": Contender(floor, mapped, gpu.wait),
        }
        of_mpi = self.of_mpi(tensor)
        if of_mpi is not None:
            contenders["MPI"] = Contender(of_mpi, mapped, gpu.wait)
        us = sample(contenders, self.calls(nbytes), self.rounds)
        ratios = {"one GPU: floor : ours": ratio(us["floor"], us["ipc"])}
        if of_mpi is not None:
            ratios["one GPU, MPI: its own : ours"] = ratio(us["MPI"], us["ipc"])
        self.row("one GPU", nbytes, us, ratios)

    def of_mpi(self, tensor: Tensor) -> Call | None:
        """Return MPI_Allreduce of device memory, if this MPI says that it takes it."""
        library = ctypes.CDLL(_native.control("info")["mpi"]["path"])
        query = getattr(library, "MPIX_Query_cuda_support", None)
        if query is None or not query():
            self.absent["one GPU, MPI"] = "this MPI does not say that it takes device pointers"
            return None
        try:
            import mpi4py
        except ImportError:
            self.absent["one GPU, MPI"] = "mpi4py is not installed"
            return None
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI

        return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor)

    def small(self) -> None:
        gpu = self.gpu
        kernel = gpu.kernel()
        default: Settings = {}

        def reference() -> None:
            dist.barrier()
            kernel()
            gpu.wait()

        ours = self.ours(Tensor(gpu, 2), default)

        def all_reduce() -> None:
            ours.call()
            gpu.wait()

        contenders = {
            "all_reduce": Contender(all_reduce, default, gpu.wait),
            "barrier and launch": Contender(reference, default, gpu.wait),
        }
        us = sample(contenders, self.calls(8), self.rounds)
        key = "small: all_reduce : barrier and launch"
        self.row("small", 8, us, {key: ratio(us["all_reduce"], us["barrier and launch"])})

    def of_torch(self, backend: str, sizes: tuple[int, ...], ours: dict[str, Settings]) -> None:
        """Compare our all_reduce, in several worlds, with that of a backend of torch."""
        use_world({})
        reason = self._starts(backend)
        if reason:
            self.absent[backend] = reason
            return
        import torch
        import torch.distributed as peer

        for nbytes in sizes:
            tensor = Tensor(self.gpu, nbytes // 4)
            contenders = {name: self.ours(tensor, settings) for name, settings in ours.items()}
            seen = torch.as_tensor(tensor, device="cuda")
            contenders[backend] = Contender(
                partial(peer.all_reduce, seen), {}, torch.cuda.synchronize
            )
            us = sample(contenders, self.calls(nbytes), self.rounds)
            ratios = {f"{backend}: its own : {name}": ratio(us[backend], us[name]) for name in ours}
            self.row(backend, nbytes, us, ratios)
        peer.destroy_process_group()

    def _starts(self, backend: str) -> str:
        """Start a backend of torch. Return why it cannot be measured, or "", alike on all ranks."""
        reason = ""
        try:
            import torch
            import torch.distributed as peer

            if not torch.cuda.is_available():
                reason = "torch has no CUDA here"
        except ImportError:
            reason = "torch is not installed"
        reason = self._first_reason(reason)
        if reason:
            return reason
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        address: list[Any] = [None]
        if self.rank == 0:
            with socket.socket() as s:
                s.bind(("", 0))
                address = [f"tcp://{socket.gethostname()}:{s.getsockname()[1]}"]
        dist.broadcast_object_list(address, src=0)
        try:
            torch.cuda.set_device(self.options.device)
            peer.init_process_group(
                backend, init_method=address[0], rank=self.rank, world_size=self.size
            )
            ones = torch.ones(4, device="cuda")
            peer.all_reduce(ones)
            torch.cuda.synchronize()
            if ones.tolist() != [float(self.size)] * 4:
                reason = f"{backend} gave a wrong result"
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
        reason = self._first_reason(reason)
        if reason and peer.is_initialized():
            peer.destroy_process_group()
        return reason

    def ddp(self) -> None:
        """Compare a step of DistributedDataParallel over gloo with one over ours."""
        if "gloo" in self.absent:
            self.absent["DDP"] = self.absent["gloo"]
            return
        use_world({})
        dist.destroy_process_group()
        import paddlempi.torch  # noqa: F401
        import torch
        import torch.distributed as peer

        peer.init_process_group("mpi")  # in a world without settings, which is the current one
        over_gloo = peer.new_group(backend="gloo")
        data = torch.randn(64, WIDTH, device="cuda")

        def wrapped(group: Any) -> Any:
            torch.manual_seed(0)
            layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
            return torch.nn.parallel.DistributedDataParallel(
                torch.nn.Sequential(*layers).cuda(), process_group=group
            )

        def step(model: Any) -> None:
            model.zero_grad(set_to_none=False)
            model(data).square().mean().backward()

        models = {"ours": wrapped(None), "gloo": wrapped(over_gloo)}
        for model in list(models.values()) * 3:
            step(model)
        for ours, theirs in zip(*(m.parameters() for m in models.values()), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        nbytes = sum(4 * p.numel() for p in models["ours"].parameters())

        def alone() -> None:
            with models["ours"].no_sync():
                step(models["ours"])

        calls = {"alone": alone, **{name: partial(step, m) for name, m in models.items()}}
        wait = torch.cuda.synchronize
        us = sample(
            {name: Contender(call, {}, wait) for name, call in calls.items()}, 3, self.rounds
        )
        above = {
            name: [max(1.0, t - a) for t, a in zip(us[name], us["alone"], strict=True)]
            for name in models
        }
        key = "DDP: above no communication, gloo : ours"
        self.row("DDP", nbytes, us, {key: ratio(above["gloo"], above["ours"])})
        models.clear()
        peer.destroy_process_group()
        _current.clear()
        use_world({})

    def _first_reason(self, reason: str) -> str:
        """Return the reason of the first rank that has one, else ""."""
        reasons: list[Any] = [None] * self.size
        dist.all_gather_object(reasons, reason)
        return next(filter(None, reasons), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--fake", metavar="LIBRARY", help="the tests' driver: meaningless figures")
    parser.add_argument("--spread", action="store_true", help="a GPU for each rank of a node")
    parser.add_argument("--rounds", type=int, help="default 15")
    options = parser.parse_args()
    if options.fake:
        os.environ["PADDLEMPI_CUDA"] = options.fake
    use_world({})
    count = ctypes.c_int()
    path = os.environ.get("PADDLEMPI_CUDA") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(path)
    except OSError as error:
        raise SystemExit(f"no CUDA driver: {error}") from error
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise SystemExit(f"the CUDA driver at {path} sees no GPU")
    options.device = dist.get_local_rank() % count.value if options.spread else 0
    bench = Bench(Gpu(path, options.device), options)
    mpi = _native.control("info")["mpi"]
    if bench.rank == 0:
        if options.fake:
            print("A fake driver: the figures mean nothing.")
        print(
            f"{bench.gpu.name}, {mpi['name']}, {bench.size} ranks, {os.cpu_count()} CPUs; medians"
        )
    gc.disable()
    staged, shared = ((1 << 16,), (1 << 16,)) if options.fake else (STAGED, SHARED)
    for nbytes in staged:
        bench.staging(nbytes)
    if options.spread:
        bench.absent["one GPU"] = "--spread"
    else:
        for nbytes in shared:
            bench.one_gpu(nbytes)
    bench.small()
    if options.fake:
        bench.absent.update(dict.fromkeys(("gloo", "nccl", "DDP"), "a fake driver"))
    else:
        bench.of_torch("gloo", (8, *shared), {"ours": {}, "ours, staged": paths("staged")})
        bench.of_torch("nccl", shared, {"ours": {}})
        bench.ddp()
    if bench.rank == 0:
        for what, reason in bench.absent.items():
            print(f"not measured: {what}: {reason}")
        if options.json:
            record = {
                "gpu": bench.gpu.name,
                "fake": bool(options.fake),
                "mpi": mpi,
                "ranks": bench.size,
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                "rows": bench.rows,
                "not_measured": bench.absent,
            }
            Path(options.json).write_text(json.dumps(record, indent=1))
    assert all(math.isfinite(us) for row in bench.rows for us in row["us"].values())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
