"""All-reduce with quantized messages, as a call and as a DistributedDataParallel hook.

Messages take a quarter of the bytes (int8) or half of them (bf16). All ranks get the same bits.
``docs/collectives.md`` has the bound on the error. It pays where links are slower than memory.

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
from .pieces import Call
from .tensors import check_tensor, is_plain
from .work import Work


@dataclass
class QuantizedState:
    """Settings of :func:`quantized_hook`."""

    #: Process group; None: the default group.
    group: dist.ProcessGroup | None = None
    #: Codec: "int8", "int8/64", "int8/256" or "bf16".
    codec: str = "int8"
    #: Buckets of fewer bytes are reduced exactly, since short messages gain little.
    exact_below_bytes: int = 64 * 1024


def quantized_all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    codec: str = "int8",
    async_op: bool = False,
) -> Work | None:
    """Reduces a float32 tensor over all ranks, in place, with quantized messages.

    Args:
        tensor: Contiguous float32 tensor.
        op: ``SUM`` or ``AVG``.
        group: Process group of the backend tbccl; None: the default group.
        codec: "int8", "int8/64", "int8/256" or "bf16".
        async_op: Whether to return a work at once.

    Returns:
        The work if ``async_op``, else None.

    Raises:
        ValueError: The group has another backend, or tensor, ``op`` or ``codec`` are not supported.
        tbccl.Error: The call failed.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, ProcessGroup):
        raise ValueError("quantized_all_reduce needs a process group of the backend tbccl")
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}: use one of {', '.join(CODECS)}")
    check_tensor(tensor)
    if tensor.dtype is not torch.float32 or not is_plain(tensor):
        raise ValueError(f"quantized_all_reduce needs a contiguous float32 tensor, not {tensor.dtype}")
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError("packed messages support SUM and AVG only")
    code = _native.AVG if op == dist.ReduceOp.AVG else _native.SUM
    numbers = (_native.ALL_REDUCE_QUANTIZED, _native.FLOAT32, code, tensor.numel())
    call = Call(*numbers, tensor, tensor, CODECS[codec])
    options = c10d.AllreduceOptions()
    work = group._run(call, _submit_options(options, async_op), [tensor])
    return work if async_op else None


def quantized_hook(
    state: QuantizedState | dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients with quantized messages.

    Buckets of another type than float32, or below ``exact_below_bytes``, are averaged exactly.

    Args:
        state: Settings, or a process group for the default settings; None: the default group.
        bucket: Gradients to average.

    Returns:
        A future of the averaged gradients.
    """
    if not isinstance(state, QuantizedState):
        state = QuantizedState(group=state)
    gradients = bucket.buffer()
    if gradients.dtype is torch.float32 and gradients.nbytes >= state.exact_below_bytes:
        work = quantized_all_reduce(gradients, dist.ReduceOp.AVG, state.group, state.codec, async_op=True)
    else:
        work = dist.all_reduce(gradients, dist.ReduceOp.AVG, state.group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _submit_options(options: c10d.AllreduceOptions, async_op: bool) -> SimpleNamespace:
    """Returns the options that `ProcessGroup._run` reads."""
    return SimpleNamespace(timeout=options.timeout, asyncOp=async_op)
