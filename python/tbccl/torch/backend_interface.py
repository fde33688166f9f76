"""Answers to torch's questions about a backend: abilities, options, errors, memory and hooks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d_native
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import tbccl
from tbccl import UsageError

from .devices import access_to

#: Variables that set the size of torch's flight recorder, the first one that is set wins.
_RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def _is_recorder_wanted() -> bool:
    """Returns whether the environment asks for torch's flight recorder.

    torch has it on by default. For tbccl it is on by request, since recorded calls take longer.
    """
    sizes = [os.environ[name] for name in _RECORDER_VARIABLES if os.environ.get(name)]
    return bool(sizes) and int(sizes[0]) > 0


class Options(c10d_native.Backend.Options):
    """Options of a group, which torch 2.11 copies when it splits a group. Those of C++ cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Options:
        return self


class BackendInterface:
    """Mixin of `ProcessGroup`: what torch asks of a backend, besides operations."""

    #: Batches of messages need no coalescing: none of them blocks.
    supports_coalescing = False
    #: `shrink` names what to use instead.
    supports_shrinking = True
    supports_time_estimate = _supports_time_estimate = False
    supports_abort_hooks = True
    supports_completion_hooks = False
    supports_window = False

    @property
    def supports_splitting(self) -> bool:
        """Whether the group can be split.

        ``new_group`` is told that it cannot: it would hand the group to C++ as a backend.
        """
        return sys._getframe(1).f_code.co_name != "_get_split_source"

    def _init_backend_interface(self) -> None:
        self._abort_hooks: dict[int, Callable[[], None]] = {}
        self._has_failed = False
        #: Time limit of the communicator in seconds, for calls without another; None: `TBCCL_TIMEOUT`.
        self._communicator_timeout: float | None = None
        self._hook_ids: set[tuple[str, int]] = set()
        #: Whether torch's flight recorder records the calls.
        self._is_recorded = self._bridge is not None and _is_recorder_wanted()
        #: Whether hooks or the recorder observe the calls.
        self._is_observed = self._is_recorded

    @property
    def options(self) -> Any:
        """Options of the group, of torch's type."""
        seconds = self._default_timeout or self._communicator_timeout
        limit = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        options = Options("tbccl", limit)
        options.global_ranks_in_group = self._global_ranks
        options.group_name = self._name
        return options

    def get_error(self) -> Any:
        """Returns the kind of the error that has ended the communicator, of torch's type."""
        kinds, error = c10d_native.ErrorType, self._comm.async_error()
        if error is None:
            return kinds.SUCCESS
        if isinstance(error, tbccl.TimeoutError):
            return kinds.TIMEOUT
        is_remote = isinstance(error, (tbccl.PeerDiedError, tbccl.RemoteError))
        return kinds.REMOTE_ERROR if is_remote else kinds.COMM_ERROR

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Makes the streams of a device now, rather than in the first call. The ranks are connected."""
        if device is not None and torch.device(device).type != "cpu":
            access_to(torch.device(device))

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing: ranks that are not in a new group have no part in it."""

    # Memory.

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns whether :meth:`allocate_tensor` serves a device: the host."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns a tensor in registered memory, which devices of the network access in place.

        Raises:
            ValueError: The device is not the host.
        """
        if not self.supports_tensor_alloc(device):
            raise ValueError(f"tbccl allocates host memory, not memory of {device}: use torch.empty for it")
        return torch.from_dlpack(self._comm.empty(size, dtype))

    @property
    def mem_allocator(self) -> Any:
        """Raises an error: an allocator of a pool would be one for a device's memory.

        Raises:
            tbccl.UsageError: Always.
        """
        raise UsageError(
            "tbccl has no allocator for a torch MemPool: allocate_tensor gives registered host memory", code=5
        )

    def new_window(self, tensor: torch.Tensor | None = None) -> Any:
        """Raises an error: there are no one-sided operations.

        Raises:
            tbccl.UsageError: Always.
        """
        raise UsageError("tbccl has no windows for one-sided operations: use send and recv", code=5)

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        """Raises an error: torch would wrap the result in a group of its own, named gloo.

        Raises:
            tbccl.UsageError: Always.
        """
        raise UsageError(
            "torch's shrink_group cannot make a group of tbccl: call group.rejoin(store, rank, size) on the "
            "remaining ranks, which keeps the group",
            code=5,
        )

    # Hooks.

    def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Registers a function that runs before each call."""
        self._check_has_hooks()
        dist.ProcessGroup.register_pre_hook(self, hook_id, hook)
        self._observe("pre", hook_id)

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Removes a function of :meth:`register_pre_hook`."""
        dist.ProcessGroup.unregister_pre_hook(self, hook_id)
        self._observe("pre", hook_id, False)

    def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Registers a function that runs after the issue of each call."""
        self._check_has_hooks()
        dist.ProcessGroup.register_post_hook(self, hook_id, hook)
        self._observe("post", hook_id)

    def unregister_post_hook(self, hook_id: int) -> None:
        """Removes a function of :meth:`register_post_hook`."""
        dist.ProcessGroup.unregister_post_hook(self, hook_id)
        self._observe("post", hook_id, False)

    def _check_has_hooks(self) -> None:
        if self._bridge is None or not hasattr(dist.ProcessGroup, "register_pre_hook"):
            raise UsageError(
                f"torch {torch.__version__} has no hooks for groups of backends in Python: use torch 2.15",
                code=5,
            )

    def _observe(self, kind: str, hook_id: int, is_added: bool = True) -> None:
        """Keeps account of the hooks that observe calls."""
        (self._hook_ids.add if is_added else self._hook_ids.discard)((kind, hook_id))
        self._is_observed = self._is_recorded or bool(self._hook_ids)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Registers a function that runs before the group is aborted, and when it has failed."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Removes a function of :meth:`register_abort_hook`."""
        self._abort_hooks.pop(hook_id, None)

    def _run_abort_hooks(self) -> None:
        for hook in list(self._abort_hooks.values()):
            try:
                hook()
            except Exception as error:
                # The error of the group must reach the program.
                warnings.warn(f"an abort hook of group {self._name} failed: {error!r}", stacklevel=2)

    def _run_abort_hooks_after_failure(self) -> None:
        """Runs the abort hooks once, if an error has ended the communicator."""
        if self._abort_hooks and not self._has_failed and self._comm.async_error() is not None:
            self._has_failed = True
            self._run_abort_hooks()

    def _enable_collectives_timing(self) -> None:
        """Does nothing: `TBCCL_TRACE` times calls."""
