"""What paddlempi reads from a tensor in device memory. Stand-ins take the place of a device.

``tests/jobs/cuda`` tests over the fake driver what the core does with the tensor.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from paddlempi import _buffer
from paddlempi._ops import DType
from paddlempi.errors import ArgumentError, DtypeError, UnsupportedError

np = pytest.importorskip("numpy")

CUDA, PINNED, MANAGED = 2, 3, 13


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test with an empty table of kinds, so that no test sees another's classes."""
    monkeypatch.setattr(_buffer, "_kinds", {})


def describe(tensor: Any) -> _buffer.Description:
    kind = _buffer._kind_of(type(tensor))
    assert kind.describe is not None
    return kind.describe(tensor)


class OnDevice:
    """Host memory that claims by DLPack to be on a device. ``asked`` lists the streams given."""

    def __init__(self, array: Any, device: tuple[int, int] = (CUDA, 1), old: bool = False) -> None:
        self.array, self.device, self.old = array, device, old
        self.asked: list[int | None] = []

    def __dlpack__(self, **arguments: Any) -> Any:
        if self.old and set(arguments) - {"stream"}:
            raise TypeError("no such arguments")
        self.asked.append(arguments.pop("stream", None))
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Named(OnDevice):
    """An OnDevice that also names its stream, by ``__cuda_array_interface__``."""

    stream: Any = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "stream": self.stream}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("device", [CUDA, MANAGED])
def test_dlpack_orders_the_legacy_stream(device: int, old: bool) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = OnDevice(array, (device, 1), old)
    wanted = array.ctypes.data, int(DType.FLOAT32), (3, 4), device, 1, False, 1
    found = describe(tensor)
    assert found[:3] + found[4:] == wanted
    assert tensor.asked == [1]


def test_dlpack_in_pinned_memory_is_the_host_s() -> None:
    tensor = OnDevice(np.zeros(3), (PINNED, 0))
    assert describe(tensor)[4:] == (PINNED, 0, False, 0)
    assert tensor.asked == [None], "pinned memory has no stream"


@pytest.mark.parametrize("stream", [1, 2, 0x7F00, np.int64(0x7F00)])
def test_dlpack_with_a_stream_that_is_named(stream: int) -> None:
    tensor = Named(np.zeros(3))
    tensor.stream = stream
    assert describe(tensor)[7] == stream
    assert tensor.asked == [-1], "the core orders the streams, so __dlpack__ must not"
    tensor.stream = None
    assert describe(tensor)[7] == 1
    assert tensor.asked == [-1, 1]


@pytest.mark.parametrize("stream", [0, -1, "1"])
def test_streams_that_are_none(stream: Any) -> None:
    tensor = Named(np.zeros(3))
    tensor.stream = stream
    with pytest.raises(ArgumentError, match=f"stream {stream!r}"):
        describe(tensor)


@pytest.mark.parametrize(("device", "name"), [(8, "Metal"), (10, "ROCm"), (99, "unknown")])
def test_other_devices(device: int, name: str) -> None:
    tensor = OnDevice(np.zeros(3), (device, 0))
    with pytest.raises(UnsupportedError, match=f"in {name} memory.* {device}"):
        describe(tensor)
    assert not tensor.asked


def test_jax_is_read_only() -> None:
    array = type("ArrayImpl", (Named,), {"__module__": "jaxlib._jax", "stream": 0})(np.zeros(3))
    assert describe(array)[4:] == (CUDA, 1, True, 1)
    assert array.asked == [1]


def test_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    @contextmanager
    def on(device: int) -> Any:
        entered.append(device)
        yield

    current = SimpleNamespace(ptr=0x50)
    cuda = SimpleNamespace(Device=on, get_current_stream=lambda: current)
    cupy: Any = ModuleType("cupy")
    cupy.cuda, cupy.empty_like = cuda, lambda x: x.array.shape
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = type("ndarray", (Named,), {"__module__": "cupy", "stream": 9})(np.zeros((2, 3)))
    assert describe(array)[4:] == (CUDA, 1, False, 0x50)
    assert array.asked == [-1]
    assert entered == [1], "every device has its own current stream"
    assert _buffer.empty_like(array) == (2, 3)
    tells = _buffer.consumer([None, (bytearray(1), array)])
    current.ptr = 0x60
    assert tells() == 0x60, "it must return the stream that is current at the call"
    array.device = (PINNED, 0)
    assert _buffer.consumer(array)() == 1
    assert not _buffer.record(array)


