"""The process group: its identity, its calls in progress, and its end.

A group has a communicator of its own. Calls of a group are carried out in the order in which they were
issued; a blocking call runs on its caller's thread. If tbccl is the backend of the default group, the
messages of all groups use the default group's communicator, each with a context number of its own.

The operations, and the submission of calls, are defined by the mixin classes of `ProcessGroup`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tbccl import Error, InvalidArgumentError, TimeoutError

from .backend_interface import BackendInterface
from .coalesced import CoalescedCollectives
from .collectives import Collectives
from .futures import FutureCompleter
from .lists import ListCollectives
from .p2p import PointToPoint
from .membership import Membership
from .monitored_barrier import MonitoredBarrier
from .observed import HAS_PYTHON_BACKENDS, Bridge, make_observable, register_bridge
from .sparse import SparseCollectives
from .staging import Stager
from .submission import COMPLETED, Batch, Submission
from .work import Work, seconds

#: Groups that a signal handler has shut down while their calls used memory, which they keep alive.
_interrupted_groups: list[ProcessGroup] = []


class ProcessGroup(
    Collectives,
    ListCollectives,
    CoalescedCollectives,
    PointToPoint,
    SparseCollectives,
    MonitoredBarrier,
    BackendInterface,
    Membership,
    Submission,
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
        self._store = store
        self._rank, self._size = comm.rank, comm.size
        self._bridge = self._init_base()
        _interrupted_groups[:] = [group for group in _interrupted_groups if group._uses_memory()]
        self._comm = comm
        self._submit = comm.submit
        self._name, self._desc = name, "undefined"
        self._global_ranks = list(global_ranks)
        self._default_timeout: float | None = None
        self._extra_timeout = 0.0
        self._sequence_number = 0
        self._batch: Batch | None = None
        self._in_flight: deque[Work] = deque()
        self._completion_lock = threading.RLock()
        self._completer = FutureCompleter()
        self._stager: Stager | None = None
        self._checks_nan = os.environ.get("TORCH_DIST_NAN_CHECK", "0") == "1"
        #: Whether calls on host memory may go to the communicator without further checks.
        self._is_fast = not self._checks_nan
        #: Threads that wait for staged calls.
        self._staged_waits: list[int] = []
        self._closed = False
        self._init_backend_interface()
        self._init_membership(store)
        self._init_p2p(p2p_group, context)

    def _init_base(self) -> Bridge | None:
        """Initializes the C++ base; returns the backend that brings its calls here, where torch can."""
        if not HAS_PYTHON_BACKENDS:
            dist.ProcessGroup.__init__(self, self._rank, self._size)
            return None
        dist.ProcessGroup.__init__(self, self._store, self._rank, self._size)
        accelerator = torch.accelerator.current_accelerator()
        devices = ["cpu", *([] if accelerator is None else [accelerator.type])]
        return register_bridge(self, devices, dist.ProcessGroup.BackendType.CUSTOM)

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
        # While torch makes a group, it attaches its flight recorder to a group with devices. All calls would
        # then take the way of observed calls, so the list is empty until the group is registered.
        if not (self._is_recorded or self._has_devices or self in c10d._world.pg_map):
            return []
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return [torch.device("cpu"), *([] if accelerator is None else [accelerator])]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type == "meta":
            raise RuntimeError("No backend type associated with device type meta")
        return self

    get_backend = _get_backend

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

    # Calls in progress.

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
        self._run_abort_hooks_after_failure()
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

    @staticmethod
    def _new_group(comm: Any, store: dist.Store, name: str, global_ranks: Sequence[int]) -> ProcessGroup:
        """Makes another group, with messages of its own."""
        return ProcessGroup(comm, store, name, global_ranks)

    def _enter(self, comm: Any, global_ranks: Sequence[int]) -> None:
        """Takes another communicator in the place of the closed one."""
        self._comm, self._submit = comm, comm.submit
        self._rank, self._size = comm.rank, comm.size
        self._global_ranks = list(global_ranks)
        self._batch, self._stager = None, None
        self._is_fast = not self._checks_nan
        self._completer = FutureCompleter()
        self._in_flight.clear()
        orphans = self._orphans
        self._init_p2p(None, 0)
        self._orphans = orphans
        self._closed = self._has_failed = False

    def abort(self) -> None:
        """Aborts the group: each call of each member raises an error, including calls in progress."""
        self._run_abort_hooks()
        self._comm.abort()

    def shutdown(self) -> None:
        """Waits for the issued calls, then closes this rank's part of the group. It does not wait for
        messages.

        In a signal handler that has interrupted a wait on the group, aborts the group instead. The wait
        raises an error, and closes the group when it ends. An error of tbccl that a handler raises while this
        waits ends the wait, and is raised when the group is closed.
        """
        if self._closed:
            return
        self._closed = True
        of_handler: Error | None = None
        is_interrupted = self._comm._is_interrupted
        if threading.get_ident() in self._staged_waits:
            is_interrupted = True
            self._comm.abort()
        for work in () if is_interrupted else list(self._in_flight):
            try:
                work.wait()
            except Error as error:
                if not work.has_failed_with(error):
                    of_handler = error
                break  # the work's owner and every later call get the error of the work
        self._completer.close()
        self._hand_over_messages()
        if self._stager is not None:
            self._stager.close()
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
        if of_handler is not None:
            raise of_handler

    def _uses_memory(self) -> bool:
        """Returns whether calls or messages of the group may still use their memory."""
        return not all(each.is_finished() for each in (*self._in_flight, *self._orphans))

    _shutdown = shutdown


make_observable(ProcessGroup)
