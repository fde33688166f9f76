"""Versions of MLX: what they lack, and the nanobind that each was compiled with."""

from __future__ import annotations

import re

import mlx.core as mx

__all__ = ["OLDEST", "mlx_version", "nanobind_remedy"]

#: The oldest MLX that tbccl works with.
OLDEST = (0, 29, 0)
#: The versions of nanobind that versions of MLX were compiled with, each up to the next entry. A version of
#: nanobind fits if its internals have the number that MLX's own module names.
_NANOBIND = {
    (0, 30, 1): ">=2.10,<2.11",
    (0, 31, 2): ">=2.12,<2.13",
    (0, 32, 0): ">=2.13,<2.15",
    (0, 32, 2): ">=2.15,<3",
    (0, 32, 3): ">=3.0.1,<3.2",
}


def mlx_version(text: str = mx.__version__) -> tuple[int, ...]:
    """Returns a version of MLX as numbers, without a suffix: that of this process by default."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def nanobind_remedy(text: str = mx.__version__) -> str:
    """Says which nanobind a version of MLX needs for groups of its own kind."""
    fitting = [wanted for first, wanted in _NANOBIND.items() if first <= mlx_version(text)]
    if not fitting:
        return "MLX has such groups from 0.30.1 on"
    return f"pip install 'nanobind{fitting[-1]}'"
