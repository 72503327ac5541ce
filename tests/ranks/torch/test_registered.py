"""The operators torch.ops.paddlempi: values, errors, gradients, and graphs that have them."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from paddlempi import errors
from paddlempi.torch import group_names, registered
from tensors import DEFINED

OPS: Any = torch.ops.paddlempi
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
IN_C = VERSION >= (2, 13)
"""Whether this torch has what the kernels in C need."""
LACKS = f"torch {torch.__version__} has no C functions for operators"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(params=["c", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which kernels carry out the calls: those in C, or only those in Python, as in older torch."""
    if request.param == "python":
        monkeypatch.setattr(group_names, "enter", lambda name, number, size: None)
    elif not IN_C:
        pytest.skip(LACKS)
    return str(request.param)


@pytest.fixture
def group(way: str, dist: ModuleType, rank: int, size: int) -> Iterator[Any]:
    """A group of all ranks whose name is new to the kernels in C, and that a test may break."""
    made = dist.new_group()
    if way == "c":
        call = functools.partial(OPS.all_reduce_, torch.zeros(1), made.group_name)
        call()
        assert ran_python(call) == []
    yield made
    if made in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(made)


def ran_python(call: Callable[[], object]) -> list[str]:
    """Return the functions of paddlempi in Python that a call runs in this thread."""
    ran: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and "paddlempi" in frame.f_globals.get("__name__", ""):
            ran.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else "")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return ran


def mine(rank: int, dtype: Any, *shape: int) -> Any:
    """Small whole numbers, different on every rank."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % 3 + 1).reshape(shape).to(dtype)


def strided(tensor: Any) -> Any:
    """Return a view with the same values, whose elements have gaps between them."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


# Values


@pytest.mark.parametrize("op", [name for name in DEFINED if name != "PREMUL_SUM"])
def test_all_reduce(dist: ModuleType, group: Any, rank: int, op: str) -> None:
    name, lower = group.group_name, op.lower()
    for dtype in DEFINED[op]:
        x = mine(rank, getattr(torch, dtype), 3, 5)
        wanted = x.clone()
        group.allreduce([wanted], getattr(dist.ReduceOp, op)).wait()
        for given in (x.clone(), strided(x)):
            out = OPS.all_reduce(given, name, lower)
            assert torch.equal(out, wanted) and out.is_contiguous(), dtype
            assert torch.equal(given, x), dtype
            assert OPS.all_reduce_(given, name, lower) is None
            assert torch.equal(given, wanted), dtype


def test_all_gather_and_reduce_scatter(group: Any, rank: int, size: int) -> None:
    name = group.group_name
    for dtype in (torch.bfloat16, torch.float32, torch.int64, torch.bool):
        for shape in ((2, 3), (3, 2), (3, 1), (0,)):
            x = mine(rank, dtype, *shape)
            wanted = torch.cat([mine(r, dtype, *shape) for r in range(size)])
            for given in (x, strided(x)):
                made = OPS.all_gather(given, name, size)
                assert torch.equal(made, wanted) and made.stride() == wanted.stride()
            for into in (torch.zeros_like(wanted), strided(torch.zeros_like(wanted))):
                assert OPS.all_gather_into(into, x, name) is None
                assert torch.equal(into, wanted)
    assert torch.equal(OPS.all_gather(torch.tensor(rank), name, size), torch.arange(size))
    whole = [mine(r, torch.float32, 2 * size, 3) for r in range(size)]
    total, most = sum(whole), torch.stack(whole).amax(0)
    for given in (whole[rank], strided(whole[rank]), whole[rank].t().contiguous().t()):
        made = OPS.reduce_scatter(given, name, size)
        assert torch.equal(made, total.chunk(size)[rank]) and made.is_contiguous()
        for out in (torch.zeros(2, 3), strided(torch.zeros(2, 3)), torch.zeros(3, 2).t()):
            OPS.reduce_scatter_into(out, given, name, "max")
            assert torch.equal(out, most.chunk(size)[rank])


def test_broadcast(group: Any, rank: int, size: int) -> None:
    for root in range(size):
        for given in (mine(rank, torch.float16, 3, 4), strided(mine(rank, torch.float16, 3, 4))):
            before, wanted = given.clone(), mine(root, torch.float16, 3, 4)
            assert torch.equal(OPS.broadcast(given, group.group_name, root), wanted)
            assert torch.equal(given, before)
            OPS.broadcast_(given, group.group_name, root)
            assert torch.equal(given, wanted)


