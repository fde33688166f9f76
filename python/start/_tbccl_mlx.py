"""Replaces functions of MLX in a process whose environment has TBCCL_MLX=on, as `tbccl.mlx.install` does.

Python calls `start` as it begins (`tbccl_mlx.pth`). So programs that are commands of their own run over
tbccl, and so do the processes that a program starts, as exo starts its runners. `python -m tbccl.mlx` sets
the variable for those. Nothing is imported before the process imports `mlx.core`.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Finder(MetaPathFinder):
    """Finds `mlx.core` as Python would, and replaces its functions once it is loaded."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != "mlx.core":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_install(module: ModuleType) -> None:
            load(module)
            # Calls `install` as it is loaded.
            import tbccl.mlx  # noqa: F401

        spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Waits for the import of `mlx.core`."""
    sys.meta_path.insert(0, _Finder())
