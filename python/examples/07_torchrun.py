"""A program for torchrun, which needs only the name of the backend.

    torchrun --nproc-per-node 4 07_torchrun.py

If tbccl was installed by pip, torch knows the backend without `import tbccl.torch`. The ranks rendezvous
through the store of torchrun's agent, also on several machines (`--nnodes`, `--rdzv-endpoint`).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

try:
    dist.Backend("tbccl")
    assert hasattr(dist.Backend, "TBCCL")
except (AssertionError, ValueError):
    import tbccl.torch  # noqa: F401


def main() -> None:
    dist.init_process_group("tbccl")
    rank, size = dist.get_rank(), dist.get_world_size()

    # A sum over all ranks.
    tensor = torch.full((4,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size - 1) / 2] * 4

    # An object of each rank.
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, f"rank {rank} is process {os.getpid()}")

    # A message around the ring.
    received = torch.empty(1, dtype=torch.int64)
    receiving = dist.irecv(received, (rank - 1) % size)
    dist.send(torch.tensor([rank]), (rank + 1) % size) if size > 1 else dist.isend(torch.tensor([rank]), 0)
    receiving.wait()
    assert received.item() == (rank - 1) % size

    if rank == 0:
        print(f"{size} ranks, of torchrun's run {os.environ.get('TORCHELASTIC_RUN_ID', 'none')}:")
        print("\n".join(map(str, gathered)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
