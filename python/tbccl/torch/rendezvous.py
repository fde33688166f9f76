"""Rendezvous of the processes of a job under ``tbccl run``, mpirun and srun.

torch.distributed needs a store and the address of its server. torchrun passes the address by environment
variables, ``tbccl run`` does not. The rendezvous ``tbccl://`` makes a communicator, over which rank 0 sends
the address of its store to the other ranks.

In a process of these launchers without ``MASTER_ADDR``, ``env://`` (torch's default) does the same.
With ``MASTER_ADDR``, it takes rank and size from the launcher's variables in the place of ``RANK`` and
``WORLD_SIZE``.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import tbccl
from tbccl import _native

#: Environment variables with the rank and the number of ranks, of launchers other than torchrun.
_LAUNCHERS = (
    ("TBCCL_RANK", "TBCCL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

#: Size of the message with the address of rank 0's store, in bytes.
_ADDRESS_BYTES = 1024

_Rendezvous = tuple[dist.Store, int, int]

#: Store of this job with this rank and the number of ranks; None before the first rendezvous.
_store: _Rendezvous | None = None
_rendezvous_count = 0


def register() -> None:
    """Registers ``tbccl://``, and extends ``env://`` in processes of launchers other than torchrun."""
    dist.register_rendezvous_handler("tbccl", _rendezvous)
    # The attribute torch.distributed.rendezvous is a function; import_module returns the module of that name.
    torch_rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers = getattr(torch_rendezvous, "_rendezvous_handlers", None)
    if handlers is None or "env" not in handlers or _rank_from_launcher() is None:
        return
    torch_env = handlers["env"]

    def env(url: str, timeout: timedelta = default_pg_timeout, **options: Any) -> Iterator[_Rendezvous]:
        if "MASTER_ADDR" not in os.environ and "rank=" not in url:
            return _rendezvous(url, timeout)
        return torch_env(_with_launcher_rank(url), timeout=timeout, **options)

    handlers["env"] = env


def _rank_from_launcher() -> tuple[int, int] | None:
    """Returns rank and number of ranks from the variables of a launcher other than torchrun, or None."""
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return None


def _with_launcher_rank(url: str) -> str:
    """Returns the URL with the launcher's rank and size, unless the URL or torch's variables have them."""
    launched = _rank_from_launcher()
    if launched is None or "rank=" in url or "RANK" in os.environ:
        return url
    return f"{url}{'&' if '?' in url else '?'}rank={launched[0]}&world_size={launched[1]}"


def _rendezvous(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[_Rendezvous]:
    """Yields the store, this rank and the number of ranks: the handler of ``tbccl://``."""
    global _store, _rendezvous_count
    if _store is None:
        _store = _open_store(timeout)
    store, rank, size = _store
    _rendezvous_count += 1
    yield dist.PrefixStore(f"tbccl/{_rendezvous_count}", store), rank, size
    raise RuntimeError("tbccl:// does not support a second rendezvous for the same group: restart the job")


def _open_store(timeout: timedelta) -> _Rendezvous:
    """Opens a store on rank 0, connects the other ranks to it, and returns it with this rank and the number
    of ranks.

    Ranks of one host that have met by their user, without a secret, have one from then on: the store, which
    other users can reach, must not hold that of their groups.
    """
    comm = tbccl.init()
    try:
        message = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8, device="cpu")
        store = None
        if comm.rank == 0:
            store = dist.TCPStore("localhost", 0, comm.size, True, timeout, wait_for_workers=False)
            secret = "" if _has_secret() else secrets.token_hex(32)
            lines = [str(store.port), secret, socket.gethostname(), *_addresses()]
            text = "\n".join(lines).encode()[:_ADDRESS_BYTES]
            message[: len(text)] = torch.tensor(list(text), dtype=torch.uint8, device="cpu")
        address = message.data_ptr()
        comm.submit(_native.BROADCAST, _native.UINT8, 0, _ADDRESS_BYTES, address, address, 0)
        port, secret, host, *addresses = bytes(message.tolist()).rstrip(b"\0").decode().split("\n")
        if secret:
            os.environ["TBCCL_SECRET"] = secret
        if store is None:
            local = ["localhost"] if host == socket.gethostname() else []
            store = _connect([*local, *addresses, host], int(port), comm.size, timeout)
        return store, comm.rank, comm.size
    finally:
        comm.close()


def _has_secret() -> bool:
    """Returns whether the environment of this process names the secret of its job."""
    return any(os.environ.get(name) for name in ("TBCCL_SECRET", "TBCCL_SECRET_FILE"))


def _addresses() -> list[str]:
    """Returns addresses or names at which other hosts may reach this one, rank 0's, in the job's network."""
    addresses: list[str] = []
    # The root is rank 0's own address, by which the other ranks know its host.
    known = [os.environ.get(name, "") for name in ("TBCCL_BOOTSTRAP", "TBCCL_ROOT")]
    for text in " ".join(known).replace(",", " ").split():
        host, _, port = text.removeprefix("tcp://").rpartition(":")
        if not port.isdigit() or not host:
            continue
        try:
            family, *_rest, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[
                0
            ]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing
                addresses.append(probe.getsockname()[0])
        except OSError:
            continue
    if "SLURM_STEP_ID" in os.environ and "SLURMD_NODENAME" in os.environ:
        addresses.append(os.environ["SLURMD_NODENAME"])  # by which the other tasks have found this one
    return list(dict.fromkeys(addresses))


def _connect(hosts: list[str], port: int, size: int, timeout: timedelta) -> dist.Store:
    """Returns a client of the store at the first of ``hosts`` that accepts a connection."""
    errors = []
    for number, host in enumerate(hosts):
        is_last = number == len(hosts) - 1
        limit = timeout if is_last else min(timeout, timedelta(seconds=10))
        try:
            store = dist.TCPStore(host, port, size, False, limit)
        except Exception as error:
            errors.append(f"{host}: {error}")
            continue
        store.set_timeout(timeout)
        return store
    raise tbccl.Error(
        f"cannot connect to rank 0's store on port {port} ({'; '.join(errors)}): check its host's firewall"
    )
