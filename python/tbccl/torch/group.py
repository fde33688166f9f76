"""A group of processes: what it is called, how its calls are in_flight, and how it ends.

A group has a communicator of its own. Calls of a group are carried out in the order in which they were in_flight; a call that
is not to be asynchronous is carried out on its caller's thread. Messages go through the default group's communicator if
that is one of tbccl, each group's apart from the others', since devices have few queue pairs.

What the operations are is in the modules that this class is put together from.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tbccl import Error, InvalidArgumentError, TimeoutError

from .coalesced import CoalescedCollectives
from .collectives import Collectives
from .lists import ListCollectives
from .p2p import PointToPoint
from .monitored_barrier import MonitoredBarrier
from .sparse import SparseCollectives
from .work import FutureCompleter, CompletedWork, CombinedWork, Work, seconds

#: Older versions of torch have calls without this option, whose callers wait themselves.
is_async: Callable[[Any], bool] = (
    attrgetter("asyncOp") if hasattr(c10d.AllreduceOptions(), "asyncOp") else lambda options: True
)

#: What blocking calls return.
COMPLETED = CompletedWork()


class _Batch:
    """Calls that are collected, to be in_flight together."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.results: list[Any] = []
        self.keep_alive: list[Any] = []
        self.callbacks: list[Callable[[Any], None]] = []
        self.works: list[Work] = []
        self.limit: float | None = None


