"""``DataParallel``: one model on many ranks, every rank with its part of the batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, get_args

import paddle
import paddle.distributed as dist
from paddle.distributed import parallel

from .. import _log
from .. import group as core_group
from ..errors import ArgumentError, NotInitializedError, UnsupportedError
from . import autograd, selected_rows, world
from .buckets import on_host
from .compression import Compression
from .overlap import GROUP_COUNT, Overlap
from .patches import Replacement
from .reducer import Reducer
from .replicas import Buffers, Sync, broadcast_all, check_same, has_value

__all__ = ["DataParallel", "replacements"]

_PaddleDataParallel: Any = parallel.DataParallel
_MIB = 1024 * 1024


class DataParallel(_PaddleDataParallel):  # type: ignore[misc]
    """A model whose gradients are averaged over the ranks while backward runs.

    Every rank calls the model with its part of the batch. After ``backward()`` every rank has the
    gradients of the whole batch (the mean over the ranks), bit for bit the same. ``p.grad`` then
    lies in the bucket that was sent, until ``clear_grad``.

    At the start parameters and buffers become those of the group's first rank. A forward of this
    object decides about the backwards that follow: their gradients are averaged, unless that
    forward ran under :meth:`no_sync`. Several backwards accumulate, as on one process. A parameter
    or a buffer whose attribute ``no_sync`` is true is never sent.

    Compile a model before wrapping it: ``DataParallel(paddle.jit.to_static(model))``.

    Args:
        layers: the model. Its parameters must be the same in number, names, shapes, dtypes and
            ``stop_gradient`` on all ranks.
        strategy: accepted and not used, as in Paddle.
        comm_buffer_size: MiB of gradients in a bucket, which is one all_reduce.
        last_comm_buffer_size: MiB in the last bucket of a backward.
        find_unused_parameters: if true, the backwards of some ranks may leave out a parameter, and
            these ranks contribute nothing. If false, that is an error on every rank. If the
            backwards of all ranks leave a parameter out, its gradient stays what it was in both
            cases; if false, rank 0 warns once.
        group: a group of ``paddle.distributed``, or of paddlempi; None: all ranks.
        buffers: what happens to the model's buffers (BatchNorm's statistics) at the end of
            a synchronized backward. ``"broadcast"``: they become rank 0's. ``"average"``: those of
            floating dtypes become the mean, the others rank 0's. ``"local"``: nothing, as in
            Paddle's DataParallel.
        compression: what happens to gradients before and after they are summed, such as
            ``Cast("bfloat16")``; see :class:`~paddlempi.paddle.compression.Compression`. It does
            not apply to the rows of sparse embeddings.
        overlap_next_forward: if true, neither backward nor the step of an optimizer waits for the
            gradients. Every layer waits for the gradients of its parameters when it runs next; see
            :meth:`synchronize`.

    Raises:
        NotInitializedError: before ``init_parallel_env()``.
        MismatchError: the ranks' models or options differ; on all ranks.
        ArgumentError: nothing to train, a wrong size or ``buffers``; this rank is not in ``group``.
        UnsupportedError: a parameter has a dtype without gradients, or is not in host memory.

    Backward raises ``MismatchError`` on every rank if a parameter has no gradient on some ranks;
    ``ArgumentError`` for a wrong use; and ``RefusedError`` if backward failed on another rank.

    Thread-safety: none, as any model. Source: ``paddle.DataParallel``.
    """

    def __init__(
        self,
        layers: Any,
        strategy: Any = None,
        comm_buffer_size: float = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Any = None,
        *,
        buffers: Sync = "broadcast",
        compression: Compression | None = None,
        overlap_next_forward: bool = False,
    ) -> None:
        # Not Paddle's __init__: its reducer does not take a process group written in Python.
        paddle.nn.Layer.__init__(self, layers.full_name() + "_data_parallel")
        if not paddle.in_dynamic_mode():
            raise ArgumentError("paddlempi.paddle.DataParallel: a static graph is being built")
        if buffers not in get_args(Sync):
            raise ArgumentError(
                f"paddlempi.paddle.DataParallel: buffers={buffers!r}: one of {get_args(Sync)}"
            )
        self._layers = layers
        self.find_unused_parameters = find_unused_parameters
        self.grad_need_sync = True
        self.var_dtype = paddle.Tensor
        self.comm_buffer_size = _bytes("comm_buffer_size", comm_buffer_size)
        self.last_comm_buffer_size = _bytes("last_comm_buffer_size", last_comm_buffer_size)
        self.group = world.default_group() if group is None else group
        self._strategy = strategy
        self._reducer: Reducer | None = None
        self._how = buffers, compression, overlap_next_forward
        core = _core_of(self.group)
        if core.size() > 1:
            self._share(core, *self._how)
        elif not world.is_alone_for_now():
            _log.warn(
                "paddlempi.paddle.DataParallel: there is one rank: nothing is averaged",
                stacklevel=2,
            )

    def _share(
        self,
        parent: core_group.ProcessGroup,
        buffers: Sync,
        compression: Compression | None,
        overlaps: bool,
        equal: bool = True,
    ) -> None:
        autograd.watch()
        group = core_group.new_group(parent._ranks)
        shared = [
            (name, parameter)
            for name, parameter in self._layers.named_parameters()
            if not getattr(parameter, "no_sync", False)
        ]
        trained = [(name, parameter) for name, parameter in shared if not parameter.stop_gradient]
        sparse = _tables(self._layers)
        tables = [index for index, (_, p) in enumerate(trained) if id(p) in sparse]
        options = {
            "trained": [name for name, _ in trained],
            "sparse": [trained[index][0] for index in tables],
            "buffers": buffers,
            "compression": type(compression).__qualname__,
            "comm_buffer_size": self.comm_buffer_size,
            "last_comm_buffer_size": self.last_comm_buffer_size,
            "find_unused_parameters": bool(self.find_unused_parameters),
            "overlap_next_forward": bool(overlaps),
            "host memory": all(on_host(parameter) for _, parameter in shared),
        }
        shared_buffers = [
            (name, buffer)
            for name, buffer in self._layers.named_buffers()
            if has_value(buffer) and not getattr(buffer, "no_sync", False)
        ]
        check_same([*shared, *shared_buffers], options, group)
        if not options["host memory"]:
            raise UnsupportedError(
                "paddlempi.paddle.DataParallel: the parameters are on a GPU, and gradients are "
                "averaged in host memory: average them by paddle.distributed.all_reduce after "
                "backward"
            )
        if not trained:
            raise ArgumentError(
                "paddlempi.paddle.DataParallel: the model has no parameter to train"
            )
        if equal:
            broadcast_all([tensor for _, tensor in (*shared, *shared_buffers)], group)
        groups, overlap = [group], None
        if overlaps:
            overlap = Overlap(self._layers)
            groups += [core_group.new_group(parent._ranks) for _ in range(GROUP_COUNT - 1)]
        self._reducer = Reducer(
            trained,
            [(name, parameter) for name, parameter in shared if parameter.stop_gradient],
            group,
            self.comm_buffer_size,
            self.last_comm_buffer_size,
            bool(self.find_unused_parameters),
            Buffers(self._layers, buffers, groups[-1]),
            tables,
            compression,
            groups,
            overlap,
        )

    def regroup(self, group: Any) -> None:
        """Average over other ranks from now on. Collective over them.

        The old group may be lost, and a backward may have ended in its middle. The parameters stay
        as they are.

        Args:
            group: of Paddle or of paddlempi; None: all ranks.
        """
        if self._reducer is not None:
            self._reducer.detach()
        self.group, self._reducer = group, None
        core = _core_of(group)
        if core.size() > 1:
            self._share(core, *self._how, equal=False)

    @property
    def overlaps(self) -> bool:
        """Whether it was made with ``overlap_next_forward``."""
        return self._how[2]

    @property
    def seconds_waited(self) -> float:
        """Seconds that backwards have waited at their ends, so far: communication not hidden.

        With ``overlap_next_forward`` they include the seconds that layers have waited before they
        ran.
        """
        return 0.0 if self._reducer is None else self._reducer.seconds_waited

    def synchronize(self) -> None:
        """Wait for all gradients, and make the steps that wait for them (``overlap_next_forward``).

        Layers, ``parameters()``, ``state_dict()`` of models and optimizers, ``p.grad`` and the
        next backward do that by themselves. Call it before you read a parameter, or a dictionary
        of parameters, that your program has kept since before the step.

        Raises:
            Error: what went wrong with the gradients on any rank; otherwise backward would raise
                it.
        """
        if self._reducer is not None:
            self._reducer.synchronize()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model. The next backwards average gradients, unless this runs in ``no_sync``."""
        outputs = self._layers(*inputs, **kwargs)
        reducer = self._reducer
        if reducer is not None and paddle.in_dynamic_mode() and paddle.is_grad_enabled():
            if not autograd.watching():
                raise ArgumentError(
                    "paddlempi.paddle.DataParallel: paddlempi.paddle was uninstalled, so the end "
                    "of backward would not be noticed: call paddlempi.paddle.install()"
                )
            reducer.prepare(self.grad_need_sync)
            reached = _reached(weakref.ref(reducer))
            for output in paddle.utils.flatten(outputs):
                # Not leaves, which are inputs or parameters: every step would add a hook to them.
                if paddle.is_tensor(output) and not (output.stop_gradient or output.is_leaf):
                    output.register_hook(reached)
        return outputs


