"""Arrays as the calls see them: element types by name, operations by name, and results that are like what was given.

Everything that has the buffer protocol or DLPack is an array here. This module imports no framework: which one an object is
of is read off its type.
"""

from __future__ import annotations

from typing import Any, Sequence

from tbccl import _native
from tbccl._errors import InvalidArgumentError

#: The number of an element type, by its name: "float32", "bfloat16".
DTYPES: dict[str, int] = dict(_native.DTYPES)

#: Their names, by number.
DTYPE_NAMES: dict[int, str] = {number: name for name, number in DTYPES.items()}

_DTYPE_ALIASES = {
    "half": "float16",
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "bool_": "bool",
    "int": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}

#: The number of an operation, by its names.
OPS: dict[str, int] = {**_native.OPS, "mean": _native.AVG}

#: The number of a codec, by its name.
CODECS: dict[str, int] = dict(_native.CODECS)

# How memoryview writes an element type, where it can.
_FORMATS = {
    _native.FLOAT32: "f",
    _native.FLOAT64: "d",
    _native.BOOL: "?",
    _native.INT8: "b",
    _native.INT16: "h",
    _native.INT32: "i",
    _native.INT64: "q",
    _native.UINT8: "B",
    _native.UINT16: "H",
    _native.UINT32: "I",
    _native.UINT64: "Q",
}


def dtype_number(dtype: Any) -> int:
    """The number of an element type: given by name ("float32", "bf16"), or as numpy, torch and mlx write it."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        # numpy.dtype has a name; torch.float32 and mlx.core.float32 are written as they are.
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
    if isinstance(name, int) and name in table.values():
        return name
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"{name!r} is no {kind}: there are {', '.join(table)}", code=4) from None


def op_number(op: str | int) -> int:
    """The number of an operation, given by name or as that number."""
    return OPS[op] if op in OPS else _lookup(OPS, "operation", op)


def codec_number(codec: str | int) -> int:
    """The number of a codec, given by name or as that number."""
    return _lookup(CODECS, "codec", codec)


def view(array: Any, writable: bool = False) -> _native.View:
    """Sees an array's elements where they are: its address, count, shape and element type."""
    if type(array).__module__ == "numpy" and array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        # numpy does not know ml_dtypes' bfloat16 and gives no buffer of it; of its bits it does. The rest is as with others.
        return _native.view_as(array.view("uint16"), _native.BFLOAT16, writable)
    return _native.view(array, writable)


def empty_like(array: Any, shape: Sequence[int], dtype: int) -> Any:
    """A new array of the same library, for a result. Its elements are not set."""
    library = type(array).__module__.partition(".")[0]
    if library == "numpy":
        import numpy

        return numpy.empty(shape, array.dtype)
    if library == "torch":
        return array.new_empty(tuple(shape), requires_grad=False)
    if library == "mlx":
        import mlx.core as mx

        result = mx.zeros(shape, array.dtype)
        # Until it is evaluated there is no memory; then it is nobody else's.
        mx.eval(result)
        return result
    if hasattr(array, "_empty_like"):
        return array._empty_like(shape)
    format_code = _FORMATS.get(dtype)
    if format_code is None:
        raise InvalidArgumentError(
            f"there is no plain buffer of {DTYPE_NAMES[dtype]}: give out=, or an array of numpy, torch or mlx",
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
