"""More groups than RDMA devices have queue pairs for: the remaining groups fall back to TCP.

    tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh4.toml -- python python/tests/torch/many_groups.py

Rank 0 is in all groups, so its devices run out first: the other members of a group learn it from rank 0.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
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
    moved = [group._comm.transport for members, group in groups if rank in members]
    told = sum("goes over tcp" in str(one.message) for one in said)
    assert told == (moved.count("tcp") if rank == 0 else 0), (told, moved)
    dist.destroy_process_group()
    print(f"@groups {rank} {moved.count('verbs')} {moved.count('tcp')}", flush=True)


if __name__ == "__main__":
    main()
