"""PyTorch tensors as arguments of collectives."""

from __future__ import annotations

from conftest import SHM, run


def test_tensors_are_arrays() -> None:
    run(SHM, 2, "torch_arrays.py")