def _reached(reducer: weakref.ref[Reducer]) -> Callable[[Any], None]:
    """Return a hook for an output. It does not keep the model alive, nor change the gradient."""

    def reached(_: Any) -> None:
        target = reducer()
        if target is not None:
            target.reached()

    return reached


def _bytes(name: str, size: float) -> int:
    if not size > 0:
        raise ArgumentError(f"paddlempi.paddle.DataParallel: {name}={size!r} MiB must be above 0")
    return int(size * _MIB)


def _tables(model: Any) -> set[int]:
    """Return the ids of the parameters whose gradients are SelectedRows."""
    return {
        id(layer.weight)
        for layer in model.sublayers(include_self=True)
        if isinstance(layer, paddle.nn.Embedding)
        and layer._sparse
        and layer.weight.dtype in selected_rows.DTYPES
    }


def _core_of(group: Any) -> core_group.ProcessGroup:
    """Return the core's group of a group of Paddle; the world for None."""
    if group is None:
        if core_group.WORLD is None:
            raise NotInitializedError(
                "paddlempi.paddle.DataParallel: call paddle.distributed.init_parallel_env() first"
            )
        return core_group.WORLD
    if not isinstance(group, core_group.ProcessGroup):
        group = getattr(group.process_group, "core", core_group.GroupMember.NON_GROUP_MEMBER)
    if group.rank() < 0:
        raise ArgumentError("paddlempi.paddle.DataParallel: this rank is not in group")
    return group  # type: ignore[no-any-return]


def replacements() -> list[Replacement]:
    """Return the replacements of Paddle's class."""
    return [(module, "DataParallel", DataParallel) for module in (paddle, dist, parallel)]
