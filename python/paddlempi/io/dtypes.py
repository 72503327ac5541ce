"""The dtypes of safetensors files, and which dtype of this library each is."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import DtypeError

__all__ = ["BY_CODE", "BY_NAME", "FileDtype", "code_of"]


class FileDtype(NamedTuple):
    """A dtype of safetensors files.

    Attributes:
        code: its code in a header.
        bits: of an element.
        name: the dtype as this library names it; "" if there is none.
        order: tensors are laid out by descending order, as the safetensors package does it.
    """

    code: str
    bits: int
    name: str
    order: int


_ASCENDING = (
    ("BOOL", 8, "bool"),
    ("F4", 4, ""),
    ("F6_E2M3", 6, ""),
    ("F6_E3M2", 6, ""),
    ("U8", 8, "uint8"),
    ("I8", 8, "int8"),
    ("F8_E5M2", 8, "float8_e5m2"),
    ("F8_E4M3", 8, "float8_e4m3fn"),
    ("F8_E8M0", 8, "float8_e8m0fnu"),
    ("F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
    ("I16", 16, "int16"),
    ("U16", 16, "uint16"),
    ("F16", 16, "float16"),
    ("BF16", 16, "bfloat16"),
    ("I32", 32, "int32"),
    ("U32", 32, "uint32"),
    ("F32", 32, "float32"),
    ("C64", 64, "complex64"),
    ("F64", 64, "float64"),
    ("I64", 64, "int64"),
    ("U64", 64, "uint64"),
)

BY_CODE = {
    code: FileDtype(code, bits, name, order) for order, (code, bits, name) in enumerate(_ASCENDING)
}
BY_NAME = {dtype.name: dtype for dtype in BY_CODE.values() if dtype.name}


def code_of(what: str, tensor: str, dtype: str) -> FileDtype:
    """Return the dtype of files for a dtype of this library.

    Args:
        what: the function, for the error.
        tensor: the tensor's name, for the error.
        dtype: the name of its dtype.

    Raises:
        DtypeError: files have no such dtype.
    """
    if dtype not in BY_NAME:
        raise DtypeError(
            f"{what}: {tensor!r} is of {dtype}, which a safetensors file cannot have; convert it "
            "to one of " + ", ".join(BY_NAME)
        )
    return BY_NAME[dtype]
