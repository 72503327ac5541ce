"""Opens the store that an ``init_method`` names."""

from __future__ import annotations

import importlib
import os
import time
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from ...errors import ArgumentError
from .file_store import FileStore
from .stores import Store, TorchStore
from .tcp_store import TCPStore

__all__ = ["open_store"]


def open_store(method: str, rank: int, deadline: float) -> Store:
    """Return the store in which the ranks of a job meet.

    Args:
        method: ``file://PATH``, or ``tcp://HOST:PORT``, where torchrun's agent or rank 0 serves it.
        rank: this process's; 0 serves a store of TCP.
        deadline: until when it waits for the server, as :func:`time.monotonic`.

    Raises:
        ArgumentError: there is no such file or address.
        TimeoutError: rank 0 did not serve it by the deadline.
    """
    parts = urlsplit(method)
    if parts.scheme == "file":
        path = unquote(parts.netloc + parts.path)
        if not path.startswith("/"):
            raise ArgumentError(
                f"init_process_group: init_method={method!r}: give the file's whole path, with "
                "three slashes, as in file:///tmp/meeting"
            )
        return FileStore(path)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ArgumentError(
            f"init_process_group: init_method={method!r}: it must name a host and a port, as in "
            "tcp://127.0.0.1:29500"
        )
    if _agent_serves(host, port):
        return TorchStore(_of_agent(host, port, deadline))
    size = os.environ.get("WORLD_SIZE")
    one_host = size is not None and os.environ.get("LOCAL_WORLD_SIZE") == size
    return TCPStore(host, port, rank == 0, deadline, one_host)


def _agent_serves(host: str, port: int) -> bool:
    """Whether torchrun's agent serves a TCPStore of torch there. It says so by a variable."""
    return (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        # urlsplit gives names in small letters, and names of hosts are the same in both.
        and os.environ.get("MASTER_ADDR", "").strip("[]").lower() == host.lower()
        and os.environ.get("MASTER_PORT") == str(port)
    )


def _of_agent(host: str, port: int, deadline: float) -> Any:
    # Only torch speaks the protocol of its store. Where its agent is, it is installed.
    distributed = importlib.import_module("torch.distributed")
    left = timedelta(seconds=max(1.0, min(deadline - time.monotonic(), 86400.0)))
    return distributed.TCPStore(host, port, None, False, left, wait_for_workers=False)
