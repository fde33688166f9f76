"""Mixture of experts over all ranks: each rank has some of the experts, and tokens travel to theirs and back.

Every rank has tokens of its own and the whole router. Its tokens go to the ranks of the experts that the
router chooses, through one `all_to_all`, and the results come back through another one. Gradients take the
same way back. The program compares results and gradients with those of all experts and tokens in one process.
"""

from __future__ import annotations

import os

import mlx.core as mx
import mlx.nn as nn

import tbccl.mlx

WIDTH, HIDDEN = 16, 32
#: Tokens of each rank, experts per rank, and experts that a token goes to.
TOKENS, EXPERTS_PER_RANK, CHOSEN = 12, 2, 2


class Experts(nn.Module):
    """Two-layer networks side by side, applied to an array of shape (experts, tokens, width)."""

    def __init__(self, experts: int):
        super().__init__()
        self.up = mx.random.normal((experts, WIDTH, HIDDEN)) / 4
        self.down = mx.random.normal((experts, HIDDEN, WIDTH)) / 4

    def __call__(self, x: mx.array) -> mx.array:
        return nn.silu(x @ self.up) @ self.down


class MixtureOfExperts(nn.Module):
    """A layer whose experts are divided over the ranks of a group; without a group it has them all."""

    def __init__(self, experts: int, group: mx.distributed.Group | None = None):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.experts = Experts(experts)
        self.group = group
        if group is not None:
            share = experts // group.size()
            mine = slice(group.rank() * share, (group.rank() + 1) * share)
            self.experts.up, self.experts.down = self.experts.up[mine], self.experts.down[mine]

    def __call__(self, x: mx.array) -> mx.array:
        """Returns the weighted results of the experts of each token, for tokens of shape (tokens, width)."""
        weights, places = self._route(x)
        # One slot per expert and token, so that every expert has room for all tokens of a rank.
        taken = mx.einsum("tes,td->esd", places, x)
        results = self._apply_experts(taken)
        return mx.einsum("tes,te,esd->td", places, weights, results)

    def _route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Returns the weight of each expert for each token, and 1 at the slots of tokens at experts."""
        scores = self.router(x)
        chosen = mx.argpartition(mx.stop_gradient(-scores), CHOSEN, axis=-1)[:, :CHOSEN]
        is_chosen = mx.put_along_axis(mx.zeros_like(scores), chosen, mx.array(1.0), axis=-1)
        weights = mx.softmax(mx.where(is_chosen > 0, scores, -mx.inf), axis=-1)
        slot = (mx.cumsum(is_chosen, axis=0) - 1).astype(mx.int32)
        is_slot = slot[:, :, None] == mx.arange(len(x))
        return weights, mx.stop_gradient(is_slot * is_chosen[:, :, None])

    def _apply_experts(self, taken: mx.array) -> mx.array:
        """Applies each expert to its slots, of shape (experts, slots, width), on the expert's rank."""
        if self.group is None:
            return self.experts(taken)
        ranks, (experts, slots, width) = self.group.size(), taken.shape
        share = experts // ranks
        # Blocks for the ranks of the experts become blocks of the ranks of the tokens.
        arrived = tbccl.mlx.all_to_all(taken, group=self.group).reshape(ranks, share, slots, width)
        by_expert = arrived.swapaxes(0, 1).reshape(share, ranks * slots, width)
        results = self.experts(by_expert).reshape(share, ranks, slots, width).swapaxes(0, 1)
        return tbccl.mlx.all_to_all(results.reshape(experts, slots, width), group=self.group)


def layer(experts: int, group: mx.distributed.Group | None) -> MixtureOfExperts:
    mx.random.seed(5)
    return MixtureOfExperts(experts, group)


def loss(network: MixtureOfExperts, x: mx.array, wanted: mx.array) -> mx.array:
    return ((network(x) - wanted) ** 2).sum()


def difference(result: mx.array, expected: mx.array) -> float:
    """Returns the largest difference, relative to the largest element."""
    assert result.shape == expected.shape, (result.shape, expected.shape)
    return (mx.abs(result - expected).max() / mx.abs(expected).max()).item()


def main() -> None:
    world = mx.distributed.init()
    rank, ranks = world.rank(), world.size()
    experts = EXPERTS_PER_RANK * ranks
    mx.random.seed(9)
    x, wanted = mx.random.normal((2, ranks * TOKENS, WIDTH))
    alone, divided = layer(experts, None), layer(experts, world)
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    owned = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)

    whole = nn.value_and_grad(alone, loss)(alone, x, wanted)[1]
    part = nn.value_and_grad(divided, loss)(divided, x[mine], wanted[mine])[1]
    # Experts have met the tokens of all ranks; the router only those of its own rank.
    router = mx.distributed.all_sum(part["router"]["weight"], group=world)
    x_gradient = mx.grad(lambda x: loss(alone, x, wanted))(x)[mine]
    differences = {
        "result": difference(divided(x[mine]), alone(x)[mine]),
        "up": difference(part["experts"]["up"], whole["experts"]["up"][owned]),
        "down": difference(part["experts"]["down"], whole["experts"]["down"][owned]),
        "router": difference(router, whole["router"]["weight"]),
        "tokens": difference(mx.grad(lambda x: loss(divided, x, wanted[mine]))(x[mine]), x_gradient),
    }
    travelled = divided._route(x[mine])[1].sum(axis=(0, 2)).tolist()
    away = sum(travelled) - sum(travelled[owned])
    os.write(1, f"@experts {rank} {int(away)} {max(differences.values()):.1e} {differences}\n".encode())


if __name__ == "__main__":
    main()
