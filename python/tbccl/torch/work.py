"""Operations in progress, and the thread that completes their futures.

A work keeps the memory of its call alive until the call is done. The remaining steps, such as copying
elements to a tensor that is not contiguous, run once, on the first thread that finds the call done: one that
waits, one that polls, or the thread that completes futures. That thread starts with the first future.

An error of a call belongs to its work: every wait raises it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tbccl import Error, TimeoutError

if TYPE_CHECKING:
    from .group import ProcessGroup

_FOREVER = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """Returns a time limit of torch in seconds; None (no limit) for zero and negative values."""
    if timeout is None or timeout <= _FOREVER:
        return None
    return timeout.total_seconds()


class Work(dist.Work):
    """Handle of an issued call."""

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
            except Error:
                # An exception of a signal handler ends the wait only: the call may still use its memory.
                if not self.is_completed() or self._error is None:
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
            trigger: torch.futures.Future = torch.futures.Future()
            # An error raised in a callback of the future also reaches threads that wait for it in C++.
            self._future = trigger.then(self._value)
            self._group._completer.complete(self, trigger)
        return self._future

    def _value(self, _: torch.futures.Future) -> list[Any]:
        self.wait()
        return list(self._results)

    def _get_sequence_number(self) -> int:
        return self._sequence_number

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


class RecvWork(Work):
    """Handle of a message to receive; it records the sender."""

    __slots__ = ()

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

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all works."""
        for work in self._works:
            work.wait(timeout)
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


class FutureCompleter:
    """Thread that waits for works with futures and completes these, in the order in which they were
    requested.
    """

    #: Time of one wait, after which the thread checks whether it must stop.
    _POLL_INTERVAL = timedelta(milliseconds=200)

    def __init__(self) -> None:
        self._pending: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_stopping = False

    def complete(self, work: Work | CombinedWork, trigger: torch.futures.Future) -> None:
        """Completes ``trigger`` once ``work`` is done.

        On the completing thread itself, in a callback that requests another future, it waits for the work
        directly: no other thread would complete it.
        """
        if not work.is_completed():
            if threading.current_thread() is not self._thread:
                self._start_thread()
                self._pending.put((work, trigger))
                return
            self._wait(work)
        trigger.set_result(None)

    def stop(self) -> None:
        """Stops the thread; futures that are not complete stay so."""
        self._is_stopping = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._pending.put(None)
            thread.join(timeout=5)

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tbccl-futures", daemon=True)
                _COMPLETERS.add(self)
                self._thread.start()

    def _run(self) -> None:
        while (item := self._pending.get()) is not None:
            work, trigger = item
            self._wait(work)
            if self._is_stopping:
                return
            trigger.set_result(None)
            # An idle thread holds no references to works.
            del item, work, trigger

    def _wait(self, work: Work | CombinedWork) -> None:
        while not self._is_stopping:
            try:
                work.wait(self._POLL_INTERVAL)
                return
            except TimeoutError:
                if work.is_completed():
                    return
            except Exception:
                return  # the future's callback raises it


_COMPLETERS: weakref.WeakSet[FutureCompleter] = weakref.WeakSet()


def stop_completers() -> None:
    """Stops all threads that complete futures, before the interpreter ends: none may be in a call then."""
    for completer in list(_COMPLETERS):
        completer.stop()
