"""What vLLM's CPU workers exchange tensors by, over MPI: :class:`Communicator`.

vLLM imports this module (:mod:`paddlempi_bootstrap.vllm_plugin`), and nothing else does.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

__all__ = ["Communicator"]


class Communicator(CpuCommunicator):  # type: ignore[misc]
    """vLLM's communicator of the CPU without its operators in shared memory.

    gather, broadcast, send and recv of the base class go to ``torch.distributed`` on
    ``device_group``, which is over MPI. all_reduce, which each layer calls twice, and all_gather,
    which each token calls once, are operators: no Python of torch or of ours runs in them, and a
    compiled graph keeps them. Dictionaries of tensors, from a stage of a pipeline to the next one,
    would go through vLLM's group of gloo. Here they go through ``device_group``, too.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.supports_tensor_dict = True
        self._group_name: str = self.device_group.group_name

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """Return False: then the base class does not make its operators in shared memory."""
        return False

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum a tensor up over the group, in place."""
        torch.ops.paddlempi.all_reduce_(input_, self._group_name)
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return the tensors of all ranks behind each other in a dimension."""
        gathered = torch.ops.paddlempi.all_gather(input_, self._group_name, self.world_size)
        if dim in (0, -input_.dim()):
            return gathered
        return torch.cat(gathered.chunk(self.world_size), dim)

    def send_tensor_dict(self, tensor_dict: dict[str, Any], dst: int) -> None:
        """Send a dictionary of tensors and other values to a rank of the group."""
        tensors, told = [], {}
        for key, value in tensor_dict.items():
            if isinstance(value, torch.Tensor):
                told[key] = (True, (value.shape, value.dtype))
                tensors.append(value.contiguous())
            else:
                told[key] = (False, value)
        head = torch.frombuffer(bytearray(pickle.dumps(told)), dtype=torch.uint8)
        works = [
            dist.isend(tensor, self.ranks[dst], self.device_group)
            for tensor in (torch.tensor([head.numel()]), head, *tensors)
            if tensor.numel()
        ]
        for work in works:
            work.wait()

    def recv_tensor_dict(self, src: int) -> dict[str, Any]:
        """Receive the dictionary that a rank of the group sends."""
        source = self.ranks[src]
        size = torch.empty(1, dtype=torch.int64)
        dist.recv(size, source, self.device_group)
        head = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(head, source, self.device_group)
        received: dict[str, Any] = {}
        works = []
        for key, (is_tensor, value) in pickle.loads(head.numpy().tobytes()).items():
            if not is_tensor:
                received[key] = value
                continue
            shape, dtype = value
            received[key] = torch.empty(shape, dtype=dtype)
            if received[key].numel():
                works.append(dist.irecv(received[key], source, self.device_group))
        for work in works:
            work.wait()
        return received
