"""Registers tbccl with torch.distributed and creates process groups.

The ranks of a group exchange the communicator's unique id through the group's store: rank 0 stores it, the
other ranks read it. Others can read and write the store, so where the ranks have ``TBCCL_SECRET`` the id does
not hold the secret of the communicator, which is derived from both. Each rank also stores a key that says
that it has arrived, so that an error can name the missing ranks.
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

from tbccl import BootstrapError, Communicator, Error, TransportError, _native

from . import composite, rendezvous
from .futures import stop_completers
from .group import ProcessGroup
from .staging import stop_stagers
from .work import seconds

#: Name of the backend.
BACKEND = "tbccl"

#: Types of the devices that torch finds in the group; it serves those of other accelerators, too.
_DEVICE_TYPES = ["cpu", "cuda", "xpu", "mps"]

_CONTEXT_BYTES = 4

#: Transport without RDMA, by transport with RDMA: for groups that exceed the devices' connections.
_TRANSPORTS_WITHOUT_RDMA = {"verbs": "tcp", "shm+verbs": "shm+tcp"}

#: Default groups that this process has created; part of the store's keys, so that a later group does not read
#: the keys of an earlier one.
_default_group_count = 0


def register() -> None:
    """Registers the backend and the ``tbccl://`` rendezvous with torch.distributed.

    Does nothing when called again, or where torch was built without torch.distributed.
    """
    if not dist.is_available() or hasattr(dist.Backend, BACKEND.upper()):
        return
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=_DEVICE_TYPES)
    # torch names gloo for mps, which gloo cannot serve.
    defaults = dist.Backend.default_device_backend_map
    if "mps" not in dist.Backend.backend_capability.get(defaults.get("mps", ""), []):
        defaults["mps"] = BACKEND
    rendezvous.register()
    atexit.register(stop_completers)
    atexit.register(stop_stagers)


def create(options: Any, pg_options: Any = None) -> ProcessGroup:
    """Creates a process group; torch calls it for ``init_process_group`` and ``new_group``.

    Args:
        options: Store, rank, size, name and timeout of the group.
        pg_options: Options of tbccl by name, as ``{"ALGO": "ring"}``.

    Raises:
        TypeError: ``pg_options`` is not a dict.
        tbccl.Error: The communicator cannot be made; the message names ranks that did not come in time.
    """
    global _default_group_count
    request = composite.read_request()
    if request is not None:
        composite.check(request)
        composite.prepare_device(request)
    is_composite = request is not None and request.is_composite
    if is_composite and request.other_backends and not isinstance(pg_options, dict):
        # The options are those of the other backend.
        pg_options = None
    if pg_options is not None and not isinstance(pg_options, dict):
        raise TypeError(
            f"pg_options must be a dict of tbccl's options by name, not {type(pg_options).__name__}"
        )
    is_default = not options.global_ranks_in_group
    p2p_group = None if is_default else _default_group()
    _default_group_count += is_default
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    carried = composite.carried_backends(request) if is_composite else {}
    comm, context = _create_communicator(options, pg_options, p2p_group)
    arguments = (comm, options.store, options.group_id, ranks, p2p_group, context)
    if is_composite:
        return composite.CompositeProcessGroup(*arguments, own_devices=request.own_devices, carried=carried)
    return ProcessGroup(*arguments)


def _default_group() -> ProcessGroup | None:
    """Returns the default group if tbccl is its backend, else None."""
    group = dist.group.WORLD
    return group if isinstance(group, ProcessGroup) else None


def _create_communicator(
    options: Any, pg_options: dict[str, str] | None, p2p_group: ProcessGroup | None
) -> tuple[Any, int]:
    """Returns the communicator of the group and the context number of its messages.

    Groups use the connections of the default group. A group with options that need other connections
    communicates over TCP, with a warning, if RDMA devices have none left for it.
    """
    try:
        return _join_through_store(options, pg_options, p2p_group, f"tbccl/{_default_group_count}")
    except (BootstrapError, TransportError) as error:
        # A communicator is made on all ranks or on none, so all ranks get here if one does.
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
    """Makes the communicator with the unique id that rank 0 puts into the store.

    Args:
        options: Options of torch for the group.
        pg_options: Options of tbccl.
        p2p_group: Group whose communicator carries the messages; None: the new group's own.
        prefix: Prefix of the keys in the store.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    limit = _timeout_seconds(options.timeout)
    arrival_keys = [f"{prefix}/here/{member}" for member in range(size)]
    store.set(arrival_keys[rank], f"process {os.getpid()} on {socket.gethostname()}")
    try:
        if rank == 0:
            context = 0 if p2p_group is None else p2p_group._store.add("tbccl/contexts", 1)
            message = context.to_bytes(_CONTEXT_BYTES, "little") + bytes(_native.unique_id(True))
            store.set(f"{prefix}/id", message)
        else:
            if limit is None:
                message = store.get(f"{prefix}/id")
            else:
                store.wait([f"{prefix}/id"], timedelta(seconds=limit))
                message = store.get(f"{prefix}/id")
            context = int.from_bytes(message[:_CONTEXT_BYTES], "little")
        uid = bytes(message[_CONTEXT_BYTES:])
        comm = Communicator._from_channel(uid, rank, size, limit, pg_options, p2p_group is None)
    except (Error, RuntimeError) as error:
        raise _with_missing_ranks(error, store, arrival_keys, options) from error
    _delete_keys(store, [arrival_keys[rank]] + ([f"{prefix}/id"] if rank == 0 else []))
    return comm, context


def _timeout_seconds(timeout: timedelta) -> float | None:
    """Returns the time limit of a group in seconds; None for `TBCCL_TIMEOUT`.

    `TBCCL_TIMEOUT` applies when it is set and the program passed no timeout, so that torch passes its
    default.
    """
    if timeout == default_pg_timeout and "TBCCL_TIMEOUT" in os.environ:
        return None
    return seconds(timeout)


def _with_missing_ranks(
    error: Exception, store: dist.Store, arrival_keys: list[str], options: Any
) -> Exception:
    """Returns the error with the names of the ranks that did not come, or unchanged if all came."""
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
    """Deletes keys that are no longer needed, among them the id, which is a secret. Some stores cannot
    delete.
    """
    for key in keys:
        with contextlib.suppress(Exception):
            store.delete_key(key)
