"""Fully sharded training: each rank has a part of the parameters, and gathers each layer before it runs.

    tbccl run -n 4 -- python 03_torch_fsdp.py

A small transformer learns to continue a text letter by letter. Its parameters, gradients and optimizer state
are sharded over the ranks. At the end rank 0 gathers the whole model, which continues a line.
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
    "who has seen the wind? neither i nor you: "
    "but when the leaves hang trembling, the wind is passing through. "
    "who has seen the wind? neither you nor i: "
    "but when the trees bow down their heads, the wind is passing by. "
) * 4
LETTERS = sorted(set(TEXT))
CONTEXT = 48


class Block(nn.Module):
    """Causal attention, then two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        length = inputs.size(1)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        normalized = self.first_norm(inputs)
        attended = self.attention(normalized, normalized, normalized, attn_mask=mask, need_weights=False)[0]
        hidden = inputs + attended
        return hidden + self.layers(self.second_norm(hidden))


class Model(nn.Module):
    """A transformer that predicts the letter after each letter."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.letters, self.positions = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(inputs) + self.positions(torch.arange(inputs.size(1)))
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden)


def batch(count: int, generator: torch.Generator) -> torch.Tensor:
    """Returns random pieces of the text, as indices of letters."""
    starts = torch.randint(0, len(TEXT) - CONTEXT - 1, (count,), generator=generator).tolist()
    pieces = [TEXT[start : start + CONTEXT + 1] for start in starts]
    return torch.tensor([[LETTERS.index(letter) for letter in piece] for piece in pieces])


def continue_text(model: Model, text: str, count: int) -> str:
    """Returns the text with `count` more letters."""
    with torch.no_grad():
        for _ in range(count):
            inputs = torch.tensor([[LETTERS.index(letter) for letter in text[-CONTEXT:]]])
            text += LETTERS[model(inputs)[0, -1].argmax()]
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
    generator = torch.Generator().manual_seed(rank)
    for step in range(arguments.steps):
        pieces = batch(32 // size, generator)
        optimizer.zero_grad()
        logits = model(pieces[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    local_count = sum(parameter.to_local().numel() for parameter in model.parameters())
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        total = sum(value.numel() for value in state.values())
        full_model = Model()
        full_model.load_state_dict(state)
        print(f"this rank holds {local_count} of {total} parameters; the last loss is {loss.item():.3f}")
        print(continue_text(full_model, "who has seen", 40), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
