"""Helpers of the checks: contributions of ranks, expected reductions, and comparisons."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
#: Types that can be moved but not reduced.
MOVE_ONLY = (*FLOAT8, torch.uint16, torch.uint32, torch.uint64)

#: Rank of this process and number of ranks, from the launcher's environment.
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


#: Type of the device of the tensors of all checks.
device = "cpu"


def use_device(name: str) -> None:
    """Runs the checks on tensors of a device."""
    global device
    device = name
    torch.set_default_device(name)


def data_of(
    of_rank: int, shape: tuple[int, ...] = (7,), dtype: torch.dtype = torch.float32, seed: int = 0
) -> torch.Tensor:
    """Returns a rank's contribution: small whole numbers, whose sum is exact in every type and order."""
    return _host_data_of(of_rank, shape, dtype, seed).to(device)


def _host_data_of(of_rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(1000 * seed + of_rank)
    whole = torch.randint(0, 4, shape, generator=generator, device="cpu")
    if dtype.is_complex:
        return torch.complex(whole.double(), whole.flip(0).double() - 1).to(dtype)
    return whole.to(dtype)


def total(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, members: list[int] | None = None
) -> torch.Tensor:
    """Returns the reduction of the contributions of all ranks, or of the members of a group."""
    ranks = range(size) if members is None else members
    contributions = [_host_data_of(each, shape, dtype, seed) for each in ranks]
    is_exact = dtype.is_complex or not dtype.is_floating_point
    result = contributions[0].clone() if is_exact else contributions[0].double()
    for other in contributions[1:]:
        other = other.to(result.dtype)
        result = {
            "SUM": lambda a, b: a + b,
            "AVG": lambda a, b: a + b,
            "PRODUCT": lambda a, b: a * b,
            "MAX": lambda a, b: torch.maximum(a, b),
            "MIN": lambda a, b: torch.minimum(a, b),
            "BAND": lambda a, b: a & b,
            "BOR": lambda a, b: a | b,
            "BXOR": lambda a, b: a ^ b,
        }[op](result, other)
    if op == "AVG" and dtype.is_complex:
        # torch divides complex numbers by multiplying with a rounded reciprocal; the nearest quotient is due.
        result = torch.view_as_complex(torch.view_as_real(result) / len(contributions))
    elif op == "AVG":
        result = result / len(contributions)
    return result.to(dtype).to(device)


def assert_equal(actual: torch.Tensor, expected: torch.Tensor, description: object = "") -> None:
    """Asserts that two tensors have the same shape, type and bits."""
    bytes_of = lambda tensor: tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # noqa: E731
    is_alike = actual.shape == expected.shape and actual.dtype == expected.dtype
    is_equal = is_alike and torch.equal(bytes_of(actual), bytes_of(expected))
    assert is_equal, f"{description}: {actual} is not {expected}"


def raises(error_type: type[BaseException], message: str, function: Callable[[], object]) -> None:
    """Asserts that `function` raises an error of this type whose text contains `message`."""
    try:
        function()
    except error_type as error:
        assert message in str(error), f"{message!r} is not in {error}"
    else:
        raise AssertionError(f"no error was raised, expected {message!r}")


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a non-contiguous tensor with the same elements."""
    result = tensor.new_zeros(*tensor.shape, 2)
    result[..., 0] = tensor
    return result[..., 0]
