"""The submission of a group's calls to the communicator, to the stager, or to a batch.

A blocking call on host memory runs on its caller's thread. A batch collects the calls between
``_start_coalescing`` and ``_end_coalescing``, to submit them as one group. The operations make the calls;
nothing here looks at what they do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from tbccl import Error

from .pieces import Call
from .staging import Stager
from .tensors import check_no_nan
from .work import CombinedWork, CompletedWork, StagedWork, Work

#: Whether a call is asynchronous. Older versions of torch lack the option; their callers wait for the work.
is_async: Callable[[Any], bool] = (
    attrgetter("asyncOp") if hasattr(c10d.AllreduceOptions(), "asyncOp") else lambda options: True
)

#: Result of blocking calls.
COMPLETED = CompletedWork()


def _run_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


class Batch:
    """Calls that are collected between ``_start_coalescing`` and ``_end_coalescing``, to be submitted
    together.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.results: list[Any] = []
        self.copy_backs: list[Callable[[], None] | None] = []
        self.works: list[Work] = []
        self.limit: float | None = None


class Submission:
    """Mixin of `ProcessGroup`: ways of calls to the communicator."""

    def _run(
        self,
        call: Call,
        options: Any,
        results: Sequence[Any],
        copy_back: Callable[[], None] | None = None,
    ) -> Work | CompletedWork | None:
        """Runs a call, issues it, or adds it to the current batch.

        Args:
            call: Call on plain tensors.
            options: Options of torch for the call.
            results: Tensors that the call writes.
            copy_back: Function to run once the call is done.

        Returns:
            The work of an asynchronous call; `COMPLETED` for a blocking one; None in a batch.
        """
        if self._batch is not None:
            self._add_to_batch([call], options, results, [copy_back])
            return None
        self._sequence_number += 1
        limit, waits = self._timeout_of(options), not is_async(options)
        return self._submit_calls([call], limit, waits, results, [copy_back])

    def _run_v(
        self,
        call: Call,
        options: Any,
        results: Sequence[Any],
        copy_back: Callable[[], None] | None = None,
    ) -> Work | CompletedWork | None:
        """Runs or issues a call with a length for each block, as :meth:`_run`.

        A batch cannot contain such a call, so in a batch it is issued at once.
        """
        self._sequence_number += 1
        limit = self._timeout_of(options)
        waits = not is_async(options) and self._batch is None
        work = self._submit_calls([call], limit, waits, results, [copy_back])
        return work if waits else self._defer_to_batch(work)

    def _run_grouped(
        self,
        calls: list[Call],
        options: Any,
        results: Sequence[Any],
        copy_backs: Sequence[Callable[[], None] | None] = (),
    ) -> Work | CompletedWork | None:
        """Runs or issues several calls as one group, as :meth:`_run`."""
        if self._batch is not None:
            self._add_to_batch(calls, options, results, copy_backs)
            return None
        self._sequence_number += 1
        limit, waits = self._timeout_of(options), not is_async(options)
        return self._submit_calls(calls, limit, waits, results, copy_backs)

    def _submit_calls(
        self,
        calls: Sequence[Call],
        limit: float | None,
        waits: bool,
        results: Sequence[Any],
        copy_backs: Sequence[Callable[[], None] | None],
    ) -> Work | CompletedWork:
        """Submits calls, several as one group, and waits for them if ``waits``."""
        pending = [copy_back for copy_back in copy_backs if copy_back is not None]
        if self._checks_nan:
            for call in calls:
                if call.reads(self._rank):
                    check_no_nan(call.send)
        try:
            if self._must_stage(calls):
                return self._stage_calls(calls, limit, waits, results, copy_backs)
            if len(calls) == 1:
                request = self._comm.submit(*calls[0].by_address(), limit, None, waits)
            else:
                request = self._comm.submit_group([call.by_address() for call in calls], limit, waits)
        except Error as error:
            raise self._annotated(error)
        if not waits:
            on_complete = (lambda request: _run_all(pending)) if pending else None
            work = Work(self, request, results, calls, on_complete)
            work._limit = limit
            return self._track(work)
        _run_all(pending)
        return COMPLETED

    def _issue_in_place(self, collective: int, dtype: int, op: int, tensor: torch.Tensor) -> Work:
        """Issues a call on a plain tensor in host memory, outside a batch and without a timeout of its
        own.
        """
        self._sequence_number += 1
        address, limit = tensor.data_ptr(), self._default_timeout
        try:
            request = self._submit(
                collective, dtype, op, tensor.numel(), address, address, 0, limit, None, False
            )
        except Error as error:
            raise self._annotated(error)
        return self._track(Work(self, request, (tensor,)))

    def _must_stage(self, calls: Sequence[Call]) -> bool:
        """Returns whether calls go through the stager: they have tensors on devices, or follow such calls."""
        for call in calls:
            send, recv = call.send, call.recv
            is_on_host = (send is None or send.is_cpu) and (recv is None or recv.is_cpu)
            if not is_on_host and call.device is not None:
                return True
        return self._stager is not None and self._stager.is_busy

    def _stage_calls(
        self,
        calls: Sequence[Call],
        limit: float | None,
        waits: bool,
        results: Sequence[Any],
        copy_backs: Sequence[Callable[[], None] | None],
    ) -> Work | CompletedWork:
        """Submits calls through the stager, as :meth:`_submit_calls`."""
        stager = self._opened_stager()
        if waits and stager.run(calls, limit, copy_backs):
            return COMPLETED
        request = stager.issue(calls, limit, copy_backs)
        work = self._track(StagedWork(self, request, results, calls))
        work._limit = limit
        if not waits:
            return work
        work.wait()
        return COMPLETED

    def _opened_stager(self) -> Stager:
        """Returns the stager, which the first call on a tensor of a device makes."""
        if self._stager is None:
            self._stager, self._is_fast = Stager(self), False
        return self._stager

    def _submit_staged_calls(self) -> None:
        """Waits until the staged calls are submitted, before a call that bypasses the stager."""
        if self._stager is not None:
            self._stager.drain()

    @contextlib.contextmanager
    def _waiting_for_stage(self) -> Iterator[None]:
        """Marks the calling thread as one that waits for a staged call."""
        thread = threading.get_ident()
        self._staged_waits.append(thread)
        try:
            yield
        finally:
            self._staged_waits.remove(thread)

    def _add_to_batch(
        self,
        calls: Sequence[Call],
        options: Any,
        results: Sequence[Any],
        copy_backs: Sequence[Callable[[], None] | None],
    ) -> None:
        """Adds calls to the current batch."""
        batch = self._batch
        batch.calls.extend(calls)
        batch.results.extend(results)
        batch.copy_backs.extend(copy_backs)
        limit = self._timeout_of(options)
        if limit is not None:
            batch.limit = max(limit, batch.limit or 0.0)

    def _start_coalescing(self, device: torch.device) -> None:
        self._get_backend(device)
        if self._batch is not None:
            raise RuntimeError("calls of this group are being coalesced already")
        self._batch = Batch()

    def _end_coalescing(self, device: torch.device) -> Work | CombinedWork | CompletedWork:
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("no calls of this group are being coalesced")
        works = batch.works
        if batch.calls:
            self._sequence_number += 1
            works.append(self._submit_calls(batch.calls, batch.limit, False, batch.results, batch.copy_backs))
        if not works:
            return COMPLETED
        return works[0] if len(works) == 1 else CombinedWork(self, works)

    def _defer_to_batch(self, work: Work) -> Work | None:
        """Returns the work, or adds it to the current batch and returns None: the batch has one work for all
        its calls.
        """
        if self._batch is None:
            return work
        self._batch.works.append(work)
        return None
