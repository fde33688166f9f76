"""A program that starts a process, which makes the calls of exo: `runners.py KIND FILE RANK`.

KIND is `ring` or `jaccl`, and FILE has the list of addresses or devices that exo writes. exo itself is not on
PyPI and does not run here. The calls are those of its `worker/engines/mlx/utils_mlx.py` of 2026: a process of
`multiprocessing` sets the variables of a backend, then asks MLX for it by name.
"""

from __future__ import annotations

import multiprocessing
import os
import sys


def runner(kind: str, file: str, rank: str, coordinator: str) -> None:
    """Makes a group, a barrier, a vote and a pipeline's message."""
    import mlx.core as mx

    os.environ["MLX_RANK"] = rank
    if kind == "ring":
        os.environ.update(MLX_HOSTFILE=file, MLX_RING_VERBOSE="1")
    else:
        os.environ.update(MLX_IBV_DEVICES=file, MLX_JACCL_COORDINATOR=coordinator)
    group = mx.distributed.init(backend=kind, strict=True)
    cpu = mx.default_stream(mx.Device(mx.cpu))
    mx.eval(mx.distributed.all_sum(mx.array(1.0), stream=cpu, group=group))
    votes = mx.distributed.all_sum(mx.array(int(rank == "1")), stream=cpu, group=group).item()
    x = mx.full((4, 8), float(rank))
    if group.rank() > 0:
        x = mx.distributed.recv_like(x, group.rank() - 1, group=group) + x
    if group.rank() < group.size() - 1:
        x = mx.distributed.send(x, group.rank() + 1, group=group)
    last = mx.distributed.all_gather(x, group=group)[-1, -1].item()
    os.write(1, f"@runner {group.rank()} {group.size()} {votes} {last:g}\n".encode())


if __name__ == "__main__":
    # exo starts its runners so.
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=runner, args=(*sys.argv[1:4], os.environ.get("COORDINATOR", "")))
    process.start()
    process.join()
    sys.exit(process.exitcode)
