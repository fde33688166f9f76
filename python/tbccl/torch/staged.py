"""Requests of staged calls and messages, with the methods of `_native.Request`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .devices import Access, access_to


class StagedRequest:
    """Request of a staged call, with the methods of `_native.Request`."""

    source: int | None = None
    nbytes: int | None = None

    def __init__(
        self,
        group: Any,
        devices: Iterable[torch.device] = (),
        check_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes the request of a call on devices; ``check_wait`` raises an error where a wait has no end."""
        self._group = group
        self._check_wait = check_wait
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._accesses: list[tuple[Access, Any]] = [(access_to(device), None) for device in devices]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the call is done on the host: its copies to the device have begun.

        Returns False if it is not within ``timeout`` seconds.
        """
        if not self._finished.is_set():
            self._check_wait()
            try:
                with self._group._waiting_for_stage():
                    if not self._finished.wait(timeout):
                        return False
            except KeyboardInterrupt:
                self._group._comm.abort()
                raise
        if self._error is not None:
            raise self._error
        return True

    def test(self) -> bool:
        """Returns whether the call is done on the host."""
        return self._finished.is_set() and self.wait()

    def follow(self) -> None:
        """Orders later work of the calling thread's streams after the call."""
        for access, event in self._accesses:
            access.follow(event)

    @property
    def future_devices(self) -> list[torch.device]:
        """Devices of the call's future."""
        return sorted(
            {device for access, _ in self._accesses for device in access.future_devices}, key=str
        )

    def finish(self, events: Sequence[tuple[Access, Any]], error: BaseException | None = None) -> None:
        """Ends the call."""
        if not self._finished.is_set():
            self._accesses, self._error = list(events), error
            self._finished.set()


class MessageRequest:
    """Request of a message that is posted once its bytes are in host memory."""

    source = nbytes = None

    def __init__(self, group: Any) -> None:
        self._posted = StagedRequest(group)
        self._request: Any = None

    def post(self, request: Any) -> None:
        """Sets the request of the posted message."""
        self._request = request
        self._posted.finish(())

    def fail(self, error: BaseException) -> None:
        """Ends the message with an error."""
        self._posted.finish((), error)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the message is done, for ``timeout`` seconds at most."""
        began = time.monotonic()
        if not self._posted.wait(timeout):
            return False
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return self._request.wait(left)

    def test(self) -> bool:
        """Returns whether the message is done."""
        return self._posted.test() and self._request.test()
