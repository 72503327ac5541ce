"""ZeRO: every rank keeps the optimizer states of some parameters, and at level 2 their gradients.

Every parameter has an owner: the rank that keeps its states and updates it. After the step the
owner broadcasts the new value. At level 2 only the owners get averaged gradients.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", 2020, sections 5.1 and 5.2. Here whole parameters have owners, not slices of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.nn.clip import ClipGradByGlobalNorm, get_tensor_from_selected_rows, merge_selected_rows

from .. import collectives, objects
from .._ops import Op
from ..errors import ArgumentError
from ..group import ProcessGroup
from . import private
from .gradients import OwnedGradients
from .parameters import STATE, only, parameters_of, put_before
from .refusal import refuse
from .replicas import broadcast_all

__all__ = ["Zero", "shard"]

_WEIGHTS = "master_weights"
"""The key of an optimizer's state with Paddle's float32 copies of 16-bit parameters."""

_FAILED = "the optimizer's step failed"


def shard(optimizer: Any, level: int, group: ProcessGroup, bucket_size: int) -> None:
    """Make an optimizer keep the states of this rank's parameters only. Collective over ``group``.

    The optimizer's class becomes a subclass of it, in which ``step``, ``minimize``, ``state_dict``
    and ``set_state_dict`` are collective. ``state_dict`` returns the full state on every rank. This
    state can be loaded on any number of ranks, with and without ZeRO.

    Args:
        optimizer: before its first step.
        level: 1 shards the states; 2 the gradients too, and averages them at the end of backward.
        bucket_size: bytes of gradients that travel together at level 2.

    Raises:
        ArgumentError: another level, or an optimizer that has states already.
    """
    private.check_object(optimizer, (*STATE, "_accumulators"))
    if level not in (1, 2):
        raise ArgumentError(f"zero_opt_level={level!r}: it must be 1 or 2")
    if optimizer._accumulators:
        raise ArgumentError("zero_opt_level: the optimizer has made a step already")
    optimizer._paddlempi_zero = Zero(optimizer, level, group, bucket_size)
    put_before(optimizer, _Sharded)


class _Sharded:
    """What :func:`shard` puts before an optimizer's class."""

    _paddlempi_zero: Zero

    def step(self) -> None:
        """Update this rank's parameters, and give all ranks the new values of all parameters."""
        self._paddlempi_zero.step(super().step)  # type: ignore[misc]

    def minimize(self, loss: Any, *args: Any, **named: Any) -> tuple[list[Any], list[Any]]:
        """Call ``step()``. As in Paddle's dynamic mode, ``loss.backward()`` comes before."""
        self.step()
        return [], []

    def state_dict(self) -> dict[str, Any]:
        """Return the full state on every rank."""
        return self._paddlempi_zero.full_state(super().state_dict())  # type: ignore[misc]

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of this rank's parameters from a full state."""
        super().set_state_dict(self._paddlempi_zero.select_owned(state_dict))  # type: ignore[misc]

    load_state_dict = set_state_dict


