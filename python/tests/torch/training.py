"""Training over tbccl results in the same parameters as training in one process.

    tbccl run -n 4 -- python python/tests/torch/training.py [--device DEVICE] [METHOD...]

Each method is a function whose name begins with `train_`. It returns the parameters after 20 steps, and those
of the same model trained by one process on the whole batches. They may differ by 1e-5.
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

import accelerators
import tbccl.torch

STEPS = 20
BATCH = 8
WIDTH = 16
TOLERANCE = 1e-5

#: Type of the device of models and batches.
device = "cpu"

Parameters = dict[str, torch.Tensor]


class Model(nn.Module):
    """Two layers and a norm; the number of hidden units is a multiple of the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = nn.LayerNorm(4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.tanh(self.up(inputs))))


class SmallModel(nn.Module):
    """Two layers without a norm, for tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(inputs)))


def new_model(kind: type[nn.Module] = Model) -> nn.Module:
    """Returns a new model, the same in all processes."""
    torch.manual_seed(7)
    return kind().to(device)


def training_batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields inputs and targets, the same in all processes."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs.to(device), torch.sin(inputs[:, :4]).to(device)


def local_part(batch: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a batch."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    part: Callable[[torch.Tensor], torch.Tensor] = local_part,
) -> None:
    """Trains a model on a part of each batch."""
    for inputs, targets in training_batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(part(inputs)), part(targets)).backward()
        optimizer.step()


def whole_batch(batch: torch.Tensor) -> torch.Tensor:
    """Returns the whole batch."""
    return batch


def trained_alone(kind: type[nn.Module] = Model, make: Callable = sgd) -> Parameters:
    """Returns the parameters that a single process trains."""
    model = new_model(kind)
    train(model, make(model.parameters()), whole_batch)
    return dict(model.state_dict())


def full_tensors(state: dict) -> Parameters:
    """Returns the parameters with all DTensors gathered."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()
    }


def train_ddp() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(new_model())
    train(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), trained_alone()


def train_ddp_in_many_buckets() -> tuple[Parameters, Parameters]:
    options = {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True, "static_graph": True}
    model = DistributedDataParallel(new_model(), **options)
    train(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), trained_alone()


def train_ddp_with_a_hook() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(new_model())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    train(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), trained_alone()


