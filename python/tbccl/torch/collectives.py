"""Collectives on one tensor, with the blocks of all ranks or with one block.

A contiguous tensor of an element type of tbccl is used in place. torch has renamed some of these operations;
both names are defined.
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
from .observed import count_dispatch_modes, is_profiling, observable
from .pieces import Call
from .reductions import OPS
from .submission import is_async
from .tensors import (
    TYPES,
    check_tensor,
    transfer_signature,
    overlaps,
    reduction_signature,
    check_same_dtype,
    contiguous_input,
    contiguous_output,
)

_STRIDED = torch.strided
_ALL_REDUCE = _native.ALL_REDUCE
_COMPLEX64 = _native.COMPLEX64
_ZERO = timedelta(0)
_AllreduceOptions = c10d.AllreduceOptions


def single_tensor(tensors: Any) -> torch.Tensor:
    """Returns the tensor of a call that torch may pass as a list of one tensor."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a call takes one tensor per process, not {len(tensors)}")
    return tensors[0]


def call_options(kind: type, opts: Any, timeout: timedelta | None, **settings: Any) -> Any:
    """Returns ``opts`` if it has the type ``kind``, else new options with ``timeout`` and ``settings``.

    torch also has forms of calls with single options in the place of an options object.
    """
    if isinstance(opts, kind):
        return opts
    options = kind()
    for name, value in settings.items():
        setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


