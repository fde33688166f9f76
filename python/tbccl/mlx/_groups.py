"""The group of all ranks.

MLX takes its groups from an MPI library, which it opens by the name in the environment variable
`MLX_MPI_LIBNAME`. tbccl has a library with that interface. This module makes MLX open it and reports why MLX
cannot. MLX itself is not changed.

Calls that fail later raise RuntimeError where MLX evaluates the result (MLX 0.32.1 and later). Older versions
of MLX end the process with the same message.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import tbccl
from tbccl import BootstrapError, UsageError

try:
    import mlx.core as mx
except ImportError as missing:
    raise ImportError("tbccl.mlx needs MLX, which is not installed: pip install mlx") from missing

from tbccl.mlx import _native_groups
from tbccl.mlx._versions import OLDEST, mlx_version

__all__ = ["init", "is_available", "library"]

_LIBRARY_VARIABLE = "MLX_MPI_LIBNAME"
#: MLX's own functions, which `tbccl.mlx.install` replaces.
_init_of_mlx, _is_available_in_mlx = mx.distributed.init, mx.distributed.is_available
#: Prefix of the messages of errors that tbccl's library raises while MLX makes its first group.
_INIT_ERROR_PREFIX = "[tbccl] MPI_Init: "


def library() -> Path:
    """Returns the path of the MPI library that MLX is to open.

    It is the library in `MLX_MPI_LIBNAME` if the launcher set one of tbccl's that exists, else the library of
    this package.
    """
    from_environment = Path(os.environ.get(_LIBRARY_VARIABLE, ""))
    if from_environment.name.startswith("libtbccl_mpi") and from_environment.is_file():
        return from_environment
    return Path(tbccl.mpi_lib_path())


def is_available() -> bool:
    """Returns whether MLX can use tbccl here.

    The result does not say whether a launcher started this process.
    """
    try:
        _load_library()
    except UsageError:
        return False
    return True


def init(strict: bool = True) -> mx.distributed.Group:
    """Returns the MLX group of all ranks of the job, after waiting for the other ranks.

    The rank comes from the environment variables of `tbccl run`, `mlx.launch` (any backend), `torchrun`,
    `mpirun` or Slurm. Later calls return the same group. `mx.distributed.init()` returns it as well from then
    on, so functions of MLX that take no group use it.

    Args:
        strict: Whether a process that no launcher started gets an error. If False, it gets a group of its
            own.

    Returns:
        The group of all ranks.

    Raises:
        tbccl.UsageError: MLX cannot use tbccl here, or no launcher started this process. The message says
            what to do.
        tbccl.BootstrapError: The ranks could not reach each other, or some did not join in time.
    """
    loaded = _load_library()
    launcher = loaded.tbccl_mpi_launcher()
    if launcher is None and strict:
        raise UsageError(
            "no launcher started this process: start the program with `tbccl run -n RANKS -- python PROGRAM` "
            "or mlx.launch, or call tbccl.mlx.init(strict=False) for a group of this process alone"
        )
    if launcher is None or loaded.tbccl_mpi_ranks() == 1:
        # MLX makes the group of a single process itself, without the MPI library.
        return _init_of_mlx(strict=False, backend="mpi")
    if not loaded.tbccl_mpi_is_running():
        native = _native_groups.world(_libtbccl(library()))
        if native is not None:
            return native
    try:
        group = _init_of_mlx(strict=True, backend="mpi")
    except RuntimeError as failure:
        text = str(failure)
        if not text.startswith(_INIT_ERROR_PREFIX):
            raise _mpi_unavailable_error() from failure
        raise BootstrapError(text.removeprefix(_INIT_ERROR_PREFIX)) from None
    if not loaded.tbccl_mpi_is_running():
        raise UsageError(
            "MLX opened another MPI library before tbccl.mlx.init() was called: call tbccl.mlx.init() "
            f"before mx.distributed is used, or set {_LIBRARY_VARIABLE}={library()} in the environment"
        )
    return group


def has_launcher() -> bool:
    """Returns whether a launcher started this process, or its environment has a launcher's variables by now.

    Raises:
        UsageError: As for `init`.
    """
    return _load_library().tbccl_mpi_launcher() is not None


@cache
def _load_library() -> ctypes.CDLL:
    """Makes MLX open tbccl's MPI library and returns the library.

    Raises:
        UsageError: MLX is too old, the library does not fit, or MLX did not open it.
    """
    _check_version()
    path = library()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.tbccl_mpi_launcher.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise UsageError(f"MLX cannot use the library {path}: {error}; reinstall tbccl") from None
    _check_library(loaded, path)
    os.environ[_LIBRARY_VARIABLE] = str(path)
    if not _is_mpi_available():
        raise _mpi_unavailable_error()
    return loaded


def _libtbccl(mpi_library: Path) -> Path:
    """Returns the libtbccl that an MPI library of tbccl calls: in the folder of the library, or above."""
    installed = Path(tbccl.lib_path())
    # Cargo's folder has another name for it.
    names = (installed.name, f"libtbccl_c{mpi_library.suffix}")
    folders = (mpi_library.resolve().parent, mpi_library.resolve().parent.parent)
    beside = [folder / name for folder in folders for name in names]
    return next((path for path in beside if path.is_file()), installed)


def _is_mpi_available() -> bool:
    """Returns whether MLX has opened an MPI library."""
    try:
        return _is_available_in_mlx("mpi")
    except TypeError:
        # MLX before 0.30 takes no argument here; its init reports whether it opened the library.
        return True


def _mpi_unavailable_error() -> UsageError:
    """Returns the error for an MLX that found no MPI library."""
    return UsageError(
        "MLX searched for an MPI library before tbccl.mlx was used, and found none: call tbccl.mlx.init() "
        f"before mx.distributed is used, or set {_LIBRARY_VARIABLE}={library()} in the environment"
    )


def _check_version() -> None:
    if mlx_version() < OLDEST:
        raise UsageError(
            f"MLX {mx.__version__} is too old: tbccl needs {OLDEST[0]}.{OLDEST[1]} or later; "
            "pip install -U mlx"
        )


def _check_library(loaded: ctypes.CDLL, path: Path) -> None:
    text, length = ctypes.create_string_buffer(256), ctypes.c_int()
    loaded.MPI_Get_library_version(text, ctypes.byref(length))
    words = text.value.decode(errors="replace").replace(",", " ").split()
    if words[:2] != ["tbccl", tbccl.__version__]:
        raise UsageError(
            f"{path} is of tbccl {' '.join(words[1:2]) or '?'}, and this package of {tbccl.__version__}: "
            f"unset {_LIBRARY_VARIABLE}, or use the tbccl command of this package"
        )
