"""Which operation of tbccl a reduction of torch is.

A sum that is premultiplied becomes a sum of contributions that were multiplied beforehand, each rank's by its own factor.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from tbccl import _native

_TORCH_OPS = dist.ReduceOp.RedOpType.__members__
_OPS_BY_NAME = {
    "SUM": _native.SUM,
    "AVG": _native.AVG,
    "PRODUCT": _native.PROD,
    "MIN": _native.MIN,
    "MAX": _native.MAX,
    "BAND": _native.BAND,
    "BOR": _native.BOR,
    "BXOR": _native.BXOR,
}
_NAME_BY_NUMBER = {int(kind): name for name, kind in _TORCH_OPS.items()}

#: By the number of torch's operation, which is also its hash: ours, or None where contributions are multiplied first.
OPS: list[int | None] = [
    _OPS_BY_NAME.get(_NAME_BY_NUMBER.get(number, "")) for number in range(max(_NAME_BY_NUMBER) + 1)
]


def is_additive(op: int) -> bool:
    """Is it linear, so that it can be taken of the parts of complex numbers?"""
    return op in (_native.SUM, _native.AVG)


def resolve(op: dist.ReduceOp) -> tuple[int, float | torch.Tensor | None]:
    """Our operation, and the factor that this rank's contribution is multiplied by first.

    Raises ValueError for what is none of torch's.
    """
    number = hash(op)
    code = OPS[number] if 0 <= number < len(OPS) else None
    if code is not None:
        return code, None
    if _NAME_BY_NUMBER.get(number) == "PREMUL_SUM":
        return _native.SUM, op.__getstate__()[1]
    raise ValueError(f"tbccl has no reduction {op}; there are {', '.join(_OPS_BY_NAME)} and PREMUL_SUM")


def scale(tensor: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """What this rank contributes to a premultiplied sum. Raises TypeError where elements have no fractions."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(
            f"a premultiplied sum is one of floating-point numbers, and this tensor is {tensor.dtype}"
        )
    if isinstance(factor, torch.Tensor):
        factor = factor.to(tensor.dtype)
    return tensor.detach().mul(factor).contiguous()
