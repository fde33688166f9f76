"""More groups than RDMA devices have queue pairs for: they use the connections of the default group.

    tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh4.toml -- python python/tests/torch/many_groups.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = []
    for number in range(4 * (size - 1)):
        members = [0, 1 + number % (size - 1)]
        groups.append((members, dist.new_group(members)))
    groups.append(([*range(size)], dist.new_group()))
    # All groups exist at the same time.
    for members, group in groups:
        if rank in members:
            total = torch.full((1000,), float(rank))
            dist.all_reduce(total, group=group)
            assert total.unique().tolist() == [sum(members)], (members, total)
    transports = {group._comm.transport for members, group in groups if rank in members}
    dist.destroy_process_group()
    print(f"@groups {rank} {' '.join(sorted(transports))}", flush=True)


if __name__ == "__main__":
    main()
