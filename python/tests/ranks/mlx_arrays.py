"""MLX arrays: inputs are read in place, results are new arrays written in place."""

from __future__ import annotations

import mlx.core as mx

import tbccl

with tbccl.init(timeout=60) as comm:
    size, rank = comm.size, comm.rank
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint8, mx.complex64):
        mine = mx.full((3, 4), rank + 1, dtype=dtype)
        total = comm.all_reduce(mine)
        expected = mx.full((3, 4), sum(range(1, size + 1)), dtype=dtype)
        assert isinstance(total, mx.array) and total.dtype == dtype and mx.array_equal(total, expected), total
        assert mx.array_equal(mine, mx.full((3, 4), rank + 1, dtype=dtype)), "the input changed"
        # Each result has memory of its own.
        assert mx.array_equal(comm.all_reduce(mine), expected) and mx.array_equal(total + 0, expected)
    gathered = comm.all_gather(mx.array([rank, rank]))
    assert gathered.tolist() == [[one, one] for one in range(size)]
    # A lazy array is evaluated when its elements are read.
    lazy = mx.ones(1000) * 2 + rank
    assert comm.all_reduce_async(lazy).result(30)[0] == 2 * size + sum(range(size))
    for array in (mx.ones((3, 4)).T, mx.broadcast_to(mx.array(1.0), (3, 4))):
        try:
            comm.all_reduce(array)
        except tbccl.InvalidArgumentError as error:
            assert "are not contiguous" in str(error), error
        else:
            raise AssertionError("not refused")
    comm.barrier()