def test_a_lazy_view_and_meta(group: Any, rank: int, size: int) -> None:
    x = torch.full((3,), complex(1, rank))
    total = complex(size, -sum(range(size)))
    assert torch.equal(OPS.all_reduce(x.conj(), group.group_name), torch.full((3,), total))
    if VERSION >= (2, 14):  # torch's own error before: "Expected Tensor but got None"
        OPS.all_reduce_(x.conj(), group.group_name)
        assert torch.equal(x.conj(), torch.full((3,), total))
    shown = OPS.all_gather(torch.zeros(2, 3, device="meta"), group.group_name, size)
    assert shown.is_meta and shown.shape == (2 * size, 3)


# What a call passes


@pytest.mark.skipif(not IN_C, reason=LACKS)
def test_no_python_runs(dist: ModuleType, size: int) -> None:
    made = dist.new_group()
    name, x = made.group_name, torch.ones(4 * size)
    call = functools.partial(OPS.all_reduce_, x, name)
    assert ran_python(call) and not ran_python(call)
    for other in (
        functools.partial(OPS.all_gather_into, torch.empty(4 * size * size), x, name),
        functools.partial(OPS.reduce_scatter_into, torch.empty(4), x, name, "max"),
        functools.partial(OPS.broadcast_, x, name, size - 1),
    ):
        assert not ran_python(other)
    with torch.inference_mode():
        y = torch.ones(size)
        assert not ran_python(lambda: OPS.all_reduce(y, name))
        assert not ran_python(lambda: OPS.all_gather(y, name, size))
        assert not ran_python(lambda: OPS.reduce_scatter(y, name, size))
        assert not ran_python(lambda: OPS.broadcast(y, name, 0))
    # A longer deadline, which torch.compile asks for, is that of the next call.
    made._add_ephemeral_timeout(timedelta(seconds=100))
    assert ran_python(call) and made._extension.seconds == 0
    assert ran_python(call) and not ran_python(call)
    dist.destroy_process_group(made)


def test_a_sparse_collective_under_way_comes_first(
    dist: ModuleType, group: Any, rank: int, size: int
) -> None:
    sparse = torch.eye(3)[: rank + 1].to_sparse()
    sparse = torch.sparse_coo_tensor(sparse.indices(), sparse.values(), (3 + size, 3))
    work = dist.all_reduce(sparse, group=group, async_op=True)
    x = torch.ones(2)
    OPS.all_reduce_(x, group.group_name)
    work.wait()
    assert x.tolist() == [size] * 2
    assert sparse.to_dense().sum() == sum(min(r + 1, 3) for r in range(size))


def with_the_gil(x: Any, name: str) -> None:
    """Call all_reduce_ as C++ may that was called by Python and has kept the GIL."""
    functions = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    functions.aoti_torch_abi_version.restype = ctypes.c_uint64
    stack = (ctypes.c_uint64 * 3)()
    address = ctypes.addressof(stack)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    stack[0] = pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(x), None)
    for place, text in ((8, name.encode()), (16, b"sum")):
        size = ctypes.c_size_t(len(text))
        assert not functions.torch_new_string_handle(text, size, ctypes.c_void_p(address + place))
    version = ctypes.c_uint64(functions.aoti_torch_abi_version())
    assert not functions.torch_call_dispatcher(b"paddlempi::all_reduce_", b"", stack, version)


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("call", [OPS.all_reduce_, with_the_gil], ids=["without", "with"])
def test_other_threads_run_while_it_waits(
    dist: ModuleType, group: Any, rank: int, call: Callable[[Any, str], None]
) -> None:
    """Rank 1 comes only after a message, which a thread of rank 0 sends meanwhile."""
    x = torch.ones(1)
    if call is with_the_gil and not IN_C:
        pytest.skip(LACKS)
    if rank == 0:
        begun = threading.Event()

        def send() -> None:
            begun.wait()
            dist.send(torch.ones(1), 1, tag=7)

        thread = threading.Thread(target=send)
        thread.start()
        before = sys.getswitchinterval()
        sys.setswitchinterval(60)  # the thread gets the GIL only from a call that drops it
        try:
            begun.set()
            call(x, group.group_name)
        finally:
            sys.setswitchinterval(before)
        thread.join()
    else:
        dist.recv(torch.ones(1), 0, tag=7)
        OPS.all_reduce_(x, group.group_name)
    assert x.item() == 2


