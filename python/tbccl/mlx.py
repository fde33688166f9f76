"""Groups of MLX over tbccl: `group = tbccl.mlx.init()`, and all of `mx.distributed` goes by it.

MLX takes its groups from an MPI library, which it opens by the name in `MLX_MPI_LIBNAME`. tbccl has a library with that
interface; this module has MLX open it, and says what is wrong when it can't. MLX itself stays as it is.

What fails later is a `RuntimeError` from where MLX evaluates the result (MLX since 0.32.1; before that the process ends
with the same words).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import tbccl
from tbccl import BootstrapError, UsageError

try:
    import mlx.core as mx
except ImportError as missing:
    raise ImportError("tbccl.mlx needs MLX, which is not installed here: pip install mlx") from missing

__all__ = ["init", "is_available", "library"]

_LIBRARY_VARIABLE = "MLX_MPI_LIBNAME"
_MIN_MLX_VERSION = (0, 29)
#: What an exception of our library's begins with where MLX makes its first group.
_INIT_ERROR_PREFIX = "[tbccl] MPI_Init: "


def library() -> Path:
    """The library that MLX is to open.

    The one that the launcher has named, if it is one of tbccl and is there; else the one of this package.
    """
    from_environment = Path(os.environ.get(_LIBRARY_VARIABLE, ""))
    if from_environment.name.startswith("libtbccl_mpi") and from_environment.is_file():
        return from_environment
    return Path(tbccl.mpi_lib_path())


def is_available() -> bool:
    """Can there be groups by tbccl? It may still be that no launcher has started this process."""
    try:
        _load_library()
    except UsageError:
        return False
    return True


def init(strict: bool = True) -> mx.distributed.Group:
    """The group of all ranks of the job that a launcher has started this process for; waits for the other ranks.

    Which rank this is say the variables of `tbccl run`, `mlx.launch` (any backend), `torchrun`, `mpirun` or Slurm. Later calls
    give the same group. It is what `mx.distributed.init()` gives from then on, so functions of MLX that take no group use
    it.

    Args:
        strict: Whether it is an error that no launcher has started this process. If not, it is a group of its own.

    Raises:
        tbccl.UsageError: MLX can't use tbccl here, or no launcher has started this process; it says what to do.
        tbccl.BootstrapError: The ranks have not come together.
    """
    loaded = _load_library()
    launcher = loaded.tbccl_mpi_launcher()
    if launcher is None and strict:
        raise UsageError(
            "no launcher has started this process: start the program with `tbccl run -n RANKS -- python PROGRAM`, or with "
            "mlx.launch, or say tbccl.mlx.init(strict=False) for a group of its own"
        )
    if launcher is None or loaded.tbccl_mpi_ranks() == 1:
        # MLX has a group of its own for a single process, and asks nobody.
        return mx.distributed.init(strict=False, backend="mpi")
    try:
        group = mx.distributed.init(strict=True, backend="mpi")
    except RuntimeError as failure:
        text = str(failure)
        if not text.startswith(_INIT_ERROR_PREFIX):
            raise _mpi_unavailable_error() from failure
        raise BootstrapError(text.removeprefix(_INIT_ERROR_PREFIX)) from None
    if not loaded.tbccl_mpi_is_running():
        raise UsageError(
            "MLX had opened another MPI library before tbccl.mlx.init() was called: call it before mx.distributed is used, or "
            f"set {_LIBRARY_VARIABLE}={library()} beforehand"
        )
    return group


def _load_library() -> ctypes.CDLL:
    """Has MLX open our library; the library."""
    _check_version()
    path = library()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.tbccl_mpi_launcher.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise UsageError(
            f"the library that MLX is to open can't be used: {error}; install tbccl anew"
        ) from None
    _check_library(loaded, path)
    os.environ[_LIBRARY_VARIABLE] = str(path)
    if not _is_mpi_available():
        raise _mpi_unavailable_error()
    return loaded


def _is_mpi_available() -> bool:
    """Has MLX opened an MPI library?"""
    try:
        return mx.distributed.is_available("mpi")
    except TypeError:
        # MLX before 0.30 says only whether there is any backend, and its init whether it has opened this one.
        return True


def _mpi_unavailable_error() -> UsageError:
    return UsageError(
        "MLX has looked for an MPI library before tbccl.mlx was used, and has found none: call tbccl.mlx.init() before "
        f"mx.distributed is used, or set {_LIBRARY_VARIABLE}={library()} beforehand"
    )


def _check_version() -> None:
    parts = mx.__version__.split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < _MIN_MLX_VERSION:
        raise UsageError(
            f"MLX {mx.__version__} is too old for tbccl, which needs {_MIN_MLX_VERSION[0]}.{_MIN_MLX_VERSION[1]} or later: pip install -U mlx"
        )


def _check_library(loaded: ctypes.CDLL, path: Path) -> None:
    text, length = ctypes.create_string_buffer(256), ctypes.c_int()
    loaded.MPI_Get_library_version(text, ctypes.byref(length))
    words = text.value.decode(errors="replace").replace(",", " ").split()
    if words[:2] != ["tbccl", tbccl.__version__]:
        raise UsageError(
            f"{path} is of tbccl {' '.join(words[1:2]) or '?'}, and this package of {tbccl.__version__}: unset {_LIBRARY_VARIABLE}, or use "
            "the tbccl command of this package"
        )