# Tensors that have only __cuda_array_interface__


def shown(**entries: Any) -> Any:
    whole = {"version": 3, "shape": (2, 3), "typestr": "<f4", "data": (4096, False), **entries}
    return type("Shown", (), {"__cuda_array_interface__": whole})()


def test_interface() -> None:
    assert describe(shown()) == (4096, DType.FLOAT32, (2, 3), None, CUDA, 0, False, 1)
    assert describe(shown(version=2, stream=7, strides=None))[7] == 7
    strided = describe(shown(strides=(4, -8), data=(0x10, True), stream=2))
    assert strided == (0x10, DType.FLOAT32, (2, 3), (1, -2), CUDA, 0, True, 2)
    assert describe(shown(shape=[], data=[8, False]))[:3] == (8, DType.FLOAT32, ())


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex64", "complex128"])
def test_interface_dtypes(name: str) -> None:
    assert describe(shown(typestr=np.dtype(name).str))[1] == DType[name.upper()]


@pytest.mark.parametrize(
    ("entries", "kind", "match"),
    [
        ({"typestr": "<V2"}, DtypeError, "'<V2'.*bfloat16"),
        ({"typestr": ">f4"}, DtypeError, "byte order"),
        ({"typestr": "<f16"}, DtypeError, "'<f16'"),
        ({"version": 1}, DtypeError, "version 1"),
        ({"version": 4}, DtypeError, "version 4"),
        ({"data": 4096}, DtypeError, "no valid description"),
        ({"data": (None, False)}, DtypeError, "no valid description"),
        ({"shape": None}, DtypeError, "no valid description"),
        ({"mask": object()}, UnsupportedError, "mask"),
        ({"strides": (6, 4)}, ArgumentError, r"strides \(6, 4\)"),
        ({"stream": 0}, ArgumentError, "stream 0"),
    ],
)
def test_interface_errors(entries: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        describe(shown(**entries))


def test_interface_of_an_object(core: Any) -> None:
    """The attribute may be the object's and not its class's."""

    class Holder:
        pass

    holder: Any = Holder()
    with pytest.raises(DtypeError, match="is no tensor"):
        core.resolver(holder)
    holder.__cuda_array_interface__ = shown(stream=3).__cuda_array_interface__
    core.resolver(holder)
    assert core.registered[Holder](holder)[7] == 3
    assert _buffer.consumer(holder)() == 3


# Frameworks


def test_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class OnCuda(torch.Tensor):  # type: ignore[misc,name-defined]
        is_cpu, is_cuda = False, True
        device = "cuda:3"

        def get_device(self) -> int:
            return 3

        def record_stream(self, stream: object) -> None:
            recorded.append(stream)

    recorded: list[object] = []
    streams = {3: 0x30}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", streams.get, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("current", device))
    monkeypatch.setattr(torch.version, "hip", None)
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16).as_subclass(OnCuda)
    wanted = (tensor.data_ptr(), DType.BFLOAT16, (2, 3), None, CUDA, 3, False, 0x30)
    assert describe(tensor) == wanted
    tells = _buffer.consumer([torch.zeros(1), tensor])
    streams[3] = 0x40
    assert tells() == 0x40
    assert _buffer.record([tensor, (tensor,)])
    assert recorded == [("current", 3)] * 2
    assert not _buffer.record([torch.zeros(1), tensor]), "the host tensor must be kept"
    assert len(recorded) == 3, "the device tensor's allocator must be told nevertheless"

    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UnsupportedError, match="device 'cuda:3'"):
        describe(tensor)
    OnCuda.is_cuda, OnCuda.device = False, "xpu:0"
    with pytest.raises(UnsupportedError, match="device 'xpu:0'"):
        describe(tensor)


