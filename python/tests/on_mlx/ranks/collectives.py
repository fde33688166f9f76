"""Sums, maxima, minima and gathers of all types, through each interface of MLX."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np
from checking import (
    DTYPES,
    FLOATS,
    assert_close,
    assert_equal,
    check_all,
    contribution,
    contributions,
    rank,
    ranks,
    world,
)

SHAPES = [(), (1,), (7,), (3, 5), (1024,), (129, 257)]


def combined(parts: list[mx.array], op: str) -> mx.array:
    """Returns the expected result, which MLX computes in this process alone."""
    dtype = parts[0].dtype
    if dtype == mx.complex64:
        as_numpy = [np.array(part) for part in parts]
        # NumPy orders complex numbers as tbccl does: by real part, then by imaginary part.
        expected = {"sum": np.sum, "max": np.max, "min": np.min}[op](as_numpy, axis=0)
        return mx.array(expected, dtype=mx.complex64)
    add = mx.logical_or if dtype == mx.bool_ else mx.add
    function = {"sum": add, "max": mx.maximum, "min": mx.minimum}[op]
    return functools.reduce(function, parts).astype(dtype)


def reduced(x: mx.array, op: str, **arguments) -> mx.array:
    distributed = mx.distributed
    collective = {"sum": distributed.all_sum, "max": distributed.all_max, "min": distributed.all_min}[op]
    return collective(x, **arguments)


def check_every_operation_on_every_type_and_shape():
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = contributions(shape, dtype)
            for op in ("sum", "max", "min"):
                assert_equal(reduced(parts[rank], op), combined(parts, op))


def check_doubles():
    with mx.stream(mx.cpu):
        parts = contributions((33,), mx.float64)
        for op in ("sum", "max", "min"):
            expected = combined([part / 3 for part in parts], op)
            assert_equal(reduced(parts[rank] / 3, op, stream=mx.cpu), expected)


def check_integers_wrap_around():
    for dtype, maximum in ((mx.int8, 127), (mx.uint8, 255), (mx.int32, 2**31 - 1)):
        x = mx.full((5,), maximum, dtype=dtype)
        assert_equal(mx.distributed.all_sum(x), combined([x] * ranks, "sum"))


def check_sums_of_narrow_floats_are_near():
    for dtype, tolerance in ((mx.float16, 4e-3), (mx.bfloat16, 4e-2), (mx.float32, 1e-6)):
        parts = [mx.random.normal((999,), key=mx.random.key(index)).astype(dtype) for index in range(ranks)]
        exact = functools.reduce(mx.add, [part.astype(mx.float32) for part in parts])
        assert_close(mx.distributed.all_sum(parts[rank]), exact, tolerance * ranks)


def check_nan_wins_on_every_rank():
    for dtype in FLOATS:
        for index in range(ranks):
            x = mx.array([1.0, float("nan") if rank == index else 2.0, -3.0]).astype(dtype)
            for op in ("sum", "max", "min"):
                nan = mx.isnan(reduced(x, op)).tolist()
                assert nan == [False, True, False], (dtype, op, index, nan)


def check_all_ranks_have_the_same_bits():
    x = mx.random.normal((5000,), key=mx.random.key(77 + rank))
    for dtype in FLOATS:
        total = mx.distributed.all_sum(x.astype(dtype))
        gathered = mx.distributed.all_gather(total[None])
        for other in gathered:
            assert_equal(other, total)


def check_arrays_without_elements():
    x = mx.zeros((0, 3))
    assert_equal(mx.distributed.all_sum(x + 0), x)
    assert_equal(mx.distributed.all_gather(x + 0), x)


def check_large_arrays():
    for count in (1 << 18, (1 << 20) + 3):
        x = mx.arange(count, dtype=mx.float32) % 1000 + rank
        expected = (mx.arange(count, dtype=mx.float32) % 1000) * ranks + sum(range(ranks))
        assert_equal(mx.distributed.all_sum(x), expected)


def check_what_is_not_contiguous():
    parts = contributions((12, 7), mx.float32)
    assert_equal(mx.distributed.all_sum(parts[rank].T), combined([part.T for part in parts], "sum"))
    expected = combined([part[::2, 1:] for part in parts], "sum")
    assert_equal(mx.distributed.all_sum(parts[rank][::2, 1:]), expected)
    assert_equal(mx.distributed.all_gather(parts[rank].T), mx.concatenate([part.T for part in parts]))
    wide = mx.broadcast_to(parts[rank][:1], (5, 7))
    expected = combined([mx.broadcast_to(part[:1], (5, 7)) for part in parts], "max")
    assert_equal(mx.distributed.all_max(wide), expected)


def check_gathers_of_every_type_and_shape():
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = contributions(shape, dtype)
            expected = mx.concatenate([part[None] if shape == () else part for part in parts])
            assert_equal(mx.distributed.all_gather(parts[rank]), expected)


def check_lazy_graphs():
    parts = contributions((64,), mx.float32)
    x = parts[rank]
    expected = combined(parts, "sum")
    # Operations before, between and after collectives, in one evaluation.
    assert_equal(mx.distributed.all_sum(x * 2) + 1, expected * 2 + 1)
    y = x
    for _ in range(16):
        y = mx.distributed.all_sum(y) / ranks
    assert_equal(y, expected / ranks)
    total, maximum = mx.distributed.all_sum(x), mx.distributed.all_max(x)
    all_parts = mx.distributed.all_gather(x)
    mx.eval(total, maximum, all_parts)
    assert_equal(total, expected)
    assert_equal(maximum, combined(parts, "max"))
    assert_equal(all_parts, mx.concatenate(parts))
    later = mx.distributed.all_sum(x)
    mx.async_eval(later)
    assert_equal(later, expected)


def check_compiled_functions():
    @mx.compile
    def step(x):
        return mx.distributed.all_sum(mx.exp(-x * x)) * 0.5 + mx.distributed.all_gather(x).sum()

    mx.enable_compile()  # The tests' environment disables it.
    for turn in range(3):
        parts = [part / (turn + 8) for part in contributions((40,), mx.float32)]
        total = combined([mx.exp(-part * part) for part in parts], "sum")
        expected = total * 0.5 + mx.concatenate(parts).sum()
        assert_close(step(parts[rank]), expected)


def check_gradients():
    x = contribution(rank, (9,), mx.float32)
    # A sum passes its gradient through.
    grad = mx.grad(lambda x: (mx.distributed.all_sum(x * x) * 3).sum())(x)
    assert_equal(grad, 6 * x)
    # The gradient of a gather is this rank's part.
    weights = mx.arange(9 * ranks, dtype=mx.float32)
    grad = mx.grad(lambda x: (mx.distributed.all_gather(x) * weights).sum())(x)
    assert_equal(grad, weights[9 * rank : 9 * (rank + 1)])
    _, tangent = mx.jvp(mx.distributed.all_sum, (x,), (mx.ones_like(x),))
    assert_equal(tangent[0], mx.full(x.shape, ranks, dtype=mx.float32))


def check_vmap():
    parts = contributions((4, 6), mx.float32)
    expected = combined(parts, "sum")
    assert_equal(mx.vmap(mx.distributed.all_sum)(parts[rank]), expected)
    doubled_max = mx.vmap(lambda x: mx.distributed.all_max(x * 2), in_axes=1, out_axes=1)
    assert_equal(doubled_max(parts[rank]), combined(parts, "max") * 2)


def check_donated_memory():
    x = mx.ones((1 << 18,))
    mx.eval(x)
    for _ in range(5):
        x = mx.distributed.all_sum(x) / ranks
        mx.eval(x)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(20):
        x = mx.distributed.all_sum(x) / ranks
        mx.eval(x)
    assert_equal(x, mx.ones_like(x))
    # At most one array for the sum, in addition to the existing one.
    assert mx.get_peak_memory() - before <= 2 * x.nbytes, (mx.get_peak_memory(), before)


def check_streams_side_by_side():
    # Streams are not ordered relative to each other, so each has a group of its own.
    groups = [world.split(0) for _ in range(3)]
    streams = [mx.new_stream(mx.cpu) for _ in groups]
    parts = contributions((300,), mx.float32)
    mx.eval(parts)
    results = []
    for turn in range(20):
        for group, stream in zip(groups, streams):
            results.append((turn, mx.distributed.all_sum(parts[rank] * turn, group=group, stream=stream)))
    mx.eval([result for _, result in results])
    for turn, result in results:
        assert_equal(result, combined(parts, "sum") * turn)


def check_a_thousand_calls():
    x = mx.array([float(rank)])
    expected = mx.array([float(sum(range(ranks)))])
    for _ in range(1000):
        y = mx.distributed.all_sum(x)
        mx.eval(y)
        assert y.item() == expected.item()


check_all(globals())
