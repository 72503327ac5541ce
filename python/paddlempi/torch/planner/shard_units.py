"""The units that ``fully_shard`` gets: each is gathered, computed, and let go of by itself."""

from __future__ import annotations

from collections import Counter

from torch import nn

__all__ = ["shared", "units"]


def units(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a model, in its order. The rest is the unit of the model.

    They are the members that have parameters of the outermost lists: of each ``ModuleList`` and
    ``Sequential`` that has two such members or more. A member that shares a parameter with
    another module is no unit: ``fully_shard`` would cut the parameter twice.
    """
    return _units(model, shared(model))


def shared(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that have several names: tied, or of a module used twice."""
    names = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {parameter for parameter, count in names.items() if count > 1}


def _units(module: nn.Module, tied: set[int]) -> list[nn.Module]:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    if len(children) < 2 or not isinstance(module, (nn.ModuleList, nn.Sequential)):
        return [unit for child in children for unit in _units(child, tied)]
    found: list[nn.Module] = []
    for child in children:
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # it has no forward to hook
            found += _units(child, tied)
        elif not any(id(parameter) in tied for parameter in child.parameters()):
            found.append(child)
    return found
