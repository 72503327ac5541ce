"""A typed program of a user. `make lint` checks it with mypy and pyright, both strict.

It is not run. A wrong call has an ignore; both checkers report an ignore that is not needed.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Any

import numpy as np
import paddlempi as dist
from paddlempi.collectives import all_gather_into_tensor


class TorchTensor:
    """What a checker sees of torch's and of Paddle's tensors."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[IntEnum, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        raise NotImplementedError


class DeviceArray:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def works_by_name(x: np.ndarray[Any, np.dtype[np.float32]]) -> list[dist.Work]:
    everyone = [x, x]
    return [
        dist.all_reduce(x, async_op=True),
        dist.all_reduce_coalesced(everyone, async_op=True),
        dist.reduce(x, 0, async_op=True),
        dist.scan(x, async_op=True),
        dist.exscan(x, async_op=True),
        dist.reduce_scatter(x, everyone, async_op=True),
        dist.reduce_scatter_tensor(x, x, async_op=True),
        dist.broadcast(x, 0, async_op=True),
        dist.all_gather(everyone, x, async_op=True),
        dist.all_gather_into_tensor(x, x, async_op=True),
        dist.gather(x, everyone, async_op=True),
        dist.scatter(x, None, async_op=True),
        dist.all_to_all(everyone, everyone, async_op=True),
        dist.all_to_all_single(x, x, async_op=True),
        dist.barrier(async_op=True),
        dist.isend(x, 1),
        dist.irecv(x),
        *dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x, 1)]),
    ]


def works_by_position(x: np.ndarray[Any, np.dtype[np.bool_]], group: dist.ProcessGroup) -> None:
    dist.all_reduce(x, dist.ReduceOp.BAND, group, True).wait(timeout=1.0)
    dist.broadcast(x, None, group, True, 0).wait()
    dist.reduce_scatter_tensor(x, x, dist.ReduceOp.PREMUL_SUM(0.5), None, True).result()
    dist.all_to_all_single(x, x, None, None, None, True).get_future()
    dist.barrier(None, True).is_completed()
    all_gather_into_tensor(x, x, group, True, rank_list=None).exception()


def either(x: bytearray, async_op: bool) -> None:
    work = dist.all_reduce(x, async_op=async_op)
    work.wait()  # type: ignore[union-attr]
    if work is not None:
        work.wait()


def waits(x: memoryview) -> None:
    dist.all_reduce(x)
    dist.all_reduce(x).wait()  # type: ignore[attr-defined]
    dist.all_reduce(x, async_op=False).wait()  # type: ignore[attr-defined]


def kinds(torch: TorchTensor, device: DeviceArray) -> None:
    dist.all_reduce(torch)
    dist.all_gather([device, device], device)
    dist.send(array("d", [1.0]), 1)
    dist.sendrecv(torch, 1, torch)
    dist.allreduce([torch, torch])
    dist.Connector().Broadcast(np.zeros(3))


def refused(x: TorchTensor) -> None:
    dist.all_reduce(3)  # type: ignore[call-overload]
    dist.all_reduce("text")  # type: ignore[call-overload]
    dist.all_reduce([x, x])  # type: ignore[call-overload]
    dist.all_reduce_coalesced(x)  # type: ignore[call-overload]
    dist.all_reduce(x, "sum")  # type: ignore[call-overload]
    dist.broadcast(x, 0, async_op=1)  # type: ignore[call-overload]
    dist.all_gather(x, x, async_op=True)  # type: ignore[call-overload]
    dist.all_gather([1, 2], x)  # type: ignore[list-item]
    dist.send(3, 1)  # type: ignore[arg-type]
    dist.P2POp(dist.send, x, 1)  # type: ignore[arg-type]
    dist.Connector().Broadcast(3)  # type: ignore[arg-type]


def probed() -> tuple[int, int, int]:
    found = dist.probe(0, tag=7)
    buffer = np.empty(found.nbytes, np.uint8)
    source: int = dist.recv(buffer, found.source, tag=found.tag)
    return source, found.nbytes, found.tag
