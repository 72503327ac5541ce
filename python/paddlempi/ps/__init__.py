"""Tables of embeddings: rows by int64 id, with the state of an optimizer, in the core's memory.

::

    from paddlempi import ps

    table = ps.Table(64, ps.Adagrad(0.05), ps.Normal(std=0.01), seed=1)
    rows = table.pull(ids)  # NumPy, torch or Paddle, [n, 64]
    table.push(ids, gradients)

A table belongs to the process that made it; servers that hold parts of a table for other ranks do
not exist yet. ``docs/ps.md`` has the formulas of the optimizers and the memory of a row.
"""

from .export import export, load
from .initializers import Initializer, Normal, Uniform, Zeros
from .optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RowWiseAdagrad
from .table import Table

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Initializer",
    "Momentum",
    "Normal",
    "Optimizer",
    "RowWiseAdagrad",
    "Table",
    "Uniform",
    "Zeros",
    "export",
    "load",
]
