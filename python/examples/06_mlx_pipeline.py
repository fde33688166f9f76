"""Pipeline parallel training with MLX: every rank has some of the layers, and hands on what it has computed.

    tbccl run -n 4 -- python 06_mlx_pipeline.py

A batch is cut into pieces. Each piece goes forwards through the ranks, and its gradient backwards, by messages; so all
ranks have something to do once the first pieces are through. The weights are those that a single process would have:
`python 06_mlx_pipeline.py` is one. With `--save FILE` they are written by rank 0, which gets them by messages as well.
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
        self.before = rank - 1 if rank > 0 else None
        self.behind = rank + 1 if rank < last else None

    def forwards(self, x):
        """What these layers make of a piece, for who comes next."""
        if self.before is not None:
            x = mx.distributed.recv_like(x, self.before, group=self.world)
        y = self.model(x)
        if self.behind is not None:
            y = mx.distributed.send(y, self.behind, group=self.world)
        mx.eval(x, y)
        return x, y

    def backwards(self, x, target):
        """The gradients of a piece, and its loss where the last layer is."""
        parameters = self.model.trainable_parameters()
        names, values = zip(*tree_flatten(parameters))

        def run(*arguments):
            *values, x = arguments
            self.model.update(tree_unflatten(list(zip(names, values))))
            y = self.model(x)
            return [y if self.behind is not None else ((y - target) ** 2).mean()]

        if self.behind is None:
            seed = mx.array(1.0 / PIECES)
        else:
            seed = mx.distributed.recv_like(x, self.behind, group=self.world)
        found, grads = mx.vjp(run, [*values, x], [seed])
        self.model.update(parameters)
        if self.before is not None:
            mx.eval(mx.distributed.send(grads[-1], self.before, group=self.world))
        mx.eval(found, grads)
        return found[0], tree_unflatten(list(zip(names, grads[:-1])))


def train(stage, world, steps):
    optimiser = optim.SGD(learning_rate=0.1)
    for step in range(steps):
        x, target = batch(step)
        pieces = [slice(PIECE * at, PIECE * (at + 1)) for at in range(PIECES)]
        inputs = [stage.forwards(x[piece])[0] for piece in pieces]
        loss, total = 0.0, None
        for piece, seen in zip(pieces, inputs):
            found, grads = stage.backwards(seen, target[piece])
            total = grads if total is None else tree_map(mx.add, total, grads)
            loss += found.item() / PIECES if stage.behind is None else 0.0
        optimiser.update(stage.model, total)
        mx.eval(stage.model.parameters())
        if stage.behind is None and (step % 5 == 0 or step == steps - 1):
            print(f"step {step:3}  loss {loss:.6f}", flush=True)


def collect(stage, world):
    """All weights, by rank 0."""
    own = [value for _, value in tree_flatten(stage.model.parameters())]
    if world.rank() > 0:
        for value in own:  # one by one: in one evaluation their order would be MLX's
            mx.eval(mx.distributed.send(value, 0, group=world))
        return None
    together = list(own)
    for rank in range(1, world.size()):
        for like in own:
            together.append(mx.distributed.recv_like(like, rank, group=world))
            mx.eval(together[-1])
    return together


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", metavar="FILE", help="write the weights there (.npz)")
    args = parser.parse_args()

    world = tbccl.mlx.init(strict=False)  # without a launcher this is the only rank
    if LAYERS % world.size():
        raise SystemExit(f"{LAYERS} layers can't be shared equally by {world.size()} ranks")
    mx.random.seed(1)  # the same weights everywhere
    layers = [Layer() for _ in range(LAYERS)]
    each = LAYERS // world.size()
    stage = Stage(layers[world.rank() * each : (world.rank() + 1) * each], world)
    train(stage, world, args.steps)
    if args.save:
        together = collect(stage, world)
        if together is not None:
            mx.savez(args.save, **{str(at): value for at, value in enumerate(together)})


if __name__ == "__main__":
    main()
