"""All private names of Paddle that this package uses, as they are in Paddle 3.3.1.

The import of this module looks them up. It must come before the import of the other modules of the
package, which use these names, and before anything of Paddle is replaced.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import paddle

from ..errors import UnsupportedError

__all__ = ["NAMES", "STATIC", "check", "check_object"]

NAMES: Mapping[str, tuple[str, ...]] = {
    # The default group and the tables of groups (world, functions).
    "paddle.distributed.collective": (
        "_custom_gid",
        "_default_group_name",
        "_global_env",
        "_group_map",
        "_group_map_backend",
        "_group_map_by_name",
        "_new_ring_id",
        "_set_default_backend",
        "new_group",
    ),
    "paddle.distributed.communication": ("destroy_process_group", "scatter_object_list", "wait"),
    "paddle.distributed.communication.scatter": ("scatter_object_list",),
    "paddle.distributed.communication.group": (
        "Group",
        "_GroupManager",
        "_add_new_group",
        "_warn_cur_rank_not_in_group",
        "destroy_process_group",
        "wait",
    ),
    "paddle.distributed.parallel": ("DataParallel", "_global_parallel_env", "init_parallel_env"),
    "paddle.distributed.spawn": ("spawn",),
    "paddle.distributed.parallel_helper": ("__parallel_ctx__clz__", "_set_parallel_ctx"),
    "paddle.distributed.fleet.base.topology": ("_HYBRID_PARALLEL_GROUP",),
    "paddle.distributed.fleet.base.role_maker": ("PaddleCloudRoleMaker",),
    "paddle.distributed.fleet.base.role_maker.PaddleCloudRoleMaker": ("_generate_role",),
    # When gradients come and where they lie (autograd, watched, selected_rows, replicas).
    "paddle.base.core": ("ReduceOp", "VarDesc", "eager"),
    "paddle.base.core.VarDesc.VarType": ("FP32", "FP64", "SELECTED_ROWS"),
    "paddle.base.core.eager": ("Tensor", "run_backward"),
    "paddle.base.framework": ("EagerParamBase",),
    "paddle._C_ops": ("view_shape",),
    "paddle.Tensor": (
        "_bump_inplace_version",
        "_copy_gradient_from",
        "_grad_ivar",
        "_is_initialized",
        "_register_backward_hook",
        "clear_gradient",
        "get_selected_rows",
        "is_selected_rows",
        "rows",
    ),
    "paddle.nn.clip": ("get_tensor_from_selected_rows", "merge_selected_rows"),
    "paddle.jit.dy2static.program_translator": ("StaticFunction",),
    # Optimizers and layers (zero, overlap, batch_norm, parts).
    "paddle.optimizer.Optimizer": (
        "_create_accumulators",
        "_global_learning_rate",
        "_set_auxiliary_var",
    ),
    "paddle.nn.SyncBatchNorm": ("_check_data_format",),
}
"""Modules and classes, and the attributes of each that are used."""

STATIC: Mapping[str, tuple[str, ...]] = {
    "paddle.base.core": ("DenseTensor", "VarDesc"),
    "paddle.base.core.DenseTensor": ("_dtype", "_is_initialized", "_place", "_ptr", "set", "shape"),
    "paddle.base.core.VarDesc.VarType": ("DENSE_TENSOR", "FP32", "INT32", "INT64"),
    "paddle.base.executor": ("Executor",),
    "paddle.base.framework": ("Program", "Variable", "get_flags"),
    "paddle.base.framework.Block": ("_insert_op", "_remove_op", "_remove_var", "_sync_with_cpp"),
    "paddle.base.framework.Operator": ("_set_attr",),
    "paddle.base.framework.Program": ("clone",),
    "paddle.base.unique_name": ("generate",),
    "paddle.static.io": ("normalize_program", "save"),
    "paddle.static.nn.common": ("PyFuncRegistry",),
}
"""The same of static programs of the legacy IR: looked up when one is transpiled."""


def check(names: Mapping[str, Iterable[str]] = NAMES) -> None:
    """Look up all names.

    Raises:
        UnsupportedError: Paddle lacks some of them; the text names these.
    """
    _raise_for([f"{path}.{name}" for path in names for name in names[path] if _lacks(path, name)])


def check_object(what: Any, names: Iterable[str]) -> None:
    """Look up attributes of an object, such as an optimizer.

    Raises:
        UnsupportedError: the object lacks some of them; the text names these.
    """
    cls = type(what)
    path = f"{cls.__module__}.{cls.__qualname__}"
    _raise_for([f"{path}.{name}" for name in names if not hasattr(what, name)])


def _raise_for(missing: list[str]) -> None:
    if missing:
        raise UnsupportedError(
            f"paddlempi.paddle: Paddle {paddle.__version__} has no {', '.join(missing)}: "
            "this version of paddlempi knows Paddle 3.0 to 3.3"
        )


def _lacks(path: str, name: str) -> bool:
    try:
        return not hasattr(_find(path), name)
    except (ImportError, AttributeError):
        return True


def _find(path: str) -> Any:
    """Return a module, or a class or another object inside one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[length:], module)
    raise ImportError(path)


check()
