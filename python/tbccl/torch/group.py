"""The process group: its identity, the submission of calls, and its end.

A group has a communicator of its own. Calls of a group are carried out in the order in which they were
issued; a blocking call runs on its caller's thread. If tbccl is the backend of the default group, the
messages of all groups use the default group's communicator, each with a context number of its own.

The operations are defined by the mixin classes of `ProcessGroup`.
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
from .futures import FutureCompleter
from .lists import ListCollectives
from .p2p import PointToPoint
from .monitored_barrier import MonitoredBarrier
from .sparse import SparseCollectives
from .work import CompletedWork, CombinedWork, Work, seconds

#: Whether a call is asynchronous. Older versions of torch lack the option; their callers wait for the work.
is_async: Callable[[Any], bool] = (
    attrgetter("asyncOp") if hasattr(c10d.AllreduceOptions(), "asyncOp") else lambda options: True
)

#: Groups that a signal handler has shut down while their calls used memory, which they keep alive.
_interrupted_groups: list[ProcessGroup] = []

#: Result of blocking calls.
COMPLETED = CompletedWork()


class _Batch:
    """Calls that are collected between ``_start_coalescing`` and ``_end_coalescing``, to be submitted
    together.
    """

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
    """Process group that communicates through tbccl.

    ``init_process_group("tbccl")`` and ``new_group`` make process groups.
    """

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
        """Makes the group of a communicator.

        Args:
            comm: Communicator of the group.
            store: Store through which the ranks met.
            name: Name of the group.
            global_ranks: Ranks of the members in the default group.
            p2p_group: Group whose communicator carries the messages; None: this group's own.
            context: Number that marks the messages of this group.
        """
        super().__init__(comm.rank, comm.size)
        _interrupted_groups[:] = [group for group in _interrupted_groups if group._uses_memory()]
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

    # Identity.

    def rank(self) -> int:
        """Returns the rank of this process in the group."""
        return self._rank

    def size(self) -> int:
        """Returns the number of ranks."""
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        """Returns the name of the backend."""
        return "tbccl"

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self._name

    def getGroupName(self) -> str:
        """Returns :attr:`group_name`."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Renames the group."""
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        """Description of the group."""
        return self._desc

    def getGroupDesc(self) -> str:
        """Returns :attr:`group_desc`."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Sets the description of the group."""
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        # While torch makes a group, it records the calls of the C++ backend of each of these devices.
        # tbccl has no C++ backend, so the list is empty until the group is registered.
        is_made = self in c10d._world.pg_map
        return [torch.device("cpu")] if is_made else []

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    get_backend = _get_backend

    #: Batches of messages need no coalescing: none of them blocks.
    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = _supports_time_estimate = False

    def get_group_store(self) -> dist.Store:
        """Returns the store through which the ranks of the group met."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    def _set_sequence_number_for_group(self) -> None:
        self._sequence_number = 0

    # Time limits: seconds that a call may wait without progress.

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of all later calls that have none of their own."""
        self._default_timeout = seconds(timeout)

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra_timeout += timeout.total_seconds()

    def _timeout_of(self, options: Any) -> float | None:
        """Returns the time limit of a call in seconds, including an ephemeral extension; None: the
        communicator's.
        """
        limit = seconds(options.timeout)
        if limit is None:
            limit = self._default_timeout
        if self._extra_timeout and limit is not None:
            limit, self._extra_timeout = limit + self._extra_timeout, 0.0
        return limit

    # Submission of calls.

    def _run(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        keep_alive: Any = None,
        copy_back: Callable[[], None] | None = None,
    ) -> Work | CompletedWork | None:
        """Runs a call, issues it, or adds it to the current batch.

        Args:
            call: Arguments of the communicator's ``submit``.
            options: Options of torch for the call.
            results: Tensors that the call writes.
            keep_alive: Other memory that the call uses, kept alive until it is done.
            copy_back: Function to run once the call is done.

        Returns:
            The work of an asynchronous call; `COMPLETED` for a blocking one; None in a batch.
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
        """Runs or issues a call with a length for each block, as :meth:`_run`.

        A batch cannot contain such a call, so in a batch it is issued at once.
        """
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
        """Runs or issues several calls as one group, as :meth:`_run`."""
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
        """Adds a call to the current batch."""
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
        """Returns the work, or adds it to the current batch and returns None: the batch has one work for all
        its calls.
        """
        if self._batch is None:
            return work
        self._batch.works.append(work)
        return None

    def _track(self, work: Work) -> Work:
        """Keeps the memory of a call alive until it is done, even if the program drops the work."""
        in_flight = self._in_flight
        while in_flight:
            try:
                if not in_flight[0].is_completed():
                    break
            except IndexError:  # another thread removed it first
                break
        in_flight.append(work)
        return work

    def _untrack(self, work: Work) -> None:
        """Forgets a work that is done, and the works before it that are done."""
        self._messages.pop(id(work), None)
        in_flight = self._in_flight
        while in_flight and in_flight[0]._request is None:
            in_flight.popleft()

    def _annotated(self, error: BaseException) -> BaseException:
        """Returns the error with context for programs that use torch.

        A timeout gets the words that programs for torch look for. In a group other than the whole job, the
        error gets the attribute ``global_peer`` and a note that names the members.
        """
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

    # End of the group.

    def abort(self) -> None:
        """Aborts the group: each call of each member raises an error, including calls in progress."""
        self._comm.abort()

    def shutdown(self) -> None:
        """Waits for the issued calls, then closes this rank's part of the group. It does not wait for
        messages.

        In a signal handler that has interrupted a wait on the group, aborts the group instead. The wait
        raises an error, and closes the group when it ends.
        """
        if self._closed:
            return
        self._closed = True
        is_interrupted = self._comm._is_interrupted
        for work in () if is_interrupted else list(self._in_flight):
            try:
                work.wait()
            except Error:
                break  # the work's owner and every later call get the error
        self._completer.close()
        self._hand_over_messages()
        try:
            self._comm.close()
        except InvalidArgumentError:
            raise
        except Error:
            pass  # a failed communicator is closed nevertheless
        if is_interrupted:
            _interrupted_groups.append(self)
            return
        self._in_flight.clear()
        self._orphans = []

    def _uses_memory(self) -> bool:
        """Returns whether calls or messages of the group may still use their memory."""
        return not all(each.is_finished() for each in (*self._in_flight, *self._orphans))

    _shutdown = shutdown