def train_ddp_with_a_hook_of_two_calls() -> tuple[Parameters, Parameters]:
    def hook(group, bucket):  # torch rejects annotations that are strings.
        """Sums the bucket's two halves, the second one in the first one's callback."""
        buffer = bucket.buffer().div_(dist.get_world_size())
        one, two = buffer[: buffer.numel() // 2], buffer[buffer.numel() // 2 :]
        first = dist.all_reduce(one, async_op=True).get_future()
        return first.then(lambda _: dist.all_reduce(two, async_op=True).get_future().wait() and buffer)

    model = DistributedDataParallel(new_model())
    model.register_comm_hook(None, hook)
    train(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), trained_alone()


def train_ddp_with_quantized_messages_of_short_buckets() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(new_model())
    model.register_comm_hook(None, tbccl.torch.quantized_hook)
    train(model, sgd(model.parameters()))
    return dict(model.module.state_dict()), trained_alone()


def train_fsdp1() -> tuple[Parameters, Parameters]:
    place = torch.ones(0, device=device).device
    model = FullyShardedDataParallel(new_model(), device_id=place, use_orig_params=True)
    train(model, sgd(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: value.clone() for name, value in model.module.state_dict().items()}, trained_alone()


def train_fsdp2() -> tuple[Parameters, Parameters]:
    model = new_model()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, adam(model.parameters()))
    return full_tensors(model.state_dict()), trained_alone(make=adam)


def train_hybrid_shards() -> tuple[Parameters, Parameters]:
    """Hybrid sharding on a mesh of two dimensions, with groups of replicas and groups of shards."""
    model = new_model()
    size = dist.get_world_size()
    mesh = init_device_mesh(device, (size // 2, 2), mesh_dim_names=("copies", "shards"))
    fully_shard(model, mesh=mesh)
    train(model, sgd(model.parameters()))
    return full_tensors(model.state_dict()), trained_alone()


def train_tensor_parallel() -> tuple[Parameters, Parameters]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(new_model(SmallModel), mesh, plan)
    train(model, sgd(model.parameters()), whole_batch)
    return full_tensors(model.state_dict()), trained_alone(SmallModel)


def train_dtensors() -> tuple[Parameters, Parameters]:
    """A model whose weights are distributed and redistributed by hand."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    reference = new_model(SmallModel)
    placement = lambda name: Shard(0) if "up" in name else Replicate()  # noqa: E731
    weights = {
        name: nn.Parameter(distribute_tensor(value.detach(), mesh, [placement(name)]))
        for name, value in reference.named_parameters()
    }
    optimizer = sgd(weights.values())
    for inputs, targets in training_batches():
        optimizer.zero_grad()
        replicated = distribute_tensor(inputs, mesh, [Replicate()])
        hidden = torch.tanh(replicated @ weights["up.weight"].t() + weights["up.bias"])
        hidden = hidden.redistribute(mesh, [Replicate()])
        out = hidden @ weights["down.weight"].t() + weights["down.bias"]
        # Written out, because torch 2.8 has no sharding rule for mse_loss.
        (out - distribute_tensor(targets, mesh, [Replicate()])).square().mean().backward()
        optimizer.step()
    return full_tensors({name: value.detach() for name, value in weights.items()}), trained_alone(SmallModel)


def train_zero_redundancy() -> tuple[Parameters, Parameters]:
    model = DistributedDataParallel(new_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer)
    return dict(model.module.state_dict()), trained_alone(make=adam)


def train_from_a_checkpoint() -> tuple[Parameters, Parameters]:
    """A sharded checkpoint is loaded into an untrained model."""
    model = new_model()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    train(model, sgd(model.parameters()))
    folder = [tempfile.mkdtemp(prefix="tbccl-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    other = Model().to(device)
    fully_shard(other, mesh=mesh)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    dist.barrier()
    if dist.get_rank() == 0:
        for name in os.listdir(folder[0]):
            os.unlink(os.path.join(folder[0], name))
        os.rmdir(folder[0])
    return full_tensors(other.state_dict()), trained_alone()


def check_compressing_hooks() -> None:
    """Lossy hooks: all ranks end with the same parameters, close to the exact ones."""
    states = {
        "fp16": (None, default_hooks.fp16_compress_hook),
        "bf16": (None, default_hooks.bf16_compress_hook),
        "power": (powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
        "int8": (tbccl.torch.QuantizedState(exact_below_bytes=0), tbccl.torch.quantized_hook),
        "packed": (tbccl.torch.QuantizedState(codec="bf16", exact_below_bytes=0), tbccl.torch.quantized_hook),
    }
    exact = trained_alone()
    for name, (state, hook) in states.items():
        model = DistributedDataParallel(new_model())
        model.register_comm_hook(state, hook)
        train(model, sgd(model.parameters()))
        for key, value in model.module.state_dict().items():
            first = value.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, value), f"{name}: {key} differs between ranks"
        difference = max_difference(dict(model.module.state_dict()), exact)
        assert difference < (0.5 if name == "power" else 0.05), (name, difference)


def max_difference(first: Parameters, second: Parameters) -> float:
    """Returns the largest absolute difference between two sets of parameters."""
    assert first.keys() == second.keys(), (first.keys(), second.keys())
    return max((first[name] - second[name]).abs().max().item() for name in first)


def main() -> None:
    global device
    torch.set_num_threads(1)
    selected = sys.argv[1:]
    if name := accelerators.take_option(selected):
        device = accelerators.load(name)
    dist.init_process_group("tbccl")
    rank = dist.get_rank()
    methods = {name: method for name, method in globals().items() if name.startswith("train_")}
    selected = selected or [*methods, "check_compressing_hooks"]
    for name in selected:
        started = time.monotonic()
        if name in methods:
            difference = max_difference(*methods[name]())
            assert difference <= TOLERANCE, f"{name}, rank {rank}: parameters differ by {difference}"
        else:
            globals()[name]()
            difference = float("nan")
        if rank == 0:
            print(f"{name}: {difference:.1e}, {time.monotonic() - started:.1f} s", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank}: {len(selected)} ways of training passed", flush=True)


if __name__ == "__main__":
    main()
