"""Prints rank and size, through `tbccl.mlx` or, as an unmodified program would, through MLX alone."""

import os
import sys

import mlx.core as mx

if sys.argv[1:] == ["unmodified"]:
    world = mx.distributed.init(strict=True, backend="mpi")
else:
    import tbccl.mlx

    world = tbccl.mlx.init()

total = mx.distributed.all_sum(mx.array([world.rank() + 1.0])).item()
os.write(1, f"@hello {world.rank()} {world.size()} {total}\n".encode())
