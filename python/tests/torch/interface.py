"""Runner of the checks of the interface beside operations, on ranks: from torch 2.15 on.

    tbccl run -n 2 -- python python/tests/torch/interface.py [CHECK...]
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist

from checks import backend_interface, observers, runner
from checks.common import rank

warnings.filterwarnings("ignore")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tbccl")
    checks = {**vars(observers), **vars(backend_interface)}
    passed = runner.run(checks, sys.argv[1:])
    dist.destroy_process_group()
    print(f"@passed {rank} {passed} checks of the interface passed", flush=True)


if __name__ == "__main__":
    main()
