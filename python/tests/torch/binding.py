"""Groups that `device_id=` binds to a device: torch splits them for meshes, and makes other groups of them.

    tbccl run -n 2 -- python python/tests/torch/binding.py [--device cuda] [CHECK...]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import accelerators
import tbccl.torch  # noqa: F401
from checks import runner
from checks.common import rank, size

device: torch.device
#: Whether this version of torch splits groups of other backends than nccl.
CAN_SPLIT = hasattr(dist.ProcessGroup, "split_group")


def ones() -> torch.Tensor:
    return torch.ones(5, device=device)


def reduced(group: dist.ProcessGroup) -> list[float]:
    """Returns the sum of ones over a group."""
    tensor = ones()
    dist.all_reduce(tensor, group=group)
    return tensor.tolist()


def check_the_group_knows_its_device() -> None:
    assert dist.group.WORLD.bound_device_id == (device if CAN_SPLIT else None)
    dist.barrier()
    assert reduced(dist.group.WORLD) == 5 * [size]


def check_new_groups_of_some_ranks_are_made() -> None:
    groups = [dist.new_group([each]) for each in range(size)]
    assert reduced(groups[rank]) == 5 * [1]
    assert reduced(dist.new_group(list(range(size)))) == 5 * [size]


def check_meshes_are_made() -> None:
    mesh = init_device_mesh(device.type, (size, 1), mesh_dim_names=("data", "model"))
    assert reduced(mesh.get_group("data")) == 5 * [size]
    assert reduced(mesh.get_group("model")) == 5 * [1]


def check_the_group_is_split() -> None:
    # torch 2.11 splits groups with tensors on cuda only.
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if not CAN_SPLIT or (version < (2, 15) and device.type != "cuda"):
        return
    part = dist.split_group(dist.group.WORLD, [[each] for each in range(size)])
    assert part.bound_device_id == device and reduced(part) == 5 * [1]


def main() -> None:
    global device
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    kind = accelerators.load(accelerators.take_option(arguments, "standin"))
    device = torch.device(kind, torch.accelerator.current_device_index())
    dist.init_process_group("tbccl", device_id=device)
    passed = runner.run(globals(), arguments)
    dist.destroy_process_group()
    print(f"@passed {rank} {passed} checks of bound groups passed", flush=True)


if __name__ == "__main__":
    main()
