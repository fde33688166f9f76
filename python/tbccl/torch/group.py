"""A group of processes: what it is called, how its calls are issued, and how it ends.

A group has a communicator of its own. Calls of a group are carried out in the order in which they were issued; a call that
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

from .coalesced import Coalesced
from .collectives import Collectives
from .lists import Lists
from .messages import Messages
from .monitored import Monitored
from .sparse import Sparse
from .work import Completer, Done, Several, Work, seconds

#: Older versions of torch have calls without this option, whose callers wait themselves.
asks_async: Callable[[Any], bool] = (
    attrgetter("asyncOp") if hasattr(c10d.AllreduceOptions(), "asyncOp") else lambda options: True
)

#: What blocking calls return.
DONE = Done()


class _Batch:
    """Calls that are collected, to be issued together."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.results: list[Any] = []
        self.kept: list[Any] = []
        self.thens: list[Callable[[Any], None]] = []
        self.works: list[Work] = []
        self.limit: float | None = None


class ProcessGroup(Collectives, Lists, Coalesced, Messages, Sparse, Monitored, dist.ProcessGroup):
    """A group of processes that communicate by tbccl. Made by ``init_process_group("tbccl")`` and ``new_group``."""

    _DONE = DONE

    def __init__(
        self,
        comm: Any,
        store: dist.Store,
        name: str,
        global_ranks: Sequence[int],
        post: ProcessGroup | None = None,
        context: int = 0,
    ) -> None:
        """``comm`` is the group's communicator, ``global_ranks`` its members; messages go by way of ``post``, or of
        ``comm`` without one, marked with ``context``."""
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._call = comm.submit
        self._rank, self._size = comm.rank, comm.size
        self._store = store
        self._name, self._desc = name, "undefined"
        self._global_ranks = list(global_ranks)
        self._limit_set: float | None = None
        self._extra = 0.0
        self._sequence = 0
        self._batch: _Batch | None = None
        self._issued: deque[Work] = deque()
        self._settling = threading.RLock()
        self._completer = Completer()
        self._closed = False
        self._open_mail(post, context)

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
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    # Time limits. A call may wait so long without progress.

    def set_timeout(self, timeout: timedelta) -> None:
        """Bounds the waits of all calls from now on."""
        self._limit_set = seconds(timeout)

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra += timeout.total_seconds()

    def _limit(self, options: Any) -> float | None:
        limit = seconds(options.timeout)
        if limit is None:
            limit = self._limit_set
        if self._extra and limit is not None:
            limit, self._extra = limit + self._extra, 0.0
        return limit

    # How calls are issued.

    def _run(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        kept: Any = None,
        then: Callable[[], None] | None = None,
    ) -> Work | Done | None:
        """Makes a call, or issues it, or puts it beside others that are issued together later.

        ``call`` is the arguments of submit; ``kept`` is the memory that it works on, ``then`` what is done afterwards.
        """
        after = None if then is None else lambda request: then()
        if self._batch is not None:
            self._collect(call, options, results, kept, after)
            return None
        self._sequence += 1
        limit = self._limit(options)
        try:
            if asks_async(options):
                return self._track(Work(self, self._comm.submit(*call, limit, None, False), results, kept, after))
            self._call(*call, limit)
        except Error as error:
            raise self._told(error)
        if then is not None:
            then()
        return DONE

    def _run_v(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        kept: Any = None,
        then: Callable[[], None] | None = None,
    ) -> Work | Done | None:
        """As :meth:`_run`, for a call with lengths for each block; such a call is in no batch."""
        after = None if then is None else lambda request: then()
        self._sequence += 1
        limit = self._limit(options)
        try:
            if asks_async(options) or self._batch is not None:
                work = self._track(Work(self, self._comm.submit(*call, limit, None, False), results, kept, after))
                return self._beside(work)
            self._comm.submit(*call, limit)
        except Error as error:
            raise self._told(error)
        if then is not None:
            then()
        return DONE

    def _run_together(
        self,
        calls: list[tuple],
        options: Any,
        results: Sequence[Any],
        kept: Any = None,
        thens: Sequence[Callable[[], None] | None] = (),
    ) -> Work | Done | None:
        """Makes or issues several calls as one."""
        bring = [then for then in thens if then is not None]

        def after(request: Any) -> None:
            for then in bring:
                then()

        if self._batch is not None:
            for call in calls:
                self._collect(call, options, (), None, None)
            self._batch.results.extend(results)
            self._batch.kept.append(kept)
            self._batch.thens.append(after)
            return None
        self._sequence += 1
        limit = self._limit(options)
        try:
            if asks_async(options):
                return self._track(Work(self, self._comm.submit_group(calls, limit, False), results, kept, after))
            self._comm.submit_group(calls, limit)
        except Error as error:
            raise self._told(error)
        after(None)
        return DONE

    def _collect(
        self,
        call: tuple,
        options: Any,
        results: Sequence[Any],
        kept: Any,
        after: Callable[[Any], None] | None,
    ) -> None:
        batch = self._batch
        batch.calls.append(call)
        batch.results.extend(results)
        batch.kept.append((results, kept))
        limit = self._limit(options)
        if limit is not None:
            batch.limit = max(limit, batch.limit or 0.0)
        if after is not None:
            batch.thens.append(after)

    def _start_coalescing(self, device: torch.device) -> None:
        self._get_backend(device)
        if self._batch is not None:
            raise RuntimeError("calls of this group are being coalesced already")
        self._batch = _Batch()

    def _end_coalescing(self, device: torch.device) -> Work | Several | Done:
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("no calls of this group are being coalesced")
        works = batch.works
        if batch.calls:
            self._sequence += 1

            def after(request: Any) -> None:
                for then in batch.thens:
                    then(request)

            try:
                request = self._comm.submit_group(batch.calls, batch.limit, False)
            except Error as error:
                raise self._told(error)
            works.append(self._track(Work(self, request, batch.results, batch.kept, after)))
        if not works:
            return DONE
        return works[0] if len(works) == 1 else Several(self, works)

    def _beside(self, work: Work) -> Work | None:
        """Has a work waited for with the batch, if there is one; what is in a batch has no work of its own."""
        if self._batch is None:
            return work
        self._batch.works.append(work)
        return None

    def _track(self, work: Work) -> Work:
        """Keeps what a call works on until it is done, even if the program forgets its work."""
        issued = self._issued
        while issued:
            try:
                if not issued[0].is_completed():
                    break
            except IndexError:  # another thread was quicker
                break
        issued.append(work)
        return work

    def _forget_settled(self, work: Work) -> None:
        self._letters.pop(id(work), None)
        issued = self._issued
        while issued and issued[0]._request is None:
            issued.popleft()

    def _told(self, error: BaseException) -> BaseException:
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
        """Waits for the calls that were issued, then ends this process's part in the group. Messages are not waited for."""
        if self._closed:
            return
        self._closed = True
        for work in list(self._issued):
            try:
                work.wait()
            except Error:
                break  # it is told to whoever has the work, and to every later call
        self._completer.end()
        self._leave_mail()
        try:
            self._comm.close()
        except InvalidArgumentError:
            raise
        except Error:
            pass  # a communicator that has failed is closed all the same
        self._issued.clear()
        self._orphans = []

    _shutdown = shutdown
