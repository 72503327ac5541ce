"""What ``python -m paddlempi bench inference`` measures: a model that transformers cuts.

Only that command imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils.logging import disable_progress_bar

from .. import objects
from . import bench

__all__ = ["Engine"]

_OP = "vllm"


class Engine:
    """A small Llama of random weights, cut over the ranks. Making it is collective.

    Its layers call ``torch.distributed.all_reduce``; :meth:`use` says what that does.

    Args:
        dtype: of the weights: "float32", "bfloat16", "float16".

    Attributes:
        ways: what the sums can go over, by name: "paddlempi", "gloo", "vllm" and "no communication"
            are among them.
        absent: for those that are not, the reason.
        what: the model, in words.
        calls: the sums of the last :meth:`count`, as bytes.
    """

    def __init__(self, dtype: str) -> None:
        bench.start()
        disable_progress_bar()
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._real = dist.all_reduce
        self.absent: dict[str, str] = {}
        self.calls: list[int] = []
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=2000,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            initializer_range=0.05,  # of a smaller one all logits would be alike
            tie_word_embeddings=False,
        )
        whole = LlamaForCausalLM(config).to(getattr(torch, dtype))
        self._model: Any = LlamaForCausalLM.from_pretrained(
            None,
            config=config,
            state_dict=whole.state_dict(),
            dtype=getattr(torch, dtype),
            distributed_config=DistributedConfig(tp_plan="auto"),
        ).eval()
        millions = sum(p.numel() for p in whole.parameters()) / 1e6
        self.what = f"a Llama of random weights, {millions:.1f} M parameters, {dtype}"
        self.ways: dict[str, Callable[..., object]] = {
            "no communication": lambda *a, **k: None,
            "paddlempi": self._real,
        }
        for name, made in (("gloo", bench.gloo()), (_OP, self._vllms())):
            if isinstance(made, str):
                self.absent[name] = made
            elif name == _OP:
                self.ways[name] = made
            else:
                self.ways[name] = self._over(made)

    def _over(self, group: Any) -> Callable[..., object]:
        def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, **more: Any) -> object:
            return self._real(tensor, op, group)

        return all_reduce

    def _vllms(self) -> Any:
        """Return vLLM's sum in shared memory, or why there is none, in words. Collective."""
        reason = ""
        try:
            self._load_kernels()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if reason == "" and int(os.environ.get("LOCAL_WORLD_SIZE", self._size)) != self._size:
            reason = "the ranks are not on one node"
        reasons: list[Any] = [None] * self._size
        objects.all_gather_object(reasons, reason)
        if any(reasons):
            return next(text for text in reasons if text)
        names = [f"paddlempi-bench-{os.getpid()}"]
        objects.broadcast_object_list(names, 0)
        ops: Any = torch.ops._C
        threads = torch.get_num_threads()
        handle = ops.init_shm_manager(names[0], self._size, self._rank, threads)
        dist.barrier()
        ops.join_shm_manager(handle, names[0])
        dist.barrier()
        return lambda tensor, *a, **k: ops.shm_allreduce(handle, tensor)

    def _load_kernels(self) -> None:
        platform = import_module("vllm.platforms.cpu").CpuPlatform
        platform.import_kernels()  # those that this CPU can run: others end the process by SIGILL
        if not hasattr(torch.ops._C, "init_shm_manager"):
            raise ImportError("this vLLM has no operators in shared memory for this CPU")

    def use(self, name: str) -> None:
        """Let the sums of the model go over one of ``ways``."""
        dist.all_reduce = self.ways[name]

    def stop(self) -> None:
        """Give torch its function back."""
        dist.all_reduce = self._real

    def count(self, act: Callable[[], object]) -> list[int]:
        """Return the bytes of each sum of a call."""
        found: list[int] = []

        def all_reduce(tensor: Any, *arguments: Any, **named: Any) -> object:
            found.append(tensor.numel() * tensor.element_size())
            return self._real(tensor, *arguments, **named)

        dist.all_reduce = all_reduce
        try:
            act()
        finally:
            self.stop()
        return found

    def prefill(self, length: int) -> tuple[Any, Any]:
        """Read a prompt of so many tokens. Return the next token, and the cache."""
        prompt = torch.arange(length)[None] % 1999
        return self._step(prompt, None)

    def decode(self, begun: tuple[Any, Any], tokens: int) -> list[int]:
        """Return the tokens behind a prompt: the most likely ones."""
        token, cache = begun
        made = [token]
        for _ in range(tokens):
            token, cache = self._step(token, cache)
            made.append(token)
        return [int(one) for one in made]

    def _step(self, tokens: Any, cache: Any) -> tuple[Any, Any]:
        with torch.inference_mode():
            out = self._model(
                tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True
            )
            return out.logits[:, -1:].argmax(-1), out.past_key_values
