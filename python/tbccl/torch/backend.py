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

from . import meeting
from .group import ProcessGroup
from .work import end_completers, seconds

#: What the backend is called.
BACKEND = "tbccl"

_CONTEXT_BYTES = 4

#: What moves the bytes of groups for which RDMA devices have no connections left.
_WITHOUT_DEVICES = {"verbs": "tcp", "shm+verbs": "shm+tcp"}

#: How often this process has made a default group. What an earlier one has left in a store is not for a later one.
_worlds = 0


def register() -> None:
    """Makes the backend and the rendezvous ``tbccl://`` known to torch.distributed. Does nothing the second time, nor where
    torch was built without torch.distributed."""
    if not dist.is_available() or hasattr(dist.Backend, BACKEND.upper()):
        return
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    meeting.register()
    atexit.register(end_completers)


def create(options: Any, settings: Any = None) -> ProcessGroup:
    """Makes a group. ``settings`` are options of tbccl by name, as ``{"ALGO": "ring"}``: torch's ``pg_options``.

    Raises tbccl.Error when not all processes have come in time; it says which.
    """
    global _worlds
    if settings is not None and not isinstance(settings, dict):
        raise TypeError(f"pg_options of tbccl are a dict of options by name, and this is {type(settings).__name__}")
    is_default = not options.global_ranks_in_group
    post = None if is_default else _default_group()
    _worlds += is_default
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    comm, context = _meet(options, settings, post)
    return ProcessGroup(comm, options.store, options.group_id, ranks, post, context)


def _default_group() -> ProcessGroup | None:
    """The default group, if it is one of tbccl."""
    group = dist.group.WORLD
    return group if isinstance(group, ProcessGroup) else None


def _meet(options: Any, settings: dict[str, str] | None, post: ProcessGroup | None) -> tuple[Any, int]:
    """The group's communicator, and the number that marks its messages.

    A program may have more groups than an RDMA device has connections for. What is made without them is slower, and right.
    """
    try:
        return _join(options, settings, post, f"tbccl/{_worlds}")
    except (BootstrapError, TransportError) as error:
        # All ranks come here if one does: a communicator is made on all of them, or none.
        plain = None if post is None else _WITHOUT_DEVICES.get(post._comm.transport)
        if plain is None:
            raise
        if options.group_rank == 0:
            warnings.warn(f"tbccl: process group {options.group_id} goes over {plain}: {error}", stacklevel=2)
        return _join(options, {**(settings or {}), "TRANSPORT": plain}, post, f"tbccl/{_worlds}/plain")


def _join(options: Any, settings: dict[str, str] | None, post: ProcessGroup | None, place: str) -> tuple[Any, int]:
    """As :func:`_meet`, with words in this place of the group's store, and what is asked for or an error."""
    store, rank, size = options.store, options.group_rank, options.group_size
    limit = _limit(options.timeout)
    arguments = {"timeout": limit, "options": settings, "mail": post is None}
    here = [f"{place}/here/{each}" for each in range(size)]
    store.set(here[rank], f"process {os.getpid()} on {socket.gethostname()}")
    try:
        if rank == 0:
            context = 0 if post is None else post._store.add("tbccl/contexts", 1)
            word = context.to_bytes(_CONTEXT_BYTES, "little") + unique_id()
            store.set(f"{place}/id", word)
        else:
            if limit is None:
                word = store.get(f"{place}/id")
            else:
                store.wait([f"{place}/id"], timedelta(seconds=limit))
                word = store.get(f"{place}/id")
            context = int.from_bytes(word[:_CONTEXT_BYTES], "little")
        comm = Communicator.from_unique_id(bytes(word[_CONTEXT_BYTES:]), rank, size, **arguments)
    except (Error, RuntimeError) as error:
        raise _nobody_else(error, store, here, options) from error
    _clear(store, [here[rank]] + ([f"{place}/id"] if rank == 0 else []))
    return comm, context


def _limit(timeout: timedelta) -> float | None:
    """The time limit of a group in seconds. What torch sets when nobody has set one does not override TBCCL_TIMEOUT."""
    if timeout == default_pg_timeout and "TBCCL_TIMEOUT" in os.environ:
        return None
    return seconds(timeout)


def _nobody_else(error: Exception, store: dist.Store, here: list[str], options: Any) -> Exception:
    """The error with the names of those who have not come; the error itself where all have."""
    missing = []
    for rank, key in enumerate(here):
        with contextlib.suppress(Exception):
            if not store.check([key]):
                missing.append(rank)
    if not missing:
        return error
    ranks = options.global_ranks_in_group
    names = ", ".join(str(ranks[rank] if ranks else rank) for rank in missing)
    told = Error(
        f"rank{'s' if len(missing) > 1 else ''} {names} did not come to process group {options.group_id} of "
        f"{options.group_size} ranks: {error}"
    )
    told.peer = missing[0]
    return told


def _clear(store: dist.Store, keys: list[str]) -> None:
    """Removes what nobody needs any more; the id is a secret. Not all stores can."""
    for key in keys:
        with contextlib.suppress(Exception):
            store.delete_key(key)


