"""Where the files are that the package carries beside its Python: the C library, the MPI-shaped one, the header, the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tbccl._errors import UsageError

_HERE = Path(__file__).resolve().parent
_MAC = sys.platform == "darwin"


def _there(path: Path, what: str) -> str:
    if not path.exists():
        raise UsageError(f"this installation of tbccl has no {what} ({path}); install it by pip", code=5)
    return os.fspath(path)


def lib_path() -> str:
    """The C library, libtbccl."""
    return _there(_HERE / "lib" / ("libtbccl.0.dylib" if _MAC else "libtbccl.so.0"), "C library")


def mpi_lib_path() -> str:
    """The library in the shape of MPI that MLX loads (`MLX_MPI_LIBNAME`)."""
    return _there(_HERE / "lib" / ("libtbccl_mpi.dylib" if _MAC else "libtbccl_mpi.so"), "MPI-shaped library")


def include_path() -> str:
    """The folder with tbccl.h."""
    return _there(_HERE / "include", "header")


def cli_path() -> str:
    """The program `tbccl`."""
    return _there(_HERE / "bin" / "tbccl", "program")


def main() -> None:
    """The command `tbccl`: the program in this package, in the place of this process."""
    program = cli_path()
    os.execv(program, [program, *sys.argv[1:]])
