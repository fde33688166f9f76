"""Every operation of torch.distributed over tbccl, against plain arithmetic.

    tbccl run -n 4 -- python python/tests/torch/operations.py [--device DEVICE] [CHECK...]

Every rank can compute every other rank's contribution, and thus each expected result. The checks are in the
folder `checks`; every rank runs all of them in one process. `--device` places the tensors on a device:
`standin`, whose memory the host reaches through copies, `shared`, whose memory it shares, `mixed`, or `cuda`.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import accelerators
import tbccl.torch  # noqa: F401
from checks import coalescing, common, data_movement, groups, invalid_input, messages
from checks import reductions, reinitialization, runner, works
from checks.common import rank
from tbccl.torch import pieces

MODULES = (reductions, data_movement, coalescing, works, messages, groups, invalid_input, reinitialization)


#: Checks that look at host memory itself.
OF_HOST_MEMORY = {"check_lists_of_tensors_whose_storages_are_neighbors"}


def use(name: str) -> None:
    """Runs the checks on tensors of a device, in short pieces."""
    device = accelerators.load(name)
    pieces.PIECE_BYTES = 64 << 10
    common.use_device(device)
    # The stand-in device has no sparse tensors.
    left_out = OF_HOST_MEMORY | ({"check_sparse_all_reduce"} if device == "standin" else set())
    for check in left_out:
        for module in MODULES:
            vars(module).pop(check, None)


def main() -> None:
    torch.set_num_threads(1)
    selected = sys.argv[1:]
    if name := accelerators.take_option(selected):
        use(name)
    dist.init_process_group("tbccl")
    functions = {name: value for module in MODULES for name, value in vars(module).items()}
    passed = runner.run(functions, selected)
    dist.destroy_process_group()
    print(f"@passed {rank} {passed} checks of operations passed", flush=True)


if __name__ == "__main__":
    main()
