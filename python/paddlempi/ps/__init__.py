"""Tables of embeddings by int64 id: in this process, or on servers for many trainers.

A table in this process needs neither MPI nor ``init_process_group``::

    from paddlempi import ps

    table = ps.Table(64, ps.Adagrad(0.05), ps.Normal(std=0.01), seed=1)
    rows = table.pull(ids)  # NumPy, torch or Paddle, [n, 64]
    table.push(ids, gradients)

A parameter server gives the ranks roles: trainers compute, servers have the rows::

    ps.init("trainer:3,pserver:2")  # or: python -m paddlempi run --roles ... train.py
    if ps.is_trainer():
        layer = ps.Embedding(None, 64, name="users", optimizer=ps.Adagrad(0.05))
        optimizer = ps.DistributedOptimizer(torch.optim.SGD(dense.parameters(), 0.1))
        ...
    ps.shutdown()

``docs/ps.md`` has the roles and the modes, ``docs/ps-reference.md`` the formulas of the
optimizers and the memory of a row.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from .data_shards import Task, Tasks, tasks
from .export import export
from .functions import KVRequest, server_function
from .increments import apply_increment
from .inference_tables import Tables, load
from .initializers import Initializer, Normal, Uniform, Zeros
from .kv import KV
from .layers import prefetch
from .mode_change import set_mode
from .optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowWiseAdagrad
from .plan import Placed, Plan, transpile
from .prefetching import Prefetched
from .remote import RemoteTable, pull, push
from .save_restore import latest, restore, save
from .session import (
    barrier,
    complete,
    flush,
    init,
    is_trainer,
    master,
    pservers,
    role,
    roles,
    serve,
    set_learning_rate,
    shutdown,
    stats,
    trainer_group,
    trainers,
)
from .stepping import discard, note, step
from .table import Table

__all__ = [
    "KV",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Initializer",
    "KVRequest",
    "Momentum",
    "Normal",
    "Optimizer",
    "Placed",
    "Plan",
    "Prefetched",
    "RemoteTable",
    "RowWiseAdagrad",
    "Table",
    "Tables",
    "Task",
    "Tasks",
    "Uniform",
    "Zeros",
    "apply_increment",
    "barrier",
    "complete",
    "discard",
    "export",
    "flush",
    "init",
    "is_trainer",
    "latest",
    "load",
    "master",
    "note",
    "prefetch",
    "pservers",
    "pull",
    "push",
    "restore",
    "role",
    "roles",
    "save",
    "serve",
    "server_function",
    "set_learning_rate",
    "set_mode",
    "shutdown",
    "stats",
    "step",
    "tasks",
    "trainer_group",
    "trainers",
    "transpile",
]

# The layers are in the front of their framework, which is imported when one is first used.
_LAYERS = {
    "Embedding": "torch",
    "EmbeddingBag": "torch",
    "SparseEmbedding": "paddle",
}


def __getattr__(name: str) -> _Any:
    if name in _LAYERS:
        return getattr(_import_module(f"..{_LAYERS[name]}.embedding", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def DistributedOptimizer(optimizer: _Any, **settings: _Any) -> _Any:
    """Wrap an optimizer of torch or Paddle, so that its step is one of all trainers.

    Its ``step`` also pushes the gradients of its layers of this package. See
    ``paddlempi.torch.distributed_optimizer.DistributedOptimizer`` and
    ``paddlempi.paddle.distributed_optimizer.DistributedOptimizer``, one of which this returns.

    Args:
        optimizer: an optimizer of the dense parameters.
        settings: the keyword arguments of that class.

    Raises:
        DtypeError: ``optimizer`` is of neither framework.
    """
    for base in type(optimizer).__mro__:
        framework = base.__module__.removeprefix("paddlempi.").partition(".")[0]
        if framework in ("torch", "paddle"):
            front = _import_module(f"..{framework}.distributed_optimizer", __name__)
            return front.DistributedOptimizer(optimizer, **settings)
    from ..errors import DtypeError

    raise DtypeError(
        f"ps.DistributedOptimizer: a {type(optimizer).__qualname__} is no optimizer of torch or "
        "Paddle; a program without dense parameters calls ps.step()"
    )
