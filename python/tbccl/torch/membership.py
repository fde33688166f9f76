"""Changes of a group's members: rejoining other ranks, splitting, and merging with another group.

A group that rejoins keeps its identity, so that wrappers such as DistributedDataParallel go on with it. It
gets another communicator, of the ranks that come to a store.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tbccl import Error, UsageError

from .joining import JoinRequest, join
from .work import seconds


#: Longest wait of a rank that leaves a communicator: for sent messages to arrive, and for others to leave.
_LEAVE_SECONDS = 2.0


class Membership:
    """Mixin of `ProcessGroup`: changes of its members."""

    supports_reconfigure = True
    #: Whether the group names its devices also before torch registers it, which torch's split_group demands.
    _has_devices = False

    def _init_membership(self, store: dist.Store) -> None:
        #: Store through which members of :meth:`reconfigure` meet.
        self._meeting_store = store
        self._handle: str | None = None
        self._splits = 0

    def _check_is_plain(self, what: str) -> None:
        if getattr(self, "_carried", None):
            raise UsageError(
                f"group {self._name} carries backends of other devices, so that it cannot {what}: make "
                "another group with new_group",
                code=5,
            )

    def rejoin(self, store: dist.Store, rank: int, size: int, timeout: timedelta | None = None) -> None:
        """Leaves the communicator, also a failed one, and joins the ranks that come to a store, in place.

        Calls in flight fail, on this rank and on those that need it for them. If this rank's calls have all
        succeeded, it leaves in good order: others complete the calls that it has completed. Each new member
        calls it, or `tbccl.torch.create_process_group`, with the same store and size. Other groups
        whose messages this group carries have to be made anew.

        Args:
            store: Store that no other group uses, as ``PrefixStore(f"attempt {number}", store)``.
            rank: Rank of this process among the new members.
            size: Number of new members.
            timeout: Time limit for the members to meet, and of later calls; None: that of the group.

        Raises:
            tbccl.UsageError: The group carries backends of other devices.
            tbccl.Error: A member did not come in time; the message names it.
        """
        self._check_is_plain("rejoin")
        self._leave()
        limit = self._limit_to_meet(timeout)
        comm, _ = join(JoinRequest(store, rank, size, limit, self._name, []), "tbccl/rejoined")
        self._store = self._meeting_store = store
        self._communicator_timeout = limit
        self._enter(comm, list(range(size)))

    def get_reconfigure_handle(self) -> str:
        """Returns a text that names this process in :meth:`reconfigure`, to be sent to the others."""
        if self._handle is None:
            self._handle = uuid.uuid4().hex
        return self._handle

    def reconfigure(self, opts: Any) -> Any:
        """Makes the processes with some handles the members of the group, in place.

        Args:
            opts: Options of torch: the handles of the new members, in the order of their ranks or as a set,
                a number ``uuid`` that no earlier call had, and a time limit.

        Returns:
            A work that is done.

        Raises:
            ValueError: The handle of this process is not among them.
            tbccl.Error: As :meth:`rejoin`.
        """
        handles = sorted(opts.handles) if isinstance(opts.handles, (set, frozenset)) else list(opts.handles)
        if self._handle not in handles:
            raise ValueError(
                f"the handle of this process is not among the {len(handles)} of the new members of group "
                f"{self._name}: pass what get_reconfigure_handle() returns on each of them"
            )
        meeting_store = self._meeting_store
        store = dist.PrefixStore(f"tbccl/reconfigured/{opts.uuid}", meeting_store)
        self.rejoin(store, handles.index(self._handle), len(handles), opts.timeout)
        self._meeting_store = meeting_store
        return self._COMPLETED

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[Any] | None = None,
    ) -> Any:
        """Makes a group of some ranks of this one, which call it; returns None on others.

        `torch.distributed.split_group` calls it. ``opts`` and ``device_types`` are ignored: the new group has
        the options and devices of this one.
        """
        self._check_is_plain("split")
        self._splits += 1
        if self._rank not in new_ranks:
            return None
        name = group_name or f"{self._name}/split/{self._splits}/{'-'.join(map(str, new_ranks))}"
        ranks = [self._global_ranks[rank] for rank in new_ranks]
        store = dist.PrefixStore(f"{name}/", self._store)
        return self._other_group(store, list(new_ranks).index(self._rank), ranks, timeout, name, group_desc)

    def merge_remote_group(
        self,
        store: dist.Store,
        size: int,
        timeout: timedelta | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> Any:
        """Makes a group of ``size`` processes that call it with one store, of this group and of others.

        The processes get ranks in the order in which they come.
        """
        self._check_is_plain("merge")
        name = group_name or f"{self._name}/merged"
        rank = store.add(f"tbccl/merged/{name}", 1) - 1
        prefix_store = dist.PrefixStore(f"{name}/", store)
        return self._other_group(prefix_store, rank, list(range(size)), timeout, name, group_desc)

    def _other_group(
        self,
        store: dist.Store,
        rank: int,
        ranks: list[int],
        timeout: timedelta | None,
        name: str,
        group_desc: str | None,
    ) -> Any:
        """Makes another group, with messages of its own, of the ranks that come to a store."""
        limit = self._limit_to_meet(timeout)
        comm, _ = join(JoinRequest(store, rank, len(ranks), limit, name, ranks), "tbccl/made")
        group = self._new_group(comm, store, name, ranks)
        group._communicator_timeout = limit
        group._has_devices = True
        group.setGroupDesc(group_desc or "undefined")
        return group

    def _limit_to_meet(self, timeout: timedelta | None) -> float | None:
        """Returns the time limit for ranks to meet in seconds: the given one, or the group's."""
        if timeout is not None:
            return seconds(timeout)
        return self._default_timeout or self._communicator_timeout

    def _leave(self) -> None:
        """Closes the communicator in good order if its calls have succeeded; otherwise aborts it first, and
        waits until its calls have failed.

        An abort fails the calls that are in progress on any rank, also those that this rank has completed: a
        rank that came out of a call first would fail it for the others.
        """
        if self._closed:
            return
        if self._uses_memory() or self._comm.async_error() is not None:
            self.abort()
        for work in list(self._in_flight):
            with contextlib.suppress(Error):
                work.wait()
        self._completer.close()
        self._hand_over_messages()
        if self._stager is not None:
            self._stager.close()
        with contextlib.suppress(Error):
            self._comm.close(within=_LEAVE_SECONDS)
        self._closed = True
