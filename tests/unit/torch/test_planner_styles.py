"""Which layers tensor parallelism cuts, where a pipeline is cut, and the units of fully_shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from paddlempi.errors import ArgumentError
from paddlempi.torch.planner.pipeline import cut, microbatches_of
from paddlempi.torch.planner.shard_units import units
from paddlempi.torch.planner.tensor_parallel import Heads, SummedGradients, styles
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


def kinds(model: nn.Module, degree: int = 2) -> dict[str, str]:
    """Return the names of the layers that are cut, with "col", "row" or another class's name."""
    short = {ColwiseParallel: "col", RowwiseParallel: "row"}
    found = styles(model, degree)
    return {name: short.get(type(style), type(style).__name__) for name, style in found.items()}


def layer(**children: nn.Module) -> Any:
    """Return a module with these children and no forward."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def test_pairs_in_a_sequence() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(8, 4),
        nn.Linear(4, 6),
        nn.Linear(6, 4),
    )
    assert kinds(model) == {"0": "col", "3": "row", "4": "col", "5": "row"}
    # 8 and 4 features are no multiples of 3, so those pairs stay whole.
    assert kinds(model, 3) == {"4": "col", "5": "row"}
    shifted = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 8), nn.Linear(8, 2))
    assert kinds(shifted) == {"1": "col", "2": "row"}


def test_what_ends_a_pair() -> None:
    for between in (nn.LayerNorm(8), nn.Softmax(-1), nn.PReLU(8), nn.Flatten()):
        with pytest.raises(ArgumentError, match="no two Linear layers that are known to be a pair"):
            styles(nn.Sequential(nn.Linear(4, 8), between, nn.Linear(8, 4)), 2)


def test_layers_of_torch() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    assert kinds(model, 3) == {
        f"layers.{i}.linear{j}": kind for i in range(2) for j, kind in ((1, "col"), (2, "row"))
    }
    assert len(kinds(nn.TransformerDecoderLayer(8, 2, 12))) == 2


def attention(heads: int = 4, keys: int = 4, **attributes: Any) -> nn.Module:
    module = layer(
        q_proj=nn.Linear(16, 4 * heads),
        k_proj=nn.Linear(16, 4 * keys),
        v_proj=nn.Linear(16, 4 * keys),
        o_proj=nn.Linear(4 * heads, 16),
    )
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_names_in_common_use() -> None:
    gated = layer(gate_proj=nn.Linear(4, 8), up_proj=nn.Linear(4, 8), down_proj=nn.Linear(8, 4))
    assert kinds(layer(mlp=gated)) == {
        "mlp.gate_proj": "col",
        "mlp.up_proj": "col",
        "mlp.down_proj": "row",
    }
    assert kinds(layer(fc1=nn.Linear(4, 8), fc2=nn.Linear(8, 4))) == {"fc1": "col", "fc2": "row"}
    assert kinds(layer(c_fc=nn.Linear(4, 8), c_proj=nn.Linear(8, 4))).keys() == {"c_fc", "c_proj"}
    with pytest.raises(ArgumentError, match="cannot be cut"):
        styles(layer(fc1=nn.Linear(4, 16), fc2=nn.Linear(8, 4)), 2)  # a gate lies between them


def test_heads() -> None:
    found = styles(layer(attn=attention(num_heads=4)), 2)
    assert isinstance(found["attn"], Heads) and found["attn"].attributes == ("num_heads",)
    assert kinds(layer(attn=attention(num_heads=4)))["attn.o_proj"] == "row"
    assert kinds(attention(head_dim=4)).keys() == {"q_proj", "k_proj", "v_proj", "o_proj"}
    grouped = attention(4, 2, num_heads=4, num_kv_heads=2)
    assert styles(layer(a=grouped), 2)["a"].attributes == ("num_heads", "num_kv_heads")
    with pytest.raises(ArgumentError, match=r"num_heads of attn is 6, no multiple of 4"):
        styles(layer(attn=attention(6, 6, num_heads=6)), 4)
    with pytest.raises(ArgumentError, match=r"heads in k_proj of the model is 2, no multiple of 4"):
        styles(attention(4, 2, head_dim=4), 4)
    for unknown in (attention(), attention(4, 2, num_heads=4)):
        with pytest.raises(ArgumentError, match="no two Linear layers"):
            styles(unknown, 2)


def test_heads_are_divided() -> None:
    module = attention(num_heads=4)
    Heads("num_heads")._apply(module, SimpleNamespace(size=lambda: 2))
    assert module.num_heads == 2


def test_tied_layers_stay_whole() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model.add_module("tied", nn.Linear(4, 8))
    model.tied.weight = model[0].weight
    with pytest.raises(ArgumentError, match="cannot be cut"):
        styles(model, 2)


class Planned(nn.Module):
    """It has the attributes by which a model of transformers says how it is cut."""

    def __init__(self, plan: dict[str, str], heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList([layer(attn=attention(), norm=nn.LayerNorm(4)) for _ in "ab"])
        self.lm_head = nn.Linear(8, 10)
        self._tp_plan = plan
        self.config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=2)


def test_plans_of_transformers() -> None:
    plan = {
        "embed": "embedding_rowwise",
        "layers.*.attn.q_proj": "colwise",
        "layers.*.attn.o_proj": "rowwise",
        "layers.*.norm": "replicated_with_grad_allreduce",
        "lm_head": "colwise_rep",
    }
    found = styles(layer(inner=Planned(plan)), 2)
    assert found.keys() == {
        *(f"inner.layers.{i}.{name}" for i in (0, 1) for name in ("attn.q_proj", "attn.o_proj")),
        *(f"inner.layers.{i}.norm" for i in (0, 1)),
        "inner.lm_head",
    }
    assert isinstance(found["inner.layers.0.norm"], SummedGradients)
    assert found["inner.lm_head"].output_layouts == (Replicate(),)
    assert found["inner.layers.1.attn.q_proj"].output_layouts == (Shard(-1),)
    model = Planned(plan)
    model.embed = nn.Embedding(10, 8)
    model.lm_head.weight = model.embed.weight
    assert "lm_head" not in styles(model, 2)
    odd = Planned(plan)
    odd.lm_head = nn.Linear(8, 9)
    assert "lm_head" not in styles(odd, 2)  # it is as right whole


@pytest.mark.parametrize(
    "rules, degree, error",
    [
        ({"layers.*.attn.q_proj": "colwise"}, 3, "num_attention_heads of Planned is 4"),
        ({"layers.*.attn.q_proj": "colwise"}, 4, "num_key_value_heads of Planned is 2"),
        ({"layers.*.norm": "sequence_parallel"}, 2, "layers.0.norm, a LayerNorm, as 'sequence"),
        ({"layers.*.norm": "colwise"}, 2, "layers.0.norm, a LayerNorm, as 'colwise'"),
        ({"lm_head": "colwise"}, 4, "lm_head has 10 features, which 4 ranks cannot"),
        ({"lm_head.weight": "moe_experts"}, 2, "lm_head.weight is a parameter"),
    ],
)
def test_plans_that_cannot_be_followed(rules: dict[str, str], degree: int, error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        styles(Planned(rules), degree)


@pytest.mark.parametrize("degree", [0, 2.0, True])
def test_a_degree_is_a_number(degree: Any) -> None:
    with pytest.raises(ArgumentError, match="degree="):
        styles(nn.Linear(2, 2), degree)


def sizes(parts: list[nn.Module]) -> list[list[str]]:
    return [[name for name, _ in part.named_children()] for part in parts]


def test_stages() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    )
    assert sizes(cut(model, 3)) == [["0", "1", "2"], ["3", "4"], ["5"]]
    assert sizes(cut(model, 1)) == [["0", "1", "2", "3", "4", "5"]]
    assert cut(model, 3)[2][0] is model[5]
    uneven = nn.Sequential(nn.Linear(9, 9), *(nn.Linear(3, 3) for _ in range(6)))
    assert [len(part) for part in cut(uneven, 2)] == [1, 6]
    assert [len(part) for part in cut(uneven, 7)] == [1] * 7


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_stage_is_the_least(seed: int) -> None:
    """No other way to cut a list has a smaller largest sum."""
    import itertools
    import random

    from paddlempi.torch.planner.pipeline import _ends

    draw = random.Random(seed)
    blocks = [draw.randint(1, 30) for _ in range(draw.randint(1, 8))]
    stages = draw.randint(1, len(blocks))

    def largest(ends: list[int]) -> int:
        return max(sum(blocks[a:b]) for a, b in itertools.pairwise([0, *ends]))

    ends = _ends(blocks, stages)
    assert len(ends) == stages and ends == sorted(set(ends)) and ends[-1] == len(blocks)
    others = itertools.combinations(range(1, len(blocks)), stages - 1)
    assert largest(ends) == min(largest([*other, len(blocks)]) for other in others)


def test_stages_that_there_are_not() -> None:
    with pytest.raises(ArgumentError, match=r"Bilinear is not a torch\.nn\.Sequential"):
        cut(nn.Bilinear(2, 2, 2), 2)
    with pytest.raises(ArgumentError, match="has 1 members with parameters, too few for 2 stages"):
        cut(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), 2)
    with pytest.raises(ArgumentError, match="stages=0"):
        cut(nn.Sequential(), 0)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ArgumentError, match=r"stages 0 and 1 would share the parameter 1\.weight"):
        cut(tied, 2)


def test_microbatches() -> None:
    assert [microbatches_of(rows, 2) for rows in (1, 6, 8, 12, 13, 64)] == [1, 6, 8, 6, 1, 8]
    assert microbatches_of(12, 2, 3) == 3
    with pytest.raises(
        ArgumentError, match="gets 12 rows of a batch, which cannot be cut into mic"
    ):
        microbatches_of(12, 2, 5)


def test_units() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(3))
    model = layer(embed=nn.Embedding(4, 2), body=layer(blocks=blocks), head=nn.Linear(2, 4))
    assert units(model) == list(blocks)
    sequence = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert units(sequence) == [sequence[0], sequence[2]]
    assert units(layer(one=nn.Sequential(sequence))) == [sequence[0], sequence[2]]
    assert units(nn.Linear(2, 2)) == []


def test_units_share_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    model[2].weight = model[0].weight
    assert units(model) == [model[1]]
    shared = nn.Linear(2, 2)
    assert units(nn.Sequential(shared, nn.ReLU(), shared)) == []
    lists = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), nn.Linear(2, 2)])
    assert units(layer(lists=lists)) == [lists[0][0], lists[0][1], lists[1]]
