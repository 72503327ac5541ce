"""Shows the calls of a group to torch: to dispatch modes, transforms, tensors and the profiler.

torch's own groups send every call through an operator such as ``c10d::allreduce_``, and that is
where ``CommDebugMode``, every other ``TorchDispatchMode`` and the profiler see it. The methods of
our group are called from Python and from C++ without an operator, which is faster. So where a mode
or a profiler is active, a method calls the C++ method of the same name, which calls the operator.
So it does under a transform of functorch, and with a tensor whose class has a
``__torch_dispatch__`` of its own, such as AsyncCollectiveTensor: they put other tensors in the
place of the given ones.

The operator then calls the method, by a kernel of :mod:`.operators`.

A trace has the operators' rows, and inside them the spans of :mod:`.profile`. It has no row
``record_param_comms``, as with gloo: torch writes it with what only C++ can give, and a row of that
name without it makes torch warn and crash (tried with 2.8 and 2.15).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.profiler as state
from torch._C._distributed_c10d import ProcessGroup, ReduceOp, Work
from torch.utils import _python_dispatch

from . import operators
from .operators import METHODS, OPTIONS, flat, local

__all__ = ["show"]

transforms = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of functorch (grad, vmap, functionalize) in this thread, or None."""


def is_seen() -> bool:
    """Whether dispatch modes are active in this thread. Methods first read a variable of
    ``_python_dispatch``, which is faster: whether some are active in some thread.
    """
    stack = torch._C._len_torch_dispatch_stack()
    return bool(stack or torch._ops._len_torch_dispatch_stack_pre_dispatch())


