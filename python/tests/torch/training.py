"""Training over tbccl gives the parameters that one process gets by itself.

    tbccl run -n 4 -- python python/tests/torch/training.py [WAY...]

Each way of training is a function whose name begins with `train_`; it returns the parameters after 20 steps, which are
compared with those of the same model that was trained by one process on the whole of each batch. They may differ by 1e-5.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tbccl.torch

STEPS = 20
BATCH = 8
WIDTH = 16
CLOSE = 1e-5

Parameters = dict[str, torch.Tensor]


class Model(nn.Module):
    """Two layers and a norm; hidden units are a multiple of the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = nn.LayerNorm(4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.tanh(self.up(given))))


class Narrow(nn.Module):
    """Without a norm, for layers that are split between ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(given)))


def fresh(kind: type[nn.Module] = Model) -> nn.Module:
    """A model, the same in all processes."""
    torch.manual_seed(7)
    return kind()


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What is learnt from, the same in all processes."""
    numbers = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        given = torch.randn(BATCH, WIDTH, generator=numbers)
        yield given, torch.sin(given[:, :4])


def own(batch: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, part: Callable[[torch.Tensor], torch.Tensor] = own
) -> None:
    """Trains with this part of each batch."""
    for given, wanted in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(part(given)), part(wanted)).backward()
        optimizer.step()


def whole(batch: torch.Tensor) -> torch.Tensor:
    """All of a batch."""
    return batch


def alone(kind: type[nn.Module] = Model, make: Callable = sgd) -> Parameters:
    """What one process gets."""
    model = fresh(kind)
    learn(model, make(model.parameters()), whole)
    return dict(model.state_dict())


def full(state: dict) -> Parameters:
    """Parameters in one piece each."""
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


def train_ddp() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(fresh())
    learn(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), alone()


def train_ddp_in_many_buckets() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(fresh(), bucket_cap_mb=0.001, gradient_as_bucket_view=True, static_graph=True)
    learn(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), alone()


def train_ddp_with_a_hook() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(fresh())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    learn(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), alone()


def train_ddp_with_a_hook_of_two_calls() -> tuple[Parameters, Parameters]:
    def hook(group, bucket):  # torch takes no annotations that are texts
        """Halves that are summed one after the other, the second in the first's callback."""
        buffer = bucket.buffer().div_(dist.get_world_size())
        one, two = buffer[: buffer.numel() // 2], buffer[buffer.numel() // 2 :]
        first = dist.all_reduce(one, async_op=True).get_future()
        return first.then(lambda _: dist.all_reduce(two, async_op=True).get_future().wait() and buffer)

    model = DistributedDataParallel(fresh())
    model.register_comm_hook(None, hook)
    learn(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), alone()


def train_ddp_with_quantized_messages_of_short_buckets() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(fresh())
    model.register_comm_hook(None, tbccl.torch.quantized_hook)
    learn(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), alone()


def train_fsdp1() -> tuple[Parameters, Parameters]:
    model = FullyShardedDataParallel(fresh(), device_id=torch.device("cpu"), use_orig_params=True)
    learn(model, sgd(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: value.clone() for name, value in model.module.state_dict().items()}, alone()


def train_fsdp2() -> tuple[Parameters, Parameters]:
    model = fresh()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    learn(model, adam(model.parameters()))
    return full(model.state_dict()), alone(make=adam)


def train_hybrid_shards() -> tuple[Parameters, Parameters]:
    """Copies of shards: a mesh of two dimensions, so that there are groups of each."""
    model = fresh()
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("copies", "shards"))
    fully_shard(model, mesh=mesh)
    learn(model, sgd(model.parameters()))
    return full(model.state_dict()), alone()


def train_tensor_parallel() -> tuple[Parameters, Parameters]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(fresh(Narrow), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    learn(model, sgd(model.parameters()), whole)
    return full(model.state_dict()), alone(Narrow)


def train_dtensors() -> tuple[Parameters, Parameters]:
    """A layer whose weight is distributed by hand, and redistributed in each step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reference = fresh(Narrow)
    weights = {
        name: nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(0) if "up" in name else Replicate()]))
        for name, value in reference.named_parameters()
    }
    optimizer = sgd(weights.values())
    for given, wanted in batches():
        optimizer.zero_grad()
        hidden = torch.tanh(distribute_tensor(given, mesh, [Replicate()]) @ weights["up.weight"].t() + weights["up.bias"])
        hidden = hidden.redistribute(mesh, [Replicate()])
        out = hidden @ weights["down.weight"].t() + weights["down.bias"]
        # In steps: torch 2.8 has no rule for mse_loss.
        (out - distribute_tensor(wanted, mesh, [Replicate()])).square().mean().backward()
        optimizer.step()
    return full({name: value.detach() for name, value in weights.items()}), alone(Narrow)


def train_zero_redundancy() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(fresh())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    learn(model, optimizer)
    return dict(model.module.state_dict()), alone(make=adam)


def train_from_a_checkpoint() -> tuple[Parameters, Parameters]:
    """What was saved by shards is loaded into a model that was not trained."""
    model = fresh()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    learn(model, sgd(model.parameters()))
    place = [tempfile.mkdtemp(prefix="tbccl-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(place, 0)
    dcp.save({"model": model.state_dict()}, checkpoint_id=place[0])
    other = Model()
    fully_shard(other, mesh=mesh)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=place[0])
    other.load_state_dict(state["model"])
    dist.barrier()
    if dist.get_rank() == 0:
        for name in os.listdir(place[0]):
            os.unlink(os.path.join(place[0], name))
        os.rmdir(place[0])
    return full(other.state_dict()), alone()


def check_compressing_hooks() -> None:
    """Hooks that lose something: all ranks end with the same parameters, and learn."""
    states = {
        "fp16": (None, default_hooks.fp16_compress_hook),
        "bf16": (None, default_hooks.bf16_compress_hook),
        "power": (powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
        "int8": (tbccl.torch.QuantizedState(exact_below_bytes=0), tbccl.torch.quantized_hook),
        "packed": (tbccl.torch.QuantizedState(codec="bf16", exact_below_bytes=0), tbccl.torch.quantized_hook),
    }
    exact = alone()
    for name, (state, hook) in states.items():
        model = DistributedDataParallel(fresh())
        model.register_comm_hook(state, hook)
        learn(model, sgd(model.parameters()))
        for key, value in model.module.state_dict().items():
            first = value.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, value), f"{name}: {key} differs between ranks"
        off = furthest(dict(model.module.state_dict()), exact)
        assert off < (0.5 if name == "power" else 0.05), (name, off)


def furthest(ours: Parameters, theirs: Parameters) -> float:
    """The greatest difference of any parameter."""
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    rank = dist.get_rank()
    ways = {name: way for name, way in globals().items() if name.startswith("train_")}
    wanted = sys.argv[1:] or [*ways, "check_compressing_hooks"]
    for name in wanted:
        begun = time.monotonic()
        if name in ways:
            off = furthest(*ways[name]())
            assert off <= CLOSE, f"{name}, rank {rank}: parameters differ by {off}"
        else:
            globals()[name]()
            off = float("nan")
        if rank == 0:
            print(f"{name}: {off:.1e}, {time.monotonic() - begun:.1f} s", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank}: {len(wanted)} ways of training passed", flush=True)


if __name__ == "__main__":
    main()
