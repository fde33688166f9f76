"""Benchmark of a step of DistributedDataParallel on a device: how much of the communication is exposed.

    tbccl run -n 2 -- python python/bench/torch_ddp.py [--device cuda] [--batch N] [--rounds N]

The model has 25.6 million parameters in convolutions, as many as ResNet-50, and buckets of 25 MiB. A step
without communication (`no_sync`) is the reference: `exposed` is the share of a step that it lacks. Ranks
share the devices of a machine that has fewer than ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tbccl.torch  # noqa: F401

CHANNELS, LAYERS, SIDE = 512, 11, 14
BUCKET_MIB = 25


def new_model(device: torch.device) -> nn.Module:
    """Returns convolutions with 11 x 512 x 512 x 9 weights, and a head."""
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(LAYERS)
        for layer in (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 1000)).to(device)


def use_device(kind: str) -> torch.device:
    """Chooses the device of this rank, and one thread for its work on the processor."""
    torch.set_num_threads(1)
    module = torch.get_device_module(kind)
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]) % module.device_count())
    module.set_device(device)
    return device


def step(model: nn.Module, inputs: torch.Tensor) -> None:
    """Computes the gradients of a batch, and waits for them."""
    model.zero_grad(set_to_none=False)
    model(inputs).square().mean().backward()
    if not inputs.is_cpu:
        torch.accelerator.synchronize()


def seconds_of(model: DistributedDataParallel, inputs: torch.Tensor, steps: int, is_alone: bool) -> float:
    """Returns the mean seconds of a step, without communication if `is_alone`."""
    dist.barrier()
    if is_alone:
        with model.no_sync():
            return _timed(model, inputs, steps)
    return _timed(model, inputs, steps)


def _timed(model: nn.Module, inputs: torch.Tensor, steps: int) -> float:
    step(model, inputs)
    begun = time.perf_counter()
    for _ in range(steps):
        step(model, inputs)
    return (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="type of the device")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128], help="images of a rank in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    arguments = parser.parse_args()

    device = use_device(arguments.device)
    dist.init_process_group("tbccl")
    groups = {"tbccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    models = {
        name: DistributedDataParallel(new_model(device), process_group=group, bucket_cap_mb=BUCKET_MIB)
        for name, group in groups.items()
    }
    if dist.get_rank() == 0:
        print(f"{'batch':>6} {'backend':>8} {'step ms':>9} {'alone ms':>9} {'exposed':>8}")
    for batch in arguments.batch:
        inputs = torch.randn(batch, CHANNELS, SIDE, SIDE, device=device)
        times: dict[tuple[str, bool], list[float]] = {}
        for _ in range(arguments.rounds):
            for name, model in models.items():
                for is_alone in (False, True):
                    taken = seconds_of(model, inputs, arguments.steps, is_alone)
                    times.setdefault((name, is_alone), []).append(taken)
        for name in models:
            whole, alone = (statistics.median(times[name, is_alone]) * 1e3 for is_alone in (False, True))
            if dist.get_rank() == 0:
                share = max(0.0, 1 - alone / whole)
                print(f"{batch:>6} {name:>8} {whole:>9.2f} {alone:>9.2f} {share:>8.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
