"""Collectives of tbccl that MLX does not have over its MPI interface."""

from __future__ import annotations

import mlx.core as mx
from checking import DTYPES, assert_equal, check_all, rank, ranks, world

import tbccl.mlx


def blocks(sender: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Returns the blocks of a rank for all ranks: block `j` of rank `i` is filled with `10 * i + j`."""
    values = [mx.full(shape, 10 * sender + receiver) for receiver in range(ranks)]
    return mx.concatenate(values).astype(dtype)


def check_all_to_all():
    for dtype in DTYPES:
        for shape in [(1,), (3, 5), (2, 0)]:
            result = tbccl.mlx.all_to_all(blocks(rank, shape, dtype), group=world)
            expected = mx.concatenate([mx.full(shape, 10 * sender + rank) for sender in range(ranks)])
            assert_equal(result, expected.astype(dtype))


def check_all_to_all_of_several_pieces():
    original = tbccl.mlx._collectives._PIECE_BYTES
    tbccl.mlx._collectives._PIECE_BYTES = 400
    try:
        result = tbccl.mlx.all_to_all(blocks(rank, (7, 53), mx.float32))
    finally:
        tbccl.mlx._collectives._PIECE_BYTES = original
    assert_equal(result, mx.concatenate([mx.full((7, 53), 10.0 * sender + rank) for sender in range(ranks)]))


def check_sum_scatter():
    for dtype in [mx.int32, mx.float32, mx.bfloat16, mx.complex64]:
        # Sums of whole arrays, and messages to each rank.
        for shape in [(1,), (2, 3), (100, 300)]:
            result = tbccl.mlx.sum_scatter(blocks(rank, shape, dtype))
            total = sum(10 * sender + rank for sender in range(ranks))
            assert_equal(result, mx.full(shape, total).astype(dtype))


def check_broadcast():
    for root in range(ranks):
        for dtype in DTYPES:
            for value in [mx.array(rank + 1), mx.full((3, 4), rank + 1), mx.zeros((0, 2))]:
                result = tbccl.mlx.broadcast(value.astype(dtype), root)
                assert_equal(result, mx.full(value.shape, root + 1).astype(dtype))
    special = mx.array([float("nan"), float("inf"), -0.0, 1e-45]) * (1 if rank == 0 else 0)
    bits = tbccl.mlx.broadcast(special).view(mx.uint32)
    assert_equal(bits[1:3], mx.array([0x7F800000, 0x80000000], mx.uint32))


def check_a_barrier_returns():
    tbccl.mlx.barrier()
    tbccl.mlx.barrier(group=world)


def check_gradients():
    weights = mx.arange(1.0, ranks + 1)

    def exchanged(x):
        return (tbccl.mlx.all_to_all(x) * (rank + 1)).sum()

    # Block `j` of this rank is weighted by rank `j`.
    assert_equal(mx.grad(exchanged)(mx.ones(ranks)), weights)

    def scattered(x):
        return (tbccl.mlx.sum_scatter(x) * (rank + 1)).sum()

    assert_equal(mx.grad(scattered)(mx.ones(ranks)), weights)

    def copied(x):
        return (tbccl.mlx.broadcast(x, ranks - 1) * (rank + 1)).sum()

    total = float(sum(range(1, ranks + 1)))
    expected = mx.array([total]) if rank == ranks - 1 else mx.zeros(1)
    assert_equal(mx.grad(copied)(mx.ones(1)), expected)


def check_a_group_of_this_rank_alone():
    alone = world.split(rank)
    x = mx.array([1.0, 2.0])
    for function in (tbccl.mlx.all_to_all, tbccl.mlx.sum_scatter, tbccl.mlx.broadcast):
        assert_equal(function(x, group=alone), x)


def check_wrong_arguments_are_refused():
    for function in (tbccl.mlx.all_to_all, tbccl.mlx.sum_scatter):
        for x in (mx.ones(ranks + 1), mx.array(1.0)):
            try:
                function(x)
            except ValueError as error:
                assert f"{ranks} ranks" in str(error), error
            else:
                raise AssertionError(f"{function} accepts {x.shape}")
    try:
        tbccl.mlx.broadcast(mx.ones(1), ranks)
    except ValueError as error:
        assert f"root {ranks}" in str(error), error
    else:
        raise AssertionError("a root outside the group is accepted")


check_all(globals())
