"""``ps.DistributedOptimizer`` for Paddle: one step of all trainers, dense and sparse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import paddle

from .. import ps
from ..errors import DtypeError, UnsupportedError
from ..ps.distributed_optimizer import Access, CommonOptimizer, Vector
from ..ps.layers import RemoteLayer, like_of, shape_of
from ..ps.states import State
from ..ps.stepping import discard_of
from .parameters import parameters_of
from .states import forget, of_servers, split, state_for_servers, states_of

__all__ = ["ACCESS", "DistributedOptimizer", "check_parameters", "for_servers"]


class DistributedOptimizer(CommonOptimizer):
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of its layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often. ``clear_grad`` drops the gradients of its layers. What it
    does not have is the wrapped optimizer's (``get_lr``, ``set_lr``).

    Args:
        optimizer: the optimizer of the dense parameters.
        dense: how trainers keep their dense parameters the same.

            * "all_reduce": their gradients are averaged in ``step``, and at the beginning all
              trainers get the parameters of the first.
            * "server": they lie on the servers too, in float32, which update them: in sync mode as
              the wrapped optimizer would, in async mode without waiting for other trainers. The
              wrapped optimizer gives its kind, its numbers and its learning rate in each step. All
              trainers begin with the parameters of the first, and with the states that its
              wrapped optimizer has of earlier steps.
            * "local": this object does nothing of all this, such as with ``paddle.DataParallel``.
        average: for what lies on servers; see :func:`paddlempi.ps.step`.
        name: with "server", the name of the table. No other such optimizer of the
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
        DtypeError: ``optimizer`` is none of Paddle.
        UnsupportedError: with "server", servers do not have the wrapped optimizer, or it has states
            from earlier steps for which they have no place.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        dense: str = "all_reduce",
        average: bool = True,
        name: str = "dense",
        placement: str = "round_robin",
        tables: Iterable[RemoteLayer | ps.RemoteTable] | None = None,
    ) -> None:
        if not hasattr(optimizer, "_param_groups"):
            raise DtypeError(
                f"ps.DistributedOptimizer: a {type(optimizer).__qualname__} is no optimizer of "
                "Paddle"
            )
        self._attach(optimizer, dense, average, name, placement, tables)

    def _all_parameters(self) -> list[Any]:
        return list(parameters_of(self.optim))

    def _parameters(self) -> list[Any]:
        return [p for p in self._all_parameters() if not p.stop_gradient]

    def step(self) -> None:
        """Take one step of all trainers. The gradients are there.

        Raises:
            ArgumentError: it is not to be seen whose gradients of rows these are: see ``tables``.
            UnsupportedError: a dense parameter has a sparse gradient; with "server", a number of
                the optimizer other than the learning rate has changed, or a parameter or a state
                was set by something else than the servers.
            RefusedError: in sync mode, another trainer raised such an error; ``ranks`` has it.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        self._step_of_all()

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        optimizer = partial(for_servers, self.optim)
        optimizer()  # it refuses also where there are no parameters
        check_parameters(self.optim, self._all_parameters())
        parameters = self._parameters()
        if not sum(math.prod(p.shape) for p in parameters):
            return []
        return [Vector(name, parameters, optimizer, placement, ACCESS)]

    def _states(self) -> Iterator[tuple[Any, list[str]]]:
        for parameter in self._parameters():
            names = states_of(self.optim, parameter)
            if names:
                yield parameter, names

    def _states_for_servers(self) -> dict[int, State | None]:
        does = for_servers(self.optim)
        states: dict[int, State | None] = {}
        for parameter in self._parameters():
            with self._taking_state(parameter, does):
                states[id(parameter)] = state_for_servers(self.optim, parameter, does)
        self._check_steps(does, list(states.values()))
        return states

    def _forget_states(self) -> None:
        forget(self.optim, self._parameters())

    def _members(self) -> list[list[Any]]:
        """What the single-machine program's optimizer has, each with its name."""
        return [[(p, p.name) for p in self._all_parameters()]]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, as that of one process would have it.

        With ``dense="server"`` the states come from the servers, after what this trainer has
        pushed; it may call it alone. Their names are those that the first optimizer of a process
        gives them. A plan's optimizer also has the rows of embeddings, as dense tensors. In mode
        geo the states are those of this trainer.

        Returns:
            What ``set_state_dict`` takes, of this object and of Paddle's optimizer.

        Raises:
            Error: with ``dense="server"``, as :meth:`paddlempi.ps.RemoteTable.read_states`.
        """
        packed = dict(self.optim.state_dict())
        if not self._served:
            return packed
        found, does = self._read_states(), self._on_server()
        here = [(p, name) for of in self._members() for p, name in of if id(p) in does]
        if any(found[id(member)].steps for member, _ in here):
            for member, name in here:
                one, on_server = found[id(member)], does[id(member)]
                packed |= of_servers(name, self.optim, on_server, one, like_of(member))
        return packed

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, here or of Paddle's optimizer in one process.

        With ``dense="server"`` all trainers call it. The states are those of the first one, in
        mode geo of each. If it has none, as before the first step, those of the servers stay.

        Raises:
            ArgumentError: with ``dense="server"``, it has a state of another parameter, or not of
                all.
            UnsupportedError: with ``dense="server"``, it has a state for which servers have no
                place.
        """
        if not self._served:
            self.optim.set_state_dict(state_dict)
            return
        does = self._on_server()
        here = {name: p for of in self._members() for p, name in of if id(p) in does}
        of = {name: (shape_of(member), does[id(member)]) for name, member in here.items()}
        by_name = split("DistributedOptimizer.set_state_dict", self.optim, state_dict, of)
        states = {id(here[name]): one for name, one in by_name.items()}
        for vector in self._on_servers if states else ():
            keys = [id(p) for p in vector.parameters()]
            self._check_steps(does[keys[0]], [states[key] for key in keys])
        self._set_states(states)
        rest = {name: one for name, one in state_dict.items() if name == "LR_Scheduler"}
        self.optim.set_state_dict(rest)

    @staticmethod
    def _detached(parameter: Any) -> Any:
        return parameter

    def _noted_gradients(self) -> list[tuple[Any, int]] | None:
        # Paddle makes a new object of a gradient whenever it is asked, so it cannot be known again.
        parameters = self._parameters()
        return None if not parameters or any(p.grad is not None for p in parameters) else []

    @staticmethod
    def _is_sparse(gradient: Any) -> bool:
        return bool(gradient.is_selected_rows())

    @staticmethod
    def _zeros_like(parameter: Any) -> Any:
        return paddle.zeros_like(parameter)

    @staticmethod
    def _flags(values: list[float], parameters: list[Any]) -> Any:
        return paddle.to_tensor(values, "float32")

    def minimize(self, loss: Any, *arguments: Any, **named: Any) -> tuple[None, list[Any]]:
        """Take one step, as Paddle's ``minimize`` does in dynamic mode: after ``loss.backward()``.

        Returns:
            None, and the pairs of parameters and gradients.
        """
        self.step()
        return None, [(p, p.grad) for p in self._parameters() if p.grad is not None]

    def _set_auxiliary_var(self, *_: Any) -> None:
        # An enabled GradScaler of Paddle calls it before a step.
        raise UnsupportedError(
            "DistributedOptimizer: a GradScaler does not see the gradients of rows, which would "
            "stay scaled, and may skip the step of one trainer: train in bfloat16, without one"
        )

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that its layers have noted."""
        discard_of(self._owner)
        if self._all_parameters():  # Paddle's optimizers do not do it without
            self.optim.clear_grad(set_to_zero)
        self._owner.settle()

    clear_gradients = clear_grad


def _read(tensor: Any) -> Any:
    # NumPy has no bfloat16: Paddle would give the bits.
    return tensor.astype("float32").numpy().reshape(-1)


def _as(parameter: Any, values: Any) -> Any:
    return paddle.to_tensor(values.reshape(parameter.shape)).astype(parameter.dtype)


def _write(parameter: Any, values: Any) -> None:
    parameter.set_value(_as(parameter, values))


def _same(parameter: Any, values: Any) -> bool:
    if parameter.dtype != paddle.float32:
        values = _read(_as(parameter, values))
    return np.array_equal(_read(parameter), values, equal_nan=True)


ACCESS = Access(_read, _write, _same)


def _refuse(kind: str, odd: list[str]) -> None:
    if odd:
        raise UnsupportedError(
            f"ps.DistributedOptimizer: servers have no {kind} with {', '.join(odd)}; "
            "take dense='all_reduce'"
        )


def check_parameters(optimizer: Any, parameters: Iterable[Any]) -> None:
    """Refuse what a ParamAttr may ask for. The servers treat all elements of a vector alike.

    Raises:
        UnsupportedError: a parameter has it.
    """
    odd = []
    for parameter in parameters:
        if getattr(parameter, "optimize_attr", {}).get("learning_rate", 1) != 1:
            odd.append("learning rates of parameters")
        if getattr(parameter, "regularizer", None) is not None:
            odd.append("regularizers of parameters")
    _refuse(type(optimizer).__name__, list(dict.fromkeys(odd)))


def _clip_of(has: dict[str, Any], odd: list[str]) -> float | None:
    """Return the bound of an optimizer's clip by value; add to odd what servers do not have."""
    clip = has.get("_grad_clip")
    if isinstance(clip, paddle.nn.ClipGradByValue) and clip.min == -clip.max:
        return float(clip.max)
    if clip is not None:
        odd.append(f"grad_clip={clip}")
    return None


