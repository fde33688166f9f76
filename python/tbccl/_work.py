"""Calls that were issued and are waited for later."""

from __future__ import annotations

from typing import Generic, TypeVar

from tbccl import _native
from tbccl._errors import TimeoutError

T = TypeVar("T")


class Work(Generic[T]):
    """A call in progress, and what it will give.

    What the call works on stays alive until it is done, also when this object is dropped. It must not be written meanwhile,
    nor its result be read.
    """

    __slots__ = ("_request", "_value", "__weakref__")

    def __init__(self, request: _native.Request, value: T) -> None:
        self._request = request
        self._value = value

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the call is done, for so many seconds at most. False: not done in time, and still in progress.

        Raises what has become of the call, if it has failed. Ctrl-C ends the wait, and aborts the communicator.
        """
        return self._request.wait(timeout)

    def done(self) -> bool:
        """Is the call done? Raises what has become of it, if it has failed."""
        return self._request.test()

    def result(self, timeout: float | None = None) -> T:
        """Waits as `wait` does, and gives what the call gives. Raises TimeoutError if it is not done in time."""
        if not self._request.wait(timeout):
            raise TimeoutError(f"the call is not done after {timeout} s, and still in progress", code=7)
        return self._value

    @property
    def source(self) -> int | None:
        """Of a message that was received, who sent it; None before, and of all else."""
        return self._request.source

    @property
    def tag(self) -> int | None:
        """Of a message that is done, its tag."""
        return self._request.tag

    @property
    def nbytes(self) -> int | None:
        """Of a message that is done, its length in bytes."""
        return self._request.nbytes

    def __repr__(self) -> str:
        return f"<tbccl.Work: {self._request!r}>"
