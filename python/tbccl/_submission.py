"""Submission of calls to the extension module: blocking, or as a `Work`."""

from __future__ import annotations

from typing import Any

from tbccl._calls import Call
from tbccl._work import Work


class Submission:
    """Submission of calls whose arguments `_calls` has validated.

    The class is mixed into `Communicator`, whose native base class makes calls by address.
    """

    def _execute(self: Any, call: Call, timeout: float | None) -> Any:
        """Submits a call, waits until it is done and returns its result."""
        number, dtype, op, count, send, recv, root, _, result = call
        self.submit(number, dtype, op, count, send, recv, root, timeout)
        return result

    def _issue(self: Any, call: Call, timeout: float | None) -> Work[Any]:
        """Submits a call and returns its `Work` at once."""
        number, dtype, op, count, send, recv, root, keep, result = call
        request = self.submit(number, dtype, op, count, send, recv, root, timeout, None, False, keep)
        return Work(request, result)
