"""The way of calls through torch's dispatcher, where the program observes them.

A call goes straight from Python to the communicator. There the profiler, dispatch modes (FakeTensorMode,
CommDebugMode), the group's hooks and torch's flight recorder do not see it. While one of them is active, the
call goes through the C++ base of the group, which runs the hooks and the operator, such as
``c10d::allreduce_``. The operator calls the backend of the tensors' device, a `Bridge`, which hands the call
back to the group. The program gets the group's own work.

Versions of torch without backends in Python (2.8) have no such way. There the profiler alone sees calls.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast

from .work import CompletedWork

if TYPE_CHECKING:
    from .group import ProcessGroup

count_dispatch_modes = torch._C._len_torch_dispatch_stack
is_profiling = torch._C._autograd._profiler_enabled

#: Work of the last call that came through a bridge on this thread.
_last = threading.local()


def _has_python_backends() -> bool:
    """Returns whether torch can call backends that are written in Python."""
    try:
        return c10d.Backend(0, 1) is not None
    except (TypeError, AttributeError):
        return False


HAS_PYTHON_BACKENDS = _has_python_backends()


class Bridge(c10d.Backend if HAS_PYTHON_BACKENDS else object):
    """Backend of the C++ base of a group, which hands calls back to the group."""

    def __init__(self, group: ProcessGroup) -> None:
        """Makes the backend of a group, which it does not keep alive."""
        super().__init__(group._rank, group._size)
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return "tbccl"

    name = getBackendName

    @property
    def options(self) -> Any:
        """Options of the group."""
        return self._group().options


def register_bridge(group: ProcessGroup, devices: Iterable[str], kind: Any) -> Bridge:
    """Gives the C++ base of a group a bridge for types of devices, as its default backend.

    ``kind`` is the type of the backend: one that no other backend of the group has.
    """
    bridge = Bridge(group)
    for device in (*devices, "meta"):
        dist.ProcessGroup._register_backend(group, torch.device(device), kind, bridge)
    dist.ProcessGroup._set_default_backend(group, kind)
    return bridge


def device_of(arguments: Iterable[Any]) -> str | None:
    """Returns the type of the device of the first tensor among arguments and lists in them."""
    first = next(_tensors_of(arguments), None)
    return None if first is None else first.device.type


@functools.cache
def _has_operators(device: str | None) -> bool:
    """Returns whether torch has the operators of collectives for a type of device; Macs' lacks them."""
    keys = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU", "meta": "Meta", None: "CPU"}
    key = keys.get(device, "PrivateUse1")
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", key)


def _is_fake(tensor: torch.Tensor | None) -> bool:
    """Returns whether a tensor has no memory."""
    # The module takes a second to import, and is there where a tensor of it is.
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return tensor is not None and (tensor.is_meta or (module and isinstance(tensor, module.FakeTensor)))


def _tensors_of(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors among arguments and lists in them."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors_of(argument)


def _range(name: str, arguments: Iterable[Any]) -> Any:
    """Returns the profiler's range of a call, with the shapes of its tensors."""
    return _RecordFunctionFast(name, list(_tensors_of(arguments)))


def _bridged(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the operation of `Bridge` that runs the group's own operation."""

    def operation(self: Bridge, *arguments: Any) -> Any:
        if _is_fake(next(_tensors_of(arguments), None)):
            _last.work = CompletedWork()
            return _last.work
        with _range(f"tbccl:{name}", arguments):
            _last.work = own(self._group(), *arguments)
        return _last.work

    operation.__name__, operation.__doc__ = name, own.__doc__
    return operation


def observable(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the operation that goes through the dispatcher while the program observes calls."""
    base = getattr(dist.ProcessGroup, name, None)
    if base is None:
        return own

    def operation(self: ProcessGroup, *arguments: Any, **named: Any) -> Any:
        if not (self._is_observed or count_dispatch_modes() or is_profiling()):
            return own(self, *arguments, **named)
        if self._bridge is None or not _has_operators(device_of((*arguments, *named.values()))):
            with _range(f"tbccl:{name}", (*arguments, *named.values())):
                return own(self, *arguments, **named)
        _last.work = None
        work = base(self, *arguments, **named)
        # None: a mode has answered in the place of the operator.
        return work if _last.work is None else _last.work

    operation.__name__, operation.__doc__ = name, own.__doc__
    # The C++ base calls overriding methods. pybind11 tells a call of the base by a method from other calls by
    # the name of the method's code.
    operation.__code__ = operation.__code__.replace(co_name=name)
    return operation


#: Operations on tensors, by all their names.
OPERATIONS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "broadcast",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_into_tensor",
    "_allgather_base",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "gather",
    "gather_single",
    "gather_into_tensor",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "alltoall_base",
    "send",
    "recv",
    "recv_anysource",
)


def make_observable(kind: type) -> None:
    """Makes the operations of a class of process groups observable."""
    Bridge.allreduce = _bridged("allreduce", kind._allreduce_general)
    for name in (*OPERATIONS, "barrier"):
        own = getattr(kind, name)
        # The all-reduce, the most frequent call, decides for itself.
        if name != "allreduce":
            setattr(kind, name, observable(name, own))
            setattr(Bridge, name, _bridged(name, own))
