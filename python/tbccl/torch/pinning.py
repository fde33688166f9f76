"""Host memory that the network, peers and a device use in place: registered by tbccl, pinned for the device.

Memory that torch pins is not registered, so the network would copy it once more. Here memory of the
communicator is pinned for the device instead. Only CUDA's runtime, and ROCm's under the same names, pins
memory that exists; other devices copy from and to memory of torch's.

Invariant: memory stays pinned until its last view is dropped and the device is idle. The communicator then
gives its pages back.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

#: Flag of `cudaHostRegister`: pinned for all contexts of the process.
_PORTABLE = 1


class Pinning(NamedTuple):
    """Functions that pin memory for a type of device."""

    #: Pins bytes at an address; returns whether that succeeded.
    pin: Callable[[int, int], bool]
    #: Waits for the device, and ends the pinning of the bytes at an address.
    unpin: Callable[[int], Any]


@functools.cache
def pinning_of(device_type: str) -> Pinning | None:
    """Returns the functions of a type of device, or None if it cannot pin memory that exists."""
    if device_type != "cuda":
        return None
    runtime = torch.cuda.cudart()

    def pin(address: int, length: int) -> bool:
        if int(runtime.cudaHostRegister(address, length, _PORTABLE)) == 0:
            return True
        # The runtime keeps the error until it is asked for, and torch would raise it after its next kernel.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device_type)
        return False

    def unpin(address: int) -> None:
        # torch's allocator of pinned memory waits for copies, but not for those of other memory. A device
        # that has failed copies no more.
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        runtime.cudaHostUnregister(address)

    return Pinning(pin, unpin)


def pinned_bytes(array: Any, device: torch.device) -> torch.Tensor | None:
    """Returns the bytes of an array of the communicator, pinned; None: the device cannot pin them."""
    pinning = pinning_of(device.type)
    if pinning is None:
        return None
    memory = torch.frombuffer(array, dtype=torch.uint8)
    address = memory.data_ptr()
    if not pinning.pin(address, memory.numel()):
        return None
    # The tensor and its views keep the array. The end of the process frees what is left.
    weakref.finalize(array, pinning.unpin, address).atexit = False
    return memory
