"""Groups that are compiled against MLX, or the reason why there are none: `native.py ROLE`."""

from __future__ import annotations

import logging
import os
import sys

import mlx.core as mx

import tbccl.mlx
from tbccl.mlx import _native_groups

logging.basicConfig(level=logging.INFO, format="@log %(name)s %(message)s", stream=sys.stdout)
#: Rank and size, as the launcher tells them.
RANK, SIZE = int(os.environ["TBCCL_RANK"]), int(os.environ["TBCCL_SIZE"])


def report(line: str) -> None:
    """Prints a line with one write, so that lines of ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def kind(group: mx.distributed.Group) -> str:
    return "native" if _native_groups.is_native(group) else "mpi"


def says_its_kind() -> None:
    """Makes groups, and uses them."""
    world = mx.distributed.init(backend="ring")
    assert mx.distributed.all_sum(mx.ones(3), group=world).tolist() == [world.size()] * 3
    half = world.split(world.rank() % 2)
    report(f"@kind {world.rank()} {kind(world)} {kind(half)}")


def one_rank_has_no_compiler() -> None:
    """Takes the compiler from the last rank."""
    if RANK == SIZE - 1:
        os.environ["CXX"] = "/no/compiler"
    says_its_kind()


def has_no_nanobind() -> None:
    """Hides nanobind."""
    sys.modules["nanobind"] = None
    says_its_kind()


def uses_one_group_on_two_streams() -> None:
    """Sums and gathers on two streams, of which one computes before its sums, longest on rank 0."""
    world = mx.distributed.init()
    slow, quick = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    squares = mx.full((200, 200), 1 / 200)
    for step in range(100):
        x = mx.array([1.0 + step])
        for _ in range(5 if RANK == 0 else 1):
            x = x * mx.mean(mx.matmul(squares, squares, stream=slow), stream=slow) * 200
        total = mx.distributed.all_sum(x, group=world, stream=slow)
        ranks = mx.distributed.all_gather(mx.array([RANK + step]), group=world, stream=quick)
        mx.async_eval(total, ranks)
        assert ranks.tolist() == [rank + step for rank in range(SIZE)]
        assert abs(total.item() / (SIZE * (1.0 + step)) - 1) < 1e-3, (step, total)
    report(f"@kind {world.rank()} {kind(world)} {kind(world.split(0))}")


def fails_on_one_of_two_streams() -> None:
    """Makes calls on a second stream after one of a first stream has failed."""
    world = mx.distributed.init()
    one, other = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    failed = mx.distributed.all_sum(mx.ones(3 + RANK), group=world, stream=one)
    later = [mx.distributed.all_sum(mx.ones(1), group=world, stream=stream) for stream in (one, other, one)]
    for result in (failed, *later):
        try:
            mx.eval(result)
            report(f"@no error {RANK}")
        except RuntimeError as error:
            report(f"@error {RANK} {error}")
    os._exit(0)


def mixes_both_kinds() -> None:
    """Uses groups through the MPI interface beside those of MLX's own kind, in one job."""
    world = mx.distributed.init()
    tbccl.mlx.uninstall()
    other = mx.distributed.init(backend="mpi")
    assert (other.rank(), other.size()) == (world.rank(), world.size())
    for group in (world, other, world.split(0), other.split(0)):
        total = mx.distributed.all_sum(mx.array([2.0]), group=group)
        assert total.item() == 2 * world.size()
    report(f"@kind {world.rank()} {kind(world)} {kind(other)}")


def drops_groups_early() -> None:
    """Drops many groups while their calls are queued: more than the MPI interface keeps."""
    world = mx.distributed.init()
    slow = mx.random.uniform(shape=(500, 500))
    for _ in range(20):
        slow = mx.tanh(slow @ slow)
    ones = mx.ones(100) + 0 * slow[0, 0]
    sums = [mx.distributed.all_sum(ones * step, group=world.split(0)) for step in range(40)]
    mx.async_eval(*sums)
    assert [y[0].item() for y in sums] == [step * world.size() for step in range(40)]
    report(f"@kind {world.rank()} {kind(world)} {kind(world)}")


def scatters_sums() -> None:
    """Sums blocks of all types, also where nothing but the gradient is wanted."""
    world = mx.distributed.init()
    rank, ranks = world.rank(), world.size()
    for dtype in (mx.int32, mx.float32, mx.bfloat16, mx.float16, mx.complex64):
        for width in (0, 1, 40_000):
            x = (mx.arange(ranks)[:, None] + mx.zeros((ranks, width)) + rank).astype(dtype)
            result = mx.distributed.sum_scatter(x)
            expected = mx.full((1, width), ranks * rank + sum(range(ranks))).astype(dtype)
            assert result.shape == expected.shape and mx.array_equal(result, expected).item(), (dtype, width)
    weights = mx.arange(1.0, ranks + 1)
    gradient = mx.grad(lambda x: (mx.distributed.sum_scatter(x) * (rank + 1)).sum())(mx.ones(ranks))
    assert mx.array_equal(gradient, weights).item()
    report(f"@kind {rank} {kind(world)} {kind(world)}")


tbccl.mlx.install()
globals()[sys.argv[1]]()
