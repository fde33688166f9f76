"""Tensor parallel training with MLX: each rank has a part of each layer.

    tbccl run -n 4 -- python 05_mlx_tensor_parallel.py --model transformer

The first matrix of a pair is sharded by rows (`all-to-sharded`), the second by columns (`sharded-to-all`), so
that a pair needs one sum over all ranks. Attention is sharded by heads in the same way. The weights equal
those of a single process, `python 05_mlx_tensor_parallel.py`. With `--save FILE` rank 0 writes the gathered
weights.
"""

import argparse

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.nn.layers.distributed import shard_linear
from mlx.utils import tree_flatten

import tbccl.mlx

WIDTH, HEADS, WORDS, LENGTH, BATCH = 64, 4, 48, 12, 8


class Perceptron(nn.Module):
    """The feed-forward part of a transformer block; `Regression` uses it too."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def shard(self, group):
        self.up = shard_linear(self.up, "all-to-sharded", group=group)
        self.down = shard_linear(self.down, "sharded-to-all", group=group)

    def __call__(self, x):
        return self.down(nn.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def shard(self, group):
        self.heads = HEADS // group.size()
        self.query = shard_linear(self.query, "all-to-sharded", group=group)
        self.key = shard_linear(self.key, "all-to-sharded", group=group)
        self.value = shard_linear(self.value, "all-to-sharded", group=group)
        self.out = shard_linear(self.out, "sharded-to-all", group=group)

    def __call__(self, x):
        def by_head(y):
            return y.reshape(*y.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)

        mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1])
        scale = (WIDTH // HEADS) ** -0.5
        attended = mx.fast.scaled_dot_product_attention(
            by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x)), scale=scale, mask=mask
        )
        return self.out(attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = [nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)]
        self.attention = Attention()
        self.perceptron = Perceptron()

    def shard(self, group):
        self.attention.shard(group)
        self.perceptron.shard(group)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.perceptron(self.norms[1](x))


class Transformer(nn.Module):
    """A transformer that predicts the next word in repeated sequences of random words."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = [Block(), Block()]
        self.norm = nn.RMSNorm(WIDTH)

    def shard(self, group):
        for block in self.blocks:
            block.shard(group)

    def __call__(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.embedding.as_linear(self.norm(x))

    @staticmethod
    def batch(step):
        half = mx.random.randint(0, WORDS, (BATCH, LENGTH // 2 + 1), key=mx.random.key(step))
        words = mx.concatenate([half, half], axis=1)[:, : LENGTH + 1]
        return words[:, :-1], words[:, 1:]

    @staticmethod
    def loss(model, words, following):
        return nn.losses.cross_entropy(model(words), following, reduction="mean")


class Regression(nn.Module):
    """A model of two perceptrons that learns a random function."""

    def __init__(self):
        super().__init__()
        self.blocks = [Perceptron(), Perceptron()]

    def shard(self, group):
        for block in self.blocks:
            block.shard(group)

    def __call__(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

    @staticmethod
    def batch(step):
        truth = mx.random.normal((WIDTH, WIDTH), key=mx.random.key(999)) * WIDTH**-0.5
        x = mx.random.normal((BATCH, WIDTH), key=mx.random.key(step))
        return x, mx.tanh(x @ truth)

    @staticmethod
    def loss(model, x, y):
        return ((model(x) - y) ** 2).mean()


def train(model, world, steps):
    optimizer = optim.SGD(learning_rate=0.1, momentum=0.9)
    loss_and_grad = nn.value_and_grad(model, type(model).loss)
    for step in range(steps):
        loss, gradients = loss_and_grad(model, *type(model).batch(step))
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, loss)
        if world.rank() == 0 and (step % 5 == 0 or step == steps - 1):
            print(f"step {step:3}  loss {loss.item():.6f}", flush=True)


def gather_shards(shard, full, world):
    """Gathers a parameter of which each rank has some rows or columns."""
    if shard.shape == full.shape:
        return shard
    lengths = enumerate(zip(shard.shape, full.shape))
    axis = next(axis for axis, (shard_length, full_length) in lengths if shard_length != full_length)
    gathered = mx.distributed.all_gather(mx.contiguous(shard.swapaxes(0, axis)), group=world)
    return gathered.swapaxes(0, axis)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["mlp", "transformer"], default="mlp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", metavar="FILE", help="file for the weights (.npz)")
    args = parser.parse_args()

    world = tbccl.mlx.init(strict=False)  # Without a launcher, a group of one rank.
    if HEADS % world.size():
        raise SystemExit(f"{HEADS} heads can't be divided among {world.size()} ranks")
    mx.random.seed(1)  # The same weights on all ranks.
    model = {"mlp": Regression, "transformer": Transformer}[args.model]()
    full_parameters = dict(tree_flatten(model.parameters()))
    if world.size() > 1:
        model.shard(world)
    train(model, world, args.steps)
    if args.save:
        parts = dict(tree_flatten(model.parameters()))
        gathered = {name: gather_shards(parts[name], full, world) for name, full in full_parameters.items()}
        mx.eval(gathered)
        if world.rank() == 0:
            mx.savez(args.save, **gathered)


if __name__ == "__main__":
    main()
