"""Data parallel training with MLX: each rank trains on a part of every batch, and gradients are averaged.

    tbccl run -n 4 -- python 04_mlx_data_parallel.py

The weights equal those of a single process, `python 04_mlx_data_parallel.py`. With `--save FILE` rank 0
writes them.
"""

import argparse

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten

import tbccl.mlx

BATCH, FEATURES, CLASSES = 64, 16, 4


class Classifier(nn.Module):
    """A perceptron with two hidden layers."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(FEATURES, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nn.gelu(layer(x))
        return self.layers[-1](x)


def batch(step):
    """Returns the whole batch of a step, the same on all ranks: points around the center of their class."""
    centers = mx.random.normal((CLASSES, FEATURES), key=mx.random.key(0))
    labels = mx.random.randint(0, CLASSES, (BATCH,), key=mx.random.key(2 * step + 1))
    noise = mx.random.normal((BATCH, FEATURES), key=mx.random.key(2 * step + 2))
    return centers[labels] + 0.5 * noise, labels


def loss_of(model, x, labels):
    return nn.losses.cross_entropy(model(x), labels, reduction="mean")


def train(world, steps):
    mx.random.seed(1)  # The same weights on all ranks.
    model = Classifier()
    optimizer = optim.Adam(learning_rate=1e-3)
    loss_and_grad = nn.value_and_grad(model, loss_of)
    rank, ranks = world.rank(), world.size()
    local_batch = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    for step in range(steps):
        x, labels = batch(step)
        loss, gradients = loss_and_grad(model, x[local_batch], labels[local_batch])
        optimizer.update(model, nn.average_gradients(gradients, group=world))
        loss = mx.distributed.all_sum(loss, group=world) / world.size()
        mx.eval(model.parameters(), optimizer.state, loss)
        if world.rank() == 0 and (step % 5 == 0 or step == steps - 1):
            print(f"step {step:3}  loss {loss.item():.6f}", flush=True)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", metavar="FILE", help="file for the weights (.npz)")
    args = parser.parse_args()

    world = tbccl.mlx.init(strict=False)  # Without a launcher, a group of one rank.
    if BATCH % world.size():
        raise SystemExit(f"a batch of {BATCH} can't be divided among {world.size()} ranks")
    model = train(world, args.steps)
    if args.save and world.rank() == 0:
        mx.savez(args.save, **dict(tree_flatten(model.parameters())))


if __name__ == "__main__":
    main()
