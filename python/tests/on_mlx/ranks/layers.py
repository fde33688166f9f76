"""Sharded layers and averaged gradients, against the same in one process."""

from __future__ import annotations

import inspect

import mlx.core as mx
import mlx.nn as nn
from checking import assert_close, assert_equal, check_all, rank, ranks, world
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_flatten

WIDTH = 64 * ranks


def local_slice(width: int = WIDTH) -> slice:
    return slice(rank * width // ranks, (rank + 1) * width // ranks)


def check_linear_layers_forwards():
    mx.random.seed(7)
    x, linear = mx.random.normal((4, WIDTH)), nn.Linear(WIDTH, WIDTH)
    expected = linear(x)
    assert_close(shard_linear(linear, "all-to-sharded")(x), expected[:, local_slice()])
    assert_close(shard_linear(linear, "sharded-to-all")(x[:, local_slice()]), expected)


def check_quantized_layers_forwards():
    mx.random.seed(8)
    x, linear = mx.random.normal((4, WIDTH)), nn.Linear(WIDTH, WIDTH).to_quantized(group_size=32, bits=8)
    expected = linear(x)
    assert_close(shard_linear(linear, "all-to-sharded")(x), expected[:, local_slice()])
    assert_close(shard_linear(linear, "sharded-to-all")(x[:, local_slice()]), expected, 1e-4)


def check_gradients_of_layers():
    mx.random.seed(9)
    x, y = mx.random.normal((4, WIDTH)), mx.random.normal((4, WIDTH))
    single = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    sharded = nn.Sequential(
        shard_linear(single.layers[0], "all-to-sharded"),
        nn.Tanh(),
        shard_linear(single.layers[2], "sharded-to-all"),
    )

    def loss(model, x, y):
        return ((model(x) - y) ** 2).mean()

    single_loss, single_grads = nn.value_and_grad(single, loss)(single, x, y)
    sharded_loss, sharded_grads = nn.value_and_grad(sharded, loss)(sharded, x, y)
    assert_close(sharded_loss, single_loss)
    rows = local_slice()
    assert_close(sharded_grads["layers"][0]["weight"], single_grads["layers"][0]["weight"][rows])
    assert_close(sharded_grads["layers"][0]["bias"], single_grads["layers"][0]["bias"][rows])
    assert_close(sharded_grads["layers"][2]["weight"], single_grads["layers"][2]["weight"][:, rows])
    assert_close(sharded_grads["layers"][2]["bias"], single_grads["layers"][2]["bias"])


def check_layers_that_are_spread_in_place():
    mx.random.seed(10)
    mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH, bias=False))
    x = mx.random.normal((3, WIDTH))
    expected = mlp(x)
    shard_inplace(mlp.layers[0], "all-to-sharded")
    shard_inplace(mlp.layers[2], "sharded-to-all")
    assert_close(mx.distributed.all_sum(mlp(x)), expected)


def check_layers_over_a_group():
    if ranks < 4:
        return
    pair = world.split(rank // 2)
    mx.random.seed(11)
    x, linear = mx.random.normal((4, 64)), nn.Linear(64, 64)
    half = slice(32 * pair.rank(), 32 * (pair.rank() + 1))
    assert_close(shard_linear(linear, "sharded-to-all", group=pair)(x[:, half]), linear(x))


def check_averaged_gradients():
    grads = {
        "a": [mx.full((3,), rank, dtype=mx.float32), mx.full((2, 2), 2 * rank, dtype=mx.float32)],
        "b": {"c": mx.full((70,), -rank, dtype=mx.float32)},
    }
    mean = sum(range(ranks)) / ranks
    expected = [("a.0", (3,), mean), ("a.1", (2, 2), 2 * mean), ("b.c", (70,), -mean)]
    options = [{}, {"all_reduce_size": 0}, {"all_reduce_size": 64}]
    for name in ("communication_type", "communication_stream"):
        if name in inspect.signature(nn.average_gradients).parameters:
            options.append({name: mx.float16 if name == "communication_type" else mx.new_stream(mx.cpu)})
    for option in options:
        for with_group in ({}, {"group": world}):
            averaged = dict(tree_flatten(nn.average_gradients(grads, **option, **with_group)))
            for name, shape, value in expected:
                assert_equal(averaged[name], mx.full(shape, value, dtype=mx.float32))


def check_averaged_gradients_of_mixed_types():
    grads = [mx.full((5,), rank, dtype=mx.float32), mx.full((5,), rank, dtype=mx.bfloat16)]
    mean = sum(range(ranks)) / ranks
    for result in nn.average_gradients(grads):
        assert mx.all(result == mean).item(), result


check_all(globals())
