"""Helpers shared by the rank programs; one run of a program executes all its checks."""

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


def report(line: str) -> None:
    """Prints a line with one write, so that lines of ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def assert_equal(result: mx.array, expected: mx.array) -> None:
    """Asserts that two arrays have the same shape, type and bits."""
    assert result.shape == expected.shape, (result.shape, expected.shape)
    assert result.dtype == expected.dtype, (result.dtype, expected.dtype)
    assert mx.array_equal(result, expected).item(), (result, expected)


def assert_close(result: mx.array, expected: mx.array, tolerance: float = 1e-5) -> None:
    """Asserts that two arrays have the same shape, and elements that differ by at most `tolerance`."""
    assert result.shape == expected.shape, (result.shape, expected.shape)
    if result.size:
        difference = mx.abs(result.astype(mx.float32) - expected.astype(mx.float32)).max().item()
        assert difference <= tolerance, difference


def contribution(index: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Returns a rank's contribution: whole numbers whose sum over 8 ranks is exact in all types."""
    rng = np.random.default_rng(1000 * index + sum(shape) + 1)
    low = 0 if dtype in (mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64) else -15
    numbers = rng.integers(low, 2 if dtype == mx.bool_ else 15, size=shape)
    if dtype == mx.complex64:
        # Few distinct real parts, so that the imaginary parts decide comparisons.
        return mx.array((numbers // 10) + 1j * rng.integers(-9, 9, size=shape), dtype=dtype)
    return mx.array(numbers).astype(dtype)


def contributions(shape: tuple[int, ...], dtype: mx.Dtype) -> list[mx.array]:
    return [contribution(index, shape, dtype) for index in range(ranks)]


def check_all(names: dict[str, object]) -> None:
    """Runs all functions whose names begin with `check_`; the first failure ends the process."""
    for name, check in list(names.items()):
        if not name.startswith("check_") or name == "check_all":
            continue
        began = time.monotonic()
        try:
            check()  # type: ignore[operator]
        except BaseException:
            report(f"@failed {rank} {name}\n{traceback.format_exc()}")
            raise
        report(f"@took {rank} {name} {time.monotonic() - began:.2f}")
    report(f"@checked {rank}")
