"""Access to tensors in the memory of devices.

A device is served by the first of these that it supports:

- `HostAlias`: the host reads and writes the memory in place (``mps``: unified memory), at the address that
  torch or `metal` tells. Nothing is copied.
- `StreamCopies`: copies between the device and pinned host memory, on two streams of tbccl's own, ordered
  with the streams of the program by events (``cuda``, ``xpu``, and other devices of ``torch.accelerator``).
- `BlockingCopies`: copies that wait for the whole device. Each use says so once, in a warning.

Nothing here communicates; `staging` brings calls on such tensors to the network.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from . import metal, pinning

#: A tensor in host memory and one of the same shape and type on a device.
Copy = tuple[torch.Tensor, torch.Tensor]


class Access(Protocol):
    """Access of the host to the memory of a device."""

    #: Devices of futures whose values are on the device: torch orders streams with such futures.
    future_devices: list[torch.device]
    #: Whether calls use the memory in place, so that they are not split into pieces.
    is_in_place: bool
    #: Whether copies may use memory of the communicator.
    pins_registered: bool

    def mark(self) -> Any:
        """Returns a mark of the work that the program has issued to its stream so far."""

    def alias(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor of bytes in host memory that is the memory of a plain tensor; None: copy it."""

    def read(self, copies: Iterable[Copy], mark: Any) -> Callable[[], None]:
        """Starts copies to the host, after the marked work; returns a function that waits for them.

        Without copies, the function waits for the marked work.
        """

    def write(self, copies: Iterable[Copy], mark: Any, then: Callable[[], None] | None = None) -> Any:
        """Starts copies to the device after the marked work, and runs ``then`` after them, on the device.

        Returns an event of their end: `is_done` and `follow` take it.
        """

    def read_here(self, copies: Iterable[Copy]) -> Callable[[], None]:
        """Starts copies to the host on the calling thread's stream; returns a function that waits for them.

        Without copies, the function waits for the work of the stream.
        """

    def write_here(self, copies: Iterable[Copy]) -> None:
        """Starts copies to the device on the calling thread's stream."""

    def end_here(self, then: Callable[[], None] | None) -> Any:
        """Runs ``then`` after the copies of the calling thread's stream, on the device.

        Returns an event of their end; later work of the stream follows it.
        """

    def is_done(self, event: Any) -> bool:
        """Returns whether the copies that an event stands for are done."""

    def wait_for(self, event: Any) -> None:
        """Waits until the copies that an event stands for are done."""

    def follow(self, event: Any) -> None:
        """Orders later work of the calling thread's stream after an event, without waiting for it."""

    def wait_for_all(self) -> None:
        """Waits until all copies that have begun are done."""

    def host_bytes(self, count: int) -> torch.Tensor:
        """Allocates bytes in host memory for copies."""

    def pinned(self, array: Any) -> torch.Tensor | None:
        """Returns the bytes of an array of the communicator, for copies; None: the device cannot use them."""