def _decay_of(has: dict[str, Any], odd: list[str]) -> float:
    """Return the factor of an optimizer's L2Decay; add to odd what servers do not have."""
    of = has.get("regularization")
    if of is not None and type(of) is not paddle.regularizer.L2Decay:
        odd.append(f"weight_decay={of}")
    elif of is not None:
        return float(of._coeff)
    return float(has.get("_regularization_coeff") or 0)  # Momentum has it by itself


def for_servers(optimizer: Any) -> ps.Optimizer:
    """Return what servers have for an optimizer of Paddle.

    Raises:
        UnsupportedError: they do not have it.
    """
    kind = type(optimizer).__name__
    has = vars(optimizer)
    odd = [name for name in ("_amsgrad", "_lr_ratio") if has.get(name)]
    common: dict[str, Any] = {"clip_value": _clip_of(has, odd)}
    decay = _decay_of(has, odd)
    if has.get("_apply_decay_param_fun") is not None or isinstance(
        (has["_param_groups"] or [None])[0], dict
    ):
        odd.append("groups of parameters")
    rate = float(optimizer.get_lr())
    _refuse(kind, odd)
    if kind == "SGD":
        return ps.SGD(rate, decay, **common)
    if kind == "Momentum":
        more = {"momentum": has["_momentum"], "nesterov": has["_use_nesterov"]}
        return ps.Momentum(rate, decay, **common, **more)
    if kind == "Adagrad":
        start = has["initial_accumulator_value"]
        more = {"epsilon": has["_epsilon"], "initial_accumulator": start}
        return ps.Adagrad(rate, decay, **common, **more)
    if kind in ("Adam", "AdamW"):
        names = {"beta1": "_beta1", "beta2": "_beta2", "epsilon": "_epsilon"}
        more = {name: float(has[attribute]) for name, attribute in names.items()}
        if kind == "Adam":
            return ps.Adam(rate, decay, **common, **more)
        return ps.AdamW(rate, float(has["_weight_decay"]), **common, **more)
    raise UnsupportedError(
        f"ps.DistributedOptimizer: servers have no {kind}: they have SGD, Momentum, Adagrad, Adam "
        "and AdamW; or take dense='all_reduce'"
    )
