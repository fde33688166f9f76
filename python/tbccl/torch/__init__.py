"""tbccl as a backend of torch.distributed.

    import torch.distributed as dist
    import tbccl.torch                       # not needed where tbccl was installed by pip

    dist.init_process_group("tbccl")         # under torchrun, `tbccl run`, mpirun

Importing this registers the backend ``tbccl`` for tensors in the memory of processors, and the rendezvous ``tbccl://``.
``docs/pytorch.md`` says what is supported and what differs from gloo and nccl.

Where things are: `backend` makes groups, `group` is what a group knows, `collectives`, `lists`, `coalesced`, `messages`,
`sparse` and `monitored` are its operations, `work` is what an operation in progress is, `tensors` says how a tensor lies in
memory, `reductions` which operation a reduction is, `meeting` finds the other processes, `hooks` has communication hooks
for DistributedDataParallel.
"""

_is_loading = True


def _autoload() -> None:
    """Registers the backend: the entry point that torch calls at the end of its own import.

    Where the program imports this first, that is in the middle of this module's import, which registers it in the end.
    """
    if not _is_loading:
        _backend.register()


from . import backend as _backend  # noqa: E402
from .backend import BACKEND  # noqa: E402
from .group import ProcessGroup  # noqa: E402
from .hooks import QuantizedState, quantized_all_reduce, quantized_hook  # noqa: E402

__all__ = ["BACKEND", "ProcessGroup", "QuantizedState", "quantized_all_reduce", "quantized_hook"]

_is_loading = False
_autoload()