class StreamCopies:
    """Copies on streams of tbccl's own, through ``torch.accelerator``."""

    is_in_place = False

    def __init__(self, device: torch.device) -> None:
        """Makes the streams.

        Raises:
            RuntimeError: The device is not torch's accelerator, or lacks streams or events.
        """
        self._device = device
        #: Number of the device, for which torch finds a stream in less time.
        self._index = device if device.index is None else device.index
        # Copies to the host don't wait for copies to the device, and the other way round.
        self._streams = torch.Stream(device=device), torch.Stream(device=device)
        self._of_thread = threading.local()
        self._read_stream.record_event().synchronize()
        self.mark()
        self.future_devices = [device]
        self._can_pin = True
        self.pins_registered = pinning.pinning_of(device.type) is not None

    @property
    def _read_stream(self) -> torch.Stream:
        return self._own_streams()[0]

    @property
    def _write_stream(self) -> torch.Stream:
        return self._own_streams()[1]

    def _own_streams(self) -> tuple[torch.Stream, torch.Stream]:
        """Returns the calling thread's objects of the streams for reads and writes.

        Up to torch 2.10, a thread may not enter a stream by an object by which another thread has entered.
        """
        found = getattr(self._of_thread, "streams", None)
        if found is None:
            found = self._of_thread.streams = tuple(map(_same_stream, self._streams))
        return found

    def mark(self) -> torch.Event:
        """Returns an event at the end of the stream of the calling thread."""
        return torch.accelerator.current_stream(self._index).record_event()

    def alias(self, tensor: torch.Tensor) -> None:
        """Returns None: the host has no access."""

    def read(self, copies: Iterable[Copy], mark: torch.Event) -> Callable[[], None]:
        """Starts copies to the host."""
        with self._read_stream:
            self._read_stream.wait_event(mark)
            for host, own in copies:
                host.copy_(own, non_blocking=True)
            return self._read_stream.record_event().synchronize

    def write(
        self, copies: Iterable[Copy], mark: torch.Event, then: Callable[[], None] | None = None
    ) -> torch.Event:
        """Starts copies to the device."""
        with self._write_stream, torch.no_grad():
            self._write_stream.wait_event(mark)
            for host, own in copies:
                own.copy_(host, non_blocking=True)
            if then is not None:
                then()
            return self._write_stream.record_event()

    def stream_here(self) -> torch.Stream:
        """Returns the stream of the calling thread."""
        return torch.accelerator.current_stream(self._index)

    def read_now(self, host: torch.Tensor, own: torch.Tensor) -> None:
        """Copies to the host on the calling thread's stream, and waits for it."""
        host.copy_(own)

    def read_here(self, copies: Iterable[Copy]) -> Callable[[], None]:
        """Starts copies to the host on the calling thread's stream."""
        for host, own in copies:
            host.copy_(own, non_blocking=True)
        return self.mark().synchronize

    def write_here(self, copies: Iterable[Copy]) -> None:
        """Starts copies to the device on the calling thread's stream."""
        for host, own in copies:
            own.copy_(host, non_blocking=True)

    def end_here(self, then: Callable[[], None] | None) -> torch.Event:
        """Runs a function on the calling thread's stream, and returns an event at its end."""
        if then is not None:
            then()
        return self.mark()

    def is_done(self, event: torch.Event) -> bool:
        """Returns whether the event has occurred."""
        return event.query()

    def wait_for(self, event: torch.Event) -> None:
        """Waits for the event."""
        event.synchronize()

    def follow(self, event: torch.Event) -> None:
        """Makes the stream of the calling thread wait for the event."""
        torch.accelerator.current_stream(self._device).wait_event(event)

    def wait_for_all(self) -> None:
        """Waits for both streams."""
        self._read_stream.synchronize()
        self._write_stream.synchronize()

    def host_bytes(self, count: int) -> torch.Tensor:
        """Allocates pinned memory, or other memory where the device cannot pin any."""
        if self._can_pin:
            try:
                return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=True)
            except RuntimeError as error:
                self._can_pin = False
                warnings.warn(
                    f"tbccl: copies from and to {self._device} are slow without pinned memory: {error}",
                    stacklevel=2,
                )
        return torch.empty(count, dtype=torch.uint8, device="cpu")

    def pinned(self, array: Any) -> torch.Tensor | None:
        """Pins the bytes of an array. After a failure no other array is tried."""
        found = pinning.pinned_bytes(array, self._device)
        self.pins_registered = found is not None
        return found


def _same_stream(stream: torch.Stream) -> torch.Stream:
    """Returns another object of a stream."""
    return torch.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


