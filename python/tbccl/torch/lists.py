"""Collectives on lists of tensors, one tensor for each rank.

Tensors that are adjacent in one storage are used in place. Others are copied to one buffer before the call,
or from one after it. Tensors of a list may differ in length where all ranks know all lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tbccl import _native

from . import reductions
from .collectives import call_options, single_tensor
from .pieces import Call
from .tensors import (
    flattened_input,
    transfer_signature,
    overlaps,
    reduction_signature,
    check_same_dtype,
    contiguous_input,
    flattened_output,
    contiguous_output,
)


class ListCollectives:
    """Mixin of `ProcessGroup`: collectives on lists of tensors."""

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Gathers the tensors of all ranks on every rank."""
        opts = call_options(c10d.AllgatherOptions, opts, timeout)
        outputs, tensor = self._checked_list(output_tensors), single_tensor(input_tensors)
        send_buffer = contiguous_input(tensor)
        self._check_same_dtypes(tensor, outputs)
        lengths = [output.numel() for output in outputs]
        if lengths[self._rank] != send_buffer.numel():
            raise ValueError(
                f"this rank sends {send_buffer.numel()} elements, but output {self._rank} has room for "
                f"{lengths[self._rank]}"
            )
        recv_buffer, copy_back = flattened_output(outputs)
        if overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        dtype, count = transfer_signature(send_buffer)
        if len(set(lengths)) == 1:
            call = Call(_native.ALL_GATHER, dtype, 0, count, send_buffer, recv_buffer)
            return self._run(call, opts, [outputs], copy_back)
        counts = [transfer_signature(output)[1] for output in outputs]
        call = Call(_native.ALL_GATHER_V, dtype, 0, (None, counts), send_buffer, recv_buffer)
        return self._run_v(call, opts, [outputs], copy_back)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduces each tensor of a list over all ranks; rank ``i`` gets the result of tensor ``i``."""
        op = dist.ReduceOp.SUM if opts is None else opts
        opts = call_options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=op)
        output, inputs = single_tensor(output_tensors), self._checked_list(input_tensors)
        self._check_same_dtypes(output, inputs)
        op, factor = reductions.resolve(opts.reduceOp)
        lengths = [tensor.numel() for tensor in inputs]
        recv_buffer, copy_back = contiguous_output(output)
        if lengths[self._rank] != recv_buffer.numel():
            raise ValueError(
                f"input {self._rank} has {lengths[self._rank]} elements, but the output of this rank "
                f"{recv_buffer.numel()}"
            )
        send_buffer = flattened_input(inputs)
        if factor is not None:
            send_buffer = reductions.scale(send_buffer, factor)
        elif overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        additive = reductions.is_additive(op)
        dtype, count = reduction_signature(recv_buffer, additive)
        if len(set(lengths)) == 1:
            call = Call(_native.REDUCE_SCATTER, dtype, op, count, send_buffer, recv_buffer)
            return self._run(call, opts, [output], copy_back)
        counts = [reduction_signature(tensor, additive)[1] for tensor in inputs]
        call = Call(_native.REDUCE_SCATTER_V, dtype, op, (counts, None), send_buffer, recv_buffer)
        return self._run_v(call, opts, [output], copy_back)

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Gathers the tensors of all ranks at the root; all have the same length."""
        opts = call_options(c10d.GatherOptions, opts, timeout, rootRank=opts)
        root, tensor = self._checked_root(opts.rootRank), single_tensor(input_tensors)
        if root != self._rank:
            return self._send_to_root(_native.GATHER, tensor, opts, root)
        outputs = self._checked_list(output_tensors)
        self._check_same_dtypes(tensor, outputs)
        self._check_equal_lengths("gather", tensor, outputs)
        send_buffer, (recv_buffer, copy_back) = contiguous_input(tensor), flattened_output(outputs)
        if overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        dtype, count = transfer_signature(send_buffer)
        call = Call(_native.GATHER, dtype, 0, count, send_buffer, recv_buffer, root)
        return self._run(call, opts, [outputs], copy_back)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Sends tensor ``i`` of the root's list to rank ``i``; all have the same length."""
        opts = call_options(c10d.ScatterOptions, opts, timeout, rootRank=opts)
        root, output = self._checked_root(opts.rootRank), single_tensor(output_tensors)
        recv_buffer, copy_back = contiguous_output(output)
        dtype, count = transfer_signature(recv_buffer)
        if root != self._rank:
            call = Call(_native.SCATTER, dtype, 0, count, None, recv_buffer, root)
            return self._run(call, opts, [output], copy_back)
        inputs = self._checked_list(input_tensors)
        self._check_same_dtypes(output, inputs)
        self._check_equal_lengths("scatter", output, inputs)
        send_buffer = flattened_input(inputs)
        if overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        call = Call(_native.SCATTER, dtype, 0, count, send_buffer, recv_buffer, root)
        return self._run(call, opts, [output], copy_back)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Sends tensor ``j`` of each rank's list to rank ``j``."""
        opts = call_options(c10d.AllToAllOptions, opts, None)
        outputs, inputs = self._checked_list(output_tensors), self._checked_list(input_tensors)
        self._check_same_dtypes(outputs[0], [*outputs, *inputs])
        send_buffer, (recv_buffer, copy_back) = flattened_input(inputs), flattened_output(outputs)
        if overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        sent = [transfer_signature(tensor)[1] for tensor in inputs]
        received = [transfer_signature(output)[1] for output in outputs]
        dtype = transfer_signature(send_buffer)[0]
        call = Call(_native.ALL_TO_ALL_V, dtype, 0, (sent, received), send_buffer, recv_buffer)
        return self._run_v(call, opts, outputs, copy_back)

    # Helpers.

    def _checked_list(self, lists: Any) -> list[torch.Tensor]:
        """Returns the list of tensors, which torch may pass inside another list, with one tensor for each
        rank.
        """
        tensors = lists
        if len(lists) == 1 and not isinstance(lists[0], torch.Tensor):
            tensors = lists[0]
        if len(tensors) != self._size:
            raise ValueError(
                f"the list has {len(tensors)} tensors, but group {self._name} has {self._size} ranks"
            )
        return list(tensors)

    @staticmethod
    def _check_same_dtypes(one: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
        for other in others:
            check_same_dtype(one, other)

    @staticmethod
    def _check_equal_lengths(operation: str, own: torch.Tensor, blocks: Sequence[torch.Tensor]) -> None:
        lengths = {block.numel() for block in blocks} | {own.numel()}
        if len(lengths) != 1:
            raise ValueError(
                f"{operation} takes tensors of one length, but these have {sorted(lengths)} elements"
            )
