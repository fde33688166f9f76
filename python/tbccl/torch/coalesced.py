"""Collectives on several tensors at once, carried out as one group of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from tbccl import _native

from . import reductions
from .collectives import call_options
from .pieces import Call
from .tensors import (
    check_tensor,
    transfer_signature,
    reduction_signature,
    check_same_dtype,
    contiguous_input,
    flattened_output,
    contiguous_output,
)


class CoalescedCollectives:
    """Mixin of `ProcessGroup`: collectives on several tensors."""

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduces each tensor over all ranks, in place."""
        opts = call_options(c10d.AllreduceCoalescedOptions, opts, None)
        op, factor = reductions.resolve(opts.reduceOp)
        calls, copy_backs = [], []
        for tensor in tensors:
            buffer, copy_back = contiguous_output(tensor)
            contribution = buffer if factor is None else reductions.scale(buffer, factor)
            dtype, count = reduction_signature(buffer, reductions.is_additive(op))
            calls.append(Call(_native.ALL_REDUCE, dtype, op, count, contribution, buffer))
            copy_backs.append(copy_back)
        return self._run_grouped(calls, opts, list(tensors), copy_backs)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gathers each of ``inputs`` into the output of the same index."""
        opts = call_options(c10d.AllgatherOptions, opts, None)
        self._check_pairs(outputs, inputs)
        prepared = [
            self._gather_call(_native.ALL_GATHER, output, input, 0) for output, input in zip(outputs, inputs)
        ]
        calls, copy_backs = map(list, zip(*prepared)) if prepared else ([], [])
        return self._run_grouped(calls, opts, list(outputs), copy_backs)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Reduces and scatters each of ``inputs`` into the output of the same index."""
        opts = call_options(c10d.ReduceScatterOptions, opts, None)
        self._check_pairs(outputs, inputs)
        prepared = [
            self._reduce_scatter_call(output, input, opts.reduceOp) for output, input in zip(outputs, inputs)
        ]
        calls, copy_backs = map(list, zip(*prepared)) if prepared else ([], [])
        return self._run_grouped(calls, opts, list(outputs), copy_backs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Any:
        """Gathers each tensor of ``input_list``; those of rank ``r`` arrive in ``output_lists[r]``."""
        opts = call_options(c10d.AllgatherOptions, opts, None)
        if len(output_lists) != self._size or any(
            len(outputs) != len(input_list) for outputs in output_lists
        ):
            raise ValueError(
                f"the output must be {self._size} lists of {len(input_list)} tensors, one list for each rank"
            )
        calls, copy_backs = [], []
        for input, outputs in zip(input_list, zip(*output_lists)):
            send_buffer, (recv_buffer, copy_back) = contiguous_input(input), flattened_output(outputs)
            check_same_dtype(recv_buffer, send_buffer)
            for output in outputs:
                check_same_dtype(output, input)
                if output.numel() != input.numel():
                    raise ValueError(
                        f"an output has {output.numel()} elements, but its input has {input.numel()}: "
                        "they must be equal"
                    )
            dtype, count = transfer_signature(send_buffer)
            calls.append(Call(_native.ALL_GATHER, dtype, 0, count, send_buffer, recv_buffer))
            copy_backs.append(copy_back)
        return self._run_grouped(calls, opts, [list(outputs) for outputs in output_lists], copy_backs)

    @staticmethod
    def _check_pairs(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Checks that there are as many outputs as inputs, and that tbccl can use their memory."""
        if len(outputs) != len(inputs):
            raise ValueError(
                f"there are {len(inputs)} inputs and {len(outputs)} outputs: pass one output for each input"
            )
        for tensor in (*outputs, *inputs):
            check_tensor(tensor)
