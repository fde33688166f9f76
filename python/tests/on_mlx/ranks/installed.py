"""A program that names a backend, and whose functions `tbccl.mlx.install` has replaced."""

from __future__ import annotations

import os
import sys

import mlx.core as mx
import mlx.nn as nn

import tbccl.mlx


def report(word: str, text: object = "") -> None:
    os.write(1, f"@{word} {text}\n".encode())


def names_a_backend(backend: str) -> None:
    """Uses a backend as an unmodified program does."""
    assert mx.distributed.is_available(backend)
    world = mx.distributed.init(strict=True, backend=backend)
    total = mx.distributed.all_sum(mx.array([world.rank() + 1.0])).item()
    report("hello", f"{world.rank()} {world.size()} {total}")


def names_what_mlx_refuses() -> None:
    """Gives arguments that MLX refuses."""
    for error, arguments in [
        (ValueError, {"backend": "other"}),
        (ValueError, {"backend": "ring", "all_gather_factory": lambda rank, size: None}),
        (TypeError, {"backend": "jaccl", "all_gather_factory": "not callable"}),
    ]:
        try:
            mx.distributed.init(**arguments)
        except error as refused:
            report("refused", refused)


def names_none() -> None:
    """Uses no group at all."""
    x = mx.distributed.all_sum(mx.ones(3))
    # MLX also takes numbers, as mlx-lm's server passes them.
    ranks = mx.distributed.all_sum(1).item()
    assert mx.distributed.all_gather(ranks > 0).tolist() == [True] * ranks
    report("sum", x.sum().item())


def large_arrays() -> None:
    """Takes arrays to pieces, here of 100 elements instead of 2147483647."""
    tbccl.mlx.uninstall()
    tbccl.mlx._install._MAX_ELEMENTS = 100
    assert tbccl.mlx.install()
    world = mx.distributed.init()
    rank, ranks = world.rank(), world.size()
    x = mx.arange(350.0).reshape(50, 7) + rank
    total = mx.distributed.all_sum(x)
    assert mx.array_equal(total, mx.arange(350.0).reshape(50, 7) * ranks + sum(range(ranks)))
    gathered = mx.distributed.all_gather(x)
    expected = mx.concatenate([mx.arange(350.0).reshape(50, 7) + other for other in range(ranks)])
    assert mx.array_equal(gathered, expected)
    assert mx.array_equal(mx.distributed.all_max(x), mx.arange(350.0).reshape(50, 7) + ranks - 1)
    report("right")


def trains_fully_sharded() -> None:
    """Trains a model whose parameters are sharded, and compares them with those of one process."""
    world = mx.distributed.init(strict=True, backend="jaccl")

    def model() -> nn.Module:
        mx.random.seed(7)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss(network: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        return ((network(x) - y) ** 2).mean()

    mx.random.seed(3)
    batches = [(mx.random.normal((8, 8)), mx.random.normal((8, 4))) for _ in range(5)]
    alone, sharded = model(), nn.fully_shard(model(), group=world)
    share = 8 // world.size()
    mine = slice(world.rank() * share, (world.rank() + 1) * share)
    for network, part in ((alone, slice(None)), (sharded, mine)):
        step = nn.value_and_grad(network, loss)
        for x, y in batches:
            _, gradients = step(network, x[part], y[part])
            trained = network.trainable_parameters()
            network.update(nn.utils.tree_map(lambda p, g: p - 0.1 * g, trained, gradients))
            mx.eval(network.parameters())
    x = batches[0][0]
    difference = mx.abs(alone(x) - sharded(x)).max().item()
    assert difference < 1e-5, difference
    report("right", difference)


if os.environ.get("INSTALL") == "1":
    tbccl.mlx.install()
globals()[sys.argv[1]](*sys.argv[2:])
