"""How tensors lie in memory, and what tbccl calls their elements.

Every operation asks here for addresses. A tensor that does not lie in one piece is read from a copy, and written by way of
one that is copied back when the call is done. Elements that tbccl has no type for can still be moved: as so many of
another type.

Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tbccl import _native

#: What tbccl calls an element.
TYPES: dict[torch.dtype, int] = {
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.int8: _native.INT8,
    torch.int16: _native.INT16,
    torch.int32: _native.INT32,
    torch.int64: _native.INT64,
    torch.uint8: _native.UINT8,
    torch.uint16: _native.UINT16,
    torch.uint32: _native.UINT32,
    torch.uint64: _native.UINT64,
    torch.bool: _native.BOOL,
    torch.complex64: _native.COMPLEX64,
}

#: Complex numbers without a type of their own, as pairs. Sums of pairs are sums of complex numbers.
PAIRS: dict[torch.dtype, int] = {torch.complex128: _native.FLOAT64, torch.complex32: _native.FLOAT16}


def transfer_signature(tensor: torch.Tensor) -> tuple[int, int]:
    """The type and the number of elements that ``tensor`` is moved as."""
    code = TYPES.get(tensor.dtype)
    if code is not None:
        return code, tensor.numel()
    code = PAIRS.get(tensor.dtype)
    if code is not None:
        return code, 2 * tensor.numel()
    return _native.UINT8, tensor.numel() * tensor.element_size()


def reduction_signature(tensor: torch.Tensor, is_additive: bool) -> tuple[int, int]:
    """The type and the number of elements that ``tensor`` is reduced as.

    Raises TypeError where its elements cannot be combined.
    """
    code = TYPES.get(tensor.dtype)
    if code is not None:
        return code, tensor.numel()
    code = PAIRS.get(tensor.dtype)
    if code is None:
        raise TypeError(
            f"tbccl moves {tensor.dtype} but does not reduce it; convert it to a type that it reduces"
        )
    if not is_additive:
        raise TypeError(f"{tensor.dtype} can be summed and averaged, not reduced otherwise")
    return code, 2 * tensor.numel()


def check_tensor(tensor: torch.Tensor) -> None:
    """Raises where ``tensor`` has no memory that tbccl can use."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise ValueError(
            f"tbccl communicates tensors in the memory of processors, and this one is on {tensor.device}: move it there "
            "with .cpu(), or use a group of another backend for this device"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"this operation takes dense tensors, and this one is {tensor.layout}; .to_dense() makes one"
        )


def contiguous_input(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in one piece, to be read. Raises as :func:`check` does."""
    check_tensor(tensor)
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def contiguous_output(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """``tensor`` in one piece, to be read and written, and what is to be done once it has been written.

    Raises as :func:`check` does.
    """
    check_tensor(tensor)
    if tensor.is_contiguous():
        return tensor, None
    own = tensor.detach()
    buffer = own.contiguous()
    return buffer, lambda: _copy(own, buffer)


def are_adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Do they lie one right after the other, so that together they are in one piece?"""
    end = None
    for tensor in tensors:
        if not tensor.is_contiguous() or (end is not None and tensor.data_ptr() != end):
            return False
        end = tensor.data_ptr() + tensor.nbytes
    # Tensors without elements have no address.
    return all(tensor.numel() > 0 for tensor in tensors)


def flattened_input(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of ``tensors`` one after the other, to be read: where they lie, if they do, or a copy.

    Raises as :func:`check` does.
    """
    for tensor in tensors:
        check_tensor(tensor)
    if are_adjacent(tensors):
        first = tensors[0]
        return torch.as_strided(first.detach(), (sum(t.numel() for t in tensors),), (1,))
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def flattened_output(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Room for the elements of ``tensors`` one after the other, and what brings them where they belong once it is filled.

    Raises as :func:`check` does.
    """
    for tensor in tensors:
        check_tensor(tensor)
    total = sum(tensor.numel() for tensor in tensors)
    if are_adjacent(tensors):
        return torch.as_strided(tensors[0].detach(), (total,), (1,)), None
    views = [tensor.detach() for tensor in tensors]
    recv_buffer = views[0].new_empty(total)

    def copy_back() -> None:
        offset = 0
        for own in views:
            _copy(own, recv_buffer[offset : offset + own.numel()].view(own.shape))
            offset += own.numel()

    return recv_buffer, copy_back


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Do two tensors, each in one piece, share memory?"""
    if one.numel() == 0 or other.numel() == 0:
        return False
    one_begin, other_begin = one.data_ptr(), other.data_ptr()
    return one_begin < other_begin + other.nbytes and other_begin < one_begin + one.nbytes


def check_same_dtype(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raises TypeError where two tensors of a call differ in type."""
    if one.dtype is not other.dtype:
        raise TypeError(f"the tensors of a call have one type, and these are {one.dtype} and {other.dtype}")


def _copy(own: torch.Tensor, buffer: torch.Tensor) -> None:
    with torch.no_grad():
        own.copy_(buffer)
