"""What rank programs have in common: one run does all checks of a file."""

from __future__ import annotations

import os
import time
import traceback

import mlx.core as mx
import numpy as np

import tbccl.mlx

world = tbccl.mlx.init()
rank, ranks = world.rank(), world.size()

INTEGERS = [mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32, mx.int64, mx.uint64]
FLOATS = [mx.float16, mx.bfloat16, mx.float32]
DTYPES = [mx.bool_, *INTEGERS, *FLOATS, mx.complex64]


def say(line: str) -> None:
    """Prints a line, in one piece."""
    os.write(1, f"{line}\n".encode())


def same(found: mx.array, expected: mx.array) -> None:
    """Equal to the bit, in shape and type as well."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert mx.array_equal(found, expected).item(), (found, expected)


def close(found: mx.array, expected: mx.array, within: float = 1e-5) -> None:
    """Equal but for rounding."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if found.size:
        apart = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max().item()
        assert apart <= within, apart


def of_rank(which: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """What a rank contributes: whole numbers that all types hold, and so do sums of 8 of them."""
    rng = np.random.default_rng(1000 * which + sum(shape) + 1)
    low = 0 if dtype in (mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64) else -15
    numbers = rng.integers(low, 2 if dtype == mx.bool_ else 15, size=shape)
    if dtype == mx.complex64:
        # Few real parts, so that imaginary ones decide.
        return mx.array((numbers // 10) + 1j * rng.integers(-9, 9, size=shape), dtype=dtype)
    return mx.array(numbers).astype(dtype)


def of_all(shape: tuple[int, ...], dtype: mx.Dtype) -> list[mx.array]:
    return [of_rank(which, shape, dtype) for which in range(ranks)]


def check_all(names: dict[str, object]) -> None:
    """Runs all functions whose names begin with `check_`; the process fails with the first that does."""
    for name, check in list(names.items()):
        if not name.startswith("check_") or name == "check_all":
            continue
        began = time.monotonic()
        try:
            check()  # type: ignore[operator]
        except BaseException:
            say(f"@failed {rank} {name}\n{traceback.format_exc()}")
            raise
        say(f"@took {rank} {name} {time.monotonic() - began:.2f}")
    say(f"@checked {rank}")