class Zero:
    """Which rank owns which parameter of an optimizer, and the step and state that follow from it.

    Invariant: ``_owners`` is the same on all ranks.
    """

    def __init__(self, optimizer: Any, level: int, group: ProcessGroup, bucket_size: int) -> None:
        self._optimizer = optimizer
        self._group = group
        self._parameters = [p for p in parameters_of(optimizer) if not p.stop_gradient]
        self._owners = _divide(self._parameters, group.size())
        self._owned = {
            id(p)
            for p, owner in zip(self._parameters, self._owners, strict=True)
            if owner == group.rank()
        }
        # A full state uses the names that the parameters have on the group's first rank. Paddle
        # numbers layers in their names, so a rank that has built other layers has other names.
        names = [[p.name for p in self._parameters]]
        objects.broadcast_object_list(names, group=group, group_src=0)
        self._names = names[0]
        self._gradients = None
        if level == 2:
            self._gradients = OwnedGradients(self._parameters, self._owners, group, bucket_size)

    def owns(self, parameter: Any) -> bool:
        """Whether this rank keeps the states of a parameter."""
        return id(parameter) in self._owned

    def step(self, update: Any) -> None:
        """Run the optimizer's ``step`` on this rank's parameters; broadcast the new values.

        Raises:
            Exception: what ``update`` raised on this rank.
            RefusedError: ``update`` raised on another rank.
        """
        try:
            self._update_owned(update)
        except BaseException:
            refuse(Op.BROADCAST, self._group, len(self._parameters), _FAILED)
            raise
        broadcast_all(self._parameters, self._group, self._owners)

    def _update_owned(self, update: Any) -> None:
        optimizer = self._optimizer
        clip = optimizer._grad_clip
        if isinstance(clip, ClipGradByGlobalNorm):
            optimizer._grad_clip = _Scale(self._clip_factor(clip))
        try:
            if self._owned:
                with only(optimizer, self._owned):
                    update()
        finally:
            optimizer._grad_clip = clip

    def _clip_factor(self, clip: Any) -> float:
        """Return the factor of a clip by the global norm over all ranks' parameters. Collective."""
        try:
            total = self._owned_square()
        except BaseException:
            refuse(Op.ALL_REDUCE, self._group, reason=_FAILED)
            raise
        collectives.all_reduce(total, group=self._group)
        limit = float(clip.clip_norm)
        return float(limit / max(float(total[0]) ** 0.5, limit))

    def _owned_square(self) -> Any:
        """Return the squared norm of the gradients that this rank owns, float64 of shape [1]."""
        total = np.zeros(1)
        for parameter in self._parameters:
            gradient = parameter.grad
            if id(parameter) not in self._owned or gradient is None:
                continue
            if getattr(parameter, "need_clip", True):
                if gradient.is_selected_rows():
                    gradient = get_tensor_from_selected_rows(merge_selected_rows(gradient))
                total += float(gradient.detach().astype("float64").square().sum())
        return total

    def full_state(self, owned: dict[str, Any]) -> dict[str, Any]:
        """Merge the states that all ranks own into a full state. Collective.

        Args:
            owned: the state of this rank's parameters, as Paddle's ``state_dict`` returns it.
        """
        rename = self._renamer([p.name for p in self._parameters], self._names)
        weights = {rename(name): tensor for name, tensor in owned.pop(_WEIGHTS, {}).items()}
        tensors = {rename(name): t for name, t in owned.items() if paddle.is_tensor(t)}
        merged = {name: value for name, value in owned.items() if not paddle.is_tensor(value)}
        merged.update(self._exchange(tensors))
        merged_weights = self._exchange(weights)
        if merged_weights:
            merged[_WEIGHTS] = merged_weights
        return merged

    def _exchange(self, owned: dict[str, Any]) -> dict[str, Any]:
        """Give every rank the named tensors of all ranks. Collective."""
        plans: list[Any] = [None] * self._group.size()
        plan = [(name, list(t.shape), str(t.dtype).rpartition(".")[2]) for name, t in owned.items()]
        objects.all_gather_object(plans, plan, self._group)
        found: dict[str, Any] = {}
        for owner, entries in enumerate(plans):
            for name, shape, dtype in entries:
                is_owner = owner == self._group.rank()
                tensor = owned[name] if is_owner else paddle.empty(shape, dtype)
                collectives.broadcast(tensor.detach(), group=self._group, group_src=owner)
                found[name] = tensor
        return found

    def select_owned(self, full: dict[str, Any]) -> dict[str, Any]:
        """Return a full state without the states of parameters that other ranks own."""
        owned = [id(p) in self._owned for p in self._parameters]
        others = tuple(
            name + "_" for name, is_owned in zip(self._names, owned, strict=True) if not is_owned
        )
        rename = self._renamer(self._names, [p.name for p in self._parameters])

        def chosen(state: dict[str, Any]) -> dict[str, Any]:
            return {
                rename(name): value
                for name, value in state.items()
                if not (name + "_").startswith(others)
            }

        part = chosen({name: value for name, value in full.items() if name != _WEIGHTS})
        if _WEIGHTS in full:
            part[_WEIGHTS] = chosen(full[_WEIGHTS])
        return part

    @staticmethod
    def _renamer(old: Sequence[str], new: Sequence[str]) -> Callable[[str], str]:
        """Return a function that renames a state of a parameter.

        The name of a state begins with the name of its parameter. The function replaces this
        beginning: the parameter's name in ``old`` by its name in ``new``.
        """
        pairs = sorted(zip(old, new, strict=True), key=lambda pair: -len(pair[0]))

        def rename(name: str) -> str:
            for a, b in pairs:
                if name == a or name.startswith(a + "_"):
                    return b + name[len(a) :]
            return name

        return rename


class _Scale:
    """Replaces an optimizer's gradient clip when the factor is known."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, params_grads: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [
            (p, g if g is None or not getattr(p, "need_clip", True) else g.scale(self._factor))
            for p, g in params_grads
        ]


def _divide(parameters: Sequence[Any], size: int) -> list[int]:
    """Return an owner for each parameter: the largest first, to the rank with the fewest elements.

    Every parameter counts as one element more than it has.
    """
    loads = [0] * size
    owners = [0] * len(parameters)
    order = sorted(range(len(parameters)), key=lambda i: -int(np.prod(parameters[i].shape)))
    for index in order:
        owner = loads.index(min(loads))
        owners[index] = owner
        loads[owner] += int(np.prod(parameters[index].shape)) + 1
    return owners
