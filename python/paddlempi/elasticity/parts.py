"""What of a training moves with it: the parts that :meth:`Job.attach` takes.

A part is a thing that all ranks have alike, such as the parameters. A step may end in its middle on
any rank. Then some rank has a state that counts: of the beginning of the step, or of its end if
some rank came that far. That one shares it with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from ..collectives import broadcast
from ..errors import DtypeError

__all__ = ["ArraysPart", "Part", "part_of"]


@runtime_checkable
class Part(Protocol):
    """What a job asks of a part. The methods of all ranks' parts are called in the same order.

    A part that has ``fixed_size = True`` can go on only with as many ranks as before. Two more
    methods are asked only of parts that have them:

    * ``made()``, in the middle of a step: whether all that the step changes has been changed. If
      all parts that have it say so, the step counts, whatever its block had still to do.
    * ``settled()``, after all parts have shared: the number of the step whose beginning the state
      is of, if it may be an earlier one; or None.
    """

    def before(self) -> None:
        """A step begins: keep what :meth:`back` gives back."""

    def whole(self) -> bool:
        """Whether :meth:`back` can still give the state back that was there before the step.

        It is asked in the middle of a step only. A :meth:`share` may have been tried since, whose
        root has died.
        """

    def back(self) -> None:
        """The step has ended in its middle, and does not count: go back to before it."""

    def reformed(self, job: Any) -> None:
        """There is a new world. All ranks are called, the newcomers too, before :meth:`share`.

        Args:
            job: the :class:`~.job.Job`.
        """

    def share(self, root: int) -> None:
        """Take the state of rank ``root``. All ranks call it."""


class ArraysPart:
    """Arrays with the buffer protocol, such as NumPy's: their values are the state.

    They are copied at the beginning of every step, because a step may end in the middle of a
    change.
    """

    def __init__(self, arrays: Any) -> None:
        self._arrays = list(_arrays(arrays))
        self._bytes = [view.cast("B") for view in self._arrays]
        self._kept = [bytearray(view.nbytes) for view in self._arrays]

    def before(self) -> None:
        for view, kept in zip(self._bytes, self._kept, strict=True):
            kept[:] = view

    def whole(self) -> bool:
        return True

    def back(self) -> None:
        for view, kept in zip(self._bytes, self._kept, strict=True):
            view[:] = kept

    def reformed(self, job: Any) -> None:
        pass

    def share(self, root: int) -> None:
        for view in self._arrays:
            broadcast(view, root)


def _arrays(arrays: Any) -> Iterator[memoryview]:
    """Return the writable memory of arrays, in a dictionary by the order of its keys."""
    if isinstance(arrays, dict):
        for key in sorted(arrays):
            yield from _arrays(arrays[key])
    elif isinstance(arrays, (list, tuple)):
        for array in arrays:
            yield from _arrays(array)
    else:
        view = memoryview(arrays)
        if view.readonly or not view.c_contiguous:
            how = "cannot be written to" if view.readonly else "is not contiguous"
            raise DtypeError(f"attach: an array {how}: give one that is, or a part of your own")
        if view.nbytes:
            yield view


def part_of(thing: Any) -> Part:
    """Return a part for what was attached.

    Raises DtypeError if there is none.
    """
    if isinstance(thing, Part):
        return thing
    try:
        return ArraysPart(thing)
    except TypeError as error:  # no buffer
        raise DtypeError(
            f"attach: a {type(thing).__name__} is neither an array, nor a list or dictionary of "
            f"arrays, nor a part (paddlempi.elasticity.parts.Part): {error}"
        ) from None
