"""Many asynchronous calls of all kinds leak no memory.

    tbccl run -n 2 -- python python/tests/torch/endurance.py [CALLS]

Compares the memory that Python traces and the process's resident memory after a warm-up and at the end.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401

#: A leak of one object per call would exceed this many bytes several times.
MAX_TRACED_BYTES = 200_000
#: A leak of one tensor per call would exceed this several times; the C library's allocator retains some.
MAX_RESIDENT_BYTES = 24 << 20


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 outside Linux."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_in_use() -> tuple[int, int]:
    """Returns the bytes of Python's objects and of the process, with no call in flight."""
    dist.barrier()
    gc.collect()
    return tracemalloc.get_traced_memory()[0], resident_bytes()


def call(number: int) -> None:
    """Issues a call whose kind depends on `number`; some works are dropped, some have futures."""
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
        matrix = tensor.expand(2, length) if rank == 0 else torch.empty(2, length)
        dist.broadcast(matrix.t(), 0, async_op=True).wait()
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
    traced, resident = memory_in_use()
    for number in range(calls - calls // 5):
        call(number)
    traced_later, resident_later = memory_in_use()
    traced_growth, resident_growth = traced_later - traced, resident_later - resident
    group = dist.group.WORLD
    retained = len(group._in_flight), len(group._messages)
    assert retained[0] <= 16 and retained[1] <= 32, retained
    growth = f"traced {traced_growth} bytes more, resident {resident_growth} bytes more"
    print(f"rank {dist.get_rank()}: {calls} calls, {growth}", flush=True)
    assert traced_growth < MAX_TRACED_BYTES, traced_growth
    assert resident_growth < MAX_RESIDENT_BYTES, resident_growth
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
