"""Every operation of torch.distributed over tbccl, against plain arithmetic.

    tbccl run -n 4 -- python python/tests/torch/operations.py [--device standin|shared] [CHECK...]

Every rank can compute every other rank's contribution, and thus each expected result. The checks are in the
folder `checks`; every rank runs all of them in one process. With `--device` the tensors are on the stand-in
device, whose memory the host reaches through copies, or shares.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import standin
import tbccl.torch  # noqa: F401
from checks import coalescing, common, data_movement, groups, invalid_input, messages
from checks import reductions, reinitialization, runner, works
from checks.common import rank
from tbccl.torch import pieces

MODULES = (reductions, data_movement, coalescing, works, messages, groups, invalid_input, reinitialization)


#: Checks that look at host memory itself, or use sparse tensors, which the stand-in device lacks.
OF_HOST_MEMORY = {"check_lists_of_tensors_whose_storages_are_neighbors", "check_sparse_all_reduce"}


def use_standin(memory: str) -> None:
    """Runs the checks on tensors of the stand-in device, whose memory is its own or `shared`."""
    standin.load(is_shared=memory == "shared")
    pieces.PIECE_BYTES = 64 << 10
    common.use_device("standin")
    for name in OF_HOST_MEMORY:
        for module in MODULES:
            vars(module).pop(name, None)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--device"]:
        use_standin(sys.argv[2])
        del sys.argv[1:3]
    dist.init_process_group("tbccl")
    functions = {name: value for module in MODULES for name, value in vars(module).items()}
    passed = runner.run(functions, sys.argv[1:])
    dist.destroy_process_group()
    print(f"@passed {rank} {passed} checks of operations passed", flush=True)


if __name__ == "__main__":
    main()