# Errors


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)


def eager(function: Any) -> Any:
    return function


@pytest.fixture(params=[eager, compiled])
def called(request: pytest.FixtureRequest) -> Iterator[Callable[[Any, str], Any]]:
    """Call all_reduce_ by itself, or in a compiled graph."""

    def function(x: Any, name: str) -> Any:
        y = x * 1
        OPS.all_reduce_(tensor=y, op="sum", group=name)
        return y

    yield request.param(function)
    torch._dynamo.reset()


@pytest.mark.mpi(ranks=2)
def test_the_ranks_differ(
    dist: ModuleType, group: Any, rank: int, called: Callable[[Any, str], Any]
) -> None:
    for x in (torch.ones(4 - rank), torch.ones(4, dtype=(torch.float32, torch.float64)[rank])):
        with pytest.raises(errors.MismatchError, match="nothing was sent") as caught:
            called(x, group.group_name)
        assert caught.value.ranks == (0, 1)
        assert isinstance(caught.value, dist.DistBackendError)
    assert called(torch.ones(2), group.group_name).tolist() == [2, 2]


def test_wrong_arguments(dist: ModuleType, group: Any, size: int) -> None:
    name, x = group.group_name, torch.ones(2)
    with pytest.raises(errors.ArgumentError, match="group='nobody' is no group"):
        OPS.all_reduce_(x, "nobody")
    for operator in (OPS.all_reduce_, OPS.all_reduce):
        with pytest.raises(errors.ArgumentError, match="op='mean' is none of sum"):
            operator(x, name, "mean")
    with pytest.raises(errors.ArgumentError, match=f"size={size + 1}, and the group has {size}"):
        OPS.all_gather(x, name, size + 1)
    with pytest.raises(errors.ArgumentError, match="root"):
        OPS.broadcast_(x, name, size)
    with pytest.raises(errors.ArgumentError, match="root"):
        OPS.broadcast(x, name, -1 - (1 << 40))
    with pytest.raises(errors.ArgumentError, match="reduce_scatter"):
        OPS.reduce_scatter(torch.ones(()), name, size)
    with pytest.raises(errors.DtypeError, match="all_reduce"):
        OPS.all_reduce_(torch.ones(2, dtype=torch.complex32), name)
    with pytest.raises(errors.DtypeError, match="BAND"):
        OPS.all_reduce_(x, name, "band")
    if size > 1:
        with pytest.raises(errors.Error):
            OPS.all_reduce_(torch.ones(1).expand(3), name)
    OPS.all_reduce_(x, name)
    assert x.tolist() == [size] * 2


@pytest.mark.mpi(ranks=2)
def test_one_rank_is_wrong(group: Any, rank: int) -> None:
    wanted = errors.RefusedError if rank == 0 else errors.ArgumentError
    with pytest.raises(wanted) as caught:
        OPS.all_reduce_(torch.ones(2), group.group_name, ("sum", "mean")[rank])
    assert rank or caught.value.ranks == (1,)


def test_a_group_that_ended(
    dist: ModuleType, group: Any, called: Callable[[Any, str], Any]
) -> None:
    name = group.group_name
    called(torch.ones(2), name)
    dist.destroy_process_group(group)
    with pytest.raises(errors.ArgumentError, match=f"group='{name}' is no group"):
        called(torch.ones(2), name)


def test_a_group_of_another_backend(dist: ModuleType, way: str) -> None:
    made = dist.new_group(backend="gloo")
    with pytest.raises(errors.ArgumentError, match="is a group over"):
        OPS.all_reduce_(torch.ones(2), made.group_name)
    dist.destroy_process_group(made)


def test_a_group_of_which_gloo_has_the_cpu(dist: ModuleType, way: str, size: int) -> None:
    made, x = dist.new_group(backend="cpu:gloo,cuda:mpi"), torch.ones(2)
    call = functools.partial(OPS.all_reduce_, x, made.group_name)
    for _ in range(2):
        assert any("MixedProcessGroup" in name or not name for name in ran_python(call))
    assert x.tolist() == [size * size] * 2
    assert OPS.all_gather(x[:1], made.group_name, size).tolist() == [size * size] * size
    OPS.broadcast_(x, made.group_name, size - 1)
    dist.destroy_process_group(made)


