"""Element types and memory of tensors.

Every operation takes addresses from here. A tensor whose memory is not its elements in their order is read
through a copy and written through a buffer that is copied back when the call is done. Elements of a type that
tbccl lacks are moved as elements of another type.

Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tbccl import _native
from tbccl._elements import DTYPES

from .devices import access_to

#: Element type of tbccl, by torch's, which has the same name.
TYPES: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)
}

#: Type of the real and imaginary parts of complex types that tbccl lacks. Sums of parts are complex sums.
PAIRS: dict[torch.dtype, int] = {torch.complex128: _native.FLOAT64, torch.complex32: _native.FLOAT16}


def transfer_signature(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the element type and count as which ``tensor`` is moved."""
    code = TYPES.get(tensor.dtype)
    if code is not None:
        return code, tensor.numel()
    code = PAIRS.get(tensor.dtype)
    if code is not None:
        return code, 2 * tensor.numel()
    return _native.UINT8, tensor.numel() * tensor.element_size()


def reduction_signature(tensor: torch.Tensor, is_additive: bool) -> tuple[int, int]:
    """Returns the element type and count as which ``tensor`` is reduced.

    Raises:
        TypeError: The elements cannot be reduced, or only by sums.
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
        raise TypeError(f"{tensor.dtype} can be summed and averaged only: use SUM or AVG")
    return code, 2 * tensor.numel()


def check_tensor(tensor: torch.Tensor) -> None:
    """Checks that tbccl can use the memory of ``tensor``.

    Raises:
        TypeError: It is no tensor.
        ValueError: It is on a device that tbccl cannot serve, or sparse.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_cpu and access_to(tensor.device) is None:
        raise ValueError(
            f"tbccl has no access to the memory of this tensor, which is on {tensor.device}: move it with "
            ".cpu(), or use a group of another backend for this device"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"this operation takes dense tensors, not {tensor.layout}: convert it with .to_dense()"
        )


def check_no_nan(tensor: torch.Tensor) -> None:
    """Checks that no element of ``tensor`` is NaN, for ``TORCH_DIST_NAN_CHECK=1``.

    Raises:
        ValueError: One is.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    values = tensor.detach()
    if tensor.element_size() == 1:
        values = values.float()
    if values.isnan().any():
        raise ValueError(
            f"a tensor of {tensor.numel()} {tensor.dtype} to communicate has NaN, which "
            "TORCH_DIST_NAN_CHECK=1 refuses"
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the memory of ``tensor`` is its elements in their order.

    Views made by ``conj`` have the memory of other elements: torch computes their own when it reads them.
    """
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor that is not plain."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def contiguous_input(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor with the elements of ``tensor``, to be read.

    Raises:
        TypeError, ValueError: As :func:`check_tensor`.
    """
    check_tensor(tensor)
    return tensor if is_plain(tensor) else _plain_copy(tensor)


def contiguous_output(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Returns a contiguous tensor to write in the place of ``tensor``, and a function that copies it back or
    None.

    Raises:
        TypeError, ValueError: As :func:`check_tensor`.
    """
    check_tensor(tensor)
    if is_plain(tensor):
        return tensor, None
    own, buffer = tensor.detach(), _plain_copy(tensor)
    return buffer, lambda: _copy(own, buffer)


def are_adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns whether the tensors lie one after the other in one storage without gaps.

    Addresses alone don't tell: memory of another storage may follow, which no view of the first one contains.
    """
    storage = tensors[0].untyped_storage()
    end = tensors[0].data_ptr()
    for tensor in tensors:
        # Tensors without elements may have no address.
        if tensor.numel() == 0 or tensor.data_ptr() != end or not is_plain(tensor):
            return False
        if tensor.untyped_storage().data_ptr() != storage.data_ptr():
            return False
        end += tensor.nbytes
    # Storages with one address may differ in length.
    return end <= storage.data_ptr() + storage.nbytes()


def flattened_input(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns one tensor with the elements of all ``tensors``, to be read: a view of adjacent tensors, or a
    copy.

    Raises:
        TypeError, ValueError: As :func:`check_tensor`.
    """
    for tensor in tensors:
        check_tensor(tensor)
    if are_adjacent(tensors):
        first = tensors[0]
        return torch.as_strided(first.detach(), (sum(t.numel() for t in tensors),), (1,))
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def flattened_output(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Returns one tensor to write in the place of ``tensors``, and a function that copies it back or None.

    Raises:
        TypeError, ValueError: As :func:`check_tensor`.
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
    """Returns whether two contiguous tensors share memory."""
    if one.numel() == 0 or other.numel() == 0:
        return False
    one_begin, other_begin = one.data_ptr(), other.data_ptr()
    return one_begin < other_begin + other.nbytes and other_begin < one_begin + one.nbytes


def check_same_dtype(one: torch.Tensor, other: torch.Tensor) -> None:
    """Checks that two tensors of a call have the same element type.

    Raises:
        TypeError: The types differ.
    """
    if one.dtype is not other.dtype:
        raise TypeError(
            f"the tensors of a call must have one type, but these are {one.dtype} and {other.dtype}"
        )


def _copy(own: torch.Tensor, buffer: torch.Tensor) -> None:
    with torch.no_grad():
        own.copy_(buffer)
