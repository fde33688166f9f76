"""Collective communication for Macs and PCs that are wired together.

    import numpy as np
    import tbccl

    # In each process that `tbccl run -n 4 -- python program.py` has started:
    with tbccl.init() as comm:
        gradients = np.ones(1000, dtype=np.float32)
        comm.all_reduce(gradients, out=gradients)
        assert gradients[0] == comm.size

`init` makes the communicator of the process. `Communicator` has the collectives, `Group` runs several calls
together, `Work` is a call in progress, and every exception is an `Error`. `tbccl.torch` is the backend for
torch.distributed, `tbccl.mlx` the one for MLX.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any, Mapping, Sequence

from tbccl import _log, _native
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
        f"tbccl/*.py is of version {__version__}, and the extension module {_native.__file__} of "
        f"{_native.__version__}: install the package anew"
    )

#: Guards the two variables below; never held during a wait. Reentrant, for signal handlers.
_lock = threading.RLock()
_default: Communicator | None = None
#: Whether `init` is joining the launcher's job.
_is_joining = False


def unique_id() -> bytes:
    """Makes the unique id of a new job and starts its rendezvous in this process.

    The ranks of the job meet at this process, so it must be one of them or live as long as the job. The id
    holds the job's secret: any process that has the id can join. Pass it to all ranks over a channel that you
    trust.

    Returns:
        The id, 128 bytes.

    Raises:
        UsageError: This process was forked from one with communicators.
        BootstrapError: The rendezvous cannot be opened.
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
    """Makes the communicator of this process and waits for the other ranks.

    Without `uid`, the communicator is that of the job for which a launcher started this process: `tbccl run`,
    torchrun, mpirun of Open MPI or MPICH, Slurm or mlx.launch. With `uid`, the communicator joins the `size`
    processes that pass the same id.

    The first communicator becomes the default one (`tbccl.default`, `tbccl.empty`) until it is closed. A
    process may have several communicators by unique id, but only one of a launcher; use `Communicator.split`
    for more.

    Args:
        uid: Unique id that one rank made with `unique_id`; None under a launcher.
        rank: Rank of this process, 0 to `size` - 1; only with `uid`.
        size: Number of ranks; only with `uid`.
        timeout: Seconds that ranks wait for each other here, and that a later call may wait without progress;
            None: `TBCCL_TIMEOUT`, or 30.
        options: Options of tbccl by name, with or without `TBCCL_`, as {"ALGO": "ring"}. They override the
            environment.
        mail: Whether the communicator can exchange tagged messages (`Communicator.send` and `recv`), which
            use links of their own. Pass False where links are few. All ranks pass the same.

    Returns:
        The new communicator. Use it in a `with` block, or call `close`.

    Raises:
        InvalidArgumentError: `uid` without `rank` and `size`, the reverse, or an invalid value.
        UnknownNameError: An option has an unknown name or value.
        UsageError: `init` was called before without `uid` and that communicator is open or being made, or the
            process was forked from one with communicators.
        BootstrapError: The launcher's variables are incomplete, or some ranks did not join within `timeout`;
            the message names the missing ranks.
        TransportError: A link to another rank cannot be set up.
    """
    if uid is not None:
        if rank is None or size is None:
            raise InvalidArgumentError("init with a unique id needs a rank and a size as well", code=4)
        comm = Communicator.from_unique_id(uid, rank, size, timeout=timeout, options=options, mail=mail)
        return _offer_default(comm)
    if rank is not None or size is not None:
        raise InvalidArgumentError(
            "rank and size are valid only with uid; a launcher sets them itself", code=4
        )
    return _join_launcher(timeout, options, mail)


def _offer_default(comm: Communicator) -> Communicator:
    """Makes a communicator the default one, unless there is one; returns it."""
    global _default
    with _lock:
        if _default is None or _default.is_closed:
            _default = comm
    return comm


def _join_launcher(timeout: float | None, options: Mapping[str, object] | None, mail: bool) -> Communicator:
    """Makes the communicator of the launcher's job; one at a time."""
    global _is_joining
    with _lock:
        if _is_joining:
            raise UsageError(
                "tbccl.init() is in progress, and a signal handler or another thread called it again", code=5
            )
        if _default is not None and not _default.is_closed and _default.is_of_launcher:
            raise UsageError(
                "tbccl.init() was called before in this process; use tbccl.default(), or its split() for "
                "another communicator of the same ranks",
                code=5,
            )
        _is_joining = True
    try:
        texts = None if options is None else {name: str(value) for name, value in options.items()}
        _log.connect()
        comm = Communicator(_native.join_from_env(timeout, texts, mail))
        comm.is_of_launcher = True
        return _offer_default(comm)
    finally:
        _is_joining = False


def default() -> Communicator:
    """Returns the default communicator: the first one that `init` made.

    Raises:
        UsageError: `init` was not called, or its communicator is closed.
    """
    if _default is None or _default.is_closed:
        raise UsageError("there is no communicator: call tbccl.init() first", code=5)
    return _default


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Array:
    """Returns an array in registered memory of the default communicator, zero when new.

    See `Communicator.empty` for the arguments.

    Raises:
        UsageError: There is no default communicator; call `init` first.
    """
    return default().empty(shape, dtype)


atexit.register(_native._close_all)
