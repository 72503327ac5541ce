"""What all ranks give to ``ps.init``, and whether it is the same."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._ops import Op
from ..arguments import refuse
from ..errors import ArgumentError, DtypeError, Error, MismatchError
from ..group import ProcessGroup, get_local_rank, get_local_size
from ..group_arguments import to_seconds
from .config import from_zero
from .role_map import ROLES, RolesArgument, checked, of_node, resolved

__all__ = ["Mode", "agree", "files"]

_ROLES = "PADDLEMPI_ROLES"
_TLS = {"cert": "Cert", "key": "Key", "ca": "CA"}
_MODES = ("sync", "async", "ssp", "half_async", "geo", "dc_asgd")
_NUMBERS = {
    "ssp": {"staleness": 0},
    "half_async": {"send_queue": 1, "merge": 1},
    "geo": {"geo_step": 1},
    "dc_asgd": {"backup_rows": 1},
}
"""The numbers of a mode, each with the least that it may be."""
_MERGES = ("sum", "mean")
_OUT_OF_LIMITS = {
    "compensation": "is no finite number above 0: without compensation take mode='async'",
    "mean_square": "is not between 0 and 1: with a compensation that is constant it is None",
}
_OF_CORE = ("staleness", "geo_step", "backup_rows")
_MOST = 1 << 30
_WORDS = 5  # 64-bit words of what a rank tells in init: a digest, and its role


def files(tls: Mapping[str, str | os.PathLike[str]] | None) -> dict[str, Any]:
    """Return what the core takes of ``tls``.

    Raises:
        ArgumentError: it has another key, or none.
        DtypeError: it is no map of texts to paths.
    """
    if tls is None:
        return {}
    if not isinstance(tls, Mapping) or not all(
        isinstance(v, (str, os.PathLike)) for v in tls.values()
    ):
        raise DtypeError(f"ps.init: tls={tls!r} is no map of names to paths")
    if not tls or not set(tls) <= set(_TLS):
        raise ArgumentError(f"ps.init: tls has {sorted(tls)}; it takes {', '.join(_TLS)}")
    return {"tls": {_TLS[name]: os.fspath(path) for name, path in tls.items()}}


class Mode(NamedTuple):
    """When servers apply what trainers push: the arguments of ``ps.init`` and ``ps.set_mode``."""

    name: str
    staleness: int
    send_queue: int
    merge: int
    merge_by: str
    geo_step: int
    compensation: float
    mean_square: float | None
    backup_rows: int

    def for_core(self) -> dict[str, Any]:
        """Return what the core needs of it."""
        names = [name for name in _NUMBERS.get(self.name, {}) if name in _OF_CORE]
        numbers: dict[str, Any] = {name: int(getattr(self, name)) for name in names}
        if self.name == "dc_asgd":
            numbers["compensation"] = float(self.compensation)
            numbers["mean_square"] = float(self.mean_square or 0)
        return {"mode": self.name, **numbers}

    def checked(self, what: str) -> str:
        """Return what counts of it, as a text.

        Raises:
            ArgumentError: there is no such mode, or a number is out of its limits.
            DtypeError: a number is of a wrong type.
        """
        if self.name not in _MODES:
            raise ArgumentError(
                f"{what}: mode={self.name!r} is none of {', '.join(map(repr, _MODES))}"
            )
        text = f"mode={self.name!r}"
        if self.name == "dc_asgd":
            text += f", compensation={self._between(what, 'compensation', 1e30):g}"
            if self.mean_square is not None:
                text += f", mean_square={self._between(what, 'mean_square', 1):g}"
        for name, least in _NUMBERS.get(self.name, {}).items():
            value = getattr(self, name)
            if not least <= from_zero(what, name, value) <= _MOST:
                raise ArgumentError(f"{what}: {name}={value}; it is from {least} to {_MOST}")
            text += f", {name}={value}"
        if self.name == "half_async":
            if self.merge_by not in _MERGES:
                raise ArgumentError(
                    f"{what}: merge_by={self.merge_by!r} is none of {', '.join(map(repr, _MERGES))}"
                )
            text += f", merge_by={self.merge_by!r}"
        return text

    def _between(self, what: str, name: str, most: float) -> float:
        """Return a number that has to be between 0 and ``most``."""
        value = getattr(self, name)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise DtypeError(f"{what}: {name}={value!r} is no number") from None
        if not 0 < number < most:
            raise ArgumentError(f"{what}: {name}={value!r} {_OUT_OF_LIMITS[name]}")
        return number


def agree(
    given: RolesArgument, mode: Mode, timeout: Any, tls: Any, world: ProcessGroup
) -> tuple[str, ...]:
    """Return the roles of all ranks, if all ranks have given the same arguments."""
    if given is None:
        given = os.environ.get(_ROLES) or None
    size = len(world._ranks)
    try:
        how = mode.checked("ps.init")
        seconds = to_seconds(timeout, "ps.init")
        encrypted = ", with tls" if files(tls) else ""
        all_roles = resolved(given, size)
        if all_roles is None:
            mine = of_node(str(given), get_local_rank(), get_local_size())
        else:
            mine = all_roles[world._rank]
    except Error as error:
        refuse(Op.ALL_GATHER, None, error)
    arguments = f"roles={given if all_roles is None else list(all_roles)}, {how}, "
    arguments += f"timeout={seconds:g} s{encrypted}"
    digest = hashlib.blake2b(arguments.encode(), digest_size=8 * (_WORDS - 1)).digest()
    told = array("q", digest)
    told.append(ROLES.index(mine))
    everyone = array("q", bytes(8 * _WORDS * size))
    _native.submit(Op.ALL_GATHER, world._id, told, everyone)
    lines = [tuple(everyone[i * _WORDS : (i + 1) * _WORDS]) for i in range(size)]
    (usual, _), *others = Counter(line[:-1] for line in lines).most_common()
    if others:
        ranks = tuple(rank for rank, line in enumerate(lines) if line[:-1] != usual)
        differ = MismatchError(
            f"ps.init: rank(s) {', '.join(map(str, ranks))} gave other arguments than the others; "
            f"rank {world._rank} gave {arguments}: give the same on every rank"
        )
        differ.ranks = ranks[:32]
        raise differ
    if all_roles is None:
        return checked([ROLES[line[-1]] for line in lines], given)
    return all_roles
