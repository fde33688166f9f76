"""Operations on lists of tensors: one for each rank.

Blocks that lie one right after the other are worked on where they lie; others are joined into one piece first, or brought
from one afterwards. Blocks may differ in length where all ranks know all lengths.
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
from .collectives import options_of, the_one
from .tensors import joined, moved, overlap, reduced, same_type, source, spread, target


class Lists:
    """The operations on lists of tensors."""

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gives all ranks the tensors of all."""
        opts = options_of(c10d.AllgatherOptions, opts, timeout)
        outputs, given = self._list_of(output_tensors), the_one(input_tensors)
        taken = source(given)
        self._same_types(given, outputs)
        lengths = [output.numel() for output in outputs]
        if lengths[self._rank] != taken.numel():
            raise ValueError(
                f"this rank gives {taken.numel()} elements, and the output has room for {lengths[self._rank]} of it"
            )
        room, then = spread(outputs)
        if overlap(taken, room):
            taken = taken.clone()
        dtype, count = moved(taken)
        kept = (taken, room)
        if len(set(lengths)) == 1:
            call = (_native.ALL_GATHER, dtype, 0, count, taken.data_ptr(), room.data_ptr(), 0)
            return self._run(call, opts, [outputs], kept, then)
        counts = [moved(output)[1] for output in outputs]
        call = (_native.ALL_GATHER_V, dtype, 0, (None, counts), taken.data_ptr(), room.data_ptr(), 0)
        return self._run_v(call, opts, [outputs], kept, then)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduces each tensor of a list over all ranks, and gives it to the rank whose it is."""
        op = dist.ReduceOp.SUM if opts is None else opts
        opts = options_of(c10d.ReduceScatterOptions, opts, timeout, reduceOp=op)
        output, inputs = the_one(output_tensors), self._list_of(input_tensors)
        self._same_types(output, inputs)
        op, factor = reductions.resolved(opts.reduceOp)
        lengths = [given.numel() for given in inputs]
        room, then = target(output)
        if lengths[self._rank] != room.numel():
            raise ValueError(
                f"the block of this rank has {lengths[self._rank]} elements, and the output {room.numel()}"
            )
        taken = joined(inputs)
        if factor is not None:
            taken = reductions.scaled(taken, factor)
        elif overlap(taken, room):
            taken = taken.clone()
        additive = reductions.is_additive(op)
        dtype, count = reduced(room, additive)
        kept = (taken, room)
        if len(set(lengths)) == 1:
            call = (_native.REDUCE_SCATTER, dtype, op, count, taken.data_ptr(), room.data_ptr(), 0)
            return self._run(call, opts, [output], kept, then)
        counts = [reduced(given, additive)[1] for given in inputs]
        call = (_native.REDUCE_SCATTER_V, dtype, op, (counts, None), taken.data_ptr(), room.data_ptr(), 0)
        return self._run_v(call, opts, [output], kept, then)

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Gives the root the tensors of all ranks, which have one length."""
        opts = options_of(c10d.GatherOptions, opts, timeout, rootRank=opts)
        root, given = self._root(opts.rootRank), the_one(input_tensors)
        if root != self._rank:
            return self._given(_native.GATHER, given, opts, root)
        outputs = self._list_of(output_tensors)
        self._same_types(given, outputs)
        self._one_length("gather", given, outputs)
        taken, (room, then) = source(given), spread(outputs)
        if overlap(taken, room):
            taken = taken.clone()
        dtype, count = moved(taken)
        call = (_native.GATHER, dtype, 0, count, taken.data_ptr(), room.data_ptr(), root)
        return self._run(call, opts, [outputs], (taken, room), then)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Gives each rank its tensor of the root's list; all have one length."""
        opts = options_of(c10d.ScatterOptions, opts, timeout, rootRank=opts)
        root, output = self._root(opts.rootRank), the_one(output_tensors)
        room, then = target(output)
        dtype, count = moved(room)
        if root != self._rank:
            call = (_native.SCATTER, dtype, 0, count, 0, room.data_ptr(), root)
            return self._run(call, opts, [output], room, then)
        inputs = self._list_of(input_tensors)
        self._same_types(output, inputs)
        self._one_length("scatter", output, inputs)
        taken = joined(inputs)
        if overlap(taken, room):
            taken = taken.clone()
        call = (_native.SCATTER, dtype, 0, count, taken.data_ptr(), room.data_ptr(), root)
        return self._run(call, opts, [output], (taken, room), then)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Gives each rank its tensor of a list, and gets one of each."""
        opts = options_of(c10d.AllToAllOptions, opts, None)
        outputs, inputs = self._list_of(output_tensors), self._list_of(input_tensors)
        self._same_types(outputs[0], [*outputs, *inputs])
        taken, (room, then) = joined(inputs), spread(outputs)
        if overlap(taken, room):
            taken = taken.clone()
        sent = [moved(given)[1] for given in inputs]
        received = [moved(output)[1] for output in outputs]
        call = (_native.ALL_TO_ALL_V, moved(taken)[0], 0, (sent, received), taken.data_ptr(), room.data_ptr(), 0)
        return self._run_v(call, opts, outputs, (taken, room), then)

    # What these have in common.

    def _list_of(self, lists: Any) -> list[torch.Tensor]:
        """The list of a call, which torch may pass in another list."""
        tensors = lists
        if len(lists) == 1 and not isinstance(lists[0], torch.Tensor):
            tensors = lists[0]
        if len(tensors) != self._size:
            raise ValueError(f"the list has {len(tensors)} tensors, and group {self._name} {self._size} ranks")
        return list(tensors)

    @staticmethod
    def _same_types(one: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
        for other in others:
            same_type(one, other)

    @staticmethod
    def _one_length(what: str, own: torch.Tensor, blocks: Sequence[torch.Tensor]) -> None:
        lengths = {block.numel() for block in blocks} | {own.numel()}
        if len(lengths) != 1:
            raise ValueError(f"{what} takes tensors of one length, and these have {sorted(lengths)} elements")
