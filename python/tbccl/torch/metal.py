"""Host addresses of tensors on ``mps``, by the Objective-C runtime.

From 2.15 on, torch gives a host alias of a storage (``torch.mps._host_alias_storage``). For earlier versions
this module makes one. The address of a storage on ``mps`` is an object, the Metal buffer of its memory. A
buffer whose storage mode is shared has an address for the host, ``contents``.

The module sends three messages without arguments, whose results are integers or pointers. It does not wait
for the device: `devices.HostAlias` does. It was run on a stand-in for the runtime only, not on a Mac.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

#: Library of the Objective-C runtime of macOS.
RUNTIME = "/usr/lib/libobjc.A.dylib"
#: ``MTLStorageModeShared``: host and device address the same memory.
_SHARED = 0


class MetalBuffers:
    """Host aliases of storages whose addresses are Metal buffers."""

    def __init__(self, runtime: str = RUNTIME) -> None:
        """Opens the runtime.

        Raises:
            OSError: There is no such library.
        """
        library = ctypes.CDLL(runtime)
        register = library.sel_registerName
        register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]

        def message(name: bytes, result: type) -> Callable[[int], int | None]:
            # The function has the type of the method that it calls.
            send = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", library))
            selector = register(name)
            return lambda buffer: send(buffer, selector)

        self._storage_mode = message(b"storageMode", ctypes.c_ulong)
        self._length = message(b"length", ctypes.c_ulong)
        self._contents = message(b"contents", ctypes.c_void_p)

    def host_alias(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Returns a storage in host memory that is the memory of a storage on the device.

        It keeps the memory alive.

        Raises:
            RuntimeError: The host has no access.
        """
        buffer, count = storage.data_ptr(), storage.nbytes()
        if not count:
            return torch.UntypedStorage(0)
        mode = self._storage_mode(buffer)
        if mode != _SHARED:
            raise RuntimeError(f"its Metal buffer has storage mode {mode}, not {_SHARED} (shared)")
        contents, length = self._contents(buffer), self._length(buffer)
        if not contents or length < count:
            raise RuntimeError(f"its Metal buffer has {length} bytes for the host, and the storage {count}")
        memory = (ctypes.c_uint8 * count).from_address(contents)
        memory.owner = storage
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


#: Runtimes by the type of the devices whose storages are Metal buffers.
RUNTIMES = {"mps": RUNTIME}


def host_alias_of(device_type: str) -> Callable[[torch.UntypedStorage], torch.UntypedStorage] | None:
    """Returns the function that makes host aliases of storages on a type of device; None: there is none."""
    runtime = RUNTIMES.get(device_type)
    if runtime is None:
        return None
    try:
        return MetalBuffers(runtime).host_alias
    except (OSError, AttributeError):
        return None
