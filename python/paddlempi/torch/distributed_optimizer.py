"""``ps.DistributedOptimizer`` for torch: one step of all trainers, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from .. import _buffer, ps
from ..errors import DtypeError, UnsupportedError
from ..io.places import overlaps
from ..ps.distributed_optimizer import Access, CommonOptimizer, Vector, rate_of_now
from ..ps.layers import RemoteLayer, like_of, shape_of
from ..ps.states import State
from ..ps.stepping import discard_of
from .states import check_groups, of_servers, state_for_servers, states_of

__all__ = ["ACCESS", "DistributedOptimizer", "check_real", "distinct", "for_group", "for_servers"]


class DistributedOptimizer(CommonOptimizer, torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of its layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often. ``zero_grad`` drops the gradients of its layers.

    Args:
        optimizer: the optimizer of the dense parameters. An optimizer that calls its closure
            several times (LBFGS) cannot be wrapped.
        dense: how trainers keep their dense parameters the same.

            * "all_reduce": their gradients are averaged in ``step``, and at the beginning all
              trainers get the parameters of the first.
            * "server": they lie on the servers too, in float32, which update them: in sync mode as
              the wrapped optimizer would, in async mode without waiting for other trainers. The
              wrapped optimizer gives its kind, its numbers and the learning rates of its schedule.
              All trainers begin with the parameters of the first, and with the states that its
              wrapped optimizer has of earlier steps.
            * "local": this object does nothing of all this, such as with DistributedDataParallel.
        average: for what lies on servers; see :func:`paddlempi.ps.step`.
        name: with "server", how the names of the tables begin. No other such optimizer of the
            parameter server has it.
        placement: with "server", how their blocks of 8192 elements are dealt to the servers:
            "round_robin", in turn over all such optimizers of the program, which all trainers make
            in the same order; or "hash_name", by a hash of the table's name and the block's number.
        tables: the layers or tables whose rows it pushes. None: all that no other optimizer was
            given. Several optimizers that share such tables step together, and else raise
            ArgumentError.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, ``dense`` or ``placement`` is another word,
            ``name`` is taken, ``optimizer`` is a DistributedOptimizer, or another one has a table.
        DtypeError: ``optimizer`` is none of torch.
        UnsupportedError: ``optimizer`` is LBFGS; with "server", servers do not have it, or it has
            states from earlier steps for which they have no place.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        dense: str = "all_reduce",
        average: bool = True,
        name: str = "dense",
        placement: str = "round_robin",
        tables: Iterable[RemoteLayer | ps.RemoteTable] | None = None,
    ) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise DtypeError(
                f"ps.DistributedOptimizer: a {type(optimizer).__qualname__} is no optimizer of "
                "torch"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError("ps.DistributedOptimizer: LBFGS calls its closure several times")
        # Not the constructor of Optimizer: the parameters, states and hooks are the wrapped one's.
        self._loaded: Any = None  # the states that were looked at
        self._attach(optimizer, dense, average, name, placement, tables)

    @property
    def param_groups(self) -> Any:
        """The groups of the wrapped optimizer, for learning-rate schedulers."""
        return self.optim.param_groups

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.optim.state

    @property
    def defaults(self) -> Any:
        """The defaults of the wrapped optimizer."""
        return self.optim.defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler reads it, before a step.
        raise UnsupportedError(
            "DistributedOptimizer: a GradScaler does not see the gradients of rows, which would "
            "stay scaled, and may skip the step of one trainer: train in bfloat16, without one"
        )

    def _all_parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in _trained(group)]

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        check_real(self._all_parameters())
        return [
            Vector(
                f"{name}.{number}",
                _trained(group),
                partial(for_group, self.optim, number),
                placement,
                ACCESS,
            )
            for number, group in enumerate(self.param_groups)
            if sum(p.numel() for p in _trained(group))
        ]

    def _states(self) -> Iterator[tuple[torch.Tensor, list[str]]]:
        if self.state is self._loaded:  # loading puts another one in its place
            return
        for group in self.param_groups:
            for parameter in _trained(group):
                names = states_of(self.state.get(parameter, {}), group)
                if names:
                    yield parameter, names
        self._loaded = self.state

    def _states_for_servers(self) -> dict[int, State | None]:
        states: dict[int, State | None] = {}
        for number, group in enumerate(self.param_groups):
            if not _trained(group):
                continue
            does = for_group(self.optim, number)
            for parameter in _trained(group):
                of = self.state.get(parameter, {})
                with self._taking_state(parameter, does):
                    states[id(parameter)] = state_for_servers(of, group, parameter.shape, does)
            self._check_steps(does, [states[id(p)] for p in _trained(group)])
        return states

    def _forget_states(self) -> None:
        for parameter in self._parameters():
            if parameter.numel():
                self.state.pop(parameter, None)

    @staticmethod
    def _detached(parameter: torch.Tensor) -> torch.Tensor:
        return distinct(parameter)

    def _noted_gradients(self) -> list[tuple[torch.Tensor, int]] | None:
        parameters = self._parameters()
        found = [p.grad for p in parameters if p.grad is not None]
        return [(gradient, gradient._version) for gradient in found] if parameters else None

    @staticmethod
    def _is_sparse(gradient: torch.Tensor) -> bool:
        return gradient.layout is not torch.strided

    @staticmethod
    def _zeros_like(parameter: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(parameter)

    @staticmethod
    def _flags(values: list[float], parameters: list[torch.Tensor]) -> torch.Tensor:
        device = parameters[0].device if parameters else torch.device("cpu")
        return torch.tensor(values, dtype=torch.float32).to(device)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of all trainers.

        Args:
            closure: computes the loss and its gradients first. None: they are there.

        Returns:
            What the closure returned.

        Raises:
            ArgumentError: it is not to be seen whose gradients of rows these are: see ``tables``.
            UnsupportedError: a dense parameter has a sparse gradient; with "server", a number of
                the optimizer other than the learning rate has changed, or a parameter or a state
                was set by something else than the servers.
            RefusedError: in sync mode, another trainer raised such an error; ``ranks`` has it.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_of_all()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that its layers have noted."""
        discard_of(self._owner)
        self.optim.zero_grad(set_to_none)
        self._owner.settle()

    def _members(self) -> list[list[Any]]:
        """What the single-machine program's optimizer has, for each group."""
        return [list(group["params"]) for group in self.param_groups]

    def _for_member(self, group: dict[str, Any], member: Any) -> ps.Optimizer:
        """Return what servers have for a member of a group with other numbers."""
        return for_servers(self.optim, group)

    def state_dict(self) -> Any:
        """Return the state of the optimizer, as that of one process would have it.

        With ``dense="server"`` the states come from the servers, after what this trainer has
        pushed; it may call it alone. A plan's optimizer has the parameters of the one that was
        given, in its order, and the rows of embeddings as dense tensors. In mode geo the states
        are those of this trainer.

        Returns:
            What ``load_state_dict`` takes, of this object and of torch's optimizer.

        Raises:
            Error: with ``dense="server"``, as :meth:`paddlempi.ps.RemoteTable.read_states`.
        """
        packed = self.optim.state_dict()
        if not self._served:
            return packed
        found, does = self._read_states(), self._on_server()
        own = [p for group in self.param_groups for p in group["params"]]
        here = {id(p): packed["state"].get(index) for index, p in enumerate(own)}
        state: dict[int, Any] = {}
        groups, count = [], 0
        for group, members in zip(packed["param_groups"], self._members(), strict=True):
            indices = list(range(count, count + len(members)))
            for index, member in zip(indices, members, strict=True):
                one = here.get(id(member))
                if id(member) in does:
                    kind, on_server = type(self.optim), does[id(member)]
                    one = of_servers(kind, on_server, found[id(member)], like_of(member))
                if one:
                    state[index] = one
            groups.append({**group, "params": indices})
            count += len(members)
        return {**packed, "state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, here or of torch's optimizer in one process.

        With ``dense="server"`` all trainers call it. The states are those of the first one, in
        mode geo of each. Parameters without a state begin anew: what :func:`paddlempi.ps.restore`
        is to bring back is restored after it.

        Raises:
            ArgumentError: with ``dense="server"``, it has other groups, or a state is of another
                shape.
            UnsupportedError: with ``dense="server"``, it has a state for which servers have no
                place, or a number other than the learning rate that is not the servers'.
        """
        if not self._served:
            self.optim.load_state_dict(state_dict)
            return
        states, rest = self._for_servers(state_dict)
        self._set_states(states)
        self.optim.load_state_dict({**state_dict, **rest})
        self._loaded = self.state

    def _for_servers(self, state_dict: dict[str, Any]) -> tuple[dict[int, State], dict[str, Any]]:
        """Return what is for the servers in a state dict, and the rest, for the wrapped one."""
        what = "DistributedOptimizer.load_state_dict"
        does, states = self._on_server(), {}
        given, groups = state_dict.get("state", {}), state_dict["param_groups"]
        own: list[list[int]] = [[] for _ in groups]  # the wrapped optimizer's
        kept = set()  # those whose states it has itself
        for number, index, saved, member in check_groups(what, groups, self._members()):
            if not isinstance(member, RemoteLayer):
                own[number].append(index)
            if id(member) not in does:
                kept.add(index)
                continue
            group, on_server = {**self.param_groups[number], **saved}, does[id(member)]
            rate_of_now(on_server, self._for_member(group, member))
            shape = shape_of(member)
            try:
                one = state_for_servers(given.get(index, {}), group, shape, on_server)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"{what}: the state dict has {error} of parameter {index}, of shape {shape} "
                    f"here, for which servers have no place with {type(on_server).__name__}"
                ) from None
            states[id(member)] = State(0) if one is None else one
        for vector in self._on_servers:
            of = [id(p) for p in vector.parameters()]
            self._check_steps(does[of[0]], [states[one] for one in of])
        return states, {
            "state": {index: one for index, one in given.items() if index in kept},
            "param_groups": [
                {**saved, "params": indices} for saved, indices in zip(groups, own, strict=True)
            ],
        }

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer. Its parameters must be the same on all trainers.

        Raises:
            UnsupportedError: with ``dense="server"``.
        """
        if self._served:
            raise UnsupportedError("DistributedOptimizer: with dense='server' groups cannot grow")
        self.optim.add_param_group(param_group)

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Have the wrapped optimizer call a hook in each step, after gradients were averaged.

        Raises:
            UnsupportedError: with ``dense="server"``, where it takes no steps.
        """
        return self._hooked().register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """Have the wrapped optimizer call a hook after each step; else as the pre-hook."""
        return self._hooked().register_step_post_hook(hook)

    def _hooked(self) -> Any:
        if self._served:
            raise UnsupportedError("DistributedOptimizer: with dense='server' no hook is called")
        return self.optim

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedError("DistributedOptimizer: it cannot be copied: use its state_dict()")


def check_real(parameters: Iterable[torch.Tensor]) -> None:
    """Refuse complex parameters.

    Raises:
        UnsupportedError: there is one.
    """
    if any(p.is_complex() for p in parameters):
        raise UnsupportedError("ps.DistributedOptimizer: servers have no complex parameters")


def _trained(group: dict[str, Any]) -> list[torch.Tensor]:
    return [p for p in group["params"] if p.requires_grad]


def _read(tensor: torch.Tensor) -> Any:
    return tensor.detach().reshape(-1).to("cpu", torch.float32).numpy()


def _write(parameter: torch.Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view_as(parameter))


def _same(parameter: torch.Tensor, values: Any) -> bool:
    here = parameter.detach().cpu()
    there = torch.from_numpy(values).view_as(here).to(here.dtype)
    # Seldom is one not a number, which equals nothing.
    same = torch.equal(here, there) or torch.allclose(here, there, 0, 0, equal_nan=True)
    return bool(same)


ACCESS = Access(_read, _write, _same)


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor that may be set: of an expanded one, each once.

    Raises:
        UnsupportedError: they share memory in another way, or cannot be sent.
    """
    found = tensor.detach()
    if found.layout is torch.strided:
        for dim, stride in enumerate(found.stride()):
            if stride == 0 and found.shape[dim] > 1:
                found = found.narrow(dim, 0, 1)
    try:
        _buffer.describe(found)
    except DtypeError as error:
        raise UnsupportedError(str(error)) from None
    if overlaps(found.shape, found.stride()):
        raise UnsupportedError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}, whose "
            "elements share memory: give the model a copy of it (contiguous())"
        )
    return found


