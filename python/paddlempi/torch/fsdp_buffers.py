"""Has FSDP2 allocate its communication buffers in memory that other ranks can map.

FSDP2 can ask a process group for the buffers of its all_gathers and reduce_scatters
(``supports_tensor_alloc``, ``allocate_tensor``). The method
``set_allocate_memory_from_process_group_for_comm`` switches that on. This module switches it on in
the constructor of every group of parameters whose process groups are ours and whose device is the
CPU. What the user sets afterwards, for instance ``set_custom_all_gather``, replaces it.

torch's module is private and takes long to import. So it is changed when the program has imported
it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["state", "watch"]

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

state = "not imported"
"""What became of FSDP2 in this process, for ``python -m paddlempi info``."""


def watch(group_type: type) -> None:
    """Change FSDP2's groups of parameters, now or when the program imports them.

    Args:
        group_type: the type of our process groups.
    """
    module = sys.modules.get(_MODULE)
    if module is not None:
        _change(module, group_type)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(group_type))


class _Finder(MetaPathFinder):
    """Changes the module when it is imported, and then removes itself."""

    def __init__(self, group_type: type) -> None:
        self._group_type = group_type

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._group_type)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Any, group_type: type) -> None:
        self._loader, self._group_type = loader, group_type

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _change(module, self._group_type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _change(module: ModuleType, group_type: type) -> None:
    global state
    params: Any = getattr(module, "FSDPParamGroup", None)
    if params is None or hasattr(params.__init__, "_paddlempi"):
        return
    setter = hasattr(params, "set_allocate_memory_from_process_group")

    @functools.wraps(params.__init__)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if _ours(self, group_type):
            if setter:
                self.set_allocate_memory_from_process_group(True)
            elif hasattr(self, "allocate_memory_from_process_group"):  # torch 2.8
                self.allocate_memory_from_process_group = True

    original = params.__init__
    init._paddlempi = True  # type: ignore[attr-defined]
    params.__init__ = init
    state = "allocates in the heap" if setter else "allocates in the heap, if this torch can"


def _ours(params: Any, group_type: type) -> bool:
    try:
        groups = (params._all_gather_process_group, params._reduce_scatter_process_group)
    except (AssertionError, AttributeError):  # it replicates, and has no such groups
        return False
    return params.device.type == "cpu" and all(isinstance(group, group_type) for group in groups)
