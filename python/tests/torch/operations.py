"""Every operation of torch.distributed over tbccl, against plain arithmetic.

    tbccl run -n 4 -- python python/tests/torch/operations.py [CHECK...]

Every rank can tell what every other one gives, so it knows what each result must be. The checks are in the folder `checks`; all
ranks carry out all of them, in one process each.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import tbccl.torch  # noqa: F401
from checks import again, groups, messages, moving, reductions, refused, together, works
from checks.common import rank

MODULES = (reductions, moving, together, works, messages, groups, refused, again)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    checks = {name: work for module in MODULES for name, work in vars(module).items() if name.startswith("check_")}
    wanted = sys.argv[1:] or list(checks)
    for name in wanted:
        begun = time.monotonic()
        try:
            checks[name]()
        except BaseException:
            print(f"rank {rank} fails {name}", flush=True)
            raise
        if dist.get_rank() == 0:
            print(f"{name} {time.monotonic() - begun:.2f} s", flush=True)
    dist.destroy_process_group()
    print(f"@passed {rank} {len(wanted)} checks of operations passed", flush=True)


if __name__ == "__main__":
    main()
