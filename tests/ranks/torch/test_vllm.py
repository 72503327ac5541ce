"""What vLLM's workers exchange tensors by, over a fake of its base class."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.mpi(ranks=2)


class CpuCommunicator:
    """What the class of vLLM 0.32 gives its subclass."""

    def __init__(self, cpu_group: Any, device_group: Any = None) -> None:
        self.ranks = [0, 1]
        self.device_group = device_group
        self.supports_tensor_dict = self.own = self._all_group_ranks_share_shm_group_name()

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return True


@pytest.fixture
def communicator(dist: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = "vllm.distributed.device_communicators.cpu_communicator"
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[path].CpuCommunicator = CpuCommunicator  # type: ignore[attr-defined]
    ours = "paddlempi.torch.vllm_communicator"
    module = importlib.import_module(ours)
    monkeypatch.delitem(sys.modules, ours)
    return module.Communicator(None, device_group=dist.group.WORLD)


def test_dictionaries_of_tensors(communicator: Any, rank: int) -> None:
    assert communicator.supports_tensor_dict and not communicator.own
    sent = {
        "hidden": torch.arange(12.0).reshape(3, 4).t(),
        "none": torch.empty(0, 4),
        "half": torch.full((300, 700), 1.5, dtype=torch.bfloat16),
        "ids": torch.tensor(7),
        "name": ["no tensor", 3],
    }
    for sender in (0, 1):
        if rank == sender:
            communicator.send_tensor_dict(sent, 1 - rank)
            continue
        got = communicator.recv_tensor_dict(sender)
        assert list(got) == list(sent) and got.pop("name") == sent["name"]
        for key, tensor in got.items():
            assert tensor.dtype == sent[key].dtype and torch.equal(tensor, sent[key]), key


def test_all_reduce_is_the_operator(
    communicator: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch.distributed.all_reduce")
    x = torch.full((2, 3), rank + 1.0).t()
    assert communicator.all_reduce(x) is x
    assert x.tolist() == [[3, 3]] * 3
