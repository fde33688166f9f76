"""Collective communication for Macs and PCs that are wired together.

import numpy as np
import tbccl

# In each process that `tbccl run -n 4 -- python program.py` has started:
with tbccl.init() as comm:
    gradients = np.ones(1000, dtype=np.float32)
    comm.all_reduce(gradients, out=gradients)
    assert gradients[0] == comm.size
"""

from __future__ import annotations

import atexit
import threading
from typing import Any, Mapping, Sequence

from tbccl import _native
from tbccl._array import Array
from tbccl._communicator import Communicator
from tbccl._errors import (
    AbortedError,
    BootstrapError,
    Error,
    IllegalOperationError,
    InternalError,
    InvalidArgumentError,
    LauncherGoneError,
    MismatchError,
    NoPlanError,
    PeerDiedError,
    PeerLeftError,
    RemoteError,
    ResourceError,
    TimeoutError,
    TransportError,
    TruncatedError,
    UnknownNameError,
    UsageError,
)
from tbccl._group import Group
from tbccl._native import Request
from tbccl._paths import cli_path, include_path, lib_path, mpi_lib_path
from tbccl._version import VERSION as __version__
from tbccl._work import Work

__all__ = [
    "AbortedError",
    "Array",
    "BootstrapError",
    "Communicator",
    "Error",
    "Group",
    "IllegalOperationError",
    "InternalError",
    "InvalidArgumentError",
    "LauncherGoneError",
    "MismatchError",
    "NoPlanError",
    "PeerDiedError",
    "PeerLeftError",
    "RemoteError",
    "Request",
    "ResourceError",
    "TimeoutError",
    "TransportError",
    "TruncatedError",
    "UnknownNameError",
    "UsageError",
    "Work",
    "__version__",
    "cli_path",
    "default",
    "empty",
    "include_path",
    "init",
    "lib_path",
    "mpi_lib_path",
    "unique_id",
]

if _native.__version__ != __version__:
    raise ImportError(
        f"tbccl/*.py is of version {__version__}, and the extension module {_native.__file__} of {_native.__version__}: "
        "install the package anew"
    )

_lock = threading.Lock()
_default: Communicator | None = None


def unique_id() -> bytes:
    """Makes an id for a new job, and opens the place in this process where its ranks meet.

    Pass it on to all ranks, as the secret that it is; one of them must be this process, or it must live as long as the job.
    """
    return bytes(_native.unique_id())


def init(
    uid: bytes | None = None,
    rank: int | None = None,
    size: int | None = None,
    *,
    timeout: float | None = None,
    options: Mapping[str, object] | None = None,
    mail: bool = True,
) -> Communicator:
    """Makes this process's communicator, and waits for the other ranks.

    Without arguments it is that of the job which a launcher has started the process for: `tbccl run`, torchrun, mpirun of
    Open MPI and MPICH, Slurm, mlx.launch. With an id of `unique_id()`, a rank and a size it is of the ranks that have the same id.

    `timeout` is how many seconds ranks wait for each other, and calls without progress; `options` are those of the
    environment by name, with or without TBCCL_, as {"ALGO": "ring"}.

    Messages with tags (`Communicator.send`) have links of their own; `mail=False` is to do without, where links are few.
    All ranks say the same.

    The first communicator is the one of `tbccl.default()` and `tbccl.empty()`, until it is closed. A process may have
    several: another call with a new id makes one. From a launcher there is one; split it for more.
    """
    global _default
    with _lock:
        if uid is not None:
            if rank is None or size is None:
                raise InvalidArgumentError("init with a unique id needs a rank and a size as well", code=4)
            comm = Communicator.from_unique_id(uid, rank, size, timeout=timeout, options=options, mail=mail)
        elif rank is not None or size is not None:
            raise InvalidArgumentError(
                "rank and size are for a unique id; a launcher says them itself", code=4
            )
        else:
            if _default is not None and not _default.is_closed and _default.is_of_launcher:
                raise UsageError(
                    "tbccl.init() was called before in this process; use tbccl.default(), or split it for another "
                    "communicator of the same ranks",
                    code=5,
                )
            texts = None if options is None else {name: str(value) for name, value in options.items()}
            comm = Communicator(_native.join_from_env(timeout, texts, mail))
            comm.is_of_launcher = True
        if _default is None or _default.is_closed:
            _default = comm
        return comm


def default() -> Communicator:
    """The communicator that `init()` made."""
    if _default is None or _default.is_closed:
        raise UsageError("there is no communicator: call tbccl.init() first", code=5)
    return _default


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Array:
    """An array in registered memory of the default communicator, zero when new: see `Communicator.empty`."""
    return default().empty(shape, dtype)


atexit.register(_native._close_all)
