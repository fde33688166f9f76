"""All-reduce with packed messages, by itself and for the gradients of DistributedDataParallel.

Messages are a quarter as long (int8), or half (bf16). All ranks get the same bits. ``docs/collectives.md`` has the bound on
the error; it pays where the cables are slower than memory.

    model.register_comm_hook(tbccl.torch.QuantizedState(), tbccl.torch.quantized_hook)
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tbccl import _native
from tbccl._elements import CODECS

from .group import ProcessGroup
from .work import Work


@dataclass
class QuantizedState:
    """What :func:`quantized_hook` is to do."""

    #: The group; None for the default one.
    group: dist.ProcessGroup | None = None
    #: "int8", "int8/64", "int8/256" or "bf16".
    codec: str = "int8"
    #: Buckets of fewer bytes are reduced exactly: their messages are short as it is.
    exact_below_bytes: int = 64 * 1024


def quantized_all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    codec: str = "int8",
    async_op: bool = False,
) -> Work | None:
    """As ``dist.all_reduce`` of float32 tensors, for SUM and AVG, with packed messages.

    Raises ValueError for another type, operation or codec, and for a group of another backend.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, ProcessGroup):
        raise ValueError("quantized_all_reduce needs a group of the backend tbccl")
    if codec not in CODECS:
        raise ValueError(f"there is no codec {codec!r}; there are {', '.join(CODECS)}")
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise ValueError("quantized_all_reduce takes float32 tensors in one piece")
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError("what is packed can be summed and averaged, not reduced otherwise")
    code = _native.AVG if op == dist.ReduceOp.AVG else _native.SUM
    address = tensor.data_ptr()
    call = (
        _native.ALL_REDUCE_QUANTIZED,
        _native.FLOAT32,
        code,
        tensor.numel(),
        address,
        address,
        CODECS[codec],
    )
    options = c10d.AllreduceOptions()
    work = group._run(call, _submit_options(options, async_op), [tensor], tensor)
    return work if async_op else None


def quantized_hook(
    state: QuantizedState | dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients with packed messages. Buckets that are no float32, or short, are averaged exactly."""
    if not isinstance(state, QuantizedState):
        state = QuantizedState(group=state)
    gradients = bucket.buffer()
    if gradients.dtype is torch.float32 and gradients.nbytes >= state.exact_below_bytes:
        work = quantized_all_reduce(gradients, dist.ReduceOp.AVG, state.group, state.codec, async_op=True)
    else:
        work = dist.all_reduce(gradients, dist.ReduceOp.AVG, state.group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _submit_options(options: c10d.AllreduceOptions, async_op: bool) -> SimpleNamespace:
    return SimpleNamespace(timeout=options.timeout, asyncOp=async_op)