class Collectives:
    """Mixin of `ProcessGroup`: collectives on one tensor."""

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduces a tensor over all ranks, in place.

        The most frequent calls have a short path: on a plain tensor of a type of tbccl, outside a batch and
        without a timeout of their own.
        """
        if type(opts) is not _AllreduceOptions:
            op = dist.ReduceOp.SUM if opts is None else opts
            opts = call_options(_AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else single_tensor(tensors)
        op = OPS[hash(opts.reduceOp)]
        dtype = TYPES.get(tensor.dtype)
        if (
            op is None
            or dtype is None
            or self._batch is not None
            or self._extra_timeout
            or opts.timeout > _ZERO
            or tensor.layout is not _STRIDED
            # As `is_plain`, without its call; only complex tensors are conjugated.
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or (dtype == _COMPLEX64 and tensor.is_conj())
            or self._is_observed
            or count_dispatch_modes()
            or is_profiling()
        ):
            return self._allreduce_observable([tensor], opts)
        if not (self._is_fast and tensor.is_cpu):
            return self._allreduce_on_device(dtype, op, tensor, opts)
        if is_async(opts):
            return self._issue_in_place(_ALL_REDUCE, dtype, op, tensor)
        self._sequence_number += 1
        address = tensor.data_ptr()
        try:
            self._submit(_ALL_REDUCE, dtype, op, tensor.numel(), address, address, 0, self._default_timeout)
        except Error as error:
            raise self._annotated(error)
        return self._COMPLETED

    def _allreduce_on_device(self, dtype: int, op: int, tensor: torch.Tensor, opts: Any) -> Any:
        """Reduces a plain tensor of a device on the calling thread, if the call blocks and is short."""
        stager = self._stager
        if (
            stager is None
            or tensor.is_cpu
            or is_async(opts)
            or self._checks_nan
            or not stager.can_reduce_here(tensor)
        ):
            return self._allreduce_general([tensor], opts)
        self._sequence_number += 1
        try:
            stager.reduce_here(_ALL_REDUCE, dtype, op, tensor.numel(), tensor, 0, self._default_timeout)
        except Error as error:
            raise self._annotated(error)
        return self._COMPLETED

    def _allreduce_general(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        tensor = single_tensor(tensors)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        return self._reduce_in_place(_native.ALL_REDUCE, tensor, opts, 0)

    _allreduce_observable = observable("allreduce", _allreduce_general)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduces a tensor over all ranks; the root's tensor gets the result, the others stay unchanged."""
        opts = call_options(
            c10d.ReduceOptions, opts, timeout, rootRank=opts, reduceOp=op or dist.ReduceOp.SUM
        )
        return self._reduce_in_place(
            _native.REDUCE, single_tensor(tensors), opts, self._checked_root(opts.rootRank)
        )

    def _reduce_in_place(self, collective: int, tensor: torch.Tensor, opts: Any, root: int) -> Any:
        op, factor = reductions.resolve(opts.reduceOp)
        if collective == _native.REDUCE and root != self._rank:
            buffer, copy_back = contiguous_input(tensor), None
        else:
            buffer, copy_back = contiguous_output(tensor)
        contribution = buffer if factor is None else reductions.scale(buffer, factor)
        dtype, count = reduction_signature(buffer, reductions.is_additive(op))
        call = Call(collective, dtype, op, count, contribution, buffer, root)
        return self._run(call, opts, [tensor], copy_back)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Copies the root's tensor to all ranks."""
        opts = call_options(c10d.BroadcastOptions, opts, timeout, rootRank=opts)
        tensor, root = single_tensor(tensors), self._checked_root(opts.rootRank)
        buffer, copy_back = (
            (contiguous_input(tensor), None) if root == self._rank else contiguous_output(tensor)
        )
        dtype, count = transfer_signature(buffer)
        call = Call(_native.BROADCAST, dtype, 0, count, buffer, buffer, root)
        return self._run(call, opts, [tensor], copy_back)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Waits until all ranks have called it."""
        opts = call_options(c10d.BarrierOptions, opts, timeout)
        return self._run(Call(_native.BARRIER, _native.UINT8, 0, 0, None, None), opts, ())

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Gathers the tensors of all ranks in ``output``, in the order of ranks."""
        opts = call_options(c10d.AllgatherOptions, opts, None)
        call, copy_back = self._gather_call(_native.ALL_GATHER, output, input, 0)
        return self._run(call, opts, [output], copy_back)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Reduces ``input`` over all ranks; each rank gets its block in ``output``."""
        opts = call_options(c10d.ReduceScatterOptions, opts, None)
        call, copy_back = self._reduce_scatter_call(output, input, opts.reduceOp)
        return self._run(call, opts, [output], copy_back)

    _allgather_base = all_gather_into_tensor = all_gather_single
    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Gathers the tensors of all ranks in the root's ``output``, in the order of ranks."""
        opts = call_options(c10d.GatherOptions, opts, None)
        root = self._checked_root(opts.rootRank)
        if root != self._rank:
            return self._send_to_root(_native.GATHER, input, opts, root)
        call, copy_back = self._gather_call(_native.GATHER, output, input, root)
        return self._run(call, opts, [output], copy_back)

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
        """Sends block ``j`` of ``input`` to rank ``j``; block ``i`` of ``output`` is from rank ``i``.

        Split sizes are lengths of the blocks along the first dimension; without them all blocks are equal.
        """
        opts = call_options(c10d.AllToAllOptions, opts, timeout)
        check_same_dtype(output, input)
        send_buffer, (recv_buffer, copy_back) = contiguous_input(input), contiguous_output(output)
        if overlaps(send_buffer, recv_buffer):
            send_buffer = send_buffer.clone()
        if not output_split_sizes and not input_split_sizes:
            dtype, count = transfer_signature(send_buffer)
            if transfer_signature(recv_buffer)[1] != count or send_buffer.numel() % self._size:
                raise ValueError(
                    f"all_to_all of {send_buffer.numel()} elements into {recv_buffer.numel()} without split "
                    f"sizes: both must be the same multiple of {self._size}"
                )
            blocks = Call(_native.ALL_TO_ALL, dtype, 0, count // self._size, send_buffer, recv_buffer)
            return self._run(blocks, opts, [output], copy_back)
        sent = self._block_lengths("input", send_buffer, input_split_sizes)
        received = self._block_lengths("output", recv_buffer, output_split_sizes)
        dtype = transfer_signature(send_buffer)[0]
        call = Call(_native.ALL_TO_ALL_V, dtype, 0, (sent, received), send_buffer, recv_buffer)
        return self._run_v(call, opts, [output], copy_back)

    alltoall_base = all_to_all_single

    # Helpers.

    def _checked_root(self, root: Any) -> int:
        """Returns ``root`` as an integer, after checking that it is a rank of the group."""
        root = int(root)
        if not 0 <= root < self._size:
            raise ValueError(f"root {root} is not one of the {self._size} ranks of group {self._name}")
        return root

    def _gather_call(
        self, collective: int, output: torch.Tensor, input: torch.Tensor, root: int
    ) -> tuple[Call, Any]:
        """Returns a call, and its copy-back, that gathers blocks in ``output``."""
        check_same_dtype(output, input)
        send_buffer, (recv_buffer, copy_back) = contiguous_input(input), contiguous_output(output)
        if recv_buffer.numel() != send_buffer.numel() * self._size:
            raise ValueError(
                f"the output has {recv_buffer.numel()} elements, but {self._size} ranks with "
                f"{send_buffer.numel()} each fill {send_buffer.numel() * self._size}"
            )
        own_block = recv_buffer.data_ptr() + self._rank * send_buffer.nbytes
        if overlaps(send_buffer, recv_buffer) and send_buffer.data_ptr() != own_block:
            send_buffer = send_buffer.clone()
        dtype, count = transfer_signature(send_buffer)
        return Call(collective, dtype, 0, count, send_buffer, recv_buffer, root), copy_back

    def _reduce_scatter_call(
        self, output: torch.Tensor, input: torch.Tensor, op: Any
    ) -> tuple[Call, Any]:
        """Returns a call, and its copy-back, that reduces and scatters blocks."""
        check_same_dtype(output, input)
        op, factor = reductions.resolve(op)
        send_buffer, (recv_buffer, copy_back) = contiguous_input(input), contiguous_output(output)
        if send_buffer.numel() != recv_buffer.numel() * self._size:
            raise ValueError(
                f"the input has {send_buffer.numel()} elements, but {self._size} ranks with outputs of "
                f"{recv_buffer.numel()} take {recv_buffer.numel() * self._size}"
            )
        if factor is not None:
            send_buffer = reductions.scale(send_buffer, factor)
        elif overlaps(send_buffer, recv_buffer):
            # A reduce-scatter in place overwrites the other blocks; torch promises an unchanged input.
            send_buffer = send_buffer.clone()
        dtype, count = reduction_signature(recv_buffer, reductions.is_additive(op))
        return Call(_native.REDUCE_SCATTER, dtype, op, count, send_buffer, recv_buffer), copy_back

    def _send_to_root(self, collective: int, input: torch.Tensor, opts: Any, root: int) -> Any:
        """Submits a gather on a rank that is not the root and only sends."""
        send_buffer = contiguous_input(input)
        dtype, count = transfer_signature(send_buffer)
        return self._run(Call(collective, dtype, 0, count, send_buffer, None, root), opts, [])

    def _block_lengths(self, name: str, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """Returns the number of elements of each block, from lengths along the first dimension.

        Without ``sizes`` all blocks are equal.
        """
        check_tensor(tensor)
        rows = tensor.size(0) if tensor.dim() else 1
        sizes = [int(size) for size in sizes] or [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            raise ValueError(
                f"{name}_split_sizes {sizes} must be {self._size} lengths that add up to {rows}, "
                f"the first dimension of {name}"
            )
        per_row = transfer_signature(tensor)[1] // rows if rows else 0
        return [size * per_row for size in sizes]
