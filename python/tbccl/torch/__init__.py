"""tbccl as a backend of torch.distributed.

    import torch.distributed as dist
    import tbccl.torch                       # not needed where tbccl was installed by pip

    dist.init_process_group("tbccl")         # under torchrun, `tbccl run`, mpirun

The import registers the backend ``tbccl`` for tensors of all devices, and the rendezvous ``tbccl://``.
``docs/pytorch.md`` says what is supported and what differs from gloo and nccl.

- `backend`: registers the backend and creates process groups. `joining`: the meeting of their ranks.
- `rendezvous`: the ``tbccl://`` rendezvous, and ``env://`` under launchers other than torchrun.
- `group`: the process group; it submits calls. `composite`: one that carries backends of other devices.
- `backend_interface`: answers to torch about options, errors, memory and hooks. `membership`: changes of a
  group's members. `observed`: the way of calls that the profiler, dispatch modes and hooks observe.
- `collectives`, `lists`, `coalesced`, `sparse`: collectives on one tensor, on lists of tensors, on several
  tensors at once and on sparse tensors.
- `p2p`, `monitored_barrier`: point-to-point messages, and the barrier made of them.
- `work`, `futures`, `typed_futures`: operations in progress, and the thread that completes their futures.
- `devices`, `metal`, `pinning`: access to the memory of devices. `pieces`, `staging`, `caller_thread`,
  `reduced_here`: calls on it.
- `tensors`, `reductions`: element types and memory of tensors, and reduction operations.
- `hooks`: communication hooks for DistributedDataParallel.
"""

_is_loading = True


def _autoload() -> None:
    """Registers the backend; the entry point that torch calls at the end of its own import.

    If the program imports this module before torch, torch calls the function while this module is half
    imported. The end of this module then registers the backend.
    """
    if not _is_loading:
        _backend.register()


from . import backend as _backend  # noqa: E402
from .backend import BACKEND, create_process_group  # noqa: E402
from .group import ProcessGroup  # noqa: E402
from .hooks import QuantizedState, quantized_all_reduce, quantized_hook  # noqa: E402

__all__ = [
    "BACKEND",
    "ProcessGroup",
    "QuantizedState",
    "create_process_group",
    "quantized_all_reduce",
    "quantized_hook",
]

_is_loading = False
_autoload()