_PLAIN = {"dampening": 0, "maximize": False, "amsgrad": False, "lr_decay": 0}
"""Numbers of torch's optimizers that servers know with these values only."""


def for_group(optimizer: Any, number: int) -> ps.Optimizer:
    """Return what servers have for a group of now: loading a state puts others in their places."""
    return for_servers(optimizer, optimizer.param_groups[number])


def for_servers(optimizer: Any, group: dict[str, Any]) -> ps.Optimizer:
    """Return what servers have for a group of an optimizer of torch.

    Raises:
        UnsupportedError: they do not have it.
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW):
        raise UnsupportedError(
            f"ps.DistributedOptimizer: servers have no {kind.__name__}: they have SGD, Adagrad, "
            "Adam and AdamW; or take dense='all_reduce'"
        )
    odd = {key: group[key] for key, plain in _PLAIN.items() if group.get(key, plain) != plain}
    if odd:
        raise UnsupportedError(f"ps.DistributedOptimizer: servers have no optimizer with {odd}")
    common = {"learning_rate": float(group["lr"]), "weight_decay": group["weight_decay"]}
    if kind is torch.optim.SGD and not group["momentum"]:
        return ps.SGD(**common)
    if kind is torch.optim.SGD:
        return ps.Momentum(**common, momentum=group["momentum"], nesterov=group["nesterov"])
    if kind is torch.optim.Adagrad:
        start = group["initial_accumulator_value"]
        return ps.Adagrad(**common, epsilon=group["eps"], initial_accumulator=start)
    decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
    make = ps.AdamW if decoupled else ps.Adam
    beta1, beta2 = group["betas"]
    return make(**common, beta1=beta1, beta2=beta2, epsilon=group["eps"])
