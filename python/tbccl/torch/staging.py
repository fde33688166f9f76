"""Calls on tensors of devices: copied out to host memory in pieces, communicated, and copied in.

A group has three threads, which start when they are needed. The first one copies pieces out and submits them
to the communicator in the order of issue. The second one waits for the pieces in the same order and starts
their copies in. So the copy out, the network and the copy in of different pieces overlap. The third one posts
messages, which must not wait behind collectives. The thread that issues a call is not blocked; the streams of
the program are ordered with the copies by `devices`. A short blocking call runs on the thread that issues it
(`caller_thread`).

Invariants: while a call waits to be submitted, later calls on host memory queue behind it (`is_busy`), so
that every rank submits the calls of a group in the order of issue. Tensors and host buffers are kept until
the copies that use them are done.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tbccl import Error, _native

from . import pieces
from .caller_thread import CallerThread
from .devices import Access, Copy, access_to, wait_for_copies
from .joining import has_copying_members
from .pieces import IN_PLACE, Call, HostBuffer, HostBuffers, as_bytes, common_bytes, split
from .reduced_here import ReducedHere
from .staged import MessageRequest, StagedRequest

#: Pieces of a group in host memory at a time: one copied out, one on the network, one copied in, one spare.
_PIECES = 4
#: Seconds between two looks at whether a thread has to end.
_POLL_SECONDS = 0.05


class Operation:
    """A staged call, or several as one group."""

    def __init__(self, calls: Sequence[Call], limit: float | None, marks: dict[torch.device, Any]) -> None:
        #: Request of a call that other threads run.
        self.request: StagedRequest | None = None
        self.calls = calls
        self.limit = limit
        #: Mark of the stream of each device at issue.
        self.marks = marks
        #: Functions that copy results to tensors that are not plain, with their devices.
        self.copy_backs: list[tuple[torch.device | None, Callable[[], None]]] = []
        self.events: dict[torch.device, Any] = {}
        self.error: BaseException | None = None

    def then(self, device: torch.device | None) -> Callable[[], None] | None:
        """Returns the function that copies the results of a device to tensors that are not plain."""
        functions = [copy_back for each, copy_back in self.copy_backs if each == device]
        return _all_of(functions) if functions else None


class Piece(NamedTuple):
    """Part of an operation that is submitted at once."""

    calls: list[tuple]
    reads: list[tuple[torch.device, Copy]]
    writes: list[tuple[torch.device, Copy]]
    buffers: list[tuple[torch.device, HostBuffer]]


class _Worker:
    """Thread that runs functions in order. It starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_stopping = False

    def put(self, task: Callable[[], None]) -> None:
        """Runs a function after all earlier ones."""
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Ends the thread after all functions."""
        self._tasks.put(None)
        self._join()

    def stop(self) -> None:
        """Ends the thread after the function that it runs."""
        self.is_stopping = True
        self.finish()

    def _join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self.is_stopping:
            task = self._tasks.get()
            if task is None:
                return
            task()
            # An idle thread keeps nothing alive.
            del task


class Stager(CallerThread, ReducedHere):
    """Staged calls of a group."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._size, self._rank = group._size, group._rank
        self._buffers = HostBuffers(self._allocate)
        self._free_pieces = threading.Semaphore(_PIECES)
        self._out, self._in = _Worker("tbccl-copy-out"), _Worker("tbccl-copy-in")
        self._messages = _Worker("tbccl-messages")
        #: Operations, and messages, that are not submitted. Only the issuing threads add, under the lock.
        self._unsubmitted = self._unposted = 0
        self._lock = threading.Lock()
        self._init_caller_thread()
        self._init_reduced_here()
        #: Objects of calls in progress when the threads ended.
        self._abandoned: list[Any] = []
        #: Objects in use until an event.
        self._kept: deque[tuple[Access, Any, Any]] = deque()
        #: Whether ranks split calls whose memory they use in place, since others copy theirs in pieces.
        self._splits_all = has_copying_members(group._store)
        _STAGERS.add(self)

    def _allocate(self, access: Access, count: int) -> torch.Tensor:
        """Allocates host memory for copies: registered if the device can use it, too."""
        if access.pins_registered:
            # Without room for it, the memory of torch does.
            with contextlib.suppress(Error):
                pinned = access.pinned(self._group._comm.empty(count, "uint8"))
                if pinned is not None:
                    return pinned
        return access.host_bytes(count)

    @property
    def is_busy(self) -> bool:
        """Whether a call waits to be submitted, so that later calls must queue."""
        return self._unsubmitted > 0

    @property
    def has_unposted(self) -> bool:
        """Whether a message waits to be posted, so that later messages must queue."""
        return self._unposted > 0

    # Collectives.

    def issue(
        self,
        calls: Sequence[Call],
        limit: float | None,
        copy_backs: Sequence[Callable[[], None] | None] = (),
    ) -> StagedRequest:
        """Issues calls, several as one group.

        Args:
            calls: Calls, on tensors of devices or in host memory.
            limit: Time limit in seconds.
            copy_backs: For each call, the function that copies its result to a tensor that is not plain.
        """
        operation = self._operation(calls, limit, copy_backs)
        operation.request = StagedRequest(self._group, operation.marks, self.check_is_no_handler)
        with self._lock:
            self._unsubmitted += 1
        self._out.put(lambda: self._submit(operation))
        return operation.request

    def _operation(
        self,
        calls: Sequence[Call],
        limit: float | None,
        copy_backs: Sequence[Callable[[], None] | None],
        has_marks: bool = True,
    ) -> Operation:
        """Returns the operation of calls, with marks of the streams as they are now if ``has_marks``."""
        marks: dict[torch.device, Any] = {}
        for call in calls:
            device = call.device
            if device is not None and device not in marks:
                marks[device] = access_to(device).mark() if has_marks else None
        operation = Operation(calls, limit, marks)
        operation.copy_backs = [
            (call.device, copy_back) for call, copy_back in zip(calls, copy_backs) if copy_back is not None
        ]
        return operation

    def _submit(self, operation: Operation) -> None:
        """Copies the pieces of an operation out and submits them; runs on the first thread."""
        try:
            with self._submission:
                self._submit_pieces(operation)
        except BaseException as error:
            self._fail(operation, error)
        finally:
            with self._lock:
                self._unsubmitted -= 1

    def _submit_pieces(self, operation: Operation) -> None:
        waiting: deque[tuple[Piece, list[Callable[[], None]]]] = deque()
        try:
            for piece in self._pieces(operation):
                waiting.append((piece, []))
                waiting[-1][1].extend(self._start_reads(operation, piece))
                # The copy of a piece begins before the previous one is submitted.
                if len(waiting) > 1:
                    self._submit_piece(operation, *waiting[0])
                    waiting.popleft()
                if operation.error is not None:
                    break
            while waiting and operation.error is None:
                self._submit_piece(operation, *waiting[0])
                waiting.popleft()
        finally:
            for piece, reads in waiting:
                # The copies out of a failed call may be under way; later calls get the memory.
                with contextlib.suppress(RuntimeError):
                    for wait in reads:
                        wait()
                self._release(operation, piece)
        self._in.put(lambda: self._finish(operation))

    def _start_reads(self, operation: Operation, piece: Piece) -> list[Callable[[], None]]:
        """Starts the copies of a piece to the host. Memory in place needs the device's work to be done."""
        waits = []
        for device, mark in operation.marks.items():
            access, copies = access_to(device), [copy for each, copy in piece.reads if each == device]
            if copies or access.is_in_place:
                waits.append(access.read(copies, mark))
        return waits

    def _submit_piece(self, operation: Operation, piece: Piece, reads: list[Callable[[], None]]) -> None:
        for wait in reads:
            wait()
        request = self._to_network(piece, operation.limit, False)
        self._in.put(lambda: self._complete_piece(operation, piece, request))

    def _to_network(self, piece: Piece, limit: float | None, waits: bool) -> Any:
        """Submits the calls of a piece, and waits for them if ``waits``; returns their request if not."""
        comm, calls = self._group._comm, piece.calls
        if len(calls) == 1:
            return comm.submit(*calls[0], limit, None, waits)
        return comm.submit_group(calls, limit, waits)

    def _complete_piece(self, operation: Operation, piece: Piece, request: Any) -> None:
        """Waits for a piece and starts its copies to the device; runs on the second thread."""
        try:
            while not request.wait(_POLL_SECONDS):
                if self._in.is_stopping:
                    # The call goes on, and uses the memory.
                    self._abandoned.append((operation, piece, request))
                    return
            self._start_writes(operation, piece)
        except BaseException as error:
            self._fail(operation, error)
        self._release(operation, piece)

    @staticmethod
    def _start_writes(operation: Operation, piece: Piece) -> None:
        """Starts the copies of a piece to devices."""
        for device, mark in operation.marks.items():
            copies = [copy for each, copy in piece.writes if each == device]
            if copies:
                operation.events[device] = access_to(device).write(copies, mark)

    def _release(self, operation: Operation, piece: Piece) -> None:
        self._give_back(operation, piece)
        self._free_pieces.release()

    def _give_back(self, operation: Operation, piece: Piece) -> None:
        """Gives the host memory of a piece back, which is in use until the copies to the device are done."""
        for device, buffer in piece.buffers:
            event = operation.events.get(device, operation.marks[device])
            self._buffers.give(buffer, access_to(device), event)

    def _finish(self, operation: Operation) -> None:
        """Ends an operation whose pieces are done; runs on the second thread."""
        events: list[tuple[Access, Any]] = []
        if operation.error is None:
            try:
                events = self._end(operation)
            except BaseException as error:
                self._fail(operation, error)
        operation.request.finish(events, operation.error)

    def _end(self, operation: Operation) -> list[tuple[Access, Any]]:
        """Starts the last copies of an operation; returns the events after which its results are there."""
        for device, mark in operation.marks.items():
            then = operation.then(device)
            if then is not None or device not in operation.events:
                operation.events[device] = access_to(device).write((), mark, then)
        if (then := operation.then(None)) is not None:
            then()
        events = [(access_to(device), event) for device, event in operation.events.items()]
        self.keep(events, operation.calls, operation.copy_backs)
        return events

    def _fail(self, operation: Operation, error: BaseException) -> None:
        """Ends an operation with an error."""
        if operation.error is None:
            operation.error = error
        self._tell_others(error)
        if operation.request is not None:
            operation.request.finish((), error)

    def _tell_others(self, error: BaseException) -> None:
        """Ends the group after an error of which the other ranks would not learn."""
        if not isinstance(error, Error):
            self._group._comm.abort()

    def keep(self, events: Sequence[tuple[Access, Any]], *objects: Any) -> None:
        """Keeps objects until events have occurred, and forgets those of events that have."""
        kept = self._kept
        for access, event in events:
            kept.append((access, event, objects))
        while kept and kept[0][0].is_done(kept[0][1]):
            try:
                kept.popleft()
            except IndexError:  # another thread removed it first
                break

    # Pieces.

    def _pieces(self, operation: Operation) -> Iterator[Piece]:
        """Yields the pieces of an operation; waits until there is room for each."""
        for parts in self._parts(operation.calls):
            while not self._free_pieces.acquire(timeout=_POLL_SECONDS):
                if self._out.is_stopping:
                    raise Error("the process group was closed before the call")
            yield self._stage(parts, operation)

    def _parts(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Yields the parts of calls that make a piece: a part of a long call, or several short calls.

        The parts are the same on all ranks.
        """
        group: list[Call] = []
        room = pieces.PIECE_BYTES
        for call in calls:
            length = common_bytes(call, self._size)
            is_long = length is None or length > pieces.PIECE_BYTES
            if group and (is_long or length > room):
                yield group
                group, room = [], pieces.PIECE_BYTES
            if is_long:
                yield from ([part] for part in split(call, self._size, self._splits_all))
            else:
                group.append(call)
                room -= length
        if group:
            yield group

    def _stage(self, parts: Sequence[Call], operation: Operation) -> Piece:
        """Makes the piece of some parts: takes host memory for those on devices."""
        piece = Piece([], [], [], [])
        for part in parts:
            device = part.device
            if device is None:
                piece.calls.append(part.by_address())
                continue
            is_root, reads = part.root == self._rank, part.reads(self._rank)
            writes = part.recv is not None and (
                part.collective not in (_native.REDUCE, _native.BROADCAST)
                or is_root == (part.collective == _native.REDUCE)
            )
            if part.recv is part.send:
                send = recv = self._host_side(piece, device, part.send, reads, writes)
            elif part.collective in IN_PLACE:
                send = recv = self._host_side(piece, device, part.send, reads, False)
                if writes:
                    self._write_back(piece, device, send, part.recv)
            else:
                send = self._host_side(piece, device, part.send, reads, False)
                recv = self._host_side(piece, device, part.recv, False, writes)
            piece.calls.append(part.by_address_of(send, recv))
        return piece

    def _host_side(
        self, piece: Piece, device: torch.device, own: torch.Tensor | None, reads: bool, writes: bool
    ) -> torch.Tensor | None:
        """Returns host memory for a tensor: an alias, or a buffer with copies from and to the tensor."""
        if own is None:
            return None
        access, is_contiguous = access_to(device), own.is_contiguous()
        alias = access.alias(own) if is_contiguous else None
        if alias is not None:
            return alias
        if own.requires_grad:
            own = own.detach()
        if is_contiguous and own.dim() != 1:
            own = own.view(-1)
        buffer = self._buffers.take(access, own.nbytes)
        piece.buffers.append((device, buffer))
        host = buffer.view_like(own)
        if reads:
            piece.reads.append((device, (host, own)))
        if writes:
            piece.writes.append((device, (host, own)))
        return host

    @staticmethod
    def _write_back(piece: Piece, device: torch.device, host: torch.Tensor, own: torch.Tensor) -> None:
        """Adds the copy of the result of a call in place, unless the host memory is the tensor's own."""
        own = own.detach() if own.dtype is torch.uint8 else as_bytes(own)
        if host.data_ptr() != own.data_ptr():
            host = host if host.dtype is torch.uint8 else as_bytes(host)
            piece.writes.append((device, (host.view(own.shape), own)))

    # Messages.

    def send(self, tensor: torch.Tensor, post: Callable[[int, int], Any]) -> MessageRequest:
        """Posts a message once its bytes are in host memory.

        Args:
            tensor: Plain tensor, on a device or in host memory.
            post: Function that posts the bytes at an address, of a number.
        """
        request = MessageRequest(self._group)
        device = None if tensor.is_cpu else tensor.device
        mark = None if device is None else access_to(device).mark()
        with self._lock:
            self._unposted += 1
        self._messages.put(lambda: self._post(request, tensor, device, mark, post))
        return request

    def _post(
        self,
        request: MessageRequest,
        tensor: torch.Tensor,
        device: torch.device | None,
        mark: Any,
        post: Callable[[int, int], Any],
    ) -> None:
        try:
            host = tensor
            if device is not None:
                access = access_to(device)
                alias = access.alias(tensor)
                host = access.host_bytes(max(1, tensor.nbytes)) if alias is None else alias
                copies = [] if alias is not None else [(host[: tensor.nbytes], as_bytes(tensor))]
                access.read(copies, mark)()
            # The request keeps the memory until the message is done.
            request.memory = host
            request.post(post(host.data_ptr(), tensor.nbytes))
        except BaseException as error:
            request.fail(error)
        finally:
            with self._lock:
                self._unposted -= 1

    def receive(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[Any], list[tuple[Access, Any]]]]:
        """Returns host memory to receive a tensor of a device, and a function that starts the copy to it.

        The function takes a further copy to run after, or None, and returns the events of the copies.
        """
        access = access_to(tensor.device)
        mark, alias = access.mark(), access.alias(tensor)
        if alias is not None:
            # The device may still use the tensor.
            access.read((), mark)()
        host = access.host_bytes(max(1, tensor.nbytes)) if alias is None else alias

        def write(then: Callable[[], None] | None) -> list[tuple[Access, Any]]:
            own = as_bytes(tensor)
            copies = [] if alias is not None or not own.numel() else [(host[: own.numel()], own)]
            events = [(access, access.write(copies, mark, then))]
            self.keep(events, host, tensor, then)
            return events

        return host, write

    # End.

    def drain(self) -> None:
        """Waits until all issued calls are submitted."""
        while self.is_busy:
            time.sleep(0.0001)

    def close(self) -> None:
        """Posts the issued messages, waits for the copies to devices, and ends the threads."""
        self._messages.finish()
        self.stop()
        self.wait_for_kept()

    def wait_for_kept(self) -> None:
        """Waits until the memory that is kept is no longer in use, and drops it."""
        while self._kept:
            access, event, _ = self._kept[0]
            access.wait_for(event)
            self._kept.popleft()

    def stop(self) -> None:
        """Ends the threads."""
        for worker in (self._out, self._in, self._messages):
            worker.stop()


def _all_of(functions: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for function in functions:
            function()

    return run


_STAGERS: weakref.WeakSet[Stager] = weakref.WeakSet()


def stop_stagers() -> None:
    """Ends the threads of all groups and waits for their copies, before the interpreter ends."""
    for stager in list(_STAGERS):
        stager.stop()
        stager.wait_for_kept()
    wait_for_copies()
