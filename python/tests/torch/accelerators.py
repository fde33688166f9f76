"""Devices that the tests run on: the stand-in device, or an accelerator of this machine such as `cuda`.

The programs take the name of a device: `standin`, `shared` (the stand-in with memory that the host shares),
`metal` (the same, which the host finds by the Objective-C runtime), `pinned` (the stand-in, for which
registered memory can be pinned), `mixed` (`standin` on even ranks, `shared` on odd ones), or a type of device
that torch knows.

`Delays` makes streams late, so that work which nothing orders is done in the wrong order: the stand-in's
streams sleep before each task, and those of an accelerator copy other data before a copy of a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

import standin

if TYPE_CHECKING:
    from tbccl.torch.devices import Access, Copy

#: Seconds that a stream sleeps before a task.
DELAY = 0.002
#: Bytes that an accelerator copies before a copy of a call: about 2 ms.
_LATE_BYTES = 64 << 20


def take_option(arguments: list[str], default: str | None = None) -> str | None:
    """Takes the option `--device NAME` from the begin of a program's arguments, and returns the name."""
    if arguments[:1] != ["--device"]:
        return default
    name = arguments[1]
    del arguments[:2]
    return name


def load(name: str) -> str:
    """Makes a device ready for this rank, and returns the type of its tensors.

    Ranks share the devices of a machine that has fewer than ranks.
    """
    if name == "metal":
        standin.load_as_metal()
        return "standin"
    if name == "pinned":
        standin.load()
        pin_registered_memory()
        return "standin"
    if name in ("standin", "shared", "mixed"):
        is_odd = int(os.environ["RANK"]) % 2 == 1
        standin.load(is_shared=name == "shared" or (name == "mixed" and is_odd))
        return "standin"
    module = torch.get_device_module(name)
    module.set_device(int(os.environ["LOCAL_RANK"]) % module.device_count())
    return name


def pin_registered_memory(can_pin: bool = True) -> tuple[list[int], list[int]]:
    """Lets the stand-in device pin memory that exists, as CUDA does, or fail at it.

    Returns the addresses that are pinned, and those that are no longer: both lists grow.
    """
    # Not at the top: programs load a device before they import tbccl.
    from tbccl.torch import pinning

    pinned: list[int] = []
    unpinned: list[int] = []

    def pin(address: int, length: int) -> bool:
        pinned.append(address)
        return can_pin

    def unpin(address: int) -> None:
        torch.accelerator.synchronize()
        unpinned.append(address)

    pinning.pinning_of = lambda device_type: pinning.Pinning(pin, unpin)
    return pinned, unpinned


class Delays:
    """Sleeps of a device's streams."""

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "standin":
            standin.set_delay(DELAY)
        else:
            # Not at the top: programs load a device before they import tbccl.
            from tbccl.torch import devices

            self._cycles_per_second = _cycles_per_second()
            _keep_pinned_memory()
            # The first call would make the streams, which waits for the work of all streams.
            devices.access_to(torch.ones(0, device=device).device)
            on_device = torch.empty(_LATE_BYTES, dtype=torch.uint8, device=device)
            on_host = torch.empty(_LATE_BYTES, dtype=torch.uint8, pin_memory=True)
            read, write = devices.StreamCopies.read, devices.StreamCopies.write
            devices.StreamCopies.read = _after_a_copy(read, "_read_stream", on_host, on_device)
            devices.StreamCopies.write = _after_a_copy(write, "_write_stream", on_device, on_host)

    def occupy(self, tasks: int) -> None:
        """Keeps the current stream busy for the time of some tasks."""
        if self._device == "standin":
            scratch = torch.empty(1, device=self._device)
            for _ in range(tasks):
                scratch.fill_(0)
        else:
            torch.cuda._sleep(int(tasks * DELAY * self._cycles_per_second))

    def end(self) -> None:
        """Ends the sleeps of the stand-in device."""
        if self._device == "standin":
            standin.set_delay(0)


def _after_a_copy(function: Callable, stream: str, target: torch.Tensor, source: torch.Tensor) -> Callable:
    """Returns a function that copies after a long copy on its stream.

    A sleep would be a kernel, which may wait for that of another stream.
    """

    def late(access: Access, copies: Iterable[Copy], *more: object) -> object:
        copies = list(copies)
        if copies:
            with getattr(access, stream):
                target.copy_(source, non_blocking=True)
        return function(access, copies, *more)

    return late


def _cycles_per_second() -> float:
    """Measures the clock that `torch.cuda._sleep` counts."""
    cycles = 10_000_000
    torch.cuda._sleep(cycles)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / (begin.elapsed_time(end) / 1e3)


def _keep_pinned_memory() -> None:
    """Leaves torch pinned memory for all copies: to pin more waits for the work of all streams."""
    lengths = [1 << shift for shift in range(9, 20)]
    _ = [torch.empty(length, dtype=torch.uint8, pin_memory=True) for length in lengths for _ in range(32)]
