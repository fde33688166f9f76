"""Operations in progress.

A work keeps the memory of its call alive until the call is done. The remaining steps, such as copying
elements to a tensor that is not contiguous, run once, on the first thread that finds the call done: one that
waits, one that polls, or the thread that completes futures.

An error of a call belongs to its work: every wait raises it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tbccl import Error, TimeoutError, UsageError

from . import typed_futures
from .devices import access_to

if TYPE_CHECKING:
    from .devices import Access
    from .group import ProcessGroup
    from .staged import StagedRequest

_FOREVER = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """Returns a time limit of torch in seconds; None (no limit) for zero and negative values."""
    if timeout is None or timeout <= _FOREVER:
        return None
    return timeout.total_seconds()


class Work(dist.Work):
    """Handle of an issued call."""

    #: Whether the work is a message, which may be done before or after any other work of the group.
    is_message = False

    __slots__ = (
        "_group",
        "_request",
        "_results",
        "_keep_alive",
        "_on_complete",
        "_error",
        "_future",
        "_source",
        "_sequence_number",
        "_limit",
    )

    def __init__(
        self,
        group: ProcessGroup,
        request: Any,
        results: Sequence[Any],
        keep_alive: Any = None,
        on_complete: Callable[[Any], None] | None = None,
    ) -> None:
        """Makes the work of a call.

        Args:
            group: Process group of the call.
            request: Request of the extension module.
            results: Tensors that the call writes.
            keep_alive: Other objects to keep alive until the call is done.
            on_complete: Function to run with the request once the call is done.
        """
        dist.Work.__init__(self)
        self._group = group
        self._request = request
        self._results = results
        self._keep_alive = keep_alive
        self._on_complete = on_complete
        self._error: BaseException | None = None
        self._future: torch.futures.Future | None = None
        self._source = -1
        self._sequence_number = group._sequence_number
        self._limit: float | None = group._default_timeout

    @property
    def timeout(self) -> timedelta:
        """Time limit of the call; zero: that of `TBCCL_TIMEOUT`."""
        return timedelta(seconds=self._limit or self._group._communicator_timeout or 0)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call is done; its tensors may be used then.

        Args:
            timeout: Time to wait at most; None or zero: no limit.

        Returns:
            True.

        Raises:
            tbccl.TimeoutError: The call is not done within ``timeout``. It goes on.
            tbccl.UsageError: A signal handler waits for it in the midst of a blocking call of the group.
            tbccl.Error: The call failed.
        """
        request = self._request
        if request is not None:
            limit = seconds(timeout)
            try:
                done = request.wait(limit)
            except Error as error:
                # An exception of a signal handler ends the wait only. The call may still use its memory, or
                # has failed meanwhile with an error of its own.
                if not self.has_failed_with(error):
                    raise
            else:
                if not done:
                    raise TimeoutError(f"Operation timed out! It is still in progress after {limit:g} s")
                self._complete(request, None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Waits as :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the call is done or has failed, without waiting."""
        request = self._request
        if request is None:
            return True
        try:
            if not request.test():
                return False
        except Exception as error:
            self._complete(request, error)
        else:
            self._complete(request, None)
        return True

    is_finished = is_completed

    def is_success(self) -> bool:
        """Returns whether the call is done without an error."""
        return self.is_completed() and self._error is None

    def has_failed_with(self, raised: Error) -> bool:
        """Returns whether a wait has raised the error of the call, and not one of a signal handler."""
        of_call = self.exception()
        # Words may have been added to the error of the call since.
        return type(raised) is type(of_call) and str(raised) in str(of_call)

    def exception(self) -> BaseException | None:
        """Returns the error of the call, or None."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        """Returns the tensors that the call wrote.

        Raises:
            RuntimeError: The call is in progress.
            tbccl.Error: The call failed.
        """
        if not self.is_completed():
            raise RuntimeError("the call is in progress; wait() for it first")
        if self._error is not None:
            raise self._error
        return list(self._results)

    def source_rank(self) -> int:
        """Returns the rank in the group that sent the received message, after waiting for it; -1 for other
        calls.
        """
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """Returns a future of the list of tensors that the call writes. Callbacks run on a thread of the
        group.
        """
        if self._future is None:
            trigger = self._new_future()
            # An error raised in a callback of the future also reaches threads that wait for it in C++.
            self._future = typed_futures.typed(trigger.then(self._value), self._results)
            self._group._completer.complete(self, trigger)
        return self._future

    def _new_future(self) -> torch.futures.Future:
        """Returns a future that the completion of the call completes."""
        return torch.futures.Future()

    def _value(self, _: torch.futures.Future) -> list[Any]:
        self.wait()
        return list(self._results)

    def _get_sequence_number(self) -> int:
        return self._sequence_number

    def _get_duration(self) -> float:
        raise UsageError("tbccl does not time single calls of torch: use TBCCL_TRACE", code=5)

    def _complete(self, request: Any, error: BaseException | None) -> None:
        """Runs the remaining steps of a call that is done, once."""
        group = self._group
        with group._completion_lock:
            if self._request is None:
                return
            if error is None and self._on_complete is not None:
                try:
                    self._on_complete(request)
                except Exception as failure:
                    error = failure
            if error is not None:
                self._error = group._annotated(error)
            self._on_complete = self._keep_alive = None
            self._request = None
            group._untrack(self)


class StagedWork(Work):
    """Handle of a call on tensors of devices.

    A wait waits until the copies to the devices have begun, and orders later work of the calling thread's
    stream after them; the host does not wait for the copies.
    """

    __slots__ = ("_staged",)

    def __init__(
        self, group: ProcessGroup, request: StagedRequest, results: Sequence[Any], calls: Any
    ) -> None:
        super().__init__(group, request, results, calls)
        self._staged = request

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits as :meth:`Work.wait`, and orders later work of the stream."""
        super().wait(timeout)
        self._staged.follow()
        return True

    def is_completed(self) -> bool:
        """Returns whether the call is done or has failed; if so, later work of the stream is ordered."""
        if not super().is_completed():
            return False
        self._staged.follow()
        return True

    is_finished = is_completed

    def _new_future(self) -> torch.futures.Future:
        return torch.futures.Future(devices=self._staged.future_devices)


class SendWork(Work):
    """Handle of a message to send."""

    is_message = True
    __slots__ = ()


class RecvWork(Work):
    """Handle of a message to receive; it records the sender."""

    is_message = True
    __slots__ = ("_events",)

    #: Copies of the message to a device, which later work of a stream follows.
    _events: Sequence[tuple[Access, Any]]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits as :meth:`Work.wait`, and orders later work of the stream after the message."""
        super().wait(timeout)
        self._follow()
        return True

    def is_completed(self) -> bool:
        """Returns whether the message has arrived or failed; if so, later work of the stream is ordered."""
        if not super().is_completed():
            return False
        self._follow()
        return True

    is_finished = is_completed

    def _follow(self) -> None:
        for access, event in getattr(self, "_events", ()):
            access.follow(event)

    def _new_future(self) -> torch.futures.Future:
        devices = {tensor.device for tensor in self._results if not tensor.is_cpu}
        accesses = filter(None, map(access_to, devices))
        return torch.futures.Future(devices=[each for access in accesses for each in access.future_devices])

    def _complete(self, request: Any, error: BaseException | None) -> None:
        if error is None and self._request is not None:
            self._source = self._group._group_rank_of(request.source)
        super()._complete(request, error)


class CombinedWork(dist.Work):
    """Handle of several works that were issued together, in their order."""

    __slots__ = ("_works", "_group", "_future")

    def __init__(self, group: ProcessGroup, works: Sequence[Work]) -> None:
        dist.Work.__init__(self)
        self._group = group
        self._works = works
        self._future: torch.futures.Future | None = None

    @property
    def is_message(self) -> bool:
        """Whether a message is among the works."""
        return any(work.is_message for work in self._works)

    @property
    def _sequence_number(self) -> int:
        return self._works[-1]._sequence_number

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all works, with one time limit for all."""
        limit = seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        for work in self._works:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-6)
            work.wait(None if left is None else timedelta(seconds=left))
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Returns whether all works are done."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Returns whether all works are done without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Returns the first error of the works, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """Returns the tensors that the works wrote."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        """Returns a future of the tensors that the works write."""
        if self._future is None:
            trigger: torch.futures.Future = torch.futures.Future()
            self._future = trigger.then(self._value)
            self._group._completer.complete(self, trigger)
        return self._future

    def _value(self, _: torch.futures.Future) -> list[Any]:
        self.wait()
        return self.result()


class CompletedWork(dist.Work):
    """Handle of a call that was done when it returned."""

    __slots__ = ("_results",)

    def __init__(self, results: Sequence[Any] = ()) -> None:
        dist.Work.__init__(self)
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns True at once."""
        return True

    def synchronize(self) -> None:
        """Does nothing."""

    def is_completed(self) -> bool:
        """Returns True."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """Returns None; a blocking call raises its errors itself."""

    def result(self) -> list[Any]:
        """Returns the tensors that the call wrote."""
        return list(self._results)

    def source_rank(self) -> int:
        """Returns -1: the call received no message."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """Returns a completed future."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(list(self._results))
        return future
