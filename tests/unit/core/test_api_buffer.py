"""What paddlempi reads from a tensor of each framework or protocol."""

from __future__ import annotations

import array
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from api_fake import FakeCore
from paddlempi import _buffer
from paddlempi._ops import DTYPE_BY_NAME, DType
from paddlempi.errors import ArgumentError, DtypeError

np = pytest.importorskip("numpy")


def describe(tensor: Any) -> _buffer.Description:
    kind = _buffer._kind_of(type(tensor))
    assert kind.describe is not None
    return kind.describe(tensor)


class Shown:
    """A tensor that gives its memory only through __dlpack__."""

    def __init__(self, array: Any, **flags: Any) -> None:
        self.array, self.flags = array, flags

    def __dlpack__(self, **arguments: Any) -> Any:
        if self.flags.get("old") and arguments:
            raise TypeError("no such arguments")
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.flags.get("device", (1, 0))  # type: ignore[no-any-return]


def ml_dtype(name: str) -> Any:
    return getattr(pytest.importorskip("ml_dtypes"), name)


@pytest.mark.parametrize(
    "name", [name for name in DTYPE_BY_NAME if "float8" in name or name == "bfloat16"]
)
def test_ml_dtypes(name: str) -> None:
    tensor = np.zeros((4, 6), ml_dtype(name))
    address, dtype, shape, strides, device, _, readonly, _ = describe(tensor)
    assert (address, dtype) == (tensor.ctypes.data, DTYPE_BY_NAME[name])
    assert (shape, strides, device, readonly) == ((4, 6), None, 1, False)
    assert describe(tensor[::-1, ::2])[2:4] == ((4, 3), (-6, 2))
    assert describe(tensor[:0])[2] == (0, 6)
    assert describe(tensor[0, 0, None].reshape(()))[2] == ()
    tensor.flags.writeable = False
    assert describe(tensor)[6]


def test_numpy_that_cannot_be_sent() -> None:
    with pytest.raises(DtypeError, match="datetime64"):
        describe(np.zeros(3, "M8[s]"))
    with pytest.raises(DtypeError, match="object"):
        describe(np.zeros(3, object))
    with pytest.raises(DtypeError, match="byte order"):
        describe(np.zeros(3, ">f4"))
    record = np.zeros(3, [("a", "i1"), ("b", "f4")])
    with pytest.raises(ArgumentError, match="strides"):
        describe(record["b"])


@pytest.mark.parametrize("old", [False, True])
def test_dlpack(old: bool) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    for tensor in (whole, whole.T, whole[1:, ::2], whole[:0], whole[0, 0, None].reshape(())):
        address, dtype, shape, strides, device, _, readonly, _ = describe(Shown(tensor, old=old))
        assert (address, dtype, device) == (tensor.ctypes.data, DType.FLOAT32, 1)
        assert shape == tensor.shape
        assert not readonly
        if tensor.size > 1:
            wanted = tuple(step // 4 for step in tensor.strides)
            assert strides in (wanted, None)
            assert strides is not None or tensor.flags.c_contiguous


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex64", "complex128"])
def test_dlpack_dtypes(name: str) -> None:
    assert describe(Shown(np.zeros(2, name)))[1] == DTYPE_BY_NAME[name]


def test_dlpack_errors() -> None:
    locked = np.zeros(3)
    locked.flags.writeable = False
    with suppress(DtypeError):  # NumPy before 2.1 does not export read-only arrays
        assert describe(Shown(locked))[6]
    with pytest.raises(DtypeError, match="capsule"):
        describe(type("Odd", (Shown,), {"__dlpack__": lambda self, **_: 5})(None))


def test_what_is_no_tensor(core: FakeCore) -> None:
    for thing in (object(), 3, "text", None, [1.0]):
        with pytest.raises(DtypeError, match="is no tensor"):
            core.resolver(thing)
    tensor = np.zeros(2, ml_dtype("bfloat16"))
    core.resolver(tensor)
    assert core.registered[np.ndarray](tensor)[0] == tensor.ctypes.data


def test_empty_like() -> None:
    for tensor in (bytearray(5), b"12345", memoryview(bytes(5)), array.array("d", [1, 2, 3])):
        made = _buffer.empty_like(tensor)
        view = memoryview(made)
        assert view.nbytes == memoryview(tensor).nbytes
        assert view.format == memoryview(tensor).format
        assert not view.readonly
    for tensor in (np.zeros((2, 0)), np.zeros((3, 2), np.int8).T, np.float32(2), np.zeros(())):
        made = _buffer.empty_like(tensor)
        assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)
    matrix = memoryview(bytes(24)).cast("B").cast("i", (2, 3))
    assert _buffer.empty_like(matrix).shape == (2, 3)
    for thing in (object(), Shown(np.zeros(2))):
        with pytest.raises(DtypeError, match="cannot make"):
            _buffer.empty_like(thing)


