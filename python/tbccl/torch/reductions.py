"""Translation of torch's reduction operations to those of tbccl.

A premultiplied sum becomes a sum of contributions that each rank multiplies by its own factor first.
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

#: Operation of tbccl by the number of torch's, which is also its hash; None for premultiplied sums.
OPS: list[int | None] = [
    _OPS_BY_NAME.get(_NAME_BY_NUMBER.get(number, "")) for number in range(max(_NAME_BY_NUMBER) + 1)
]


def is_additive(op: int) -> bool:
    """Returns whether ``op`` is linear, so that it applies to the real and imaginary parts of complex
    numbers.
    """
    return op in (_native.SUM, _native.AVG)


def resolve(op: dist.ReduceOp) -> tuple[int, float | torch.Tensor | None]:
    """Returns the operation of tbccl, and the factor for this rank's contribution or None.

    Raises:
        ValueError: tbccl lacks the operation.
    """
    number = hash(op)
    code = OPS[number] if 0 <= number < len(OPS) else None
    if code is not None:
        return code, None
    if _NAME_BY_NUMBER.get(number) == "PREMUL_SUM":
        return _native.SUM, op.__getstate__()[1]
    raise ValueError(f"tbccl has no reduction {op}: use one of {', '.join(_OPS_BY_NAME)} and PREMUL_SUM")


def scale(tensor: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """Returns the contribution of this rank to a premultiplied sum.

    Raises:
        TypeError: The tensor has neither floating-point nor complex elements.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"a premultiplied sum needs floating-point or complex elements, not {tensor.dtype}")
    if isinstance(factor, torch.Tensor):
        factor = factor.to(tensor.dtype)
    return tensor.detach().mul(factor).contiguous()
