"""Registers tbccl with torch.distributed, and makes groups for it.

The processes of a group meet through the store that torch has for them: rank 0 leaves there what names the communicator to
all, and everybody leaves a word that it is here, so that whoever waits in vain can say who is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from tbccl import BootstrapError, Communicator, Error, TransportError, unique_id

from . import rendezvous
from .group import ProcessGroup
from .work import stop_completers, seconds

#: What the backend is called.
BACKEND = "tbccl"

_CONTEXT_BYTES = 4

#: What moves the bytes of groups for which RDMA devices have no connections left.
_TRANSPORTS_WITHOUT_RDMA = {"verbs": "tcp", "shm+verbs": "shm+tcp"}

#: How often this process has made a default group. What an earlier one has left in a store is not for a later one.
_default_group_count = 0


def register() -> None:
    """Makes the backend and the rendezvous ``tbccl://`` known to torch.distributed. Does nothing the second time, nor where
    torch was built without torch.distributed."""
    if not dist.is_available() or hasattr(dist.Backend, BACKEND.upper()):
        return
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    rendezvous.register()
    atexit.register(stop_completers)


def create(options: Any, pg_options: Any = None) -> ProcessGroup:
    """Makes a group. ``settings`` are options of tbccl by name, as ``{"ALGO": "ring"}``: torch's ``pg_options``.

    Raises tbccl.Error when not all processes have come in time; it says which.
    """
    global _default_group_count
    if pg_options is not None and not isinstance(pg_options, dict):
        raise TypeError(
            f"pg_options of tbccl are a dict of options by name, and this is {type(pg_options).__name__}"
        )
    is_default = not options.global_ranks_in_group
    p2p_group = None if is_default else _default_group()
    _default_group_count += is_default
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    comm, context = _create_communicator(options, pg_options, p2p_group)
    return ProcessGroup(comm, options.store, options.group_id, ranks, p2p_group, context)


def _default_group() -> ProcessGroup | None:
    """The default group, if it is one of tbccl."""
    group = dist.group.WORLD
    return group if isinstance(group, ProcessGroup) else None


def _create_communicator(
    options: Any, pg_options: dict[str, str] | None, p2p_group: ProcessGroup | None
) -> tuple[Any, int]:
    """The group's communicator, and the number that marks its messages.

    A program may have more groups than an RDMA device has connections for. What is made without them is slower, and right.
    """
    try:
        return _join_through_store(options, pg_options, p2p_group, f"tbccl/{_default_group_count}")
    except (BootstrapError, TransportError) as error:
        # All ranks come here if one does: a communicator is made on all of them, or none.
        fallback = None if p2p_group is None else _TRANSPORTS_WITHOUT_RDMA.get(p2p_group._comm.transport)
        if fallback is None:
            raise
        if options.group_rank == 0:
            warnings.warn(
                f"tbccl: process group {options.group_id} goes over {fallback}: {error}", stacklevel=2
            )
        return _join_through_store(
            options,
            {**(pg_options or {}), "TRANSPORT": fallback},
            p2p_group,
            f"tbccl/{_default_group_count}/plain",
        )


def _join_through_store(
    options: Any, pg_options: dict[str, str] | None, p2p_group: ProcessGroup | None, prefix: str
) -> tuple[Any, int]:
    """As :func:`_meet`, with words in this place of the group's store, and what is asked for or an error."""
    store, rank, size = options.store, options.group_rank, options.group_size
    limit = _timeout_seconds(options.timeout)
    arguments = {"timeout": limit, "options": pg_options, "mail": p2p_group is None}
    arrival_keys = [f"{prefix}/here/{member}" for member in range(size)]
    store.set(arrival_keys[rank], f"process {os.getpid()} on {socket.gethostname()}")
    try:
        if rank == 0:
            context = 0 if p2p_group is None else p2p_group._store.add("tbccl/contexts", 1)
            message = context.to_bytes(_CONTEXT_BYTES, "little") + unique_id()
            store.set(f"{prefix}/id", message)
        else:
            if limit is None:
                message = store.get(f"{prefix}/id")
            else:
                store.wait([f"{prefix}/id"], timedelta(seconds=limit))
                message = store.get(f"{prefix}/id")
            context = int.from_bytes(message[:_CONTEXT_BYTES], "little")
        comm = Communicator.from_unique_id(bytes(message[_CONTEXT_BYTES:]), rank, size, **arguments)
    except (Error, RuntimeError) as error:
        raise _with_missing_ranks(error, store, arrival_keys, options) from error
    _delete_keys(store, [arrival_keys[rank]] + ([f"{prefix}/id"] if rank == 0 else []))
    return comm, context


def _timeout_seconds(timeout: timedelta) -> float | None:
    """The time limit of a group in seconds. What torch sets when nobody has set one does not override TBCCL_TIMEOUT."""
    if timeout == default_pg_timeout and "TBCCL_TIMEOUT" in os.environ:
        return None
    return seconds(timeout)


def _with_missing_ranks(
    error: Exception, store: dist.Store, arrival_keys: list[str], options: Any
) -> Exception:
    """The error with the names of those who have not come; the error itself where all have."""
    missing = []
    for rank, key in enumerate(arrival_keys):
        with contextlib.suppress(Exception):
            if not store.check([key]):
                missing.append(rank)
    if not missing:
        return error
    ranks = options.global_ranks_in_group
    names = ", ".join(str(ranks[rank] if ranks else rank) for rank in missing)
    annotated = Error(
        f"rank{'s' if len(missing) > 1 else ''} {names} did not come to process group {options.group_id} of "
        f"{options.group_size} ranks: {error}"
    )
    annotated.peer = missing[0]
    return annotated


def _delete_keys(store: dist.Store, keys: list[str]) -> None:
    """Removes what nobody needs any more; the id is a secret. Not all stores can."""
    for key in keys:
        with contextlib.suppress(Exception):
            store.delete_key(key)
