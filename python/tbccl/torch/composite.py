"""Backends by device, as in ``init_process_group("cpu:tbccl,cuda:nccl")``.

torch takes the process group that tbccl creates as the whole group, and drops the other backends of the
string. So tbccl reads the string where torch keeps it, and its group carries the other backends: torch's own
group has those that torch has made before tbccl's turn, and the others are made in a group of torch of their
own, which is taken apart again. The carried backends belong to the C++ base of the group, which runs the
calls on tensors of their devices while the program observes them. Other calls go straight to the backend: the
base holds Python's lock in calls of a group in Python, for which a thread of gloo may wait with a lock of
gloo's, and for that lock the call.

A string that tbccl can't read, or can't honour, is an error of ``init_process_group`` or ``new_group``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .devices import access_to
from .group import ProcessGroup
from .observed import (
    HAS_PYTHON_BACKENDS,
    OPERATIONS,
    count_dispatch_modes,
    device_of,
    is_profiling,
    register_bridge,
)

_NAME = "tbccl"
#: Function of torch that calls the creators of backends.
_CALLER = "_new_process_group_helper"
#: Frames between that function and `read_request`, at most.
_DEPTH = 4


class Request(NamedTuple):
    """Arguments of torch for a new group, beyond those that it passes to tbccl."""

    #: Names of backends by type of device, in the order of the string.
    backends: dict[str, str]
    #: Group of torch that tbccl's replaces; it has the backends of the devices before tbccl's.
    replaced: Any
    device_id: torch.device | None
    #: Local variables of torch's function.
    arguments: dict[str, Any]

    @property
    def is_composite(self) -> bool:
        """Whether the string names devices: a plain name, and none, is for all devices."""
        return ":" in str(self.arguments["backend"])

    @property
    def own_devices(self) -> list[str]:
        """Types of the devices of tbccl."""
        return [device for device, name in self.backends.items() if name == _NAME]

    @property
    def other_backends(self) -> dict[str, str]:
        """Names of the other backends by type of device."""
        return {device: name for device, name in self.backends.items() if name != _NAME}


def read_request() -> Request | None:
    """Returns the arguments of the function of torch that is making a group; None: another caller.

    Raises:
        RuntimeError: This version of torch keeps them elsewhere.
    """
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if frame.f_code.co_name == _CALLER and frame.f_globals is c10d.__dict__:
            found = frame.f_locals
            config = found.get("backend_config")
            if not isinstance(config, c10d.BackendConfig):
                raise RuntimeError(
                    f"tbccl cannot read the backends of the group from torch {torch.__version__}: "
                    "use a version named in docs/pytorch.md"
                )
            backends = {device: str(name) for device, name in config.get_device_backend_map().items()}
            return Request(backends, found.get("pg"), found.get("device_id"), dict(found))
        frame = frame.f_back
    return None


def check(request: Request) -> None:
    """Checks that tbccl can honour the string.

    Raises:
        ValueError: It names an unknown device or backend.
    """
    for device, name in request.backends.items():
        try:
            torch.device(device)
        except RuntimeError:
            raise ValueError(
                f"{device}:{name} names no type of device of torch: use cpu, cuda, xpu, mps or the name of a "
                "registered device"
            ) from None
        if name not in dist.Backend.backend_list:
            raise ValueError(
                f"{device}:{name} names no backend: use one of {', '.join(dist.Backend.backend_list[1:])}"
            )


def bind(group: ProcessGroup, request: Request) -> None:
    """Binds a group to the device of the argument ``device_id``, and makes the streams of the device.

    torch splits bound groups for device meshes. So a group that cannot be split is not bound: one that
    carries other backends, and each group with a torch that splits those of nccl only.
    """
    device = request.device_id
    if device is None or request.backends.get(device.type, _NAME) != _NAME:
        return
    if device.type != "cpu":
        access_to(device)
    if hasattr(dist.ProcessGroup, "split_group") and not getattr(group, "_carried", None):
        group.bound_device_id = device


def carried_backends(request: Request) -> dict[str, Any]:
    """Returns the other backends by type of device, made where torch has not made them yet."""
    carried = {}
    for device, name in request.other_backends.items():
        try:
            carried[device] = request.replaced._get_backend(torch.device(device))
        except RuntimeError:
            carried[device] = _make(request, device, name)
    return carried


def _make(request: Request, device: str, name: str) -> Any:
    """Makes a backend in a group of torch of its own, which is forgotten again."""
    found, device_id = request.arguments, request.device_id
    group_name = f"{found['group_name']}/{device}"
    options = found.get("backend_options")
    inner, _ = c10d._new_process_group_helper(
        found["group_size"],
        found["group_rank"],
        found["global_ranks_in_group"],
        f"{device}:{name}",
        found["store"],
        group_name=group_name,
        backend_options=None if isinstance(options, dict) else options,
        timeout=found["timeout"],
        device_id=device_id if device_id is not None and device_id.type == device else None,
        group_desc=found.get("group_desc"),
    )
    backend = inner._get_backend(torch.device(device))
    _forget(inner, group_name)
    return backend


def _forget(group: Any, name: str) -> None:
    """Removes a group from torch's tables, as ``destroy_process_group`` does, without shutting it down."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
        table.pop(group, None)
    getattr(world, "pg_flight_recorder_hooks", {}).pop(group, None)
    world.pg_to_tag.pop(group, None)
    for groups in world.tags_to_pg.values():
        if group in groups:
            groups.remove(group)
    c10d._unregister_process_group(name)


