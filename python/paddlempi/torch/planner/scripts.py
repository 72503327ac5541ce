"""Runs a training script up to where it says what it trains, for ``python -m paddlempi plan``."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as calls

from ...errors import ArgumentError
from .fake_world import fake_world

__all__ = ["Trained", "of_script", "reading", "said", "said_by_apply"]

_EXPECTED = (
    "call paddlempi.torch.apply and shard_batch, or the forward of a DistributedDataParallel"
)


@dataclass(frozen=True)
class Trained:
    """What a script trains: the arguments of :func:`paddlempi.torch.apply`."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    loss: Callable[..., Any] | None
    example: Any


class _SaidError(BaseException):
    """Ends the script. No Exception, which a script may catch."""

    def __init__(self, trained: Trained) -> None:
        super().__init__("the script has said what it trains")
        self.trained = trained


reading = False
"""Whether a script runs for that now."""


def said(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[..., Any] | None,
    example: Any,
) -> None:
    """End the script that is read: it trains this."""
    raise _SaidError(Trained(model, optimizer, loss, example))


def said_by_apply(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Any] | None,
    example: Any,
) -> Any:
    """End the script that is read, or where it gave no example, when it cuts its first batch."""
    if example is not None:
        said(model, optimizer, loss, example)
    return model, None, lambda batch: said(model, optimizer, loss, batch)


def of_script(script: str, arguments: Sequence[str], ranks: int, world: int) -> Trained:
    """Run a script as rank 0 of a world that moves nothing, until it says what it trains.

    Args:
        script: the path of a Python file, which runs as ``__main__``.
        arguments: its own.
        ranks: of a node.
        world: of all nodes.

    Raises:
        ArgumentError: the script failed, or ended without that.
    """
    variables = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, variables))
        stack.enter_context(mock.patch.object(sys, "argv", [script, *arguments]))
        stack.enter_context(mock.patch.object(sys, "path", [os.path.dirname(script), *sys.path]))
        stack.enter_context(fake_world(world))
        stack.enter_context(_replaced(world))
        try:
            runpy.run_path(script, run_name="__main__")
        except _SaidError as told:
            return told.trained
        except OSError as error:
            if error.filename != script:
                raise _failed(script, error) from error
            raise ArgumentError(f"plan: {script}: {error.strerror}") from None
        except SystemExit as error:
            if error.code not in (None, 0):
                raise ArgumentError(f"plan: {script} ended with {error.code!r}") from error
        except Exception as error:
            raise _failed(script, error) from error
    raise ArgumentError(f"plan: {script} did not say what it trains: it must {_EXPECTED}")


def _failed(script: str, error: Exception) -> ArgumentError:
    return ArgumentError(f"plan: {script} failed: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _replaced(world: int) -> Iterator[None]:
    """Make the script's init nothing, as the world is there, and DDP's forward the end."""
    global reading

    def forward(ddp: Any, *arguments: Any, **named: Any) -> Any:
        whole = _whole(named or arguments, world)
        said(ddp.module, None, _mean, whole if named else whole[0])

    def nothing(*arguments: Any, **named: Any) -> None:
        """The world is there."""

    kind = torch.nn.parallel.DistributedDataParallel
    with (
        mock.patch.object(calls, "init_process_group", nothing),
        mock.patch.object(kind, "forward", forward),
    ):
        reading = True
        try:
            yield
        finally:
            reading = False


def _whole(batch: Any, world: int) -> Any:
    """Make the batch of all ranks of that of one."""
    if isinstance(batch, torch.Tensor):
        return batch.repeat(world, *[1] * (batch.dim() - 1)) if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {name: _whole(value, world) for name, value in batch.items()}
    return [_whole(value, world) for value in batch]


def _mean(output: Any, batch: Any = None) -> torch.Tensor:
    """Stand in for a loss that is not known: the mean of what the model returns."""
    if isinstance(output, torch.Tensor):
        return output.float().mean()
    if getattr(output, "loss", None) is not None:
        return output.loss
    values = output.values() if isinstance(output, Mapping) else output
    found = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    return torch.stack([value.float().mean() for value in found]).sum()
