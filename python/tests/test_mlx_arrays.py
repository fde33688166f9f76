"""MLX arrays as arguments of collectives."""

from __future__ import annotations

from conftest import SHM, run


def test_arrays_of_mlx_are_arrays() -> None:
    run(SHM, 2, "mlx_arrays.py")
