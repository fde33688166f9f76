"""Operations on one tensor: what torch has for tensors that hold the blocks of all ranks, and for those that hold one.

A tensor in one piece, of a type that tbccl has, is worked on where it lies. Torch has called some of these operations by
other names before; both are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tbccl import Error, _native

from . import reductions
from .reductions import OPS
from .tensors import TYPES, check, moved, overlap, reduced, same_type, source, target

_ALL_REDUCE = _native.ALL_REDUCE
_ZERO = timedelta(0)


def the_one(tensors: Any) -> torch.Tensor:
    """The tensor of a call: calls of groups take lists, for the sake of several devices per process."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a call takes one tensor per process, and these are {len(tensors)}")
    return tensors[0]


def options_of(kind: type, given: Any, timeout: timedelta | None, **settings: Any) -> Any:
    """Options of a call: those given, or new ones. Torch also has forms with single options in their place."""
    if isinstance(given, kind):
        return given
    options = kind()
    for name, value in settings.items():
        setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


class Collectives:
    """The operations on one tensor."""

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduces a tensor over all ranks, in place. Short, since programs call it most."""
        if type(opts) is not c10d.AllreduceOptions:
            op = dist.ReduceOp.SUM if opts is None else opts
            opts = options_of(c10d.AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else the_one(tensors)
        number = hash(opts.reduceOp)
        op = OPS[number]
        dtype = TYPES.get(tensor.dtype)
        if (
            op is None
            or dtype is None
            or self._batch is not None
            or self._extra
            or opts.asyncOp
            or opts.timeout > _ZERO
            or not tensor.is_cpu
            or tensor.is_sparse
            or not tensor.is_contiguous()
        ):
            return self._allreduce_at_large(tensor, opts)
        self._sequence += 1
        address = tensor.data_ptr()
        try:
            self._call(_ALL_REDUCE, dtype, op, tensor.numel(), address, address, 0, self._limit_set)
        except Error as error:
            raise self._told(error)
        return self._DONE

    def _allreduce_at_large(self, tensor: torch.Tensor, opts: Any) -> Any:
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        return self._reduced_in_place(_native.ALL_REDUCE, tensor, opts, 0)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduces a tensor over all ranks, to the root; others' tensors stay as they are."""
        opts = options_of(c10d.ReduceOptions, opts, timeout, rootRank=opts, reduceOp=op or dist.ReduceOp.SUM)
        return self._reduced_in_place(_native.REDUCE, the_one(tensors), opts, self._root(opts.rootRank))

    def _reduced_in_place(self, what: int, tensor: torch.Tensor, opts: Any, root: int) -> Any:
        op, factor = reductions.resolved(opts.reduceOp)
        if what == _native.REDUCE and root != self._rank:
            piece, then = source(tensor), None
        else:
            piece, then = target(tensor)
        contribution = piece if factor is None else reductions.scaled(piece, factor)
        dtype, count = reduced(piece, reductions.is_additive(op))
        call = (what, dtype, op, count, contribution.data_ptr(), piece.data_ptr(), root)
        return self._run(call, opts, [tensor], (piece, contribution), then)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gives all ranks the root's tensor."""
        opts = options_of(c10d.BroadcastOptions, opts, timeout, rootRank=opts)
        tensor, root = the_one(tensors), self._root(opts.rootRank)
        piece, then = (source(tensor), None) if root == self._rank else target(tensor)
        dtype, count = moved(piece)
        address = piece.data_ptr()
        return self._run((_native.BROADCAST, dtype, 0, count, address, address, root), opts, [tensor], piece, then)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Waits until all ranks are here."""
        opts = options_of(c10d.BarrierOptions, opts, timeout)
        return self._run((_native.BARRIER, _native.UINT8, 0, 0, 0, 0, 0), opts, ())

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Gives all ranks the tensors of all, one after the other in ``output``."""
        opts = options_of(c10d.AllgatherOptions, opts, None)
        call, kept, then = self._gathering(_native.ALL_GATHER, output, input, 0)
        return self._run(call, opts, [output], kept, then)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Reduces ``input`` over all ranks and gives each rank its block."""
        opts = options_of(c10d.ReduceScatterOptions, opts, None)
        call, kept, then = self._scattering(output, input, opts.reduceOp)
        return self._run(call, opts, [output], kept, then)

    _allgather_base = all_gather_into_tensor = all_gather_single
    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Gives the root the tensors of all ranks, one after the other in ``output``."""
        opts = options_of(c10d.GatherOptions, opts, None)
        root = self._root(opts.rootRank)
        if root != self._rank:
            return self._given(_native.GATHER, input, opts, root)
        call, kept, then = self._gathering(_native.GATHER, output, input, root)
        return self._run(call, opts, [output], kept, then)

    gather_into_tensor = gather_single

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Gives each rank its block of ``input``, and gets one of each. Sizes are lengths along the first dimension."""
        opts = options_of(c10d.AllToAllOptions, opts, timeout)
        same_type(output, input)
        taken, (room, then) = source(input), target(output)
        if overlap(taken, room):
            taken = taken.clone()
        if not output_split_sizes and not input_split_sizes:
            dtype, count = moved(taken)
            if moved(room)[1] != count or taken.numel() % self._size:
                raise ValueError(
                    f"all_to_all of {taken.numel()} elements into {room.numel()} without sizes: both are to be the same, "
                    f"and a multiple of {self._size}"
                )
            call = (_native.ALL_TO_ALL, dtype, 0, count // self._size, taken.data_ptr(), room.data_ptr(), 0)
            return self._run(call, opts, [output], (taken, room), then)
        sent = self._block_lengths("input", taken, input_split_sizes)
        received = self._block_lengths("output", room, output_split_sizes)
        call = (_native.ALL_TO_ALL_V, moved(taken)[0], 0, (sent, received), taken.data_ptr(), room.data_ptr(), 0)
        return self._run_v(call, opts, [output], (taken, room), then)

    alltoall_base = all_to_all_single

    # What these have in common.

    def _root(self, root: Any) -> int:
        root = int(root)
        if not 0 <= root < self._size:
            raise ValueError(f"root {root} is not one of the {self._size} ranks of group {self._name}")
        return root

    def _gathering(
        self, what: int, output: torch.Tensor, input: torch.Tensor, root: int
    ) -> tuple[tuple, Any, Any]:
        """A call that gathers blocks in ``output``."""
        same_type(output, input)
        taken, (room, then) = source(input), target(output)
        if room.numel() != taken.numel() * self._size:
            raise ValueError(
                f"the output has {room.numel()} elements: {self._size} ranks that give {taken.numel()} each fill "
                f"{taken.numel() * self._size}"
            )
        own = room.data_ptr() + self._rank * taken.nbytes
        if overlap(taken, room) and taken.data_ptr() != own:
            taken = taken.clone()
        dtype, count = moved(taken)
        return (what, dtype, 0, count, taken.data_ptr(), room.data_ptr(), root), (taken, room), then

    def _scattering(self, output: torch.Tensor, input: torch.Tensor, op: Any) -> tuple[tuple, Any, Any]:
        """A call that reduces blocks and scatters them."""
        same_type(output, input)
        op, factor = reductions.resolved(op)
        taken, (room, then) = source(input), target(output)
        if taken.numel() != room.numel() * self._size:
            raise ValueError(
                f"the input has {taken.numel()} elements: {self._size} ranks that take {room.numel()} each take "
                f"{room.numel() * self._size}"
            )
        if factor is not None:
            taken = reductions.scaled(taken, factor)
        elif overlap(taken, room):
            # In place, the other blocks would be used up, and torch promises that the input stays.
            taken = taken.clone()
        dtype, count = reduced(room, reductions.is_additive(op))
        call = (_native.REDUCE_SCATTER, dtype, op, count, taken.data_ptr(), room.data_ptr(), 0)
        return call, (taken, room), then

    def _given(self, what: int, input: torch.Tensor, opts: Any, root: int) -> Any:
        """The part of a rank that only gives."""
        taken = source(input)
        dtype, count = moved(taken)
        return self._run((what, dtype, 0, count, taken.data_ptr(), 0, root), opts, [], taken)

    def _block_lengths(self, name: str, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """The elements of each block, from lengths along the first dimension; equal blocks without any."""
        check(tensor)
        rows = tensor.size(0) if tensor.dim() else 1
        sizes = [int(size) for size in sizes] or [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            raise ValueError(
                f"{name}_split_sizes {sizes} are not {self._size} lengths that add up to the {rows} of {name}"
            )
        per_row = moved(tensor)[1] // rows if rows else 0
        return [size * per_row for size in sizes]
