"""Which layers of a model tensor parallelism cuts, and how, for torch's ``parallelize_module``.

A model of transformers says it itself (its ``tp_plan``). In other models the layers are found in
pairs: the first Linear is cut by its outputs, what follows works on a part of the features, and
the second Linear is cut by its inputs, whose results are summed over the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from ...errors import ArgumentError
from .shard_units import shared

__all__ = ["Heads", "SummedGradients", "styles", "summed"]

_ELEMENTWISE = (
    nn.AlphaDropout,
    nn.CELU,
    nn.Dropout,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)

# The names of Linear layers that are pairs in common use: those cut by outputs, those cut by
# inputs. What lies between works on single features, or on single heads.
_PAIRS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("w1", "w3"), "w2"),
    (("w1",), "w2"),
    (("fc1",), "fc2"),
    (("c_fc",), "c_proj"),
)
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")

# Layers that transformers cuts and that are as right whole: what they get and give is whole.
_WHOLE = {"embedding_rowwise", "embedding_colwise", "replicate"}


class SummedGradients(ParallelStyle):  # type: ignore[misc]
    """Of a layer that works on this rank's heads with parameters that all ranks have.

    ``summed`` finds the parameters: their gradients are to be summed over the ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module._paddlempi_summed = True
        return module


class Heads(ParallelStyle):  # type: ignore[misc]
    """Of an attention: its attributes that count heads are divided by the number of ranks."""

    def __init__(self, *attributes: str) -> None:
        super().__init__()
        self.attributes = attributes

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name in self.attributes:
            setattr(module, name, getattr(module, name) // device_mesh.size())
        return module


def summed(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters whose gradients the ranks of the tensor dimension have parts of."""
    marked = [m for m in model.modules() if getattr(m, "_paddlempi_summed", False)]
    return [p for module in marked for p in module.parameters() if p.requires_grad]


def styles(model: nn.Module, degree: int) -> dict[str, ParallelStyle]:
    """Return how the layers of a model are cut over ``degree`` ranks, by their names.

    Layers that it does not name stay whole on every rank. It is local and changes nothing.

    Raises:
        ArgumentError: the model cannot be cut; the text says why.
    """
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise ArgumentError(f"tensor parallelism: degree={degree!r}: it must be a number above 0")
    tied = shared(model)
    found: dict[str, ParallelStyle] = {}
    refused: list[str] = []
    for name, module, rules in _parts(model):
        if rules:
            found |= _by_plan(name, module, rules, degree, tied)
        else:
            for pair in _pairs(name, module, tied):
                why = pair.refused(degree)
                if why:
                    refused.append(why)
                elif not any(key in found for key in pair.styles()):
                    found |= pair.styles()
    if not found:
        reasons = "; ".join(refused[:4]) or (
            "it has no tp_plan of transformers and no two Linear layers that are known to be a "
            "pair, such as Linear, ReLU, Linear in a Sequential, fc1 and fc2, or q_proj to o_proj"
        )
        raise ArgumentError(
            f"tensor parallelism: {type(model).__name__} cannot be cut over {degree} ranks: "
            f"{reasons}: use another plan"
        )
    return found


def _parts(
    module: nn.Module, prefix: str = ""
) -> Iterator[tuple[str, nn.Module, Mapping[str, str]]]:
    """Yield modules with their names and plans of transformers; below a plan no other modules."""
    rules = getattr(module, "_tp_plan", None)
    if isinstance(rules, Mapping) and rules and hasattr(module, "config"):
        yield prefix, module, rules
        return
    yield prefix, module, {}
    if not isinstance(module, nn.MultiheadAttention):  # which reads the weights of its layers
        for name, child in module.named_children():
            yield from _parts(child, _join(prefix, name))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


class _Pair(NamedTuple):
    """Linear layers cut by their outputs, with their names, and one cut by its inputs.

    Attributes:
        heads: what counts heads in the module ``owner``, with the counts.
        divided: those of them that are attributes.
    """

    first: dict[str, nn.Linear]
    last: str
    owner: str = ""
    heads: dict[str, int] | None = None
    divided: tuple[str, ...] = ()

    def refused(self, degree: int) -> str:
        """Return why it cannot be cut; "" if it can."""
        for name, heads in (self.heads or {}).items():
            if heads % degree:
                return f"{name} of {self.owner or 'the model'} is {heads}, no multiple of {degree}"
        for name, layer in self.first.items():
            if layer.out_features % degree:
                return f"{name} has {layer.out_features} features, no multiple of {degree}"
        return ""

    def styles(self) -> dict[str, ParallelStyle]:
        found: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in self.first}
        found[self.last] = RowwiseParallel()
        if self.divided:
            found[self.owner] = Heads(*self.divided)
        return found


def _pairs(name: str, module: nn.Module, tied: set[int]) -> Iterator[_Pair]:
    if isinstance(module, nn.Sequential):
        yield from _in_sequence(name, module, tied)
        return
    layers = {
        key: child
        for key, child in module.named_children()
        if isinstance(child, nn.Linear) and not any(id(p) in tied for p in child.parameters())
    }
    transformer = isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
    known = ((("linear1",), "linear2"),) if transformer else _PAIRS
    for first, last in known:
        if _paired(layers, first, last):
            yield _Pair({_join(name, key): layers[key] for key in first}, _join(name, last))
            break
    for last in ("o_proj", "out_proj"):
        if _paired(layers, ("q_proj",), last) and {"k_proj", "v_proj"} <= layers.keys():
            heads, divided = _heads(module, layers["q_proj"], layers["k_proj"])
            if heads:
                cut = {_join(name, key): layers[key] for key in ("q_proj", "k_proj", "v_proj")}
                yield _Pair(cut, _join(name, last), name, heads, divided)
            break


def _paired(layers: Mapping[str, nn.Linear], first: tuple[str, ...], last: str) -> bool:
    """Whether there are layers of these names, and the first ones give what the last one gets."""
    return {*first, last} <= layers.keys() and all(
        layers[key].out_features == layers[last].in_features for key in first
    )


def _heads(
    module: nn.Module, query: nn.Linear, key: nn.Linear
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return how many heads an attention has, by what says it, and which of that is attributes.

    Of queries and, if there are fewer, of keys. Both are empty if it is not known.
    """
    counts = {name: getattr(module, name, None) for name in (*_HEADS, *_KEY_HEADS)}
    heads = {name: count for name, count in counts.items() if isinstance(count, int)}
    divided = tuple(heads)
    width = getattr(module, "head_dim", None)
    for layer, title, names in ((query, "q_proj", _HEADS), (key, "k_proj", _KEY_HEADS)):
        if any(name in heads for name in names):
            continue
        if layer is key and key.out_features == query.out_features:
            continue
        if not isinstance(width, int) or width < 1 or layer.out_features % width:
            return {}, ()
        heads[f"the number of heads in {title}"] = layer.out_features // width
    return heads, divided


def _in_sequence(name: str, module: nn.Sequential, tied: set[int]) -> Iterator[_Pair]:
    """Yield pairs of Linear layers with nothing but elementwise modules between them."""
    first: tuple[str, nn.Linear] | None = None
    for key, child in module.named_children():
        if isinstance(child, nn.Linear) and not any(id(p) in tied for p in child.parameters()):
            here = _join(name, key)
            if first is not None:
                # `styles` takes the one that begins in the middle of this one only if this one
                # cannot be cut.
                yield _Pair({first[0]: first[1]}, here)
            first = here, child
        elif not isinstance(child, _ELEMENTWISE):
            first = None


def _by_plan(
    prefix: str, model: Any, rules: Mapping[str, str], degree: int, tied: set[int]
) -> dict[str, ParallelStyle]:
    """Translate the plan of a model of transformers."""
    _check_heads(model, rules, degree)
    patterns = {
        re.compile(re.escape(pattern).replace(r"\*", r"[^.]+")): style
        for pattern, style in rules.items()
    }
    found: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        for pattern, style in patterns.items():
            if pattern.fullmatch(name):
                cut = _translated(_join(prefix, name), module, style, degree, tied)
                if cut is not None:
                    found[_join(prefix, name)] = cut
    for pattern, style in patterns.items():  # a rule of a bare parameter, as experts have
        for name, _ in model.named_parameters():
            if pattern.fullmatch(name) and style not in _WHOLE:
                raise ArgumentError(
                    f"tensor parallelism: {_join(prefix, name)} is a parameter that the model's "
                    f"tp_plan cuts as {style!r}, which torch's parallelize_module cannot: use "
                    "another plan"
                )
    return found


def _check_heads(model: Any, rules: Mapping[str, str], degree: int) -> None:
    if not any("attn" in name or "attention" in name for name in rules):
        return
    config = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for attribute in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, attribute, None)
        if isinstance(heads, int) and heads % degree:
            raise ArgumentError(
                f"tensor parallelism: {attribute} of {type(model).__name__} is {heads}, which "
                f"{degree} ranks cannot divide evenly: use another plan or number of ranks"
            )


def _translated(
    name: str, module: nn.Module, style: str, degree: int, tied: set[int]
) -> ParallelStyle | None:
    """Return torch's style for one of transformers; None for a layer that stays whole."""
    if style in _WHOLE:
        return None
    if style == "replicated_with_grad_allreduce":
        return SummedGradients()
    gathers = style in ("colwise_rep", "colwise_gather_output")
    splits = style in ("rowwise_rep", "rowwise_split_input")
    if not isinstance(module, nn.Linear) or not (gathers or splits or style in _EXACT):
        raise ArgumentError(
            f"tensor parallelism: the model's tp_plan cuts {name}, a {type(module).__name__}, as "
            f"{style!r}, which torch's parallelize_module cannot: use another plan"
        )
    features = module.out_features if style.startswith("col") else module.in_features
    evenly = features % degree == 0
    if gathers or splits:  # what they get and give is whole, so the layer may be, too
        if not evenly or any(id(p) in tied for p in module.parameters()):
            return None
        if splits:
            return RowwiseParallel(input_layouts=Replicate())
        return ColwiseParallel(output_layouts=Replicate())
    if any(id(p) in tied for p in module.parameters()):
        raise ArgumentError(
            f"tensor parallelism: {name} shares a parameter with another layer, and the model's "
            "tp_plan cuts it: use another plan"
        )
    if not evenly:
        raise ArgumentError(
            f"tensor parallelism: {name} has {features} features, which {degree} ranks cannot "
            "divide evenly: use another plan or number of ranks"
        )
    return _EXACT[style]()


_EXACT: dict[str, type[ColwiseParallel | RowwiseParallel]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
}
