"""Operations on many tensors at once, which are carried out as one group of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from tbccl import _native

from . import reductions
from .collectives import options_of
from .tensors import check, moved, reduced, same_type, source, spread, target


class Coalesced:
    """The operations on many tensors."""

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduces each tensor over all ranks, in place."""
        opts = options_of(c10d.AllreduceCoalescedOptions, opts, None)
        op, factor = reductions.resolved(opts.reduceOp)
        calls, kept, thens = [], [], []
        for tensor in tensors:
            piece, then = target(tensor)
            contribution = piece if factor is None else reductions.scaled(piece, factor)
            dtype, count = reduced(piece, reductions.is_additive(op))
            calls.append((_native.ALL_REDUCE, dtype, op, count, contribution.data_ptr(), piece.data_ptr(), 0))
            kept.append((piece, contribution))
            thens.append(then)
        return self._run_together(calls, opts, list(tensors), kept, thens)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gathers each of ``inputs`` in its output."""
        opts = options_of(c10d.AllgatherOptions, opts, None)
        self._pairs(outputs, inputs)
        made = [self._gathering(_native.ALL_GATHER, output, given, 0) for output, given in zip(outputs, inputs)]
        calls, kept, thens = map(list, zip(*made)) if made else ([], [], [])
        return self._run_together(calls, opts, list(outputs), kept, thens)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Reduces and scatters each of ``inputs`` to its output."""
        opts = options_of(c10d.ReduceScatterOptions, opts, None)
        self._pairs(outputs, inputs)
        made = [self._scattering(output, given, opts.reduceOp) for output, given in zip(outputs, inputs)]
        calls, kept, thens = map(list, zip(*made)) if made else ([], [], [])
        return self._run_together(calls, opts, list(outputs), kept, thens)

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Any:
        """Gathers each of ``input_list``; those of rank r are then in ``output_lists[r]``."""
        opts = options_of(c10d.AllgatherOptions, opts, None)
        if len(output_lists) != self._size or any(len(outputs) != len(input_list) for outputs in output_lists):
            raise ValueError(
                f"the output is to be {self._size} lists of {len(input_list)} tensors, one list for each rank"
            )
        calls, kept, thens = [], [], []
        for given, outputs in zip(input_list, zip(*output_lists)):
            taken, (room, then) = source(given), spread(outputs)
            same_type(room, taken)
            for output in outputs:
                if output.numel() != given.numel():
                    raise ValueError(
                        f"an output has {output.numel()} elements, and the tensor that is gathered {given.numel()}"
                    )
            dtype, count = moved(taken)
            calls.append((_native.ALL_GATHER, dtype, 0, count, taken.data_ptr(), room.data_ptr(), 0))
            kept.append((taken, room))
            thens.append(then)
        return self._run_together(calls, opts, [list(outputs) for outputs in output_lists], kept, thens)

    @staticmethod
    def _pairs(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        if len(outputs) != len(inputs):
            raise ValueError(f"{len(inputs)} tensors go in, and {len(outputs)} come out")
        for tensor in (*outputs, *inputs):
            check(tensor)
