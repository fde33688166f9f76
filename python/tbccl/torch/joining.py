"""Communicators of ranks that meet through a store of torch.

The ranks exchange the communicator's unique id through the store: rank 0 stores it, the other ranks read it.
Others can read and write the store, so where the ranks have ``TBCCL_SECRET`` the id does not hold the secret
of the communicator, which is derived from both. Each rank also stores a key that says that it has arrived, so
that an error can name the missing ranks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tbccl import Communicator, Error, _native

from .devices import has_copying_accelerator

_CONTEXT_BYTES = 4
#: Key that a member sets if the tensors of its accelerator are copied.
_COPIES_KEY = "tbccl/copies"


@dataclass(frozen=True)
class JoinRequest:
    """A process group to join as one of its ranks."""

    store: dist.Store
    rank: int
    size: int
    #: Time limit for the ranks to meet, and later of each call, in seconds; None: `TBCCL_TIMEOUT`.
    limit: float | None
    #: Name of the group, for errors.
    name: str
    #: Ranks of the members in the job, for errors.
    global_ranks: Sequence[int]


def join(
    request: JoinRequest,
    prefix: str,
    pg_options: dict[str, str] | None = None,
    new_context: Callable[[], int] | None = None,
) -> tuple[Any, int]:
    """Makes the communicator of a group with the unique id that rank 0 puts into the store.

    Args:
        request: Group to join.
        prefix: Prefix of the keys in the store; never used twice.
        pg_options: Options of tbccl by name.
        new_context: Allocates the context number of the group's messages, on rank 0, if another group's
            communicator carries them; None: the new communicator carries them.

    Returns:
        The communicator, and the context number of its messages.

    Raises:
        tbccl.Error: The communicator cannot be made; the message names ranks that did not come in time.
    """
    store, rank = request.store, request.rank
    arrival_keys = [f"{prefix}/here/{member}" for member in range(request.size)]
    if has_copying_accelerator():
        store.set(_COPIES_KEY, b"1")
    store.set(arrival_keys[rank], f"process {os.getpid()} on {socket.gethostname()}")
    try:
        if rank == 0:
            context = 0 if new_context is None else new_context()
            message = context.to_bytes(_CONTEXT_BYTES, "little") + bytes(_native.unique_id(True))
            store.set(f"{prefix}/id", message)
        else:
            if request.limit is not None:
                store.wait([f"{prefix}/id"], timedelta(seconds=request.limit))
            message = store.get(f"{prefix}/id")
            context = int.from_bytes(message[:_CONTEXT_BYTES], "little")
        uid = bytes(message[_CONTEXT_BYTES:])
        has_messages = new_context is None
        comm = Communicator._from_channel(uid, rank, request.size, request.limit, pg_options, has_messages)
    except (Error, RuntimeError) as error:
        raise _with_missing_ranks(error, request, arrival_keys) from error
    _delete_keys(store, [arrival_keys[rank]] + ([f"{prefix}/id"] if rank == 0 else []))
    return comm, context


def has_copying_members(store: dist.Store) -> bool:
    """Returns whether the tensors of a member's accelerator are copied, in the group of a store."""
    return store.check([_COPIES_KEY])


def _with_missing_ranks(error: Exception, request: JoinRequest, arrival_keys: list[str]) -> Exception:
    """Returns the error with the names of the ranks that did not come, or unchanged if all came."""
    missing = []
    for rank, key in enumerate(arrival_keys):
        with contextlib.suppress(Exception):
            if not request.store.check([key]):
                missing.append(rank)
    if not missing:
        return error
    ranks = request.global_ranks
    names = ", ".join(str(ranks[rank] if ranks else rank) for rank in missing)
    annotated = Error(
        f"rank{'s' if len(missing) > 1 else ''} {names} did not come to process group {request.name} of "
        f"{request.size} ranks: {error}"
    )
    annotated.peer = missing[0]
    return annotated


def _delete_keys(store: dist.Store, keys: list[str]) -> None:
    """Deletes keys that are no longer needed, among them the id, which is a secret. Some stores cannot
    delete.
    """
    for key in keys:
        with contextlib.suppress(Exception):
            store.delete_key(key)
