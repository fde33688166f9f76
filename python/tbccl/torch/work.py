"""Operations in progress, and the thread that completes their futures.

A work keeps the memory of its call alive until the call is done. What remains to be done then, such as copying elements
to a tensor that does not lie in one piece, is done once, by whoever learns first that the call is done: a thread that
waits, one that asks, or the one that completes futures. That thread is there from the first future on.

An error of a call belongs to its work: whoever waits gets it, and whoever waits again gets it again.
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

from tbccl import TimeoutError

if TYPE_CHECKING:
    from .group import ProcessGroup

_FOREVER = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """A time limit as torch gives it; zero and what is negative mean none."""
    if timeout is None or timeout <= _FOREVER:
        return None
    return timeout.total_seconds()


class Work(dist.Work):
    """A call that was issued."""

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
        """``results`` is what the call writes to, ``kept`` what else must stay alive until it is done, and ``then`` what
        is done once it is, with the request."""
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
        """Waits until the call is done; its tensors may be used then. True, or what the call failed with.

        Raises tbccl.TimeoutError after ``timeout``; the call goes on.
        """
        request = self._request
        if request is not None:
            limit = seconds(timeout)
            try:
                done = request.wait(limit)
            except Exception as error:
                self._complete(request, error)
            else:
                if not done:
                    raise TimeoutError(
                        f"Operation timed out! It was not done within {limit:g} s, and goes on"
                    )
                self._complete(request, None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Is the call done, or has it failed? Does not wait."""
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
        """Is it done without an error?"""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What it failed with, if it has."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        """What the call wrote to, once it is done. Raises what the call failed with, and RuntimeError before."""
        if not self.is_completed():
            raise RuntimeError("the call is in progress; wait() for it first")
        if self._error is not None:
            raise self._error
        return list(self._results)

    def source_rank(self) -> int:
        """The rank in the group that a message came from, once it is there; -1 for other calls."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the list of tensors that the call writes to. Its callbacks run on a thread of their own."""
        if self._future is None:
            trigger: torch.futures.Future = torch.futures.Future()
            # An error that is raised in a callback is one for whoever waits in C++, too.
            self._future = trigger.then(self._value)
            self._group._completer.complete(self, trigger)
        return self._future

    def _value(self, _: torch.futures.Future) -> list[Any]:
        self.wait()
        return list(self._results)

    def _get_sequence_number(self) -> int:
        return self._sequence_number

    def _complete(self, request: Any, error: BaseException | None) -> None:
        """Does what remains once the call is done, if nobody has yet."""
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
    """A message that is to be received."""

    __slots__ = ()

    def _complete(self, request: Any, error: BaseException | None) -> None:
        if error is None and self._request is not None:
            self._source = self._group._group_rank_of(request.source)
        super()._complete(request, error)


class CombinedWork(dist.Work):
    """Works that were issued together, in their order."""

    __slots__ = ("_works", "_group", "_future")

    def __init__(self, group: ProcessGroup, works: Sequence[Work]) -> None:
        dist.Work.__init__(self)
        self._group = group
        self._works = works
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for all of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Are all of them done?"""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Are all of them done without an error?"""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """The first error among them."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """What they wrote to."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        """A future of what they write to."""
        if self._future is None:
            trigger: torch.futures.Future = torch.futures.Future()
            self._future = trigger.then(self._value)
            self._group._completer.complete(self, trigger)
        return self._future

    def _value(self, _: torch.futures.Future) -> list[Any]:
        self.wait()
        return self.result()


class CompletedWork(dist.Work):
    """What was done when the call returned."""

    __slots__ = ("_results",)

    def __init__(self, results: Sequence[Any] = ()) -> None:
        dist.Work.__init__(self)
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """It is done."""
        return True

    def synchronize(self) -> None:
        """It is done."""

    def is_completed(self) -> bool:
        """It is done."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """What fails is raised by the call."""

    def result(self) -> list[Any]:
        """What the call wrote to."""
        return list(self._results)

    def source_rank(self) -> int:
        """No message came from anywhere."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future that is complete."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(list(self._results))
        return future


class FutureCompleter:
    """The thread that waits for works whose future somebody has asked for, in the order of asking."""

    #: How long it waits at a time, in seconds, before it looks whether the program ends.
    _POLL_INTERVAL = timedelta(milliseconds=200)

    def __init__(self) -> None:
        self._pending: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_stopping = False

    def complete(self, work: Work | CombinedWork, trigger: torch.futures.Future) -> None:
        """Completes ``started`` once ``work`` is done.

        A callback that asks for another future is on the thread that would have to complete it, so that it is waited for
        here and now.
        """
        if not work.is_completed():
            if threading.current_thread() is not self._thread:
                self._start_thread()
                self._pending.put((work, trigger))
                return
            self._wait(work)
        trigger.set_result(None)

    def stop(self) -> None:
        """Ends the thread; futures that are not complete stay so."""
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
            # Nothing is held while there is nothing to do.
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
                return  # whoever asks the future gets it


_COMPLETERS: weakref.WeakSet[FutureCompleter] = weakref.WeakSet()


def stop_completers() -> None:
    """Ends all threads that complete futures: none may be in a call when the interpreter ends."""
    for completer in list(_COMPLETERS):
        completer.stop()
