"""MLX over tbccl: groups, collectives that MLX lacks, and programs that name another backend.

After `group = tbccl.mlx.init()`, all of `mx.distributed` communicates through tbccl. MLX itself is not
changed. After `tbccl.mlx.install()`, `mx.distributed.init` gives groups of tbccl whatever backend a program
names; `python -m tbccl.mlx PROGRAM` runs an unmodified program that way.

| module | contents |
|---|---|
| `_groups` | the group of all ranks, through the MPI interface that MLX has |
| `_native_groups`, `_compile` | groups of MLX's own kind, and their module, compiled at first use |
| `_collectives` | `all_to_all`, `broadcast`, `sum_scatter`, `barrier` |
| `_install` | MLX's functions replaced in this process |
| `_versions` | what versions of MLX lack, and the nanobind that fits them |
| `__main__` | a program run with them |
"""

import os

from tbccl.mlx._collectives import all_to_all, barrier, broadcast, reduce_scatter, sum_scatter
from tbccl.mlx._groups import init, is_available, library
from tbccl.mlx._install import install, uninstall

__all__ = [
    "all_to_all",
    "barrier",
    "broadcast",
    "init",
    "install",
    "is_available",
    "library",
    "reduce_scatter",
    "sum_scatter",
    "uninstall",
]

# As `_tbccl_mlx.py` says. Here, since the import of this package may be what imports `mlx.core`.
if os.environ.get("TBCCL_MLX") == "on":
    install()
