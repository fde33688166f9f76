"""Data parallel training: each rank has the whole model and a part of each batch.

    tbccl run -n 4 -- python 02_torch_ddp.py
    torchrun --nproc-per-node 4 02_torch_ddp.py

A small convolutional network learns to read noisy seven-segment digits. Only the name of the backend is
specific to tbccl. `--quantised` compresses gradients on the wire, for cables that are slower than memory.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tbccl.torch

#: Lit segments of each digit: top, upper left, upper right, middle, lower left, lower right, bottom.
DIGITS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)


def digit_images() -> torch.Tensor:
    """Returns an image of each digit, 12 by 12 pixels."""
    images = torch.zeros(10, 12, 12)
    positions = [
        (slice(1, 3), slice(2, 10)),
        (slice(1, 7), slice(1, 3)),
        (slice(1, 7), slice(9, 11)),
        (slice(5, 7), slice(2, 10)),
        (slice(5, 11), slice(1, 3)),
        (slice(5, 11), slice(9, 11)),
        (slice(9, 11), slice(2, 10)),
    ]
    for digit, segments in enumerate(DIGITS):
        for segment, place in zip(segments, positions):
            if segment == "1":
                images[digit][place] = 1
    return images.unsqueeze(1)


def batch(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns noisy images of random digits, and the digits."""
    digits = torch.randint(0, 10, (count,), generator=generator)
    return digit_images()[digits] + 0.7 * torch.randn(count, 1, 12, 12, generator=generator), digits


def network() -> nn.Module:
    """Returns a network of two convolutions and two linear layers, with 50,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all ranks")
    parser.add_argument("--quantised", action="store_true", help="send gradients in a quarter of their bytes")
    arguments = parser.parse_args()

    dist.init_process_group("tbccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    if arguments.quantised:
        model.register_comm_hook(tbccl.torch.QuantizedState(), tbccl.torch.quantized_hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(100 + rank)  # Each rank has its own images.
    for step in range(arguments.steps):
        inputs, digits = batch(arguments.batch // size, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), digits)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    inputs, digits = batch(500, torch.Generator().manual_seed(10_000 + rank))
    with torch.no_grad():
        correct = (model(inputs).argmax(1) == digits).sum()
    dist.all_reduce(correct)
    if rank == 0:
        print(f"{correct.item() / (500 * size):.1%} of {500 * size} digits are read right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