class _Call:
    """A call of a method, while torch's operator is called for it."""

    def __init__(
        self,
        operator: str,
        method: Callable[..., Any],
        tensors: int,
        group: Any,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.made: Any = None  # what the method has returned
        self.ran = False
        self._operator = operator
        self._method, self._tensors = method, tensors
        self._group, self._arguments, self._named = group, arguments, named
        self._guard: Any = None

    def __enter__(self) -> _Call:
        operators.serve()
        if is_seen() or transforms() is not None:
            operators.serve_all()  # a graph may keep the operator, and call it by itself
        shown = operators.Shown(self._operator, self._group, self.run, self.reduce_op)
        local.shown = [*local.shown, shown]
        self._guard = torch._C._IncludeDispatchKeyGuard(operators.shown_key)
        self._guard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        local.shown = local.shown[:-1]

    def shown(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments for C++: sparse tensors are shown by their values."""
        count = self._tensors
        arguments = [*map(_dense, self._arguments[:count]), *self._arguments[count:]]
        while arguments and arguments[-1] is None:  # C++ has the same defaults, but takes no None
            arguments.pop()
        return arguments, {name: x for name, x in self._named.items() if x is not None}

    def run(self, given: Sequence[Any]) -> Any:
        """Call the method, with the tensors that a mode has put in the place of its own."""
        self.ran = True
        arguments, count = self._arguments, self._tensors
        if len(arguments) >= count and not any(map(_is_sparse, arguments[:count])):
            arguments = (*given[:count], *arguments[count:])
        self.made = self._method(self._group, *arguments, **self._named)
        return self.made

    def reduce_op(self) -> Any:
        """Return the reduce op among the arguments, which are options or one itself."""
        for given in (*self._arguments[self._tensors :], *self._named.values()):
            found = getattr(given, "reduceOp", given)
            if isinstance(found, (ReduceOp, ReduceOp.RedOpType)):
                return found
        return ReduceOp.SUM


def show(group_type: Any) -> None:
    """Have the methods of a class of groups shown.

    ``allreduce``, ``send`` and ``recv`` have a short way and ask for modes themselves: the methods
    of their longer ways are ``_allreduce``, ``_send`` and ``_recv``.
    """
    for name, (operator, _) in METHODS.items():
        if not hasattr(torch.ops.c10d, operator):
            continue
        base = getattr(ProcessGroup, name, None)
        if operator in _TWO_NAMES:
            base = _caller(getattr(torch.ops.c10d, operator).default) or base
        if base is not None:
            own = f"_{name}" if name in ("allreduce", "send", "recv") else name
            setattr(group_type, own, _shown(getattr(group_type, own), name, base))


# pybind11 calls the C++ method, and not its override in Python, if the override is its caller: a
# function of the same name. It has the parameters of the method, because passing any is slower.
_TEMPLATE = """
def {name}({declared}):
    if not (
        python._is_in_torch_dispatch_mode
        or state._is_profiler_enabled
        or transforms() is not None
        or stand_in({tensor_arguments})
    ):
        return method({passed})
    call = begin("{operator}", method, {tensors}, self, ({arguments},), dict({named}))
    if call is None:
        return method({passed})
    with call:
        arguments, named = call.shown()
        try:
            made = base(self, *arguments, **named)
        except TypeError:  # C++ does not take the arguments, and says less of them than we do
            if call.ran:
                raise
            return method({passed})
    return made if call.made is None else call.made
"""


def _shown(method: Any, name: str, base: Any) -> Any:
    """Return a method that calls the C++ method of a name where somebody looks on."""
    operator, tensors = METHODS[name]
    parameters = list(inspect.signature(method).parameters.values())
    only_named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    first = [p.name for p in parameters if p.name not in only_named]
    declared = [
        p.name if p.default is p.empty else f"{p.name}=defaults[{p.name!r}]" for p in parameters
    ]
    if only_named:
        declared.insert(len(first), "*")
    named = ", ".join(f"{x}={x}" for x in only_named)
    text = _TEMPLATE.format(
        name=name,
        operator=operator,
        declared=", ".join(declared),
        passed=", ".join([*first, *([named] if named else [])]),
        tensors=tensors,
        arguments=", ".join(first[1:]),
        tensor_arguments=", ".join(first[1 : 1 + tensors]),
        named=named,
    )
    scope: dict[str, Any] = {
        "base": base,
        "begin": _begin,
        "defaults": {p.name: p.default for p in parameters},
        "method": method,
        "python": _python_dispatch,
        "stand_in": _stand_in,
        "state": state,
        "transforms": transforms,
    }
    exec(compile(text, f"<{name} shown to torch>", "exec"), scope)
    return functools.update_wrapper(scope[name], method)


def _begin(*call: Any) -> _Call | None:
    """Return a call to show; None if nobody looks on in this thread, or if it is part of one."""
    if local.inside:
        return None
    _, _, count, _, arguments, _ = call
    looks = is_seen() or state._is_profiler_enabled or transforms() is not None
    return _Call(*call) if looks or _stand_in(*arguments[:count]) else None


_FROM_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "reduce_op": lambda options: options.reduceOp.boxed(),
    "root_rank": lambda options: options.rootRank,
    "async_op": lambda options: options.asyncOp,
    "timeout": lambda options: round(options.timeout.total_seconds() * 1000),
}


def _caller(operator: Any) -> Callable[..., Any] | None:
    """Return a function that calls an operator as C++'s method does; None if Python cannot.

    torch 2.15 knows some methods by two names, and C++ would call ours of the other name.
    """
    names = [argument.name for argument in operator._schema.arguments]
    kind = OPTIONS[operator._schema.name.partition("::")[2]]
    if "reduce_op" in names and not hasattr(ReduceOp, "boxed"):
        return None

    def call(group: Any, *arguments: Any) -> Any:
        given = list(arguments)
        options = given.pop() if given and hasattr(given[-1], "asyncOp") else kind()
        values = []
        for name in names:
            if name == "process_group":
                values.append(group.boxed())
            elif name in _FROM_OPTIONS:
                values.append(_FROM_OPTIONS[name](options))
            elif given:
                values.append(given.pop(0) or [] if "split" in name else given.pop(0))
        if given:
            raise TypeError(f"{operator} does not take {given}")
        made = operator(*values)
        return Work.unbox(made[-1] if isinstance(made, tuple) else made)

    return call


_OPERATORS = [operator for operator, _ in METHODS.values()]
_TWO_NAMES = {operator for operator in _OPERATORS if _OPERATORS.count(operator) > 1}


# Tensors


_plain: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
"""Classes of tensors, and whether torch alone says what an operator does with them."""


def _is_plain(kind: type) -> bool:
    plain = _plain.get(kind)
    if plain is None:
        plain = getattr(kind, "__torch_dispatch__", None) == torch.Tensor.__torch_dispatch__
        # These know nothing of the operators. Their errors say less than the core's.
        plain = _plain[kind] = plain or kind.__name__ in ("DTensor", "NestedTensor")
    return plain


def _stand_in(*arguments: Any) -> bool:
    """Whether a tensor has a class with a ``__torch_dispatch__`` of its own."""
    for argument in arguments:  # not by _flat: every call comes here
        kind = argument.__class__
        if kind is list or kind is tuple:
            if _stand_in(*argument):
                return True
        elif not _plain.get(kind) and isinstance(argument, torch.Tensor) and not _is_plain(kind):
            return True
    return False


def _is_sparse(argument: Any) -> bool:
    return any(tensor.is_sparse for tensor in flat([argument]))


def _dense(argument: Any) -> Any:
    if not _is_sparse(argument):
        return argument
    if isinstance(argument, (list, tuple)):
        return [_dense(item) for item in argument]
    with torch._C._DisableTorchDispatch():
        return argument._values()
