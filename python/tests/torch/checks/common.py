"""What the checks of operations have in common: what every rank gives, what that comes to, and how results are compared."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
#: What can only be moved.
MOVED_ALONE = (*EIGHTS, torch.uint16, torch.uint32, torch.uint64)

#: Which rank this is, and how many there are, as the launcher says.
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def given(of: int, shape: tuple[int, ...] = (7,), dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """What a rank gives: small whole numbers, so that sums are exact in every type and order."""
    numbers = torch.Generator().manual_seed(1000 * salt + of)
    whole = torch.randint(0, 4, shape, generator=numbers)
    if dtype.is_complex:
        return torch.complex(whole.double(), whole.flip(0).double() - 1).to(dtype)
    return whole.to(dtype)


def total(op: str, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0, of: list[int] | None = None) -> torch.Tensor:
    """What all ranks' tensors give together."""
    every = [given(each, shape, dtype, salt) for each in (range(size) if of is None else of)]
    wide = every[0].clone() if dtype.is_complex or not dtype.is_floating_point else every[0].double()
    for other in every[1:]:
        other = other.to(wide.dtype)
        wide = {
            "SUM": lambda a, b: a + b,
            "AVG": lambda a, b: a + b,
            "PRODUCT": lambda a, b: a * b,
            "MAX": lambda a, b: torch.maximum(a, b),
            "MIN": lambda a, b: torch.minimum(a, b),
            "BAND": lambda a, b: a & b,
            "BOR": lambda a, b: a | b,
            "BXOR": lambda a, b: a ^ b,
        }[op](wide, other)
    if op == "AVG":
        wide = wide / len(every)
    return wide.to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """The same bits and the same shape."""
    bytes_of = lambda tensor: tensor.detach().contiguous().reshape(-1).view(torch.uint8)  # noqa: E731
    is_same = got.shape == expected.shape and got.dtype == expected.dtype
    assert is_same and torch.equal(bytes_of(got), bytes_of(expected)), f"{what}: {got} is not {expected}"


def raises(kind: type[BaseException], word: str, work: Callable[[], object]) -> None:
    """`work` raises this, and says so."""
    try:
        work()
    except kind as error:
        assert word in str(error), f"{word!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was raised that says {word!r}")


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, not in one piece."""
    wide = tensor.new_zeros(*tensor.shape, 2)
    wide[..., 0] = tensor
    return wide[..., 0]
