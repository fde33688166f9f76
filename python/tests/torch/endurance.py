"""Many asynchronous calls of all kinds leave nothing behind.

    tbccl run -n 2 -- python python/tests/torch/endurance.py [CALLS]

After some calls to warm up, Python's and the system's accounts of memory are compared with those at the end.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401

#: Python objects of one call that were kept would be a multiple of this.
MOST_TRACED_BYTES = 200_000
#: Tensors that were kept would be a multiple of this; the allocator of the C library keeps some of its own.
MOST_RESIDENT_BYTES = 24 << 20


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def in_use() -> tuple[int, int]:
    """Bytes of Python's objects, and of this process, once nothing is in flight."""
    dist.barrier()
    gc.collect()
    return tracemalloc.get_traced_memory()[0], resident_bytes()


def call(number: int) -> None:
    """One call after the other of each kind; some works are forgotten, some have futures."""
    rank, size = dist.get_rank(), dist.get_world_size()
    length = 1 + number * 97 % 20_000
    tensor = torch.ones(length)
    kind = number % 8
    if kind == 0:
        dist.all_reduce(tensor, async_op=True).wait()
    elif kind == 1:
        dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] + 1).wait()
    elif kind == 2:
        dist.all_gather([torch.empty(length) for _ in range(size)], tensor, async_op=True)
    elif kind == 3:
        dist.reduce_scatter_tensor(torch.empty(length), torch.ones(length * size), async_op=True).wait()
    elif kind == 4:
        dist.broadcast(tensor.expand(2, length).t(), 0, async_op=True).wait() if rank == 0 else dist.broadcast(
            torch.empty(2, length).t(), 0, async_op=True
        ).wait()
    elif kind == 5:
        received = torch.empty(length)
        works = [dist.irecv(received, (rank - 1) % size), dist.isend(tensor, (rank + 1) % size)]
        for work in works:
            work.wait()
    elif kind == 6:
        dist.all_to_all_single(torch.empty(length * size), torch.ones(length * size), async_op=True)
    else:
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(tensor)
            dist.all_reduce(torch.ones(3))
        manager.wait()


def main() -> None:
    calls = int(sys.argv[1]) if sys.argv[1:] else 10_000
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    tracemalloc.start()
    for number in range(calls // 5):
        call(number)
    traced, resident = in_use()
    for number in range(calls - calls // 5):
        call(number)
    traced_later, resident_later = in_use()
    grown, larger = traced_later - traced, resident_later - resident
    group = dist.group.WORLD
    assert len(group._in_flight) <= 16 and len(group._messages) <= 32, (len(group._in_flight), len(group._messages))
    print(f"rank {dist.get_rank()}: {calls} calls, traced {grown} bytes more, resident {larger} bytes more", flush=True)
    assert grown < MOST_TRACED_BYTES, grown
    assert larger < MOST_RESIDENT_BYTES, larger
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
