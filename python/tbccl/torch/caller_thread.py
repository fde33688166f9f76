"""Blocking staged calls that run on the thread that issues them.

No other thread has to wake for such a call. Its copies are on the program's own stream, so that no streams
have to wait for each other. The copies out of all pieces begin at once; the copy in of a piece overlaps with
the network of the next one. Calls beyond `INLINE_BYTES` are left to the threads of `staging`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tbccl import UsageError

from .devices import access_to
from .pieces import INLINE_BYTES, Call, host_bytes

if TYPE_CHECKING:
    from .devices import Access
    from .staging import Operation, Piece


class CallerThread:
    """Mixin of `Stager`: calls that run on their caller's thread."""

    def _init_caller_thread(self) -> None:
        #: Guards the submission of a call's pieces, in whose midst no other call may be submitted.
        self._submission = threading.Lock()
        #: Thread that runs a call of its own.
        self._caller: int | None = None

    def run(
        self,
        calls: Sequence[Call],
        limit: float | None,
        copy_backs: Sequence[Callable[[], None] | None] = (),
    ) -> bool:
        """Runs calls on the calling thread, and orders later work of its streams after them.

        Takes the arguments of `issue`. Returns False, without running them, if they are longer or have to
        queue.
        """
        if len(calls) == 1 and not any(copy_backs) and self.is_reduction_of_one_tensor(calls[0]):
            collective, dtype, op, count, tensor, _, root = calls[0]
            self.reduce_here(collective, dtype, op, count, tensor, root, limit)
            return True
        self.check_is_no_handler()
        if self._unsubmitted or (sum(map(host_bytes, calls)) > INLINE_BYTES and not self._is_in_place(calls)):
            return False
        operation = self._operation(calls, limit, copy_backs, has_marks=False)
        parts = list(self._parts(calls))
        self._caller = threading.get_ident()
        try:
            with self._running() if len(parts) > 1 else contextlib.nullcontext():
                self._run_pieces(operation, parts)
        except BaseException as error:
            self._fail(operation, error)
            raise
        finally:
            self._caller = None
        return True

    def _is_in_place(self, calls: Sequence[Call]) -> bool:
        """Returns whether the host uses the memory of a call in place, whose length is then free."""
        device = calls[0].device
        return (
            len(calls) == 1 and device is not None and access_to(device).is_in_place and not self._splits_all
        )

    def _run_pieces(self, operation: Operation, parts: Sequence[Sequence[Call]]) -> None:
        """Runs an operation, given the parts of its pieces."""
        pieces: list[Piece] = []
        try:
            pieces.extend(self._stage(each, operation) for each in parts)
            self._run_staged(operation, pieces)
        except BaseException:
            self._keep_after_failure(map(access_to, operation.marks), operation, pieces)
            raise

    def _run_staged(self, operation: Operation, pieces: Sequence[Piece]) -> None:
        """Runs an operation in pieces that have host memory."""
        accesses = [(device, access_to(device)) for device in operation.marks]
        waits = []
        for piece in pieces:
            for device, access in accesses:
                copies = [copy for each, copy in piece.reads if each == device]
                if copies or access.is_in_place:
                    waits.append((piece, access.read_here(copies)))
        for piece in pieces:
            while waits and waits[0][0] is piece:
                waits.pop(0)[1]()
            self._to_network(piece, operation.limit, True)
            for device, access in accesses:
                copies = [copy for each, copy in piece.writes if each == device]
                if copies:
                    access.write_here(copies)
        for device, access in accesses:
            operation.events[device] = access.end_here(operation.then(device))
        if (then := operation.then(None)) is not None:
            then()
        for piece in pieces:
            self._give_back(operation, piece)

    def _keep_after_failure(self, accesses: Iterable[Access], *objects: Any) -> None:
        """Keeps the memory of a failed call until the copies that it has issued are done."""
        try:
            events = [(access, access.mark()) for access in accesses]
        except RuntimeError:  # the device has failed
            self._abandoned.append(objects)
        else:
            self.keep(events, *objects)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Makes later calls of other threads queue while this thread submits the pieces of its own."""
        with self._lock:
            self._unsubmitted += 1
        try:
            # The end of the group tells by it that a signal handler has interrupted the call.
            with self._submission, self._group._waiting_for_stage():
                yield
        finally:
            with self._lock:
                self._unsubmitted -= 1

    def check_is_no_handler(self) -> None:
        """Checks that this thread is not in the midst of a call of its own.

        Raises:
            UsageError: It is: a signal handler has interrupted the call.
        """
        if self._caller == threading.get_ident():
            raise UsageError(
                "a signal handler can't wait for a call of the group whose call it has interrupted: that one "
                "goes on when the handler returns; destroy or abort the group, or let the handler set a flag",
                code=5,
            )
