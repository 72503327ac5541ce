"""A tiny Llama with random weights: trained with FSDP2 and tensor parallel, saved, loaded, resumed.

``--part train`` on four ranks writes a checkpoint and tells the losses of the steps after it.
``resume`` on two ranks goes on with FSDP2 alone. ``read`` lets transformers load it, in one process
without MPI.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import report
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 40


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return LlamaForCausalLM(config).float()


def rows(step: int) -> Any:
    """Return the batch of a step, the same on all ranks."""
    starts = torch.randint(VOCABULARY, (4, 1), generator=torch.Generator().manual_seed(step))
    return (starts + torch.arange(9)) % VOCABULARY


def steps(model: Any, optimizer: Any, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = model(input_ids=rows(number), labels=rows(number)).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def spread(model: Any, tensor_parallel: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module as parallelize

    size = torch.distributed.get_world_size()
    shape = size // tensor_parallel, tensor_parallel
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {f"self_attn.{name}_proj": columns for name in "qkv"}
    plan |= {"self_attn.o_proj": rows, "mlp.gate_proj": columns, "mlp.up_proj": columns}
    plan |= {"mlp.down_proj": rows}
    for layer in model.model.layers:
        if tensor_parallel > 1:
            parallelize(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    parser.add_argument("--saved", type=Path, required=True)
    args = parser.parse_args()
    if args.part == "read":
        model = LlamaForCausalLM.from_pretrained(args.saved, dtype=torch.float32)
        logits = model(input_ids=rows(100)).logits.detach()
        report.write(args.out, 0, backend="none", logits=logits.flatten().tolist())
        return
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from paddlempi.torch.checkpoint import StorageReader, StorageWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dist.init_process_group("mpi")
    model = model_of(1 if args.part == "train" else 2)
    spread(model, 2 if args.part == "train" else 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    if args.part == "train":
        steps(model, optimizer, range(3))
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states, "step": 3}
        dcp.save(state, storage_writer=StorageWriter(args.saved))
        if dist.get_rank() == 0:
            model.config.save_pretrained(args.saved)
    else:
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states, "step": 0}
        dcp.load(state, storage_reader=StorageReader(args.saved))
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    with torch.no_grad():
        logits = model(input_ids=rows(100)).logits.flatten().tolist()
    losses = steps(model, optimizer, range(state["step"], state["step"] + 3))
    report.write(args.out, dist.get_rank(), backend="mpi", logits=logits, losses=losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
