"""Fully sharded training: every rank has a part of the parameters, and gathers each layer as it is needed.

    tbccl run -n 4 -- python 03_torch_fsdp.py

A small transformer learns to continue a text letter by letter; its parameters, gradients and the state of the optimizer are
divided among the ranks. In the end the whole model is put together, and continues a line.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import tbccl.torch  # noqa: F401

TEXT = (
    "who has seen the wind? neither i nor you: but when the leaves hang trembling, the wind is passing through. "
    "who has seen the wind? neither you nor i: but when the trees bow down their heads, the wind is passing by. "
) * 4
LETTERS = sorted(set(TEXT))
CONTEXT = 48


class Block(nn.Module):
    """Attention to what came before, then two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        length = given.size(1)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        own = self.before(given)
        given = given + self.attention(own, own, own, attn_mask=later, need_weights=False)[0]
        return given + self.layers(self.between(given))


class Model(nn.Module):
    """What comes after each letter."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(given) + self.places(torch.arange(given.size(1)))
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden)


def batch(count: int, numbers: torch.Generator) -> torch.Tensor:
    """Pieces of the text, as numbers of letters."""
    begins = torch.randint(0, len(TEXT) - CONTEXT - 1, (count,), generator=numbers).tolist()
    return torch.tensor([[LETTERS.index(letter) for letter in TEXT[at : at + CONTEXT + 1]] for at in begins])


def continued(model: Model, text: str, count: int) -> str:
    """The text and so many letters more."""
    with torch.no_grad():
        for _ in range(count):
            given = torch.tensor([[LETTERS.index(letter) for letter in text[-CONTEXT:]]])
            text += LETTERS[model(given)[0, -1].argmax()]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    dist.init_process_group("tbccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    numbers = torch.Generator().manual_seed(rank)
    for step in range(arguments.steps):
        pieces = batch(32 // size, numbers)
        optimizer.zero_grad()
        told = model(pieces[:, :-1])
        loss = nn.functional.cross_entropy(told.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    own = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        everything = sum(value.numel() for value in whole.values())
        alone = Model()
        alone.load_state_dict(whole)
        print(f"this rank holds {own} of {everything} parameters; the last loss is {loss.item():.3f}", flush=True)
        print(continued(alone, "who has seen", 40), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