def _kind_of(backend: Any) -> Any:
    """Returns the type that torch's group gives a backend."""
    custom = dist.ProcessGroup.BackendType.CUSTOM
    try:
        return dist.Backend.backend_type_map.get(backend.name().lower(), custom)
    except RuntimeError:  # torch's `fake` backend has no name in torch 2.8
        return custom


class CompositeProcessGroup(ProcessGroup):
    """Process group of tbccl that carries the backends of other devices."""

    def __init__(
        self, *arguments: Any, own_devices: Iterable[str], carried: dict[str, Any], **more: Any
    ) -> None:
        """Makes the group.

        Args:
            arguments: Arguments of `ProcessGroup`.
            own_devices: Types of the devices of tbccl.
            carried: Other backends, by type of device.
            more: Arguments of `ProcessGroup`.
        """
        self._own_devices = list(own_devices)
        self._carried = carried
        super().__init__(*arguments, **more)

    def _init_base(self) -> Any:
        # Before torch 2.15 the base that takes a store has no subclasses in Python.
        store = (self._store,) if HAS_PYTHON_BACKENDS else ()
        dist.ProcessGroup.__init__(self, *store, self._rank, self._size)
        kinds = dist.ProcessGroup.BackendType
        unused = [kinds.CUSTOM, kinds.UCC, kinds.MPI]
        for device, backend in self._carried.items():
            kind = _kind_of(backend)
            dist.ProcessGroup._register_backend(self, torch.device(device), kind, backend)
            dist.ProcessGroup._set_default_backend(self, kind)
            if kind in unused:
                unused.remove(kind)
        # The base would take two backends of one type for the same.
        return register_bridge(self, self._own_devices, unused[0]) if HAS_PYTHON_BACKENDS else None

    @property
    def _device_types(self) -> list[torch.device]:
        if self not in c10d._world.pg_map:
            return []
        return [torch.device(device) for device in (*self._own_devices, *self._carried)]

    def _get_backend(self, device: torch.device) -> Any:
        kind = torch.device(device).type
        if kind in self._carried:
            return self._carried[kind]
        self._check_own(kind)
        return self

    get_backend = _get_backend

    def _check_own(self, kind: str) -> None:
        if kind not in self._own_devices:
            names = ", ".join((*self._own_devices, *self._carried))
            raise ValueError(
                f"group {self._name} has no backend for tensors that are on {kind}: it was made for {names}; "
                f"name a backend for {kind} in init_process_group or new_group"
            )

    def _start_coalescing(self, device: torch.device) -> None:
        if torch.device(device).type in self._carried:
            dist.ProcessGroup._start_coalescing(self, device)
        else:
            super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if torch.device(device).type in self._carried:
            return dist.ProcessGroup._end_coalescing(self, device)
        return super()._end_coalescing(device)

    def set_timeout(self, timeout: Any) -> None:
        """Sets the time limit of all later calls that have none of their own."""
        super().set_timeout(timeout)
        for backend in self._carried.values():
            backend._set_default_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Aborts the group, with the backends that it carries."""
        super().abort()
        for backend in self._carried.values():
            backend.abort()

    def shutdown(self) -> None:
        """Waits for the issued calls and closes the group, with the backends that it carries."""
        if not self._closed:
            for backend in self._carried.values():
                backend.shutdown()
        super().shutdown()

    _shutdown = shutdown


def _by_device(name: str) -> Callable[..., Any]:
    """Returns the operation that runs on the backend of its tensors' device."""
    own, base = getattr(ProcessGroup, name), getattr(dist.ProcessGroup, name, None)

    def operation(self: CompositeProcessGroup, *arguments: Any, **named: Any) -> Any:
        kind = device_of((*arguments, *named.values()))
        carried = self._carried.get(kind)
        if carried is not None and base is not None:
            is_observed = self._is_observed or count_dispatch_modes() or is_profiling()
            direct = None if is_observed else getattr(carried, name, None)
            return base(self, *arguments, **named) if direct is None else direct(*arguments, **named)
        if kind is not None:
            self._check_own(kind)
        return own(self, *arguments, **named)

    operation.__name__, operation.__doc__ = name, own.__doc__
    # The C++ base calls overriding methods. pybind11 tells a call of the base by a method from other calls by
    # the name of the method's code.
    operation.__code__ = operation.__code__.replace(co_name=name)
    return operation


for _name in OPERATIONS:
    setattr(CompositeProcessGroup, _name, _by_device(_name))