class ProcessGroup(
    Collectives,
    ListCollectives,
    CoalescedCollectives,
    PointToPoint,
    SparseCollectives,
    MonitoredBarrier,
    dist.ProcessGroup,
):
    """A group of processes that communicate by tbccl. Made by ``init_process_group("tbccl")`` and ``new_group``."""

    _COMPLETED = COMPLETED

    def __init__(
        self,
        comm: Any,
        store: dist.Store,
        name: str,
        global_ranks: Sequence[int],
        p2p_group: ProcessGroup | None = None,
        context: int = 0,
    ) -> None:
        """``comm`` is the group's communicator, ``global_ranks`` its members; messages go by way of ``post``, or of
        ``comm`` without one, marked with ``context``."""
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._submit = comm.submit
        self._rank, self._size = comm.rank, comm.size
        self._store = store
        self._name, self._desc = name, "undefined"
        self._global_ranks = list(global_ranks)
        self._default_timeout: float | None = None
        self._extra_timeout = 0.0
        self._sequence_number = 0
        self._batch: _Batch | None = None
        self._in_flight: deque[Work] = deque()
        self._completion_lock = threading.RLock()
        self._completer = FutureCompleter()
        self._closed = False
        self._init_p2p(p2p_group, context)

    # What torch asks about a group.

    def rank(self) -> int:
        """This process, in the group."""
        return self._rank

    def size(self) -> int:
        """How many processes there are."""
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        """The backend."""
        return "tbccl"

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        """What torch calls the group."""
        return self._name

    def getGroupName(self) -> str:
        """As :attr:`group_name`."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Calls the group otherwise."""
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        """What people call the group."""
        return self._desc

    def getGroupDesc(self) -> str:
        """As :attr:`group_desc`."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Describes the group otherwise."""
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        # While torch makes a group, it wants to record the calls of the C++ backends that it has for these devices.
        is_made = self in c10d._world.pg_map
        return [torch.device("cpu")] if is_made else []

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    get_backend = _get_backend

    #: Batches of messages need no brackets here: none of them blocks.
    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = _supports_time_estimate = False

    def get_group_store(self) -> dist.Store:
        """What the processes of the group have met through."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    def _set_sequence_number_for_group(self) -> None:
        self._sequence_number = 0

    # Time limits. A call may wait so long without progress.

    def set_timeout(self, timeout: timedelta) -> None:
        """Bounds the waits of all calls from now on."""
        self._default_timeout = seconds(timeout)

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra_timeout += timeout.total_seconds()

    def _timeout_of(self, options: Any) -> float | None:
        limit = seconds(options.timeout)
        if limit is None:
            limit = self._default_timeout
        if self._extra_timeout and limit is not None:
            limit, self._extra_timeout = limit + self._extra_timeout, 0.0
        return limit

    # How calls are in_flight.

    def _run(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        keep_alive: Any = None,
        copy_back: Callable[[], None] | None = None,
    ) -> Work | CompletedWork | None:
        """Makes a call, or issues it, or puts it beside others that are in_flight together later.

        ``call`` is the arguments of submit; ``kept`` is the memory that it works on, ``then`` what is done afterwards.
        """
        on_complete = None if copy_back is None else lambda request: copy_back()
        if self._batch is not None:
            self._add_to_batch(call, options, results, keep_alive, on_complete)
            return None
        self._sequence_number += 1
        limit = self._timeout_of(options)
        try:
            if is_async(options):
                return self._track(
                    Work(self, self._comm.submit(*call, limit, None, False), results, keep_alive, on_complete)
                )
            self._submit(*call, limit)
        except Error as error:
            raise self._annotated(error)
        if copy_back is not None:
            copy_back()
        return COMPLETED

    def _run_v(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        keep_alive: Any = None,
        copy_back: Callable[[], None] | None = None,
    ) -> Work | CompletedWork | None:
        """As :meth:`_run`, for a call with lengths for each block; such a call is in no batch."""
        on_complete = None if copy_back is None else lambda request: copy_back()
        self._sequence_number += 1
        limit = self._timeout_of(options)
        try:
            if is_async(options) or self._batch is not None:
                work = self._track(
                    Work(self, self._comm.submit(*call, limit, None, False), results, keep_alive, on_complete)
                )
                return self._defer_to_batch(work)
            self._comm.submit(*call, limit)
        except Error as error:
            raise self._annotated(error)
        if copy_back is not None:
            copy_back()
        return COMPLETED

    def _run_grouped(
        self,
        calls: list[tuple],
        options: Any,
        results: Sequence[Any],
        keep_alive: Any = None,
        copy_backs: Sequence[Callable[[], None] | None] = (),
    ) -> Work | CompletedWork | None:
        """Makes or issues several calls as one."""
        pending = [copy_back for copy_back in copy_backs if copy_back is not None]

        def on_complete(request: Any) -> None:
            for copy_back in pending:
                copy_back()

        if self._batch is not None:
            for call in calls:
                self._add_to_batch(call, options, (), None, None)
            self._batch.results.extend(results)
            self._batch.keep_alive.append(keep_alive)
            self._batch.callbacks.append(on_complete)
            return None
        self._sequence_number += 1
        limit = self._timeout_of(options)
        try:
            if is_async(options):
                return self._track(
                    Work(self, self._comm.submit_group(calls, limit, False), results, keep_alive, on_complete)
                )
            self._comm.submit_group(calls, limit)
        except Error as error:
            raise self._annotated(error)
        on_complete(None)
        return COMPLETED

    def _add_to_batch(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        keep_alive: Any,
        on_complete: Callable[[Any], None] | None,
    ) -> None:
        batch = self._batch
        batch.calls.append(call)
        batch.results.extend(results)
        batch.keep_alive.append((results, keep_alive))
        limit = self._timeout_of(options)
        if limit is not None:
            batch.limit = max(limit, batch.limit or 0.0)
        if on_complete is not None:
            batch.callbacks.append(on_complete)

    def _start_coalescing(self, device: torch.device) -> None:
        self._get_backend(device)
        if self._batch is not None:
            raise RuntimeError("calls of this group are being coalesced already")
        self._batch = _Batch()

    def _end_coalescing(self, device: torch.device) -> Work | CombinedWork | CompletedWork:
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("no calls of this group are being coalesced")
        works = batch.works
        if batch.calls:
            self._sequence_number += 1

            def on_complete(request: Any) -> None:
                for callback in batch.callbacks:
                    callback(request)

            try:
                request = self._comm.submit_group(batch.calls, batch.limit, False)
            except Error as error:
                raise self._annotated(error)
            works.append(self._track(Work(self, request, batch.results, batch.keep_alive, on_complete)))
        if not works:
            return COMPLETED
        return works[0] if len(works) == 1 else CombinedWork(self, works)

    def _defer_to_batch(self, work: Work) -> Work | None:
        """Has a work waited for with the batch, if there is one; what is in a batch has no work of its own."""
        if self._batch is None:
            return work
        self._batch.works.append(work)
        return None

    def _track(self, work: Work) -> Work:
        """Keeps what a call works on until it is done, even if the program forgets its work."""
        in_flight = self._in_flight
        while in_flight:
            try:
                if not in_flight[0].is_completed():
                    break
            except IndexError:  # another thread was quicker
                break
        in_flight.append(work)
        return work

    def _untrack(self, work: Work) -> None:
        self._messages.pop(id(work), None)
        in_flight = self._in_flight
        while in_flight and in_flight[0]._request is None:
            in_flight.popleft()

    def _annotated(self, error: BaseException) -> BaseException:
        """The error, in the words that programs for torch look for, and with a note about who its ranks are where they are
        not those of the job."""
        if isinstance(error, TimeoutError) and "Timed out" not in str(error):
            error.args = (f"process group {self._name}: Timed out on rank {self._rank}: {error}",)
        is_whole = self._global_ranks == list(range(self._size)) and self._context == 0
        if isinstance(error, Error) and not is_whole and not hasattr(error, "global_peer"):
            peer = getattr(error, "peer", None)
            known = isinstance(peer, int) and 0 <= peer < self._size
            error.global_peer = self._global_ranks[peer] if known else None
            if sys.version_info >= (3, 11):
                ranks = ", ".join(map(str, self._global_ranks))
                error.add_note(f"ranks are those of process group {self._name}: ranks {ranks} of the job")
        return error

    # How a group ends.

    def abort(self) -> None:
        """Ends the group for good: every call of every member gives an error, those in progress too."""
        self._comm.abort()

    def shutdown(self) -> None:
        """Waits for the calls that were in_flight, then ends this process's part in the group. Messages are not waited for."""
        if self._closed:
            return
        self._closed = True
        for work in list(self._in_flight):
            try:
                work.wait()
            except Error:
                break  # it is told to whoever has the work, and to every later call
        self._completer.stop()
        self._hand_over_messages()
        try:
            self._comm.close()
        except InvalidArgumentError:
            raise
        except Error:
            pass  # a communicator that has failed is closed all the same
        self._in_flight.clear()
        self._orphans = []

    _shutdown = shutdown
