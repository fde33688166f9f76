"""Element types, operations and codecs by name, and views of arrays.

An array is any object with the buffer protocol or DLPack. This module imports no array library before it
needs it: the type of an object tells which library it belongs to.
"""

from __future__ import annotations

from typing import Any, Sequence

from tbccl import _native
from tbccl._errors import InvalidArgumentError

#: Numbers of the element types, by name: "float32", "bfloat16".
DTYPES: dict[str, int] = dict(_native.DTYPES)

#: Names of the element types, by number.
DTYPE_NAMES: dict[int, str] = {number: name for name, number in DTYPES.items()}

_DTYPE_ALIASES: dict[str, str] = {
    **_native.SHORT_NAMES,
    "half": "float16",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "bool_": "bool",
    "int": "int64",
}

#: Numbers of the reduction operations, by name.
OPS: dict[str, int] = {**_native.OPS, "mean": _native.AVG}

#: Numbers of the codecs, by name.
CODECS: dict[str, int] = dict(_native.CODECS)


def dtype_number(dtype: Any) -> int:
    """Returns the number of an element type.

    Args:
        dtype: Name ("float32", "bf16"), Python type, or a dtype of numpy, torch or MLX.

    Raises:
        InvalidArgumentError: tbccl lacks the element type.
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        # A numpy.dtype has a name; str() gives "torch.float32" and "mlx.core.float32".
        name = getattr(dtype, "name", None) or str(dtype)
    name = name.rpartition(".")[2]
    name = _DTYPE_ALIASES.get(name, name)
    try:
        return DTYPES[name]
    except KeyError:
        raise InvalidArgumentError(
            f"{dtype!r} is no element type of tbccl: it has {', '.join(DTYPES)}", code=4
        ) from None


def _lookup(table: dict[str, int], kind: str, name: Any) -> int:
    """Returns the number of a name; a number of the table stands for itself."""
    if isinstance(name, int) and name in table.values():
        return name
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"{name!r} is no {kind}: there are {', '.join(table)}", code=4) from None


def op_number(op: str | int) -> int:
    """Returns the number of a reduction operation, given by name or number."""
    return OPS[op] if op in OPS else _lookup(OPS, "operation", op)


def codec_number(codec: str | int) -> int:
    """Returns the number of a codec, given by name or number."""
    return _lookup(CODECS, "codec", codec)


def view(array: Any, writable: bool = False) -> _native.View:
    """Returns the address, count, shape and element type of an array, without a copy.

    Args:
        array: Object with the buffer protocol or DLPack, contiguous, in host memory.
        writable: Whether the call writes to the array.

    Raises:
        InvalidArgumentError: The array is not contiguous, read-only although `writable`, on another device,
            or of an unknown element type.
    """
    if type(array).__module__ == "numpy" and array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        # numpy exports no buffer of ml_dtypes.bfloat16; its bits as uint16 have one.
        return _native.view_as(array.view("uint16"), _native.BFLOAT16, writable)
    return _native.view(array, writable)


def empty_like(array: Any, shape: Sequence[int], dtype: int) -> Any:
    """Returns a new array of the same library for a result, with elements not set.

    Args:
        array: Array whose library is used.
        shape: Shape of the new array.
        dtype: Number of the element type, for objects of no known library.

    Raises:
        InvalidArgumentError: A plain buffer has no format for `dtype`.
    """
    library = type(array).__module__.partition(".")[0]
    if library == "numpy":
        import numpy

        return numpy.empty(shape, array.dtype)
    if library == "torch":
        return array.new_empty(tuple(shape), requires_grad=False)
    if library == "mlx":
        import mlx.core as mx

        result = mx.zeros(shape, array.dtype)
        # MLX allocates memory on evaluation, and shares it with no other array then.
        mx.eval(result)
        return result
    if hasattr(array, "_empty_like"):
        return array._empty_like(shape)
    format_code = _native.MEMORYVIEW_FORMATS.get(dtype)
    if format_code is None:
        raise InvalidArgumentError(
            f"a memoryview can't hold {DTYPE_NAMES[dtype]}: pass out=, or an array of numpy, torch or mlx",
            code=4,
        )
    count = 1
    for length in shape:
        count *= length
    size = memoryview(b"").cast(format_code).itemsize
    return (
        memoryview(bytearray(count * size)).cast(format_code, tuple(shape))
        if count
        else memoryview(b"").cast(format_code)
    )
