"""Groups of MLX's own kind, which call libtbccl without MLX's MPI interface.

They have what that interface lacks: sums of blocks, 64-bit counts, and groups that live as long as their
queued calls. `tbccl.mlx.install()` turns them on. They are used if all ranks can make them; the first rank
that cannot logs why, and all ranks have groups through the MPI interface then, of the same job.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import sys
from ctypes import CFUNCTYPE, POINTER, c_int, c_uint64, c_void_p
from pathlib import Path
from types import ModuleType

import mlx.core as mx

import tbccl
from tbccl import BootstrapError, UsageError
from tbccl.mlx import _compile
from tbccl.mlx._compile import Unavailable

__all__ = ["enable", "is_native", "world"]

_logger = logging.getLogger("tbccl.mlx")
#: Prefix of the messages of errors while the ranks meet.
_INIT_ERROR_PREFIX = "[tbccl] init: "


class _Release(ctypes.Structure):
    """Version and size of a table of functions."""

    _fields_ = [("version", ctypes.c_char * 24), ("bytes", c_uint64)]


class _Functions(ctypes.Structure):
    """Functions of libtbccl; `native/core.h` describes them."""

    _fields_ = [
        ("release", _Release),
        ("free_message", CFUNCTYPE(None, c_void_p)),
        ("is_wanted", CFUNCTYPE(c_void_p, POINTER(c_int))),
        ("join", CFUNCTYPE(c_void_p)),
        ("first_unable", CFUNCTYPE(c_void_p, c_int, POINTER(c_int))),
        ("leave", CFUNCTYPE(None)),
        ("rank", CFUNCTYPE(c_int, c_uint64)),
        ("of_groups", c_void_p * 8),
    ]


#: Number of the group of all ranks in libtbccl.
_WORLD = 1


class _Job:
    """The job of this process, and the module that makes its groups.

    Attributes:
        module: The module; None if groups go through MLX's MPI interface.
    """

    def __init__(self, library: Path):
        self._functions = _functions(library)
        self._check(self._functions.join())
        module, why = None, ""
        try:
            module = self._own_module(library)
        except Unavailable as reason:
            why = str(reason)
        first_unable = c_int()
        self._check(self._functions.first_unable(int(module is not None), ctypes.byref(first_unable)))
        self.module: ModuleType | None = module if first_unable.value < 0 else None
        if self.module is not None:
            # MLX leaves the job of its MPI interface in the same way.
            atexit.register(self._functions.leave)
        elif first_unable.value == self._functions.rank(_WORLD):
            _logger.info("the groups of all ranks go through MLX's MPI interface: %s", why)

    def _own_module(self, library: Path) -> ModuleType:
        """Returns the module of this rank.

        Raises:
            Unavailable: There is none here, or it is not wanted.
        """
        wanted = c_int()
        self._check(self._functions.is_wanted(ctypes.byref(wanted)))
        if not wanted.value:
            raise Unavailable("TBCCL_MLX_NATIVE=off")
        if sys.platform != "linux":
            raise Unavailable("groups of MLX's own kind are for Linux")
        return _compile.module(library)

    def _check(self, message: int | None) -> None:
        """Raises the error of a message, if there is one."""
        if message:
            text = ctypes.string_at(message).decode(errors="replace")
            self._functions.free_message(message)
            raise BootstrapError(text.removeprefix(_INIT_ERROR_PREFIX))


#: Whether `world` gives groups.
_enabled = False
_job: _Job | None = None


def enable(is_enabled: bool) -> None:
    """Makes `world` give groups from now on, or none."""
    global _enabled
    _enabled = is_enabled


def world(library: Path) -> mx.distributed.Group | None:
    """Returns the group of all ranks, after waiting for the other ranks; None if not all ranks can make it.

    Args:
        library: The libtbccl of this job.

    Raises:
        tbccl.UsageError: The library is of another release.
        tbccl.BootstrapError: The ranks could not reach each other, or some did not join in time.
    """
    global _job
    if not _enabled:
        return None
    if _job is None:
        _job = _Job(library)
    return None if _job.module is None else _job.module.world()


def is_native(group: mx.distributed.Group) -> bool:
    """Returns whether a group is of this kind."""
    return _job is not None and _job.module is not None and _job.module.is_native(group)


def _functions(library: Path) -> _Functions:
    """Returns the functions of a libtbccl of the release of this package."""
    try:
        entry = ctypes.CDLL(str(library)).tbccl_native_functions
    except (OSError, AttributeError) as error:
        raise UsageError(f"MLX cannot use the library {library}: {error}; reinstall tbccl") from None
    entry.restype, entry.argtypes = POINTER(_Functions), [c_void_p]
    functions = entry(None).contents
    release = functions.release
    if (release.version.decode(), release.bytes) != (tbccl.__version__, ctypes.sizeof(_Functions)):
        raise UsageError(
            f"{library} is of tbccl {release.version.decode()}, and this package of {tbccl.__version__}: "
            "reinstall tbccl"
        )
    return functions
