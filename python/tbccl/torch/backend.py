"""Registers tbccl with torch.distributed and creates process groups, whose ranks meet as `joining` says."""

from __future__ import annotations

import atexit
import os
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from tbccl import BootstrapError, TransportError

from . import composite, rendezvous
from .futures import stop_completers
from .group import ProcessGroup
from .joining import JoinRequest, join
from .staging import stop_stagers
from .work import seconds

#: Name of the backend.
BACKEND = "tbccl"

#: Types of the devices that torch finds in the group; it serves those of other accelerators, too.
_DEVICE_TYPES = ["cpu", "cuda", "xpu", "mps"]

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
        devices = request.own_devices
        group = composite.CompositeProcessGroup(*arguments, own_devices=devices, carried=carried)
    else:
        group = ProcessGroup(*arguments)
    group._communicator_timeout = _timeout_seconds(options.timeout)
    if request is not None:
        composite.bind(group, request)
    return group


def create_process_group(
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta = default_pg_timeout,
    pg_options: dict[str, str] | None = None,
    name: str = "tbccl",
) -> ProcessGroup:
    """Makes a process group without ``init_process_group``, for programs that replace groups at run time.

    ``DistributedDataParallel(model, process_group=group)`` and the group's own operations take it. A member
    may leave for other ones with ``group.rejoin``.

    Args:
        store: Store that no other group uses, as ``PrefixStore(f"attempt {number}", store)``.
        rank: Rank of this process.
        size: Number of ranks.
        timeout: Time limit for the ranks to meet, and of each call.
        pg_options: Options of tbccl by name.
        name: Name of the group.

    Raises:
        tbccl.Error: A rank did not come in time; the message names it.
    """
    limit = _timeout_seconds(timeout)
    comm, _ = join(JoinRequest(store, rank, size, limit, name, []), "tbccl/rejoined", pg_options)
    group = ProcessGroup(comm, store, name, list(range(size)))
    group._communicator_timeout = limit
    return group


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
    request = JoinRequest(
        options.store,
        options.group_rank,
        options.group_size,
        _timeout_seconds(options.timeout),
        options.group_id,
        options.global_ranks_in_group,
    )
    new_context = None if p2p_group is None else lambda: p2p_group._store.add("tbccl/contexts", 1)
    prefix = f"tbccl/{_default_group_count}"
    try:
        return join(request, prefix, pg_options, new_context)
    except (BootstrapError, TransportError) as error:
        # A communicator is made on all ranks or on none, so all ranks get here if one does.
        fallback = None if p2p_group is None else _TRANSPORTS_WITHOUT_RDMA.get(p2p_group._comm.transport)
        if fallback is None:
            raise
        if request.rank == 0:
            warnings.warn(
                f"tbccl: process group {request.name} goes over {fallback}: {error}", stacklevel=2
            )
        return join(request, f"{prefix}/plain", {**(pg_options or {}), "TRANSPORT": fallback}, new_context)


def _timeout_seconds(timeout: timedelta) -> float | None:
    """Returns the time limit of a group in seconds; None for `TBCCL_TIMEOUT`.

    `TBCCL_TIMEOUT` applies when it is set and the program passed no timeout, so that torch passes its
    default.
    """
    if timeout == default_pg_timeout and "TBCCL_TIMEOUT" in os.environ:
        return None
    return seconds(timeout)
