"""Where the files are that the package carries beside its Python: the C library, the MPI-shaped one, the header, the program."""

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
            f"this installation of tbccl has no {description} ({path}); install it by pip", code=5
        )
    return os.fspath(path)


def lib_path() -> str:
    """The C library, libtbccl."""
    return _existing(_PACKAGE / "lib" / ("libtbccl.0.dylib" if _IS_MACOS else "libtbccl.so.0"), "C library")


def mpi_lib_path() -> str:
    """The library in the shape of MPI that MLX loads (`MLX_MPI_LIBNAME`)."""
    return _existing(
        _PACKAGE / "lib" / ("libtbccl_mpi.dylib" if _IS_MACOS else "libtbccl_mpi.so"), "MPI-shaped library"
    )


def include_path() -> str:
    """The folder with tbccl.h."""
    return _existing(_PACKAGE / "include", "header")


def cli_path() -> str:
    """The program `tbccl`."""
    return _existing(_PACKAGE / "bin" / "tbccl", "program")


def main() -> None:
    """The command `tbccl`: the program in this package, in the place of this process."""
    program = cli_path()
    os.execv(program, [program, *sys.argv[1:]])
