"""All that this package uses of JAX's private modules, and the releases of JAX that have it so.

Every release is tried before it is named here, because JAX changes these modules without notice.

**Order.** :data:`ORDER` is an ordered effect of JAX. JAX passes a token from each call that has it
to the next one, also through loops, branches and functions, so that XLA keeps them in order and
drops none. What JAX does with the effect of a whole program is left out: the program would take a
token and return it, and JAX would call it by its slow way, which takes 100 us more. That token
orders programs. They are in order without it: JAX's CPU client runs the programs of a thread one
after another (docs/adr/0050-primitives-of-jax.md).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import compiler, core, dispatch, distributed, effects, xla_bridge
from jax._src.interpreters import ad, batching, mlir
from jax._src.lib.mlir import ir

from ..errors import UnsupportedError

__all__ = [
    "ORDER",
    "RELEASES",
    "Primitive",
    "Tracer",
    "UndefinedPrimal",
    "Zero",
    "check_releases",
    "choose_collectives",
    "cpu_devices",
    "define",
    "devices_exist",
    "emit",
    "is_distributed",
    "is_zero",
    "linear_jvp",
    "local_cpu_devices",
    "result",
    "start_distributed",
    "varying_axes",
    "watch_meshes",
    "zero_of",
]

RELEASES = ("0.10.1", "0.10.2")
"""The releases of JAX that this package works with."""


def check_releases() -> None:
    """Raise UnsupportedError if this is another release of JAX."""
    for name, release in (("jax", jax.__version__), ("jaxlib", jax.lib.__version__)):
        if release not in RELEASES:
            raise UnsupportedError(
                f"paddlempi.jax works with {name} {' and '.join(RELEASES)}, and this is {name} "
                f"{release}: install one of them, or a newer paddlempi"
            )


check_releases()

Primitive = core.Primitive
Tracer = core.Tracer
UndefinedPrimal = ad.UndefinedPrimal
Zero = ad.Zero


class Order(effects.Effect):  # type: ignore[misc]
    """The effect of calls that stay in order."""

    def __repr__(self) -> str:
        return "paddlempi.jax.ORDER"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order)

    def __hash__(self) -> int:  # part of keys of JAX's caches on disk
        return 50


ORDER = Order()
"""The only one."""

for _allowing in (
    effects.lowerable_effects,
    effects.ordered_effects,
    # Each process has one device of a mesh, so that the calls of a device are those of a process.
    effects.shardable_ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowing.add_type(Order)


# Programs with the effect: see the text at the top

_program_p = core.Primitive("paddlempi_program")
_program_p.multiple_results = True


def _lower_program(ctx: Any, *args: Any, program: Any) -> Any:
    tokens = mlir.TokenSet({**dict(ctx.tokens_in.items()), ORDER: mlir.create_token()})
    jaxpr = program.jaxpr
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context,
        jaxpr,
        ctx.name_stack,
        tokens,
        mlir.ir_consts(program.consts, [var.aval for var in jaxpr.constvars]),
        *args,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(tokens.subset([effect for effect, _ in ctx.tokens_in.items()]))
    return results


mlir.register_lowering(_program_p, _lower_program, cacheable=False)


def _hide_order(program: Any) -> Any:
    """Return a program whose only equation is ``program``, without the effect."""
    jaxpr = program.jaxpr
    inputs = [core.Var(var.aval) for var in jaxpr.invars]
    outputs = [core.Var(var.aval) for var in jaxpr.outvars]
    others = jaxpr.effects - {ORDER}
    equation = core.new_jaxpr_eqn(inputs, outputs, _program_p, {"program": program}, others)
    outer = core.Jaxpr((), inputs, outputs, [equation], others, jaxpr.debug_info)
    return core.ClosedJaxpr(outer, ())


_lower_to_module = mlir.lower_jaxpr_to_module


def _lower_jaxpr_to_module(
    module_name: str, jaxpr: Any, *, ordered_effects: list[Any], **more: Any
) -> Any:
    if ORDER in ordered_effects:
        ordered_effects.remove(ORDER)  # of the caller's list, by which it chooses the way of calls
        jaxpr = _hide_order(jaxpr)
    return _lower_to_module(module_name, jaxpr, ordered_effects=ordered_effects, **more)


mlir.lower_jaxpr_to_module = _lower_jaxpr_to_module


# Primitives


def define(
    primitive: Any, *, abstract: Any, lower: Any, batch: Any, jvp: Any, transpose: Any
) -> None:
    """Give a primitive its rules: its types and effects, its custom call, vmap, derivatives."""
    primitive.def_impl(partial(dispatch.apply_primitive, primitive))
    primitive.def_effectful_abstract_eval(abstract)
    mlir.register_lowering(primitive, lower, platform="cpu", cacheable=False)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose


def emit(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attribute: np.ndarray[Any, Any],
    *,
    ordered: bool,
    aliased: bool,
) -> Any:
    """Write a custom call of XLA, and return its results.

    Args:
        ctx: the context of the lowering rule.
        target: the name of the handler.
        operands: those operands of the primitive that the handler gets, from the first on.
        attribute: the attribute ``call``.
        ordered: whether the call has the effect :data:`ORDER`.
        aliased: whether the result may lie where the operand lies, which saves a loop the copy of
            its result. An argument of the whole function stays as it is, so that XLA would have to
            copy it first.

    Raises:
        UnsupportedError: several devices of this process would run the call. Each of them would
            make it, in no order, and a rank makes it once.
    """
    devices = _devices_here(ctx.module_context.axis_context)
    if devices > 1:
        raise UnsupportedError(
            f"paddlempi.jax: {devices} devices of this process would each make the call "
            f"{ctx.primitive}, and a rank makes it once: start a process for every device, or call "
            "it outside shard_map and pmap with arrays that lie on one device"
        )
    avals_in = ctx.avals_in[: len(operands)]
    avals_out = ctx.avals_out
    if ordered:
        operands = [*operands, ctx.tokens_in.get(ORDER)]
        avals_in, avals_out = [*avals_in, core.abstract_token], [*avals_out, core.abstract_token]
    aliases = {0: 0} if aliased and not _is_argument(operands[0]) else None
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True, operand_output_aliases=aliases)
    within = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    results = list(rule(within, *operands, call=attribute))
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDER: results.pop()})))
    return results


def _devices_here(context: Any) -> int:
    """Return on how many devices of this process a program is going to run."""
    mesh = getattr(context, "mesh", None)
    found = getattr(mesh, "devices", None) if mesh is not None else context.device_assignment
    if found is not None:
        here = jax.process_index()
        return [device.process_index for device in np.ravel(found)].count(here)
    total = mesh.size if mesh is not None else context.num_devices
    return min(int(total), int(jax.local_device_count()))


def _is_argument(operand: Any) -> bool:
    """Whether an operand is an argument of the whole function, and not of a loop in it."""
    if not isinstance(operand, ir.BlockArgument):
        return False
    of = operand.owner.owner.operation
    return bool(of.name == "func.func" and of.attributes["sym_name"].value == "main")


def result(shape: Sequence[int], dtype: Any, varying: frozenset[Any]) -> Any:
    """Return the type of a result.

    Args:
        shape, dtype: its shape and dtype.
        varying: the axes of shard_map's mesh along which it may differ.
    """
    return core.ShapedArray(
        shape,
        dtype,
        sharding=core.get_cur_mesh_sharding(core.P(*[None] * len(shape))),
        manual_axis_type=core.ManualAxisType(varying=varying),
    )


def varying_axes(*avals: Any) -> frozenset[Any]:
    """Return the axes of shard_map's mesh along which one of some values may differ."""
    return frozenset().union(*(aval.mat.varying for aval in avals))


