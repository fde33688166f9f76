"""Benchmark of a training step with FSDP2 (`fully_shard`), over tbccl and over gloo.

    tbccl run -n 2 -- python python/bench/torch_fsdp.py [--device cpu] [--rounds N]

The model has 100.7 million parameters in 12 blocks, each of which is gathered before its forward and backward
pass, and whose gradients are scattered after it. The step without communication is that of the same model on
each rank alone. Rank 0 prints medians over rounds in which the backends alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import tbccl.torch  # noqa: F401

WIDTH, HIDDEN, BLOCKS = 1024, 4096, 12


def new_model(device: torch.device) -> nn.Sequential:
    """Returns 12 blocks of 8.4 million parameters."""
    torch.manual_seed(0)

    def block() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    return nn.Sequential(*(block() for _ in range(BLOCKS))).to(device)


def sharded_model(device: torch.device, group: dist.ProcessGroup) -> nn.Module:
    """Returns the model with each block sharded over the ranks of a group."""
    model, mesh = new_model(device), DeviceMesh.from_group(group, device.type)
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Trainer:
    """A model with its optimizer."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor) -> None:
        self._model, self._inputs = model, inputs
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(self) -> None:
        """Computes and applies the gradients of a batch, and waits for the device."""
        self._optimizer.zero_grad()
        self._model(self._inputs).square().mean().backward()
        self._optimizer.step()
        if not self._inputs.is_cpu:
            torch.accelerator.synchronize()


def seconds_of(trainer: Trainer, steps: int) -> float:
    """Returns the mean seconds of a step, after one that is not measured."""
    dist.barrier()
    trainer.step()
    begun = time.perf_counter()
    for _ in range(steps):
        trainer.step()
    return (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="type of the device")
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="rows of a rank in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of a round")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if arguments.device != "cpu":
        module = torch.get_device_module(arguments.device)
        device = torch.device(arguments.device, int(os.environ["LOCAL_RANK"]) % module.device_count())
        module.set_device(device)
    dist.init_process_group("tbccl")
    groups = {"tbccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if dist.get_rank() == 0:
        print(f"{'batch':>6} {'alone ms':>9} {'tbccl ms':>9} {'gloo ms':>9} {'ratio':>7}")
    for batch in arguments.batch:
        inputs = torch.randn(batch, WIDTH, device=device)
        trainers = {name: Trainer(sharded_model(device, group), inputs) for name, group in groups.items()}
        trainers["alone"] = Trainer(new_model(device), inputs)
        times: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(arguments.rounds):
            for name, trainer in trainers.items():
                times[name].append(seconds_of(trainer, arguments.steps))
        found = {name: statistics.median(each) * 1e3 for name, each in times.items()}
        ratio = statistics.median(one / other for one, other in zip(times["tbccl"], times["gloo"]))
        if dist.get_rank() == 0:
            columns = (found["alone"], found["tbccl"], found["gloo"])
            print(f"{batch:>6}" + "".join(f" {ms:>9.1f}" for ms in columns) + f" {ratio:>7.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