def bumped(tensor: Any) -> None:
    """Do as the C shim does after an operation has written to a tensor."""
    bump = _buffer._kind_of(type(tensor)).bump
    assert bump is not None
    bump(tensor)


def test_a_front_may_register_a_type() -> None:
    class Mine:
        version = 0

    class Derived(Mine):
        pass

    def bump(tensor: Any) -> None:
        tensor.version += 1

    assert _buffer._kind_of(Derived).bump is None
    _buffer.register(Mine, _buffer.Kind(lambda x: (0, 1, (), None, 1, 0, False, 0), bump, Mine))
    try:
        tensor = Derived()
        bumped(tensor)
        assert tensor.version == 1
    finally:
        del _buffer._kinds[Mine]


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 4).t()
    assert describe(tensor) == (tensor.data_ptr(), DType.FLOAT32, (4, 3), (1, 4), 1, 0, False, 0)
    for name, code in DTYPE_BY_NAME.items():
        if hasattr(torch, name):
            assert describe(torch.zeros(2, dtype=getattr(torch, name)))[1] == code
    for bad in (torch.zeros(2).to_sparse(), torch.zeros(2, device="meta")):
        with pytest.raises(DtypeError, match="torch"):
            describe(bad)
    lazy = torch.tensor([1 + 2j]).conj()  # memory that has other values
    copy, description = _buffer.readable(lazy)
    assert torch.equal(copy, torch.tensor([1 - 2j])) and not copy.is_conj()
    assert description == describe(copy) and _buffer.readable(tensor)[0] is tensor
    with pytest.raises(DtypeError, match="lazy conjugate"):
        _buffer.describe(lazy)
    leaf = torch.nn.Parameter(torch.zeros(3))
    before = leaf._version
    bumped(leaf)
    assert leaf._version == before + 1
    with torch.inference_mode():
        bumped(torch.zeros(2))
    made = _buffer.empty_like(leaf)
    assert (made.shape, made.dtype, made.requires_grad) == (leaf.shape, leaf.dtype, False)


def test_paddle() -> None:
    paddle = pytest.importorskip("paddle")
    tensor = paddle.zeros([3, 4]).t()
    assert describe(tensor) == (tensor.data_ptr(), DType.FLOAT32, (4, 3), (1, 4), 1, 0, False, 0)
    assert describe(paddle.zeros([2], dtype="bfloat16"))[1] == DType.BFLOAT16
    assert describe(paddle.zeros([0]))[2] == (0,)
    weight = paddle.nn.Linear(2, 2).weight
    before = weight.inplace_version
    bumped(weight)
    assert weight.inplace_version == before + 1
    assert _buffer.empty_like(tensor).shape == [4, 3]
    with pytest.raises(DtypeError, match="sparse"):
        describe(paddle.sparse.sparse_coo_tensor([[0], [1]], [1.0], [2, 2]))


def test_a_describer_comes_with_its_framework(tmp_path: Path) -> None:
    """No other describer is imported, and no front, because a front changes its framework."""
    pytest.importorskip("torch")
    script = tmp_path / "seen.py"
    script.write_text(
        "import sys, numpy, torch\n"
        "from paddlempi import _buffer\n"
        "Tensor = type('Tensor', (), {'__module__': 'paddle.mine'})\n"
        "for made in (Tensor(), [], numpy.zeros(1), torch.nn.Parameter(torch.zeros(1))):\n"
        "    _buffer._kind_of(type(made))\n"
        "    names = ('numpy', 'paddle', 'torch')\n"
        "    print(*(n for n in names if f'paddlempi.tensors.{n}' in sys.modules), sep=',')\n"
        "print('paddlempi.torch' in sys.modules, 'paddle' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.split("\n") == ["", "", "numpy", "numpy,torch", "False False", ""]
