"""Arrays of mlx: read where they are; results are new arrays, written where they are."""

from __future__ import annotations

import mlx.core as mx

import tbccl

with tbccl.init(timeout=60) as comm:
    size, rank = comm.size, comm.rank
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint8, mx.complex64):
        mine = mx.full((3, 4), rank + 1, dtype=dtype)
        total = comm.all_reduce(mine)
        wanted = mx.full((3, 4), sum(range(1, size + 1)), dtype=dtype)
        assert isinstance(total, mx.array) and total.dtype == dtype and mx.array_equal(total, wanted), total
        assert mx.array_equal(mine, mx.full((3, 4), rank + 1, dtype=dtype)), "what was given stays"
        # A result is nobody else's memory: the next one is another.
        assert mx.array_equal(comm.all_reduce(mine), wanted) and mx.array_equal(total + 0, wanted)
    gathered = comm.all_gather(mx.array([rank, rank]))
    assert gathered.tolist() == [[one, one] for one in range(size)]
    # What is not evaluated yet is, when it is looked at.
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
