"""Paths of the files that the package installs beside its Python code.

These are the C library, the library with the MPI interface, the C header and the command-line program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tbccl._errors import UsageError

_PACKAGE = Path(__file__).resolve().parent
_IS_MACOS = sys.platform == "darwin"


def _existing(path: Path, description: str) -> str:
    if not path.exists():
        raise UsageError(
            f"this installation of tbccl has no {description} ({path}): install the package with pip", code=5
        )
    return os.fspath(path)


def lib_path() -> str:
    """Returns the path of the C library, libtbccl.

    Raises:
        UsageError: The installation lacks the file.
    """
    return _existing(_PACKAGE / "lib" / ("libtbccl.0.dylib" if _IS_MACOS else "libtbccl.so.0"), "C library")


def mpi_lib_path() -> str:
    """Returns the path of the library with the MPI interface that MLX loads (`MLX_MPI_LIBNAME`).

    Raises:
        UsageError: The installation lacks the file.
    """
    return _existing(
        _PACKAGE / "lib" / ("libtbccl_mpi.dylib" if _IS_MACOS else "libtbccl_mpi.so"), "MPI library"
    )


def include_path() -> str:
    """Returns the path of the folder that contains tbccl.h.

    Raises:
        UsageError: The installation lacks the folder.
    """
    return _existing(_PACKAGE / "include", "header")


def cli_path() -> str:
    """Returns the path of the command-line program `tbccl`.

    Raises:
        UsageError: The installation lacks the file.
    """
    return _existing(_PACKAGE / "bin" / "tbccl", "program")


def main() -> None:
    """Replaces this process by the program `tbccl` of the package, with the same arguments.

    Entry point of the command that pip installs.
    """
    program = cli_path()
    os.execv(program, [program, *sys.argv[1:]])
