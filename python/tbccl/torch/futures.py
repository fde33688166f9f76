"""The thread of a process group that completes the futures of works.

Calls of a group are done in the order of issue, messages in any order. So the thread waits for the first call
and looks at the messages meanwhile. No future waits for another one. Callbacks run on the thread, one after
the other.
"""

from __future__ import annotations

import threading
import time
import weakref
from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple

import torch

from .work import CombinedWork, Work


class _Entry(NamedTuple):
    """Work whose future is not complete."""

    work: Work | CombinedWork
    #: Future to complete when the work is done.
    trigger: torch.futures.Future
    #: Number of the work in the order of issue.
    number: int
    is_message: bool


class FutureCompleter:
    """Thread that completes futures soon after their works are done. It starts with the first future."""

    #: Longest wait for the first call. Then the thread looks at works that were added meanwhile.
    _CALL_WAIT = timedelta(milliseconds=20)
    #: Longest wait for the first call while there are messages, too.
    _CALL_WAIT_BESIDE_MESSAGES = timedelta(milliseconds=2)
    #: Longest wait for a message. Shorter ones would not apply the time limit of messages.
    _MESSAGE_WAIT = timedelta(milliseconds=20)
    #: Seconds between two waits for messages while there is a call, too.
    _SECONDS_BETWEEN_MESSAGE_WAITS = 0.2

    def __init__(self) -> None:
        #: Guards the attributes below. Reentrant, since a signal handler may add a work in the midst.
        self._condition = threading.Condition(threading.RLock())
        self._added: list[_Entry] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_stopping = False
        #: Number of waits for messages, which take turns.
        self._message_waits = 0
        self._next_message_wait = 0.0

    def complete(self, work: Work | CombinedWork, trigger: torch.futures.Future) -> None:
        """Completes ``trigger`` once ``work`` is done.

        On the completing thread itself, in a callback that requests another future, it waits for the work
        directly: no other thread would complete it.
        """
        if not work.is_completed():
            if threading.current_thread() is not self._thread:
                self._add(_Entry(work, trigger, work._sequence_number, work.is_message))
                return
            while not self._is_stopping and not self._wait(work, self._MESSAGE_WAIT):
                pass
        trigger.set_result(None)

    def close(self) -> None:
        """Ends the thread once all futures are complete."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def stop(self) -> None:
        """Ends the thread; futures that are not complete stay so."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _add(self, entry: _Entry) -> None:
        with self._condition:
            self._added.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tbccl-futures", daemon=True)
                _COMPLETERS.add(self)
                self._thread.start()
            self._condition.notify_all()

    def _run(self) -> None:
        pending: list[_Entry] = []
        while self._take_added(pending):
            is_in_order = self._wait_for_one(pending)
            self._complete_done(pending, is_in_order)

    def _take_added(self, pending: list[_Entry]) -> bool:
        """Waits for works, and moves them to ``pending``; returns False if the thread must end."""
        with self._condition:
            while not (pending or self._added or self._is_closed or self._is_stopping):
                self._condition.wait()
            if self._added:
                pending += self._added
                pending.sort(key=attrgetter("number"))
                self._added.clear()
            if self._is_stopping or not pending:
                self._thread = None
                return False
            return True

    def _wait_for_one(self, pending: list[_Entry]) -> bool:
        """Waits for the first call or, from time to time, for a message. Returns whether the call is done."""
        call = next((entry.work for entry in pending if not entry.is_message), None)
        messages = [entry.work for entry in pending if entry.is_message]
        now = time.monotonic()
        if messages and (call is None or now >= self._next_message_wait):
            self._next_message_wait = now + self._SECONDS_BETWEEN_MESSAGE_WAITS
            self._message_waits += 1
            self._wait(messages[self._message_waits % len(messages)], self._MESSAGE_WAIT)
            return False
        return self._wait(call, self._CALL_WAIT_BESIDE_MESSAGES if messages else self._CALL_WAIT)

    def _complete_done(self, pending: list[_Entry], is_in_order: bool) -> None:
        """Completes the futures of works that are done and removes them from ``pending``.

        Looks at no call behind one that is not done, if ``is_in_order``.
        """
        done, waiting, is_behind = [], [], False
        for entry in pending:
            is_skipped = is_behind and is_in_order and not entry.is_message
            is_done = not is_skipped and entry.work.is_completed()
            is_behind = is_behind or not (is_done or entry.is_message)
            (done if is_done else waiting).append(entry)
        # The thread holds no references to works that are done while it is idle.
        pending[:] = waiting
        while done and not self._is_stopping:
            done.pop(0).trigger.set_result(None)

    @staticmethod
    def _wait(work: Work | CombinedWork, limit: timedelta) -> bool:
        """Returns whether the work is done within ``limit``."""
        try:
            return work.wait(limit)
        except Exception:
            # The callback of the future raises an error of the call.
            return work.is_completed()


_COMPLETERS: weakref.WeakSet[FutureCompleter] = weakref.WeakSet()


def stop_completers() -> None:
    """Stops all threads that complete futures, before the interpreter ends: none may be in a call then."""
    for completer in list(_COMPLETERS):
        completer.stop()