class BlockingCopies:
    """Copies for devices without streams: each waits for all work of the device."""

    is_in_place = False
    pins_registered = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._synchronize = torch.get_device_module(device).synchronize
        self.future_devices: list[torch.device] = []

    def mark(self) -> None:
        """Returns nothing: copies wait for all work."""

    def alias(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns None: the host has no access."""
        return None

    def read(self, copies: Iterable[Copy], mark: None) -> Callable[[], None]:
        """Returns a function that waits for the device, then copies."""

        def wait() -> None:
            self._synchronize()
            for host, own in copies:
                host.copy_(own)

        return wait

    def write(self, copies: Iterable[Copy], mark: None, then: Callable[[], None] | None = None) -> None:
        """Waits for the device, copies, and waits again."""
        copies = list(copies)
        if not copies and then is None:
            return
        self._synchronize()
        with torch.no_grad():
            for host, own in copies:
                own.copy_(host)
            if then is not None:
                then()
        self._synchronize()

    def read_here(self, copies: Iterable[Copy]) -> Callable[[], None]:
        """Returns a function that waits for the device, then copies."""
        return self.read(copies, None)

    def write_here(self, copies: Iterable[Copy]) -> None:
        """Copies as :meth:`write`."""
        self.write(copies, None)

    def end_here(self, then: Callable[[], None] | None) -> None:
        """Runs a function, and makes the device see what the host wrote."""
        self.write((), None, then)
        self.follow(None)

    def is_done(self, event: None) -> bool:
        """Returns True: copies are done when they return."""
        return True

    def wait_for(self, event: None) -> None:
        """Does nothing."""

    def follow(self, event: None) -> None:
        """Does nothing."""

    def wait_for_all(self) -> None:
        """Does nothing: copies are done when they return."""

    def host_bytes(self, count: int) -> torch.Tensor:
        """Allocates host memory."""
        return torch.empty(count, dtype=torch.uint8, device="cpu")

    def pinned(self, array: Any) -> torch.Tensor:
        """Returns the bytes of an array as they are."""
        return torch.frombuffer(array, dtype=torch.uint8)


class HostAlias(BlockingCopies):
    """Memory that device and host share, as that of ``mps``.

    torch demands that the device is idle before the host touches an alias, and that it is synchronized once
    more before it uses what the host wrote. Memory that is private to the device is copied.
    """

    is_in_place = True

    def __init__(self, device: torch.device, alias_storage: Callable[[Any], torch.UntypedStorage]) -> None:
        super().__init__(device)
        self._alias_storage = alias_storage
        self._has_warned = False

    def alias(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the bytes of a plain tensor in host memory, or None if its memory is private."""
        try:
            storage = self._alias_storage(tensor.untyped_storage())
        except (RuntimeError, TypeError) as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"tbccl: copies tensors of {self._device}, since the host cannot address them: {error}",
                    stacklevel=2,
                )
            return None
        begin = tensor.storage_offset() * tensor.element_size()
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, begin, (tensor.nbytes,), (1,))

    def follow(self, event: None) -> None:
        """Synchronizes the device, after which it sees what the host wrote."""
        self._synchronize()


#: Function of a device's module whose result the host addresses.
_ALIAS = "_host_alias_storage"


def has_copying_accelerator() -> bool:
    """Returns whether this process has an accelerator whose tensors are copied; does not initialize it."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and _host_alias_of(accelerator) is None


def _host_alias_of(device: torch.device) -> Callable[[Any], torch.UntypedStorage] | None:
    """Returns the function that makes a host alias of a storage on a device; None: the host has no access."""
    of_torch = getattr(torch.get_device_module(device), _ALIAS, None)
    return metal.host_alias_of(device.type) if of_torch is None else of_torch


#: Accesses by device.
_accesses: dict[torch.device, Access] = {}
_lock = threading.Lock()

#: Devices whose tensors have no memory.
_WITHOUT_MEMORY = ("meta",)


def access_to(device: torch.device) -> Access | None:
    """Returns the access to a device, or None if tbccl cannot serve it."""
    found = _accesses.get(device)
    if found is None and device.type not in _WITHOUT_MEMORY:
        with _lock:
            found = _accesses.get(device)
            if found is None:
                found = _new_access(device)
                if found is not None:
                    _accesses[device] = found
    return found


def wait_for_copies() -> None:
    """Waits for the copies of all devices, before the interpreter frees their memory."""
    for access in list(_accesses.values()):
        access.wait_for_all()


def _new_access(device: torch.device) -> Access | None:
    try:
        module = torch.get_device_module(device)
    except (RuntimeError, AttributeError):
        return None
    alias_storage = _host_alias_of(device)
    if alias_storage is not None:
        return HostAlias(device, alias_storage)
    try:
        return StreamCopies(device)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
        if not hasattr(module, "synchronize"):
            return None
        warnings.warn(
            f"tbccl: copies tensors of {device} while the device is idle, since it has no streams and events "
            f"that torch.accelerator can use: {error}",
            stacklevel=2,
        )
        return BlockingCopies(device)
