"""Pipeline parallel training with MLX: each rank has some of the layers, and sends its output to the next.

    tbccl run -n 4 -- python 06_mlx_pipeline.py

A batch is split into pieces (microbatches). Messages carry each piece forward through the ranks and its
gradient backward, so that all ranks are busy once the first pieces have passed. The weights equal those of a
single process, `python 06_mlx_pipeline.py`. With `--save FILE` rank 0 receives all weights by messages and
writes them.
"""

import argparse

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_unflatten

import tbccl.mlx

LAYERS, WIDTH, BATCH, PIECES = 8, 32, 32, 4
PIECE = BATCH // PIECES


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __call__(self, x):
        return x + mx.tanh(self.linear(x))


def batch(step):
    x = mx.random.normal((BATCH, WIDTH), key=mx.random.key(step))
    return x, mx.sin(2 * x)


class Stage:
    """The layers of one rank."""

    def __init__(self, layers, world):
        self.model, self.world = nn.Sequential(*layers), world
        rank, last = world.rank(), world.size() - 1
        self.previous = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < last else None

    def forward(self, x):
        """Runs the layers on a piece, and sends the output to the next rank; returns input and output."""
        if self.previous is not None:
            x = mx.distributed.recv_like(x, self.previous, group=self.world)
        y = self.model(x)
        if self.next is not None:
            y = mx.distributed.send(y, self.next, group=self.world)
        mx.eval(x, y)
        return x, y

    def backward(self, x, target):
        """Returns the output of a piece, on the last rank its loss, and the gradients of the parameters."""
        parameters = self.model.trainable_parameters()
        names, values = zip(*tree_flatten(parameters))

        def run(*arguments):
            *values, x = arguments
            self.model.update(tree_unflatten(list(zip(names, values))))
            y = self.model(x)
            return [y if self.next is not None else ((y - target) ** 2).mean()]

        if self.next is None:
            seed = mx.array(1.0 / PIECES)
        else:
            seed = mx.distributed.recv_like(x, self.next, group=self.world)
        loss_value, gradients = mx.vjp(run, [*values, x], [seed])
        self.model.update(parameters)
        if self.previous is not None:
            mx.eval(mx.distributed.send(gradients[-1], self.previous, group=self.world))
        mx.eval(loss_value, gradients)
        return loss_value[0], tree_unflatten(list(zip(names, gradients[:-1])))


def train(stage, world, steps):
    optimizer = optim.SGD(learning_rate=0.1)
    for step in range(steps):
        x, target = batch(step)
        pieces = [slice(PIECE * at, PIECE * (at + 1)) for at in range(PIECES)]
        inputs = [stage.forward(x[piece])[0] for piece in pieces]
        loss, total = 0.0, None
        for piece, piece_input in zip(pieces, inputs):
            loss_value, gradients = stage.backward(piece_input, target[piece])
            total = gradients if total is None else tree_map(mx.add, total, gradients)
            loss += loss_value.item() / PIECES if stage.next is None else 0.0
        optimizer.update(stage.model, total)
        mx.eval(stage.model.parameters())
        if stage.next is None and (step % 5 == 0 or step == steps - 1):
            print(f"step {step:3}  loss {loss:.6f}", flush=True)


def collect(stage, world):
    """Returns all weights on rank 0, and None on the other ranks."""
    local = [value for _, value in tree_flatten(stage.model.parameters())]
    if world.rank() > 0:
        for value in local:  # One at a time: within one evaluation MLX would choose the order.
            mx.eval(mx.distributed.send(value, 0, group=world))
        return None
    gathered = list(local)
    for rank in range(1, world.size()):
        for template in local:
            gathered.append(mx.distributed.recv_like(template, rank, group=world))
            mx.eval(gathered[-1])
    return gathered


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", metavar="FILE", help="file for the weights (.npz)")
    args = parser.parse_args()

    world = tbccl.mlx.init(strict=False)  # Without a launcher, a group of one rank.
    if LAYERS % world.size():
        raise SystemExit(f"{LAYERS} layers can't be divided among {world.size()} ranks")
    mx.random.seed(1)  # The same weights on all ranks.
    layers = [Layer() for _ in range(LAYERS)]
    each = LAYERS // world.size()
    stage = Stage(layers[world.rank() * each : (world.rank() + 1) * each], world)
    train(stage, world, args.steps)
    if args.save:
        gathered = collect(stage, world)
        if gathered is not None:
            mx.savez(args.save, **{str(at): value for at, value in enumerate(gathered)})


if __name__ == "__main__":
    main()
