"""Blocking reductions of one plain tensor of a device, on the thread that issues them.

All ranks copy their tensor to host memory, reduce it there, and copy the result back on the program's own
stream. The host memory of a call is left to the next one: that one's copy out is on the same stream, behind
the copy in of this one, and the host waits for it. So no event is needed to know when the memory is free.

A call of several pieces copies all of them out at once; the copy in of a piece overlaps with the network of
the next one. Calls of other kinds are left to `caller_thread`, asynchronous ones to `staging`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from tbccl import _native

from .devices import StreamCopies, access_to
from .pieces import INLINE_BYTES, HostBuffer, as_bytes, step_of

if TYPE_CHECKING:
    from .pieces import Call


class ReducedHere:
    """Mixin of `Stager`: blocking reductions of one tensor."""

    def _init_reduced_here(self) -> None:
        #: Host memory of earlier calls, with the stream whose work may use it.
        self._spare: deque[tuple[HostBuffer, StreamCopies, torch.Stream]] = deque()

    def can_reduce_here(self, tensor: torch.Tensor) -> bool:
        """Returns whether :meth:`reduce_here` takes a plain tensor now: earlier calls are submitted."""
        return (
            not self._unsubmitted
            and type(access_to(tensor.device)) is StreamCopies
            and 0 < tensor.nbytes <= INLINE_BYTES
        )

    def is_reduction_of_one_tensor(self, call: Call) -> bool:
        """Returns whether a call is one that :meth:`reduce_here` runs."""
        return (
            call.collective in (_native.ALL_REDUCE, _native.REDUCE)
            and call.send is call.recv
            and call.send.is_contiguous()
            and not call.send.is_cpu
            and self.can_reduce_here(call.send)
        )

    def reduce_here(
        self,
        collective: int,
        dtype: int,
        op: int,
        count: int,
        tensor: torch.Tensor,
        root: int,
        limit: float | None,
    ) -> None:
        """Reduces a plain tensor in place, and orders later work of the calling thread's stream after it.

        Args:
            collective: An all-reduce or a reduce.
            dtype: Element type.
            op: Reduction.
            count: Elements of the type.
            tensor: Tensor that :meth:`can_reduce_here`.
            root: Root of a reduce.
            limit: Time limit in seconds.
        """
        self.check_is_no_handler()
        access = access_to(tensor.device)
        here = access.stream_here()
        if tensor.requires_grad:
            tensor = tensor.detach()
        writes = collective == _native.ALL_REDUCE or root == self._rank
        buffer = self._take_spare(access, here, tensor.nbytes)
        self._caller = threading.get_ident()
        try:
            step = step_of(tensor.nbytes // count)
            if count > step:
                with self._running():
                    call = (collective, dtype, op, count, root, limit)
                    self._reduce_pieces(access, buffer, tensor, writes, step, call)
            else:
                host = buffer.view_like(tensor)
                access.read_now(host, tensor)
                address = buffer.address
                self._group._submit(collective, dtype, op, count, address, address, root, limit, None, True)
                if writes:
                    access.write_here(((host, tensor),))
        except BaseException as error:
            self._tell_others(error)
            self._keep_after_failure([access], buffer, tensor)
            raise
        finally:
            self._caller = None
        self._spare.append((buffer, access, here))

    def _reduce_pieces(
        self,
        access: StreamCopies,
        buffer: HostBuffer,
        tensor: torch.Tensor,
        writes: bool,
        step: int,
        call: tuple[int, int, int, int, int, float | None],
    ) -> None:
        """Reduces a tensor in pieces of ``step`` elements."""
        collective, dtype, op, count, root, limit = call
        item = tensor.nbytes // count
        hosts = buffer.memory[: tensor.nbytes].split(step * item)
        owns = as_bytes(tensor).split(step * item)
        waits = [access.read_here((copy,)) for copy in zip(hosts, owns)]
        address, submit = buffer.address, self._group._submit
        for begin, wait, copy in zip(range(0, count, step), waits, zip(hosts, owns)):
            wait()
            at = address + begin * item
            submit(collective, dtype, op, min(step, count - begin), at, at, root, limit, None, True)
            if writes:
                access.write_here((copy,))

    def _take_spare(self, access: StreamCopies, here: torch.Stream, length: int) -> HostBuffer:
        """Returns host memory whose earlier copies are done before those that are issued to a stream."""
        try:
            buffer, owner, stream = self._spare.pop()
        except IndexError:
            return self._buffers.take(access, length)
        if owner is access and length <= buffer.memory.numel():
            if stream != here:
                stream.synchronize()
            return buffer
        self._buffers.give(buffer, owner, stream)
        return self._buffers.take(access, length)