@pytest.mark.mpi(ranks=2)
def test_a_rank_that_never_comes(
    dist: ModuleType, group: Any, rank: int, called: Callable[[Any, str], Any]
) -> None:
    called(torch.ones(2), group.group_name)
    if rank == 0:
        group.set_timeout(timedelta(seconds=0.3))
        with pytest.raises(errors.TimeoutError) as caught:
            called(torch.ones(2), group.group_name)
        assert caught.value.ranks == (1,)
        with pytest.raises(errors.GroupBrokenError):
            called(torch.ones(2), group.group_name)
    dist.barrier()


@pytest.mark.mpi(ranks=2)
def test_the_exception_of_a_signal_handler(dist: ModuleType, group: Any, rank: int) -> None:
    class Rang(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Rang("bell")

    if rank == 0:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Rang, match="bell"):
                OPS.all_reduce_(torch.ones(2), group.group_name)
        finally:
            signal.signal(signal.SIGALRM, before)
    dist.barrier()


# Gradients


def functions(x: Any, name: str, size: int) -> Any:
    gathered = OPS.all_gather(x * x, name, size)
    mean = OPS.all_reduce(gathered, name, "avg")
    sent = OPS.broadcast(OPS.all_reduce(tensor=mean, group=name), name, root=size - 1)
    return OPS.reduce_scatter(tensor=sent, group=name, size=size) + OPS.reduce_scatter(
        sent, name, size, "avg"
    )


@pytest.mark.parametrize("made", [eager, compiled])
def test_gradients(group: Any, rank: int, size: int, made: Callable[[Any], Any]) -> None:
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    out = made(functools.partial(functions, name=group.group_name, size=size))(x)
    out.sum().backward()
    # What each rank gathers is the same, so the mean changes nothing, and the sum is size times it.
    assert torch.allclose(out, (x * x).detach() * size * (size + 1))
    # A broadcast sums the gradients of all ranks up for its root alone: size times those of both
    # parts. The sum and the mean give each rank the root's, and the gather sums over the ranks.
    assert torch.allclose(x.grad, 2 * x.detach() * size * (size + 1))
    torch._dynamo.reset()


def test_autograd_does_not_see_what_is_in_place(
    group: Any, size: int, called: Callable[[Any, str], Any]
) -> None:
    """As it does not see ``dist.all_reduce``."""
    x = torch.ones(2, requires_grad=True)
    y = called(x * 3, group.group_name)
    assert y.tolist() == [3 * size] * 2
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]
    leaf = torch.ones(2, requires_grad=True)
    OPS.all_reduce_(leaf, group.group_name)
    assert leaf.tolist() == [size] * 2
    z = OPS.all_reduce(torch.ones(2, requires_grad=True), group.group_name, "max")
    with pytest.raises(errors.UnsupportedError, match="op='max' has no gradient"):
        z.sum().backward()


# Graphs


@pytest.mark.mpi(ranks=2, timeout=300)
def test_inductor_keeps_it_in_place(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """The graph has only calls of kernels that exist, so nothing is compiled as C++."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(here / str(rank)))
    torch._dynamo.reset()
    name, weight = dist.group.WORLD.group_name, torch.full((4, 4), 2.0)

    def step(x: Any) -> Any:
        y = torch.mm(x, weight)
        OPS.all_reduce_(y, name)
        return torch.mm(OPS.all_reduce(y, name), weight)

    with torch.no_grad():
        out, code = run_and_get_code(torch.compile(step, fullgraph=True), torch.ones(2, 4))
    assert torch.equal(out, torch.full((2, 4), 64.0 * size * size))
    lines = [line.strip() for line in "".join(code).splitlines()]
    place = next(i for i, line in enumerate(lines) if "paddlempi.all_reduce_.default(" in line)
    buffer = lines[place].partition("(")[2].partition(",")[0]
    assert any(line.startswith("extern_kernels.mm(") and f"out={buffer}" in line for line in lines)
    assert any(f"paddlempi.all_reduce.default({buffer}," in line for line in lines[place:])
    assert not any("copy" in line for line in lines[place - 4 : place + 4])
    torch._dynamo.reset()


def test_each_operator_has_a_kernel_and_a_fake() -> None:
    for name in registered._SCHEMAS:
        full = f"paddlempi::{name}"
        for key in ("CPU", "CUDA", "Meta"):
            assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, key), (name, key)
