"""paddlempi's exceptions as the front for torch raises them."""

from __future__ import annotations

import builtins
import pickle

import pytest
from paddlempi import errors


def raised() -> dict[int, type[errors.Error]]:
    from paddlempi.torch.errors import BY_CODE

    return BY_CODE


def test_each_is_the_class_of_its_code() -> None:
    assert set(raised()) == set(errors.BY_CODE)
    for code, kind in raised().items():
        assert issubclass(kind, errors.BY_CODE[code])
        assert code == kind.CODE
        assert kind.__name__ == errors.BY_CODE[code].__name__
        assert kind.__doc__


def test_those_of_the_backend_are_torchs_too() -> None:
    import torch.distributed as dist

    for plain in (
        errors.TimeoutError,
        errors.NotReadyError,
        errors.MismatchError,
        errors.RefusedError,
        errors.PeerLeftError,
        errors.GroupBrokenError,
        errors.GroupDestroyedError,
        errors.NotMemberError,
        errors.MPIError,
        errors.TruncateError,
        errors.LauncherError,
        errors.MPINotFoundError,
        errors.ForkError,
    ):
        kind = raised()[plain.CODE]
        assert issubclass(kind, dist.DistBackendError)
        assert issubclass(kind, RuntimeError)
        assert not issubclass(kind, (ValueError, TypeError))
    assert issubclass(raised()[errors.TimeoutError.CODE], builtins.TimeoutError)
    assert issubclass(raised()[errors.TruncateError.CODE], errors.MPIError)


@pytest.mark.parametrize(
    ("plain", "base"),
    [
        (errors.ArgumentError, ValueError),
        (errors.DtypeError, TypeError),
        (errors.NotInitializedError, RuntimeError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.OutOfMemoryError, MemoryError),
    ],
)
def test_the_others_stay_what_they_are(
    plain: type[errors.Error], base: type[BaseException]
) -> None:
    assert raised()[plain.CODE] is plain
    assert issubclass(plain, base)


def test_pickle_and_repr() -> None:
    for kind in raised().values():
        error = kind("what happened")
        error.ranks = (1, 2)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert (str(copy), copy.ranks, copy.code) == ("what happened", (1, 2), kind.CODE)
        assert repr(copy) == f"{kind.__name__}('what happened')"
