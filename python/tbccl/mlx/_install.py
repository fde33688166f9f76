"""Replaces functions of `mx.distributed` in this process, for programs that name another backend.

Programs such as exo call `mx.distributed.init(backend="jaccl")` or `"ring"`, and read no variable that leads
to tbccl. After `install()`, every name gives the group of `tbccl.mlx.init()` if the environment has the
variables of a launcher when it is called: exo sets them itself. Without them MLX's functions do as before. On
Linux it is a group of MLX's own kind where all ranks can compile it (`TBCCL_MLX_NATIVE=off`
prevents that). Otherwise MLX's functions get what its MPI interface lacks: `sum_scatter`, and arrays of more
than 2147483647 elements, of which MLX would tell the library a wrong number.

`TBCCL_MLX=off` makes `install()` do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tbccl.mlx import _collectives, _groups, _native_groups

__all__ = ["install", "uninstall"]

_VARIABLE = "TBCCL_MLX"
#: Most elements of an array of which MLX can tell an MPI library.
_MAX_ELEMENTS = (1 << 31) - 1
#: Names of MLX's backends.
_BACKENDS = ("any", "mpi", "ring", "nccl", "jaccl")
#: MLX's own functions, by name; None where this MLX lacks one. Programs may keep a replacement beyond
#: `uninstall`, so it finds them here at any time.
_NAMES = "init is_available sum_scatter all_gather send recv recv_like all_sum all_max all_min".split()
_ORIGINALS: dict[str, Any] = {name: getattr(mx.distributed, name, None) for name in _NAMES}
#: The type, which is found faster here than in its module.
_array = mx.array
_is_installed = False
#: The group of calls that name none, from the first of them on.
_default: mx.distributed.Group | None = None


def install() -> bool:
    """Makes `mx.distributed.init` give groups of tbccl, whatever backend a program names.

    Call it before a program makes its first group. In a process without the variables of a launcher, MLX's
    functions do what they did before. Later calls change nothing.

    Returns:
        Whether MLX's functions are replaced: not with `TBCCL_MLX=off`.

    Raises:
        tbccl.UsageError: MLX cannot use tbccl here, or `TBCCL_MLX` has another value than `on` or `off`.
    """
    value = os.environ.get(_VARIABLE, "on")
    if value not in ("on", "off"):
        raise _groups.UsageError(f"{_VARIABLE}={value} is neither on nor off")
    if value == "off":
        return False
    # MLX takes its MPI library from the environment once, as a program first asks for any backend.
    _groups.has_launcher()
    global _is_installed
    if _is_installed:
        return True
    replacements: dict[str, Callable[..., Any]] = {
        "init": _init,
        "is_available": _is_available,
        "sum_scatter": _sum_scatter,
        "all_gather": _in_parts_gathered,
        "send": _in_world("send"),
        "recv": _in_world("recv"),
        "recv_like": _in_world("recv_like"),
        **{name: _in_parts(name) for name in ("all_sum", "all_max", "all_min") if _ORIGINALS[name]},
    }
    _native_groups.enable(True)
    for name, replacement in replacements.items():
        replacement.__name__ = name
        setattr(mx.distributed, name, replacement)
    _is_installed = True
    return True


def uninstall() -> None:
    """Restores MLX's functions. Groups made meanwhile stay as they are."""
    global _is_installed, _default
    _default = None
    _native_groups.enable(False)
    for name, original in _ORIGINALS.items() if _is_installed else ():
        if original is not None:
            setattr(mx.distributed, name, original)
        elif hasattr(mx.distributed, name):
            delattr(mx.distributed, name)
    _is_installed = False


def _init(
    strict: bool = False, backend: str = "any", *, all_gather_factory: Callable[..., Any] | None = None
) -> mx.distributed.Group:
    """Returns the group of all ranks, as `tbccl.mlx.init`, whatever the backend.

    Refuses what MLX refuses: unknown backends, and a factory with another backend than `jaccl`. tbccl does
    not need the factory.
    """
    if not _groups.has_launcher():
        options = {} if all_gather_factory is None else {"all_gather_factory": all_gather_factory}
        return _ORIGINALS["init"](strict=strict, backend=backend, **options)
    if backend not in _BACKENDS:
        raise ValueError(f"the backend {backend!r} is none of {', '.join(_BACKENDS)}")
    if all_gather_factory is not None:
        if not callable(all_gather_factory):
            raise TypeError("all_gather_factory is not callable")
        if backend != "jaccl":
            raise ValueError(f"all_gather_factory is for the backend 'jaccl', and not for {backend!r}")
    return _groups.init(strict=strict)


def _is_available(backend: str = "any") -> bool:
    if _groups.has_launcher():
        return True
    try:
        return _ORIGINALS["is_available"](backend)
    except TypeError:  # MLX before 0.30 knows one backend for all.
        return _ORIGINALS["is_available"]()


def _world() -> mx.distributed.Group | None:
    """Returns the group of a call that names none; None for MLX's own default, without a launcher."""
    global _default
    if _default is None and _groups.has_launcher():
        _default = _groups.init(strict=False)
    return _default


def _has_long_counts(group: mx.distributed.Group | None) -> bool:
    """Returns whether MLX can tell the group the size of an array of more than `_MAX_ELEMENTS`."""
    return group is None or _native_groups.is_native(group)


def _sum_scatter(
    x: mx.array, *, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None
) -> mx.array:
    group = _world() if group is None else group
    if group is None and _ORIGINALS["sum_scatter"] is not None:
        return _ORIGINALS["sum_scatter"](x, stream=stream)
    return _collectives.sum_scatter(x, group=group, stream=stream)


def _in_world(name: str) -> Callable[..., mx.array]:
    """Returns MLX's function with tbccl's group as the default."""
    original = _ORIGINALS[name]

    def call(*arguments: Any, group: mx.distributed.Group | None = None, **options: Any) -> mx.array:
        return original(*arguments, group=_world() if group is None else group, **options)

    return call


def _in_parts(name: str) -> Callable[..., mx.array]:
    """Returns MLX's function for arrays of any size, with tbccl's group as the default."""
    original = _ORIGINALS[name]

    def call(
        x: mx.array, *, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None
    ) -> mx.array:
        if group is None:
            group = _world() if _default is None else _default
        # MLX also takes numbers. Small sums take about as long as this function, so it calls no other one.
        if not isinstance(x, _array) or x.size <= _MAX_ELEMENTS or _has_long_counts(group):
            return original(x, group=group, stream=stream)
        flat = x.reshape(-1)
        parts = [flat[at : at + _MAX_ELEMENTS] for at in range(0, x.size, _MAX_ELEMENTS)]
        reduced = [original(part, group=group, stream=stream) for part in parts]
        return mx.concatenate(reduced).reshape(x.shape)

    return call


def _in_parts_gathered(
    x: mx.array, *, group: mx.distributed.Group | None = None, stream: mx.StreamOrDevice = None
) -> mx.array:
    """Gathers arrays of any size."""
    group = _world() if group is None else group
    original = _ORIGINALS["all_gather"]
    if not isinstance(x, _array) or x.size <= _MAX_ELEMENTS or _has_long_counts(group):
        return original(x, group=group, stream=stream)
    ranks = group.size()
    flat = x.reshape(-1)
    parts = [flat[at : at + _MAX_ELEMENTS] for at in range(0, x.size, _MAX_ELEMENTS)]
    gathered = [original(part, group=group, stream=stream).reshape(ranks, -1) for part in parts]
    return mx.concatenate(gathered, axis=1).reshape(ranks * x.shape[0], *x.shape[1:])
