"""Calls on tensors, their split into pieces, and the host memory of pieces.

All ranks split a call alike, from its lengths and from whether the tensors of any rank are copied. Nothing
here communicates.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tbccl import _native

from .devices import Access, access_to

#: Bytes of host memory of a piece. All ranks must agree.
PIECE_BYTES = 4 << 20
#: Bytes of free host memory that a group keeps for later calls.
_KEPT_BYTES = 64 << 20
#: Elements to which pieces are rounded, so that they begin at aligned addresses.
_ALIGNMENT = 64
#: Collectives whose input and output are one buffer.
IN_PLACE = {_native.ALL_REDUCE, _native.ALL_REDUCE_QUANTIZED, _native.REDUCE, _native.BROADCAST}
#: Whether the input and the output have a block for each rank, by collective. Others are not split.
_MANY_BLOCKS = {
    _native.ALL_REDUCE: (False, False),
    _native.REDUCE: (False, False),
    _native.BROADCAST: (False, False),
    _native.ALL_GATHER: (False, True),
    _native.GATHER: (False, True),
    _native.REDUCE_SCATTER: (True, False),
    _native.SCATTER: (True, False),
    _native.ALL_TO_ALL: (True, True),
}


class Call(NamedTuple):
    """A collective on plain tensors."""

    collective: int
    dtype: int
    op: int
    #: Elements of a block, or the lengths of all blocks.
    count: Any
    send: torch.Tensor | None
    recv: torch.Tensor | None
    #: Root rank, or the codec.
    root: int = 0

    def by_address(self) -> tuple:
        """Returns the arguments of the communicator's ``submit``, for tensors in host memory."""
        send, recv = self.send, self.recv
        return (
            self.collective,
            self.dtype,
            self.op,
            self.count,
            0 if send is None else send.data_ptr(),
            0 if recv is None else recv.data_ptr(),
            self.root,
        )

    def reads(self, rank: int) -> bool:
        """Returns whether the call reads ``send`` on a rank."""
        return self.send is not None and (self.collective != _native.BROADCAST or self.root == rank)

    @property
    def device(self) -> torch.device | None:
        """Device of the tensors; None: host memory.

        Raises:
            ValueError: The tensors are on several devices.
        """
        devices = {tensor.device for tensor in (self.send, self.recv) if tensor is not None}
        if len(devices) > 1:
            raise ValueError(
                f"the tensors of a call must be on one device, but these are on "
                f"{' and '.join(sorted(map(str, devices)))}: move them to one"
            )
        device = next(iter(devices), None)
        return None if device is None or device.type == "cpu" else device


def split(call: Call, ranks: int, splits_all: bool) -> Iterator[Call]:
    """Yields the parts of a call in a group of ``ranks``: on blocks of bytes that are short enough, or the
    whole call.

    Memory that is used in place is split if ``splits_all``.
    """
    layout, count, device = _MANY_BLOCKS.get(call.collective), call.count, call.device
    if layout is None or device is None or not count:
        yield call
        return
    if access_to(device).is_in_place and not splits_all:
        yield call
        return
    blocks = [ranks if many else 1 for many in layout]
    tensor, blocks_of_it = (call.recv, blocks[1]) if call.send is None else (call.send, blocks[0])
    item = tensor.nbytes // (blocks_of_it * count)
    room = max(1, PIECE_BYTES // (item * max(blocks)))
    step = max(1, room // _ALIGNMENT) * _ALIGNMENT
    if count <= step:
        yield call
        return
    send, recv = (
        None if tensor is None else as_bytes(tensor).view(each, -1)
        for tensor, each in zip((call.send, call.recv), blocks)
    )
    for begin in range(0, count, step):
        end = min(begin + step, count)
        columns = slice(begin * item, end * item)
        yield call._replace(
            count=end - begin,
            send=None if send is None else send[:, columns],
            recv=None if recv is None else recv[:, columns],
        )


class HostBuffers:
    """Host memory for copies, kept for later pieces."""

    def __init__(self) -> None:
        self._free: deque[tuple[torch.Tensor, Access, Any]] = deque()
        self._lock = threading.Lock()

    def take(self, access: Access, count: int) -> torch.Tensor:
        """Returns a buffer of ``count`` bytes at least whose earlier copies are done."""
        with self._lock:
            for index, (buffer, owner, event) in enumerate(self._free):
                fits = owner is access and count <= buffer.numel() <= 4 * max(count, 4096)
                if fits and owner.is_done(event):
                    del self._free[index]
                    return buffer
        return access.host_bytes(1 << max(12, (count - 1).bit_length()))

    def give(self, buffer: torch.Tensor, access: Access, event: Any) -> None:
        """Takes a buffer back, which is in use until the event."""
        with self._lock:
            self._free.append((buffer, access, event))
            kept = sum(buffer.numel() for buffer, _, _ in self._free)
            while kept > _KEPT_BYTES and self._free[0][1].is_done(self._free[0][2]):
                kept -= self._free.popleft()[0].numel()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a plain tensor, in one dimension."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def host_bytes(part: Call) -> int:
    """Returns the bytes of host memory that a part needs."""
    if part.device is None:
        return 0
    sides = (part.send,) if part.collective in IN_PLACE else (part.send, part.recv)
    return sum(tensor.nbytes for tensor in sides if tensor is not None)
