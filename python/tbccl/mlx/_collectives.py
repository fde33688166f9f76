"""Collectives that MLX does not have, or not over its MPI interface.

They are made of MLX's own functions, so they are evaluated lazily, in the order and on the stream of those,
and can be differentiated. All ranks of the group call them with arrays of equal shape and type. Without a
group they work on the group of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tbccl.mlx import _native_groups
from tbccl.mlx._groups import init
from tbccl.mlx._versions import mlx_version

__all__ = ["all_to_all", "barrier", "broadcast", "reduce_scatter", "sum_scatter"]

# Functions of MLX as they are without `install`.
_all_sum, _all_gather = mx.distributed.all_sum, mx.distributed.all_gather
_send, _recv_like = mx.distributed.send, mx.distributed.recv_like
#: MLX before 0.32.1 raises an error in it on the processor, and may write into freed memory then.
_sum_scatter_of_mlx = mx.distributed.sum_scatter if mlx_version() >= (0, 32, 1) else None

#: Bytes sent to a rank before a message of it is received. A sender buffers 256 MiB, so that ranks which all
#: send first do not wait for each other.
_PIECE_BYTES = 64 << 20
#: Bytes of an array up to which a sum of the whole array takes less time than a message to each rank.
_WHOLE_SUM_BYTES = 64 << 10


def all_to_all(
    x: mx.array, *, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None
) -> mx.array:
    """Sends block `j` of each rank to rank `j`.

    Args:
        x: Blocks for all ranks, in rank order: its first dimension is a multiple of the number of ranks.
        group: Group of the ranks.
        stream: Stream or device, as for MLX's functions.

    Returns:
        An array of the shape of `x`: the blocks of all ranks for this rank, in rank order.

    Raises:
        ValueError: The first dimension is not a multiple of the number of ranks.
    """
    group = group or init(strict=False)
    _check_blocks("all_to_all", x, group)
    if group.size() == 1:
        return x
    exchange = _with_gradient(
        lambda x: _exchange(x, group, stream), lambda gradient: _exchange(gradient, group, stream)
    )
    return exchange(x)


def sum_scatter(
    x: mx.array, *, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None
) -> mx.array:
    """Sums the arrays of all ranks, and returns this rank's block of the sum.

    Args:
        x: Blocks for all ranks, in rank order: its first dimension is a multiple of the number of ranks.
        group: Group of the ranks.
        stream: Stream or device, as for MLX's functions.

    Returns:
        Block `rank` of the sum, whose first dimension is that of `x` divided by the number of ranks.

    Raises:
        ValueError: The first dimension is not a multiple of the number of ranks.
    """
    group = group or init(strict=False)
    _check_blocks("sum_scatter", x, group)
    if group.size() == 1:
        return x

    def gather(gradient: mx.array) -> mx.array:
        return _all_gather(gradient, group=group, stream=stream)

    return _with_gradient(lambda x: _sum_scatter(x, group, stream), gather)(x)


#: The name that PyTorch and NCCL give to `sum_scatter`.
reduce_scatter = sum_scatter


def broadcast(
    x: mx.array,
    root: int = 0,
    *,
    group: mx.distributed.Group | None = None,
    stream: mx.StreamOrDevice = None,
) -> mx.array:
    """Returns the array of rank `root` on all ranks.

    Args:
        x: On `root` the array; on other ranks an array of its shape and type, whose values do not matter.
        root: Rank in the group.
        group: Group of the ranks.
        stream: Stream or device, as for MLX's functions.

    Raises:
        ValueError: The group has no rank `root`.
    """
    group = group or init(strict=False)
    if not 0 <= root < group.size():
        raise ValueError(f"broadcast: root {root} is not a rank of a group of {group.size()}")
    if group.size() == 1:
        return x
    is_root = group.rank() == root

    def send_down(x: mx.array) -> mx.array:
        return _copy_of_rank(x, root, group, stream)

    def sum_up(gradient: mx.array) -> mx.array:
        total = _all_sum(gradient, group=group, stream=stream)
        # Other ranks take part in the sum, though their gradient does not need it.
        return total if is_root else mx.depends(mx.zeros_like(gradient), total)

    return _with_gradient(send_down, sum_up)(x)


def barrier(*, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None) -> None:
    """Waits until all ranks of the group have come here, and have evaluated what they had queued before."""
    group = group or init(strict=False)
    if group.size() > 1:
        mx.eval(_all_sum(mx.zeros(1), group=group, stream=stream))


def _check_blocks(name: str, x: mx.array, group: mx.distributed.Group) -> None:
    ranks = group.size()
    if x.ndim == 0 or x.shape[0] % ranks:
        raise ValueError(f"{name}: the first dimension of {x.shape} is not a multiple of {ranks} ranks")


def _with_gradient(
    function: Callable[[mx.array], mx.array], gradient: Callable[[mx.array], mx.array]
) -> Callable[[mx.array], mx.array]:
    """Returns the function with one that turns the gradient of its result into that of its argument."""
    differentiable = mx.custom_function(function)

    @differentiable.vjp
    def vjp(_primals: Any, cotangent: mx.array, _output: Any) -> mx.array:
        return gradient(cotangent)

    return differentiable


def _exchange(x: mx.array, group: mx.distributed.Group, stream: mx.StreamOrDevice) -> mx.array:
    """Exchanges blocks by messages, with one rank after the other, in pieces."""
    rank, ranks = group.rank(), group.size()
    blocks = x.reshape(ranks, -1)
    elements = blocks.shape[1]
    step = max(1, _PIECE_BYTES // x.dtype.size)
    received: list[list[mx.array]] = [[] for _ in range(ranks)]
    received[rank] = [blocks[rank]]
    latest = None
    for distance in range(1, ranks):
        to, source = (rank + distance) % ranks, (rank - distance) % ranks
        for begin in range(0, elements, step):
            piece = blocks[to, begin : begin + step]
            # Messages are sent and received in this order on every rank.
            piece = piece if latest is None else mx.depends(piece, latest)
            sent = _send(piece, to, group=group, stream=stream)
            latest = _recv_like(mx.depends(piece, sent), source, group=group, stream=stream)
            # A receive has no inputs, so its order comes from an array that depends on the send.
            latest = mx.depends(latest, sent)
            received[source].append(latest)
    parts = [part for pieces in received for part in pieces]
    return mx.concatenate(parts).reshape(x.shape) if elements else x


def _sum_scatter(x: mx.array, group: mx.distributed.Group, stream: mx.StreamOrDevice) -> mx.array:
    if _sum_scatter_of_mlx is not None and _native_groups.is_native(group):
        return _sum_scatter_of_mlx(x, group=group, stream=stream)
    rank, ranks = group.rank(), group.size()
    shape = (x.shape[0] // ranks, *x.shape[1:])
    if x.nbytes <= _WHOLE_SUM_BYTES:
        return _all_sum(x, group=group, stream=stream).reshape(ranks, *shape)[rank]
    return _exchange(x, group, stream).reshape(ranks, *shape).sum(axis=0).astype(x.dtype)


def _copy_of_rank(
    x: mx.array, root: int, group: mx.distributed.Group, stream: mx.StreamOrDevice
) -> mx.array:
    """Returns the array of rank `root`, as a sum with zeros of its bits as integers."""
    words = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
    bits = x.reshape(-1).view(words[x.dtype.size])
    if group.rank() != root:
        bits = mx.zeros_like(bits)
    return _all_sum(bits, group=group, stream=stream).view(x.dtype).reshape(x.shape)
