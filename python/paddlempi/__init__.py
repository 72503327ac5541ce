"""MPI for the stock wheels of deep-learning frameworks, with ``torch.distributed``'s names.

::

    # mpirun -np 4 python train.py
    import paddlempi as dist

    dist.init_process_group("mpi")
    dist.all_reduce(t)  # t: of Paddle, PyTorch or NumPy, or with the buffer protocol or __dlpack__

The MPI of the launcher is found at run time; ``python -m paddlempi info`` says which it is and why.
All exceptions are in :mod:`paddlempi.errors`. What holds for all collectives, tensors included, is
in :mod:`paddlempi.collectives`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import errors, group
from .collectives import (
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    exscan,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scan,
    scatter,
)
from .communicator import Communicator, Connector, get_communicator
from .context import DistContext, allreduce, get_context
from .errors import Error
from .group import (
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_local_rank,
    get_local_size,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
    new_group,
    new_subgroups,
    split_group,
)
from .memory import empty, empty_like, zeros
from .objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from .p2p import P2POp, ProbeResult, batch_isend_irecv, irecv, isend, probe, recv, send, sendrecv
from .preemption import PREEMPTED, preempted, watch_preemption
from .reduce_op import ReduceOp
from .work import Work

if _TYPE_CHECKING:
    from .checkpoints import Checkpoint, checkpoint, latest_checkpoint

__version__ = "0.1.0"

__all__ = [
    "PREEMPTED",
    "Checkpoint",
    "Communicator",
    "Connector",
    "DistContext",
    "Error",
    "GroupMember",
    "P2POp",
    "ProbeResult",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "allreduce",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "checkpoint",
    "destroy_process_group",
    "empty",
    "empty_like",
    "errors",
    "exscan",
    "gather",
    "gather_object",
    "get_backend",
    "get_communicator",
    "get_context",
    "get_global_rank",
    "get_group_rank",
    "get_local_rank",
    "get_local_size",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "latest_checkpoint",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "preempted",
    "probe",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scan",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "sendrecv",
    "split_group",
    "watch_preemption",
    "zeros",
]


# Modules that are imported when one of their names is first used. Paddle's front imports Paddle.
_LATER = {
    "Checkpoint": ".checkpoints",
    "DataParallel": ".paddle",
    "checkpoint": ".checkpoints",
    "latest_checkpoint": ".checkpoints",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return getattr(_import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
