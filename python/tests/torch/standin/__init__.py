"""A device of PyTorch, ``standin``, for tests: host memory behind streams that are asynchronous and late.

``build()`` compiles it, ``load()`` registers it with torch. ``standin.cpp`` says how it behaves.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Folder of this package, for programs that are started with `-c`.
FOLDER = Path(__file__).resolve().parents[1]

_SOURCE = Path(__file__).resolve().parent / "standin.cpp"
_BUILD = Path(__file__).resolve().parents[4] / "target" / "standin"


def compiler() -> str | None:
    """Returns the path of the C++ compiler, or None without one."""
    return shutil.which(os.environ.get("CXX", "c++"))


def build() -> Path:
    """Compiles the device for this version of torch, unless it was before; returns the library."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = _BUILD / f"standin-{key}.so"
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            partial = library.with_suffix(".part")
            includes = [f"-isystem{path}" for path in include_paths()]
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
            version = tuple(map(int, torch.__version__.split(".")[:2]))
            standard = "-std=c++20" if version >= (2, 10) else "-std=c++17"
            flags = [standard, "-O1", "-fPIC", "-shared", "-w", abi, *includes]
            libraries = [f"-L{path}" for path in library_paths()] + ["-lc10", "-ltorch_cpu"]
            command = [compiler(), *flags, str(_SOURCE), "-o", str(partial), *libraries]
            subprocess.run(command, check=True)
            partial.rename(library)
    return library


def load(is_shared: bool = False, devices: int = 1) -> None:
    """Registers one or two devices with torch, as ``standin``.

    If ``is_shared``, the host may use its memory in place, through a function named as that of ``torch.mps``.
    """
    # A process has one accelerator, which would be that of NVIDIA, if torch sees one.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.ops.load_library(str(build()))
    torch.utils.rename_privateuse1_backend("standin")
    torch.ops.standin.set_devices(devices)
    module = _device_module()
    if is_shared:
        torch.ops.standin.set_unified(True)
        module._host_alias_storage = _host_alias_storage
    torch._register_device_module("standin", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def load_as_metal() -> None:
    """Registers a device whose storages are Metal buffers, with a stand-in for the Objective-C runtime."""
    load(is_shared=True)
    import torch

    del torch.standin._host_alias_storage
    from tbccl.torch import metal

    metal.RUNTIMES["standin"] = str(build())


def set_delay(seconds: float) -> None:
    """Sets the time that each stream sleeps before each task."""
    import torch

    torch.ops.standin.set_delay(int(seconds * 1e6))


def _host_alias_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Returns a storage in host memory that is the memory of a storage of the device."""
    import torch

    own = torch.empty(0, dtype=torch.uint8, device="standin").set_(storage)
    return torch.ops.standin.host_alias(own).untyped_storage()


def _set_device(device: int | str | torch.device) -> None:
    """Makes a device the calling thread's current one."""
    import torch

    torch.ops.standin.set_device(device if isinstance(device, int) else torch.device(device).index or 0)


def _device_module() -> SimpleNamespace:
    """Returns the functions that torch and its training wrappers look for in a module of a device."""
    import torch

    def on_device(kind: type) -> type:
        return lambda *args, **settings: kind(device="standin", **settings)

    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=torch.ops.standin.device_count,
        current_device=torch.ops.standin.get_device,
        set_device=_set_device,
        device=lambda device: contextlib.nullcontext(),
        synchronize=lambda device=None: torch.ops.standin.synchronize(),
        current_stream=lambda device=None: torch.accelerator.current_stream(),
        stream=lambda stream: stream,
        Stream=on_device(torch.Stream),
        Event=on_device(torch.Event),
        manual_seed_all=lambda seed: None,
        manual_seed=lambda seed: None,
        get_rng_state=lambda device=None: torch.empty(0, dtype=torch.uint8),
        set_rng_state=lambda state, device=None: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    )

