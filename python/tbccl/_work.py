"""Handles of calls in progress."""

from __future__ import annotations

from typing import Generic, TypeVar

from tbccl import _native
from tbccl._errors import TimeoutError

T = TypeVar("T")


class FinishedRequest:
    """Request of no calls, which is done. It has the methods of `_native.Request`."""

    source = tag = nbytes = None

    def wait(self, timeout: float | None = None) -> bool:
        """Returns True."""
        return True

    def test(self) -> bool:
        """Returns True."""
        return True

    def __repr__(self) -> str:
        return "<tbccl request, done>"


class Work(Generic[T]):
    """Handle of a call in progress.

    The arrays of the call stay alive until the call is done, also when this object is dropped. Until then, do
    not write to the input and do not read the result.
    """

    __slots__ = ("_request", "_value", "__weakref__")

    def __init__(self, request: _native.Request | FinishedRequest, value: T) -> None:
        self._request = request
        self._value = value

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the call is done.

        Ctrl-C ends the wait with KeyboardInterrupt and aborts the communicator. Without a timeout, this
        thread makes the call itself if it has not begun.

        Args:
            timeout: Seconds to wait at most; None: until the call is done or its own time limit fails it.

        Returns:
            True if the call is done, False if it is still in progress after `timeout`.

        Raises:
            UsageError: A signal handler waits for a collective in the midst of a blocking call on the
                communicator, or of a wait that makes a call.
            Error: The call failed. Each later `wait`, `done` or `result` raises the same error.
        """
        return self._request.wait(timeout)

    def done(self) -> bool:
        """Returns whether the call is done, without waiting.

        Raises:
            Error: The call failed.
        """
        return self._request.test()

    def result(self, timeout: float | None = None) -> T:
        """Waits until the call is done and returns its result.

        Args:
            timeout: Seconds to wait at most; None: until the call is done or its own time limit fails it.

        Raises:
            TimeoutError: The call is still in progress after `timeout`. It goes on.
            Error: The call failed.
        """
        if not self._request.wait(timeout):
            raise TimeoutError(f"the call is still in progress after {timeout} s; wait for it again", code=7)
        return self._value

    @property
    def source(self) -> int | None:
        """Rank that sent the received message; None before it has arrived, and for other calls."""
        return self._request.source

    @property
    def tag(self) -> int | None:
        """Tag of the message; None before the call is done, and for collectives."""
        return self._request.tag

    @property
    def nbytes(self) -> int | None:
        """Length of the message in bytes; None before the call is done, and for collectives."""
        return self._request.nbytes

    def __repr__(self) -> str:
        return f"<tbccl.Work: {self._request!r}>"
