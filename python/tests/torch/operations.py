"""Every operation of torch.distributed over tbccl, against plain arithmetic.

    tbccl run -n 4 -- python python/tests/torch/operations.py [CHECK...]

Every rank can compute every other rank's contribution, and thus each expected result. The checks are in the
folder `checks`; every rank runs all of them in one process.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401
from checks import coalescing, data_movement, groups, invalid_input, messages
from checks import reductions, reinitialization, works
from checks.common import rank

MODULES = (reductions, data_movement, coalescing, works, messages, groups, invalid_input, reinitialization)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    functions = {name: value for module in MODULES for name, value in vars(module).items()}
    checks = {name: value for name, value in functions.items() if name.startswith("check_")}
    selected = sys.argv[1:] or list(checks)
    for name in selected:
        started = time.monotonic()
        try:
            checks[name]()
        except BaseException:
            print(f"rank {rank} fails {name}", flush=True)
            raise
        if dist.get_rank() == 0:
            print(f"{name} {time.monotonic() - started:.2f} s", flush=True)
    dist.destroy_process_group()
    print(f"@passed {rank} {len(selected)} checks of operations passed", flush=True)


if __name__ == "__main__":
    main()