def test_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    paddle = pytest.importorskip("paddle")

    class Place:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, asked: str) -> Any:
            return lambda: asked == f"is_{self.name}_place"

        def __str__(self) -> str:
            return self.name

        def gpu_device_id(self) -> int:
            return 2

    def tensor(place: str) -> Any:
        return SimpleNamespace(
            is_dense=lambda: True,
            dtype=paddle.bfloat16,
            place=Place(place),
            shape=[2, 3],
            strides=[3, 1],
            data_ptr=lambda: 4096,
            _is_initialized=lambda: True,
        )

    kind = _buffer._kind_of(paddle.Tensor)
    assert kind.describe is not None and kind.stream is not None
    streams = {2: 0x20}
    monkeypatch.setattr(
        paddle.base.core,
        "_get_current_stream",
        lambda device: SimpleNamespace(cuda_stream=streams[device]),
    )
    # The __cuda_array_interface__ of a bfloat16 tensor of Paddle gives <f2.
    wanted = (4096, DType.BFLOAT16, (2, 3), (3, 1), CUDA, 2, False, 0x20)
    assert kind.describe(tensor("gpu")) == wanted
    tells = kind.stream(tensor("gpu"))
    assert tells is not None
    streams[2] = 0x21
    assert tells() == 0x21
    assert kind.describe(tensor("cuda_pinned"))[4:] == (PINNED, 0, False, 0)
    for place in ("cpu", "cuda_pinned"):
        assert kind.stream(tensor(place)) is None
    with pytest.raises(UnsupportedError, match="on xpu"):
        kind.describe(tensor("xpu"))
    monkeypatch.setattr(paddle, "is_compiled_with_rocm", lambda: True)
    with pytest.raises(UnsupportedError, match="on gpu"):
        kind.describe(tensor("gpu"))


# The stream that the C shim gives to the core. Only the shim notices tensors on two streams.

SHIM = Path(__file__).with_name("device_shim.py")


@pytest.fixture(scope="module")
def shim() -> dict[str, str]:
    """Run device_shim.py in a process without MPI. Return what the shim said, by case."""
    run = subprocess.run(
        [sys.executable, SHIM], capture_output=True, text=True, timeout=120, check=True
    )
    return dict(line.split(": ", 1) for line in run.stdout.splitlines())


@pytest.mark.parametrize("way", ["describe", "exchange"])
def test_shim_streams(shim: dict[str, str], way: str) -> None:
    differ = "the device tensors of one call belong to two CUDA streams, "
    assert shim[f"{way} same"].startswith("NotInitializedError")
    assert shim[f"{way} both names of the legacy one"].startswith("NotInitializedError")
    assert shim[f"{way} pinned and device"].startswith("NotInitializedError")
    assert shim[f"{way} differ in a list"].startswith(
        f"ArgumentError all_gather: {differ}0x30 and 0x40,"
    )
    assert shim[f"{way} differ between send and recv"].startswith(
        f"ArgumentError all_gather: {differ}0x30 and 0x2,"
    )


def test_shim_descriptions(shim: dict[str, str]) -> None:
    assert "tuple of 8" in shim["seven entries"]
    assert shim["negative stream"].startswith("OverflowError")
    assert shim["no stream told"].startswith("TypeError describe was called")
    assert shim["ROCm"].startswith("TypeError describe was called")


def test_exchange_struct() -> None:
    """The struct that device_shim.py writes is the one that torch offers."""
    torch = pytest.importorskip("torch")
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        pytest.skip("this torch has no DLPack C exchange API")
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )(capsule, b"dlpack_exchange_api")
    major, _ = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint32))[:2]
    assert major == 1
    current_stream = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[6]
    assert current_stream
    told = ctypes.c_void_p(1)
    ask = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
    )(current_stream)
    assert ask(1, 0, ctypes.byref(told)) == 0
    assert told.value is None, "the CPU has no stream"
