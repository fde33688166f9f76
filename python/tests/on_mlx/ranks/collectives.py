"""Sums, maxima, minima and gathers of all types, in all ways that MLX has of asking for them."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np
from checking import DTYPES, FLOATS, check_all, close, of_all, of_rank, rank, ranks, same, world

SHAPES = [(), (1,), (7,), (3, 5), (1024,), (129, 257)]


def combined(parts: list[mx.array], op: str) -> mx.array:
    """The same by MLX in this process alone."""
    dtype = parts[0].dtype
    if dtype == mx.complex64:
        as_numpy = [np.array(part) for part in parts]
        # NumPy's order is ours: by real parts, and then by imaginary ones.
        whole = {"sum": np.sum, "max": np.max, "min": np.min}[op](as_numpy, axis=0)
        return mx.array(whole, dtype=mx.complex64)
    by = {"sum": mx.logical_or if dtype == mx.bool_ else mx.add, "max": mx.maximum, "min": mx.minimum}[op]
    return functools.reduce(by, parts).astype(dtype)


def reduced(x: mx.array, op: str, **how) -> mx.array:
    return {"sum": mx.distributed.all_sum, "max": mx.distributed.all_max, "min": mx.distributed.all_min}[op](x, **how)


def check_every_operation_on_every_type_and_shape():
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = of_all(shape, dtype)
            for op in ("sum", "max", "min"):
                same(reduced(parts[rank], op), combined(parts, op))


def check_doubles():
    with mx.stream(mx.cpu):
        parts = of_all((33,), mx.float64)
        for op in ("sum", "max", "min"):
            same(reduced(parts[rank] / 3, op, stream=mx.cpu), combined([part / 3 for part in parts], op))


def check_integers_wrap_around():
    for dtype, most in ((mx.int8, 127), (mx.uint8, 255), (mx.int32, 2**31 - 1)):
        x = mx.full((5,), most, dtype=dtype)
        same(mx.distributed.all_sum(x), combined([x] * ranks, "sum"))


def check_sums_of_narrow_floats_are_near():
    for dtype, within in ((mx.float16, 4e-3), (mx.bfloat16, 4e-2), (mx.float32, 1e-6)):
        parts = [mx.random.normal((999,), key=mx.random.key(which)).astype(dtype) for which in range(ranks)]
        exact = functools.reduce(mx.add, [part.astype(mx.float32) for part in parts])
        close(mx.distributed.all_sum(parts[rank]), exact, within * ranks)


def check_nan_wins_on_every_rank():
    for dtype in FLOATS:
        for which in range(ranks):
            x = mx.array([1.0, float("nan") if rank == which else 2.0, -3.0]).astype(dtype)
            for op in ("sum", "max", "min"):
                nan = mx.isnan(reduced(x, op)).tolist()
                assert nan == [False, True, False], (dtype, op, which, nan)


def check_all_ranks_have_the_same_bits():
    x = mx.random.normal((5000,), key=mx.random.key(77 + rank))
    for dtype in FLOATS:
        total = mx.distributed.all_sum(x.astype(dtype))
        everyones = mx.distributed.all_gather(total[None])
        for other in everyones:
            same(other, total)


def check_arrays_without_elements():
    x = mx.zeros((0, 3))
    same(mx.distributed.all_sum(x + 0), x)
    same(mx.distributed.all_gather(x + 0), x)


def check_large_arrays():
    for count in (1 << 18, (1 << 20) + 3):
        x = mx.arange(count, dtype=mx.float32) % 1000 + rank
        expected = (mx.arange(count, dtype=mx.float32) % 1000) * ranks + sum(range(ranks))
        same(mx.distributed.all_sum(x), expected)


def check_what_is_not_contiguous():
    parts = of_all((12, 7), mx.float32)
    same(mx.distributed.all_sum(parts[rank].T), combined([part.T for part in parts], "sum"))
    same(mx.distributed.all_sum(parts[rank][::2, 1:]), combined([part[::2, 1:] for part in parts], "sum"))
    same(mx.distributed.all_gather(parts[rank].T), mx.concatenate([part.T for part in parts]))
    wide = mx.broadcast_to(parts[rank][:1], (5, 7))
    same(mx.distributed.all_max(wide), combined([mx.broadcast_to(part[:1], (5, 7)) for part in parts], "max"))


def check_gathers_of_every_type_and_shape():
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = of_all(shape, dtype)
            expected = mx.concatenate([part[None] if shape == () else part for part in parts])
            same(mx.distributed.all_gather(parts[rank]), expected)


def check_lazy_graphs():
    parts = of_all((64,), mx.float32)
    x = parts[rank]
    whole = combined(parts, "sum")
    # Before, after and between, in one evaluation.
    same(mx.distributed.all_sum(x * 2) + 1, whole * 2 + 1)
    y = x
    for _ in range(16):
        y = mx.distributed.all_sum(y) / ranks
    same(y, whole / ranks)
    total, most, all_parts = mx.distributed.all_sum(x), mx.distributed.all_max(x), mx.distributed.all_gather(x)
    mx.eval(total, most, all_parts)
    same(total, whole)
    same(most, combined(parts, "max"))
    same(all_parts, mx.concatenate(parts))
    later = mx.distributed.all_sum(x)
    mx.async_eval(later)
    same(later, whole)


def check_compiled_functions():
    @mx.compile
    def step(x):
        return mx.distributed.all_sum(mx.exp(-x * x)) * 0.5 + mx.distributed.all_gather(x).sum()

    mx.enable_compile()  # tests go without it
    for turn in range(3):
        parts = [part / (turn + 8) for part in of_all((40,), mx.float32)]
        expected = combined([mx.exp(-part * part) for part in parts], "sum") * 0.5 + mx.concatenate(parts).sum()
        close(step(parts[rank]), expected)


def check_gradients():
    x = of_rank(rank, (9,), mx.float32)
    # The gradient of a sum passes through.
    grad = mx.grad(lambda x: (mx.distributed.all_sum(x * x) * 3).sum())(x)
    same(grad, 6 * x)
    # That of a gather is this rank's part.
    weights = mx.arange(9 * ranks, dtype=mx.float32)
    grad = mx.grad(lambda x: (mx.distributed.all_gather(x) * weights).sum())(x)
    same(grad, weights[9 * rank : 9 * (rank + 1)])
    _, tangent = mx.jvp(mx.distributed.all_sum, (x,), (mx.ones_like(x),))
    same(tangent[0], mx.full(x.shape, ranks, dtype=mx.float32))


def check_vmap():
    parts = of_all((4, 6), mx.float32)
    whole = combined(parts, "sum")
    same(mx.vmap(mx.distributed.all_sum)(parts[rank]), whole)
    same(mx.vmap(lambda x: mx.distributed.all_max(x * 2), in_axes=1, out_axes=1)(parts[rank]), combined(parts, "max") * 2)


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
    same(x, mx.ones_like(x))
    # One array for the sum at most, beside the one that is there.
    assert mx.get_peak_memory() - before <= 2 * x.nbytes, (mx.get_peak_memory(), before)


def check_streams_side_by_side():
    # The order of two streams is nobody's; so each has a group of its own.
    groups = [world.split(0) for _ in range(3)]
    streams = [mx.new_stream(mx.cpu) for _ in groups]
    parts = of_all((300,), mx.float32)
    mx.eval(parts)
    results = []
    for turn in range(20):
        for group, stream in zip(groups, streams):
            results.append((turn, mx.distributed.all_sum(parts[rank] * turn, group=group, stream=stream)))
    mx.eval([result for _, result in results])
    for turn, result in results:
        same(result, combined(parts, "sum") * turn)


def check_a_thousand_calls():
    x = mx.array([float(rank)])
    expected = mx.array([float(sum(range(ranks)))])
    for _ in range(1000):
        y = mx.distributed.all_sum(x)
        mx.eval(y)
        assert y.item() == expected.item()


check_all(globals())