def linear_jvp(
    primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """The forward derivative of a linear primitive."""
    out: tuple[Any, Any] = ad.linear_jvp(primitive, primals, tangents, **params)
    return out


def is_zero(tangents: Sequence[Any]) -> bool:
    """Whether all tangents are zero for certain."""
    return all(type(tangent) is ad.Zero for tangent in tangents)


def zero_of(value: Any) -> Any:
    """Return the tangent of a value that does not depend on anything."""
    return ad.p2tz(value)


def devices_exist() -> bool:
    """Whether JAX has made its clients, and so its devices. Then it is too late to choose."""
    return bool(xla_bridge.backends_are_initialized())


def is_distributed() -> bool:
    """Whether ``jax.distributed.initialize`` was called."""
    return distributed.global_state.client is not None


_DEVICES_FLAG = "--xla_force_host_platform_device_count"


def cpu_devices() -> int:
    """Return how many CPU devices this process is going to have, as far as JAX was told."""
    told = re.findall(_DEVICES_FLAG + r"=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(1, int(xla_bridge.num_cpu_devices.value), *map(int, told[-1:]))


def local_cpu_devices() -> int:
    """Return how many CPU devices this process has. JAX has made them."""
    return len(jax.local_devices(backend="cpu"))


def choose_collectives(name: str) -> None:
    """Choose what carries XLA's collectives on CPUs: ``mpi`` or ``gloo``."""
    jax.config.update("jax_cpu_collectives_implementation", name)


def start_distributed(
    address: str, size: int, rank: int, local: int | list[int], options: dict[str, Any]
) -> None:
    """Call ``jax.distributed.initialize`` with all that it would otherwise look for."""
    jax.distributed.initialize(address, size, rank, local, **options)


_COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|reduce-scatter)"
    r"(-start)?\("
)


def watch_meshes(refuse: Callable[[list[int]], None]) -> None:
    """Have ``refuse(processes)`` called for programs whose collectives MPI cannot carry.

    It is called when JAX has compiled a program for the CPUs of more than one process, and XLA has
    put collectives into it: if they are not all processes, or one has several devices. It raises.
    """
    inner = compiler.compile_or_get_cached

    @functools.wraps(inner)
    def compile_or_get_cached(
        backend: Any, computation: Any, devices: Any, *args: Any, **options: Any
    ) -> Any:
        executable = inner(backend, computation, devices, *args, **options)
        if backend.platform == "cpu":
            processes = sorted({device.process_index for device in devices.flat})
            fits = len(processes) == jax.process_count() == devices.size
            if (
                len(processes) > 1
                and not fits
                and any(
                    _COLLECTIVE.search(module.to_string()) for module in executable.hlo_modules()
                )
            ):
                refuse(processes)
        return executable

    compiler.compile_or_get_cached = compile_or_get_cached
